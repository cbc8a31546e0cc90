// SPDX-License-Identifier: Apache-2.0
// The test server's files: see treed.h.
#include "unit/spacefs/treed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#define TEXT_MAX 65536

enum kind { K_FILE, K_COPY, K_XATTR_GET, K_XATTR_SET };

struct file {
    char path[PATH_MAX];
    enum kind kind;
    uint32_t uid;
    int where; /* O_PATH: the file keeps its place whatever its name becomes */
    int fd;
    bool nonblock, writes, stream, control;
    char *text; /* fixed at open, of a control file; or an xattr's value */
    size_t len, size;
    char xattr[256];
    int xattr_flags;
};

static const char *const attributes[][2] = {
    {"id", "id\n"},         {"origin", "none\n"}, {"owner", "root\n"}, {"created", "now\n"}, {"memory", "256M\n"},
    {"vcpus", "1\n"},       {"egress", ""},       {"keep", ""},        {"idle", "never\n"}, {"wake", "auto\n"},
    {"labels", ""},         {"stats", "cpu 1\n"}, {"error", ""},       {"state", "running\n"}, {"head", "sandbox/x@1\n"},
};

/* --- paths --- */

static bool is_under(const struct treed *d, const char *path, const char *tree)
{
    size_t n = strlen(d->dir), t = strlen(tree);
    return !strncmp(path, d->dir, n) && path[n] == '/' && !strncmp(path + n + 1, tree, t) && path[n + 1 + t] == '/';
}

/* Components below DIR. */
static int depth_of(const struct treed *d, const char *path)
{
    int depth = 0;
    for (const char *p = path + strlen(d->dir); *p; p++)
        depth += *p == '/';
    return depth;
}

static bool is_guest(const struct treed *d, const char *path)
{
    return is_under(d, path, "root") && depth_of(d, path) > 2;
}

static const char *base_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

static bool is_object(const struct treed *d, const char *path)
{
    int depth = depth_of(d, path);
    return depth == 2 || (depth == 3 && is_under(d, path, "snapshots"));
}

static bool is_stream(const char *name)
{
    return !strcmp(name, "stdout") || !strcmp(name, "events");
}

/* The child of `dir` whose id (inode) is that of a hidden name. */
static int find_id(const char *dir, const char *name, char *out)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char id[16];
    int rc = -ENOENT;
    while (d && (e = readdir(d))) {
        snprintf(id, sizeof id, "#%012llx", (unsigned long long)e->d_ino);
        if (!strcmp(id, name)) {
            snprintf(out, NAME_MAX + 1, "%s", e->d_name);
            rc = 0;
        }
    }
    if (d)
        closedir(d);
    return rc;
}

static int step(const struct treed *d, struct file *f, const struct p9_str *s, struct stat *st)
{
    char name[NAME_MAX + 1], path[PATH_MAX + NAME_MAX + 2];
    snprintf(name, sizeof name, "%.*s", (int)s->len, s->s);
    if (!strcmp(name, "#copy")) {
        f->kind = K_COPY;
        return lstat(f->path, st) < 0 ? -errno : 0;
    }
    if (name[0] == '#' && !is_guest(d, f->path) && find_id(f->path, name, name) < 0)
        return -ENOENT;
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    if (strlen(path) >= PATH_MAX)
        return -ENAMETOOLONG;
    strcpy(f->path, path);
    return lstat(path, st) < 0 ? -errno : 0;
}

static struct p9_qid qid_of(const struct stat *st)
{
    return (struct p9_qid){.type = S_ISDIR(st->st_mode)   ? P9_QTDIR
                                   : S_ISLNK(st->st_mode) ? P9_QTSYMLINK
                                                          : P9_QTFILE,
                           .path = st->st_ino};
}

static struct treed *treed_of(struct p9_request *r)
{
    return r->user;
}

static void find_path(struct file *f)
{
    static const char deleted[] = " (deleted)";
    char self[64], path[PATH_MAX];
    snprintf(self, sizeof self, "/proc/self/fd/%d", f->where);
    ssize_t n = readlink(self, path, sizeof path - 1);
    size_t tail = sizeof deleted - 1;
    if (n <= 0 || ((size_t)n > tail && !memcmp(path + (size_t)n - tail, deleted, tail)))
        return;
    path[n] = '\0';
    strcpy(f->path, path);
}

static void hold_place(struct file *f)
{
    if (f->where >= 0)
        close(f->where);
    f->where = open(f->path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

static struct file *file_of(struct p9_request *r)
{
    find_path(r->fid->aux);
    return r->fid->aux;
}

static void child_path(struct p9_request *r, const struct p9_fid *dir, const struct p9_str *name, char *out)
{
    (void)r;
    find_path(dir->aux);
    snprintf(out, PATH_MAX, "%.3800s/%.*s", ((struct file *)dir->aux)->path, (int)name->len, name->s);
}

/* --- waiting --- */

static void on_read(struct p9_request *r);
static void on_write(struct p9_request *r);

static void stop_waiting(struct treed *d, struct p9_request *r)
{
    for (struct waiting **p = &d->waiting; *p; p = &(*p)->next)
        if ((*p)->r == r) {
            struct waiting *w = *p;
            *p = w->next;
            free(w);
            return;
        }
}

static void on_cancel(struct p9_request *r)
{
    stop_waiting(treed_of(r), r);
    p9_fail(r, EINTR);
}

static void wait_for_change(struct p9_request *r)
{
    struct treed *d = treed_of(r);
    struct waiting *w = malloc(sizeof *w);
    *w = (struct waiting){.next = d->waiting, .r = r};
    d->waiting = w;
    r->cancel = on_cancel;
}

static void changed(struct treed *d, bool release)
{
    struct waiting *all = d->waiting;
    d->waiting = NULL;
    while (all) {
        struct waiting *w = all;
        all = w->next;
        if (w->r->t->type == P9_Tread)
            on_read(w->r);
        else if (!release)
            wait_for_change(w->r);
        else
            p9_reply(w->r, &(struct p9_msg){.Rwrite.count = w->r->t->Twrite.data.len}); /* a hanging write was released */
        free(w);
    }
}

static void event(struct treed *d, const char *object, bool release)
{
    char path[PATH_MAX + 8];
    struct stat st;
    snprintf(path, sizeof path, "%s/events", d->dir);
    FILE *f = fopen(path, "a");
    if (f && stat(object, &st) == 0)
        fprintf(f, "{\"seq\":1,\"kind\":\"state\",\"id\":\"%012llx\"}\n", (unsigned long long)st.st_ino);
    if (f)
        fclose(f);
    changed(d, release);
}

/* --- fids --- */

static struct file *file_copy(const struct file *from)
{
    struct file *f = calloc(1, sizeof *f);
    strcpy(f->path, from->path);
    f->uid = from->uid;
    f->where = f->fd = -1;
    hold_place(f);
    return f;
}

static void uncommitted(struct treed *d, struct file *f)
{
    char command[PATH_MAX + 16];
    for (struct copying **p = &d->copies; *p; p = &(*p)->next)
        if (!strcmp((*p)->path, f->path)) {
            struct copying *c = *p;
            *p = c->next;
            snprintf(command, sizeof command, "rm -rf '%s'", f->path);
            if (!c->committed && system(command) != 0)
                perror("rm");
            free(c);
            return;
        }
}

static void fid_free(void *user, struct p9_fid *fid)
{
    struct file *f = fid->aux;
    if (f->kind == K_COPY && f->writes)
        uncommitted(user, f);
    if (f->fd >= 0)
        close(f->fd);
    close(f->where);
    free(f->text);
    free(f);
}

static void on_attach(struct p9_request *r)
{
    struct file *f = calloc(1, sizeof *f);
    struct stat st;
    strcpy(f->path, treed_of(r)->dir);
    f->uid = r->t->Tattach.n_uname;
    f->where = f->fd = -1;
    hold_place(f);
    stat(f->path, &st);
    r->fid->aux = f;
    p9_reply(r, &(struct p9_msg){.Rattach.qid = qid_of(&st)});
}

static void on_walk(struct p9_request *r)
{
    const struct p9_names *names = &r->t->Twalk.names;
    struct file *f = file_copy(file_of(r));
    struct p9_msg m = {0};
    struct stat st;
    int rc = 0;
    for (uint16_t i = 0; i < names->n && rc == 0; i++) {
        rc = step(treed_of(r), f, &names->v[i], &st);
        if (rc == 0)
            m.Rwalk.qids.v[m.Rwalk.qids.n++] = qid_of(&st);
    }
    hold_place(f);
    if (rc < 0) {
        close(f->where);
        free(f);
        if (m.Rwalk.qids.n)
            p9_reply(r, &m);
        else
            p9_fail(r, -rc);
        return;
    }
    if (r->newfid == r->fid)
        fid_free(treed_of(r), r->fid);
    r->newfid->aux = f;
    p9_reply(r, &m);
}

/* --- attributes --- */

static void on_getattr(struct p9_request *r)
{
    const struct treed *d = treed_of(r);
    const struct file *f = file_of(r);
    struct stat st;
    if ((f->fd >= 0 ? fstat(f->fd, &st) : lstat(f->path, &st)) < 0) {
        p9_fail(r, errno);
        return;
    }
    struct p9_msg m = {0};
    m.Rgetattr = (struct p9_Rgetattr){
        .valid = P9_GETATTR_BASIC, .qid = qid_of(&st), .mode = st.st_mode, .uid = st.st_uid, .gid = st.st_gid,
        .nlink = st.st_nlink, .rdev = st.st_rdev, .size = (uint64_t)st.st_size, .blksize = 4096,
        .blocks = (uint64_t)st.st_blocks, .atime_sec = (uint64_t)st.st_atim.tv_sec,
        .atime_nsec = (uint64_t)st.st_atim.tv_nsec, .mtime_sec = (uint64_t)st.st_mtim.tv_sec,
        .mtime_nsec = (uint64_t)st.st_mtim.tv_nsec, .ctime_sec = (uint64_t)st.st_ctim.tv_sec,
        .ctime_nsec = (uint64_t)st.st_ctim.tv_nsec};
    if (!is_guest(d, f->path) && S_ISREG(st.st_mode))
        m.Rgetattr.size = is_stream(base_of(f->path)) ? 0 : f->text ? f->len : m.Rgetattr.size;
    if (is_object(d, f->path))
        m.Rgetattr.gen = st.st_ino;
    p9_reply(r, &m);
}

static void set_times(const struct p9_Tsetattr *s, struct timespec t[2])
{
    t[0].tv_nsec = !(s->valid & P9_SETATTR_ATIME) ? UTIME_OMIT : UTIME_NOW;
    t[1].tv_nsec = !(s->valid & P9_SETATTR_MTIME) ? UTIME_OMIT : UTIME_NOW;
    if (s->valid & P9_SETATTR_ATIME_SET)
        t[0] = (struct timespec){(time_t)s->atime_sec, (long)s->atime_nsec};
    if (s->valid & P9_SETATTR_MTIME_SET)
        t[1] = (struct timespec){(time_t)s->mtime_sec, (long)s->mtime_nsec};
}

static void on_setattr(struct p9_request *r)
{
    const struct p9_Tsetattr *s = &r->t->Tsetattr;
    const struct file *f = file_of(r);
    struct timespec t[2];
    int rc = 0;
    if (!is_guest(treed_of(r), f->path)) {
        p9_reply(r, &(struct p9_msg){0});
        return;
    }
    char fdpath[64];
    snprintf(fdpath, sizeof fdpath, "/proc/self/fd/%d", f->fd);
    const char *path = f->fd >= 0 ? fdpath : f->path;
    int link = f->fd >= 0 ? 0 : AT_SYMLINK_NOFOLLOW;
    set_times(s, t);
    if (rc == 0 && s->valid & (P9_SETATTR_UID | P9_SETATTR_GID))
        rc = fchownat(AT_FDCWD, path, s->valid & P9_SETATTR_UID ? s->uid : (uid_t)-1, s->valid & P9_SETATTR_GID ? s->gid : (gid_t)-1, link);
    if (rc == 0 && s->valid & P9_SETATTR_MODE)
        rc = chmod(path, s->mode);
    if (rc == 0 && s->valid & P9_SETATTR_SIZE)
        rc = f->fd >= 0 ? ftruncate(f->fd, (off_t)s->size) : truncate(path, (off_t)s->size);
    if (rc == 0 && s->valid & (P9_SETATTR_ATIME | P9_SETATTR_MTIME))
        rc = utimensat(AT_FDCWD, path, t, link);
    if (rc < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &(struct p9_msg){0});
}

static void on_statfs(struct p9_request *r)
{
    struct statvfs v;
    struct p9_msg m = {0};
    statvfs(file_of(r)->path, &v);
    m.Rstatfs = (struct p9_Rstatfs){.bsize = (uint32_t)v.f_bsize, .blocks = v.f_blocks, .bfree = v.f_bfree,
                                    .bavail = v.f_bavail, .files = v.f_files, .ffree = v.f_ffree, .namelen = 255};
    p9_reply(r, &m);
}

static void on_readlink(struct p9_request *r)
{
    char target[PATH_MAX];
    ssize_t n = readlink(file_of(r)->path, target, sizeof target);
    if (n < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &(struct p9_msg){.Rreadlink.target = {target, (uint16_t)n}});
}

/* --- opening --- */

static int host_flags(uint32_t p9)
{
    int f = (int)(p9 & P9_ACCMODE) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    f |= p9 & P9_TRUNC ? O_TRUNC : 0;
    f |= p9 & P9_APPEND ? O_APPEND : 0;
    f |= p9 & P9_EXCL ? O_EXCL : 0;
    return f | (p9 & P9_DIRECTORY ? O_DIRECTORY : 0);
}

static int read_text(struct file *f)
{
    struct stat st;
    if (fstat(f->fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > TEXT_MAX || !(f->text = malloc((size_t)st.st_size + 1)))
        return 0;
    ssize_t n = pread(f->fd, f->text, (size_t)st.st_size, 0);
    f->len = n < 0 ? 0 : (size_t)n;
    return 0;
}

static int open_copy(struct treed *d, struct file *f, uint32_t flags)
{
    char touched[PATH_MAX + 16];
    snprintf(touched, sizeof touched, "%s/.touched", f->path);
    if ((flags & P9_ACCMODE) != P9_WRONLY)
        return -EACCES;
    if (access(touched, F_OK) == 0)
        return -EBUSY;
    struct copying *c = calloc(1, sizeof *c);
    strcpy(c->path, f->path);
    c->next = d->copies;
    d->copies = c;
    f->writes = true;
    return 0;
}

static int open_file(struct treed *d, struct file *f, uint32_t flags)
{
    if (f->kind == K_COPY)
        return open_copy(d, f, flags);
    f->control = !is_guest(d, f->path);
    f->nonblock = flags & P9_NONBLOCK;
    f->writes = (flags & P9_ACCMODE) != P9_RDONLY;
    if (f->control)
        flags &= ~(uint32_t)P9_TRUNC;
    f->fd = open(f->path, host_flags(flags));
    if (f->fd < 0)
        return -errno;
    f->stream = f->control && is_stream(base_of(f->path));
    return f->control && !f->stream && !f->writes && strcmp(base_of(f->path), "mute") ? read_text(f) : 0;
}

static void on_lopen(struct p9_request *r)
{
    struct file *f = file_of(r);
    struct stat st;
    int rc = open_file(treed_of(r), f, r->t->Tlopen.flags);
    if (rc < 0) {
        p9_fail(r, -rc);
        return;
    }
    lstat(f->path, &st);
    p9_reply(r, &(struct p9_msg){.Rlopen.qid = qid_of(&st)});
}

static void on_lcreate(struct p9_request *r)
{
    struct file *f = file_of(r);
    struct stat st;
    char path[PATH_MAX];
    child_path(r, r->fid, &r->t->Tlcreate.name, path);
    if (!is_guest(treed_of(r), path)) {
        p9_fail(r, access(path, F_OK) == 0 ? EEXIST : EPERM);
        return;
    }
    f->fd = open(path, host_flags(r->t->Tlcreate.flags) | O_CREAT, r->t->Tlcreate.mode);
    if (f->fd < 0) {
        p9_fail(r, errno);
        return;
    }
    strcpy(f->path, path);
    hold_place(f);
    fstat(f->fd, &st);
    p9_reply(r, &(struct p9_msg){.Rlcreate.qid = qid_of(&st)});
}

/* --- reading and writing --- */

static void reply_bytes(struct p9_request *r, const void *p, size_t len)
{
    p9_reply(r, &(struct p9_msg){.Rread.data = {p, (uint32_t)len}});
}

static bool has_ended(const char *stream)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/ended", (int)(base_of(stream) - stream - 1), stream);
    return access(path, F_OK) == 0;
}

static void on_read(struct p9_request *r)
{
    const struct p9_Tread *t = &r->t->Tread;
    struct file *f = file_of(r);
    if (f->text) {
        uint64_t at = t->offset < f->len ? t->offset : f->len;
        uint64_t n = f->len - at < t->count ? f->len - at : t->count;
        reply_bytes(r, f->text + at, (size_t)n);
        return;
    }
    char *buf = malloc(t->count + 1u);
    ssize_t n = strcmp(base_of(f->path), "mute") ? pread(f->fd, buf, t->count, (off_t)t->offset) : 0;
    if (n < 0)
        p9_fail(r, errno);
    else if (n == 0 && f->nonblock && f->stream)
        p9_fail(r, EAGAIN);
    else if (n == 0 && ((f->stream && !has_ended(f->path)) || !strcmp(base_of(f->path), "mute")))
        wait_for_change(r);
    else
        reply_bytes(r, buf, (size_t)n);
    free(buf);
}

static void commit(struct p9_request *r, const struct file *f)
{
    char path[PATH_MAX + 8], text[256] = "";
    snprintf(path, sizeof path, "%s/head", f->path);
    FILE *head = fopen(path, "r");
    bool got = head && fgets(text, sizeof text, head);
    if (head)
        fclose(head);
    if (!got || strstr(text, "stale")) {
        p9_fail(r, ESTALE);
        return;
    }
    for (struct copying *c = treed_of(r)->copies; c; c = c->next)
        if (!strcmp(c->path, f->path))
            c->committed = true;
    snprintf(path, sizeof path, "%s/state", f->path);
    FILE *state = fopen(path, "w");
    fputs("running\n", state);
    fclose(state);
    event(treed_of(r), f->path, false);
    p9_reply(r, &(struct p9_msg){.Rwrite.count = r->t->Twrite.data.len});
}

static void write_state(struct p9_request *r, struct file *f)
{
    const struct p9_data *data = &r->t->Twrite.data;
    char object[PATH_MAX];
    snprintf(object, sizeof object, "%.*s", (int)(base_of(f->path) - f->path - 1), f->path);
    if (data->len >= 4 && !memcmp(data->p, "hang", 4) && !f->nonblock) {
        wait_for_change(r);
        return;
    }
    int fd = open(f->path, O_WRONLY | O_TRUNC);
    ssize_t n = write(fd, data->p, data->len);
    close(fd);
    event(treed_of(r), object, data->len >= 7 && !memcmp(data->p, "release", 7));
    p9_reply(r, &(struct p9_msg){.Rwrite.count = n < 0 ? 0 : (uint32_t)n});
}

static void set_value(struct file *f, const struct p9_Twrite *t)
{
    if (t->offset > f->size || t->data.len > f->size - t->offset)
        return;
    memcpy(f->text + t->offset, t->data.p, t->data.len);
    f->len = t->offset + t->data.len;
}

static void on_write(struct p9_request *r)
{
    const struct p9_Twrite *t = &r->t->Twrite;
    struct file *f = file_of(r);
    if (f->kind == K_COPY) {
        commit(r, f);
    } else if (f->kind == K_XATTR_SET) {
        set_value(f, t);
        p9_reply(r, &(struct p9_msg){.Rwrite.count = t->data.len});
    } else if (f->control && !strcmp(base_of(f->path), "state")) {
        write_state(r, f);
    } else if (f->control && t->data.len > 65536) {
        p9_fail(r, EMSGSIZE);
    } else {
        if (f->control && ftruncate(f->fd, 0) < 0)
            perror("ftruncate");
        ssize_t n = pwrite(f->fd, t->data.p, t->data.len, f->control ? 0 : (off_t)t->offset);
        if (n < 0)
            p9_fail(r, errno);
        else
            p9_reply(r, &(struct p9_msg){.Rwrite.count = (uint32_t)n});
        changed(treed_of(r), false);
    }
}

static void on_fsync(struct p9_request *r)
{
    p9_reply(r, &(struct p9_msg){0});
}

static int by_ino(const struct dirent **a, const struct dirent **b)
{
    return (*a)->d_ino < (*b)->d_ino ? -1 : (*a)->d_ino > (*b)->d_ino;
}

/* Attributes come in the order of their qid paths, as from space-hostd. */
static void read_attributes(struct p9_request *r)
{
    const struct p9_Treaddir *t = &r->t->Treaddir;
    struct dirent **list;
    int n = scandir(file_of(r)->path, &list, NULL, by_ino);
    char *buf = malloc(t->count);
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        struct p9_dirent out = {.qid = {.path = list[i]->d_ino}, .offset = (uint64_t)i + 1, .type = list[i]->d_type,
                                .name = p9_str_of(list[i]->d_name)};
        if ((uint64_t)i >= t->offset && p9_dirent_pack(buf, t->count, &used, &out) < 0)
            break;
    }
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
    p9_reply(r, &(struct p9_msg){.Rreaddir.data = {buf, (uint32_t)used}});
    free(buf);
}

/* Offsets are positions in the host's directory order, which is stable while nothing changes. */
static void on_readdir(struct p9_request *r)
{
    const struct p9_Treaddir *t = &r->t->Treaddir;
    if (!is_guest(treed_of(r), file_of(r)->path)) {
        read_attributes(r);
        return;
    }
    DIR *d = fdopendir(openat(file_of(r)->fd, ".", O_RDONLY | O_DIRECTORY));
    char *buf = malloc(t->count);
    size_t used = 0;
    struct dirent *e;
    if (t->offset)
        seekdir(d, (long)t->offset);
    while ((e = readdir(d))) {
        struct p9_dirent out = {.qid = {.path = e->d_ino}, .offset = (uint64_t)telldir(d), .type = e->d_type,
                                .name = p9_str_of(e->d_name)};
        if (p9_dirent_pack(buf, t->count, &used, &out) < 0)
            break;
    }
    closedir(d);
    p9_reply(r, &(struct p9_msg){.Rreaddir.data = {buf, (uint32_t)used}});
    free(buf);
}

/* --- names --- */

static void answer(struct p9_request *r, int rc, const char *path)
{
    struct stat st = {0};
    if (rc < 0) {
        p9_fail(r, errno);
        return;
    }
    if (path)
        lstat(path, &st);
    p9_reply(r, &(struct p9_msg){.Rmkdir.qid = qid_of(&st)}); /* Rsymlink and Rmknod look the same */
}

static void fill_object(const struct treed *d, const char *path)
{
    char name[PATH_MAX + 32], guest[PATH_MAX + 32];
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        snprintf(name, sizeof name, "%s/%s", path, attributes[i][0]);
        FILE *f = fopen(name, "w");
        fputs(attributes[i][1], f);
        fclose(f);
    }
    snprintf(guest, sizeof guest, "%s/root/%s", d->dir, base_of(path));
    mkdir(guest, 0755);
}

static void on_mkdir(struct p9_request *r)
{
    char path[PATH_MAX];
    child_path(r, r->fid, &r->t->Tmkdir.name, path);
    int rc = mkdir(path, r->t->Tmkdir.mode);
    if (rc == 0 && is_under(treed_of(r), path, "sandboxes"))
        fill_object(treed_of(r), path);
    answer(r, rc, path);
}

static void on_unlinkat(struct p9_request *r)
{
    char path[PATH_MAX], command[PATH_MAX + 16];
    int rc;
    child_path(r, r->fid, &r->t->Tunlinkat.name, path);
    bool guest = is_guest(treed_of(r), path);
    if (!guest && r->t->Tunlinkat.flags) {
        snprintf(command, sizeof command, "rm -rf '%s'", path);
        rc = system(command) ? -1 : 0;
    } else if (!guest) {
        errno = EPERM;
        rc = -1;
    } else {
        rc = unlinkat(AT_FDCWD, path, r->t->Tunlinkat.flags ? AT_REMOVEDIR : 0);
    }
    answer(r, rc, NULL);
}

static void on_renameat(struct p9_request *r)
{
    char from[PATH_MAX], to[PATH_MAX];
    child_path(r, r->fid, &r->t->Trenameat.oldname, from);
    child_path(r, r->dirfid, &r->t->Trenameat.newname, to);
    if (!is_guest(treed_of(r), to) && access(to, F_OK) == 0) {
        p9_fail(r, EEXIST);
        return;
    }
    answer(r, rename(from, to), NULL);
}

static void on_symlink(struct p9_request *r)
{
    char path[PATH_MAX], target[PATH_MAX];
    child_path(r, r->fid, &r->t->Tsymlink.name, path);
    snprintf(target, sizeof target, "%.*s", (int)r->t->Tsymlink.target.len, r->t->Tsymlink.target.s);
    answer(r, symlink(target, path), path);
}

static void on_mknod(struct p9_request *r)
{
    const struct p9_Tmknod *t = &r->t->Tmknod;
    char path[PATH_MAX];
    child_path(r, r->fid, &t->name, path);
    answer(r, mknod(path, t->mode, makedev(t->major, t->minor)), path);
}

static void on_link(struct p9_request *r)
{
    char path[PATH_MAX];
    child_path(r, r->dirfid, &r->t->Tlink.name, path);
    answer(r, link(file_of(r)->path, path), NULL);
}

/* --- extended attributes, locks --- */

static void on_xattrwalk(struct p9_request *r)
{
    const struct p9_str *name = &r->t->Txattrwalk.name;
    struct file *f = file_copy(file_of(r));
    snprintf(f->xattr, sizeof f->xattr, "%.*s", (int)name->len, name->s);
    f->kind = K_XATTR_GET;
    f->text = malloc(65536);
    ssize_t n = name->len ? lgetxattr(f->path, f->xattr, f->text, 65536) : llistxattr(f->path, f->text, 65536);
    if (n < 0) {
        p9_fail(r, errno);
        close(f->where);
        free(f->text);
        free(f);
        return;
    }
    f->len = (size_t)n;
    r->newfid->aux = f;
    p9_reply(r, &(struct p9_msg){.Rxattrwalk.size = f->len});
}

static void on_xattrcreate(struct p9_request *r)
{
    const struct p9_Txattrcreate *t = &r->t->Txattrcreate;
    struct file *f = file_of(r);
    if (t->size > 65536) {
        p9_fail(r, E2BIG);
        return;
    }
    snprintf(f->xattr, sizeof f->xattr, "%.*s", (int)t->name.len, t->name.s);
    f->kind = K_XATTR_SET;
    f->xattr_flags = (int)t->flags;
    f->size = t->size;
    f->text = malloc(t->size + 1);
    p9_reply(r, &(struct p9_msg){0});
}

static void on_clunk(struct p9_request *r)
{
    const struct file *f = file_of(r);
    int rc = 0;
    if (f->kind == K_XATTR_SET && !f->size && f->xattr_flags == XATTR_REPLACE)
        rc = lremovexattr(f->path, f->xattr);
    else if (f->kind == K_XATTR_SET)
        rc = lsetxattr(f->path, f->xattr, f->text, f->size, f->xattr_flags);
    answer(r, rc, NULL);
}

static void fill_flock(uint8_t type, uint64_t start, uint64_t length, struct flock *out)
{
    *out = (struct flock){.l_type = type == P9_LOCK_RDLCK ? F_RDLCK : type == P9_LOCK_WRLCK ? F_WRLCK : F_UNLCK,
                          .l_start = (off_t)start,
                          .l_len = (off_t)length};
}

static void on_lock(struct p9_request *r)
{
    const struct p9_Tlock *t = &r->t->Tlock;
    struct flock l;
    fill_flock(t->type, t->start, t->length, &l);
    int rc = fcntl(file_of(r)->fd, F_OFD_SETLK, &l);
    if (rc < 0 && errno != EAGAIN)
        p9_fail(r, errno);
    else
        p9_reply(r, &(struct p9_msg){.Rlock.status = (uint8_t)(rc < 0) /* P9_LOCK_BLOCKED */});
}

static void on_getlock(struct p9_request *r)
{
    const struct p9_Tgetlock *t = &r->t->Tgetlock;
    struct flock l;
    fill_flock(t->type, t->start, t->length, &l);
    if (fcntl(file_of(r)->fd, F_OFD_GETLK, &l) < 0) {
        p9_fail(r, errno);
        return;
    }
    uint8_t type = l.l_type == F_UNLCK ? P9_LOCK_UNLCK : (uint8_t)(l.l_type == F_WRLCK);
    p9_reply(r, &(struct p9_msg){.Rgetlock = {.type = type, .start = (uint64_t)l.l_start, .length = (uint64_t)l.l_len,
                                              .client_id = t->client_id}});
}

const struct p9_backend treed_backend = {
    .on = {[P9_Tattach] = on_attach,
           [P9_Twalk] = on_walk,
           [P9_Tgetattr] = on_getattr,
           [P9_Tsetattr] = on_setattr,
           [P9_Tstatfs] = on_statfs,
           [P9_Treadlink] = on_readlink,
           [P9_Tlopen] = on_lopen,
           [P9_Tlcreate] = on_lcreate,
           [P9_Tread] = on_read,
           [P9_Twrite] = on_write,
           [P9_Tfsync] = on_fsync,
           [P9_Treaddir] = on_readdir,
           [P9_Tmkdir] = on_mkdir,
           [P9_Tunlinkat] = on_unlinkat,
           [P9_Trenameat] = on_renameat,
           [P9_Tsymlink] = on_symlink,
           [P9_Tmknod] = on_mknod,
           [P9_Tlink] = on_link,
           [P9_Txattrwalk] = on_xattrwalk,
           [P9_Txattrcreate] = on_xattrcreate,
           [P9_Tclunk] = on_clunk,
           [P9_Tlock] = on_lock,
           [P9_Tgetlock] = on_getlock},
    .fid_free = fid_free,
};
