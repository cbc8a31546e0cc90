// SPDX-License-Identifier: Apache-2.0
// The test server: where files are, who waits, fids, and the table of handlers. See treed.h.
#include "unit/spacefs/treed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- paths --- */

bool treed_is_under(const struct treed *d, const char *path, const char *tree)
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

bool treed_is_guest(const struct treed *d, const char *path)
{
    return treed_is_under(d, path, "root") && depth_of(d, path) > 2;
}

const char *treed_base_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

bool treed_is_object(const struct treed *d, const char *path)
{
    int depth = depth_of(d, path);
    return depth == 2 || (depth == 3 && treed_is_under(d, path, "snapshots"));
}

bool treed_is_stream(const char *name)
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
    if (name[0] == '#' && !treed_is_guest(d, f->path) && find_id(f->path, name, name) < 0)
        return -ENOENT;
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    if (strlen(path) >= PATH_MAX)
        return -ENAMETOOLONG;
    strcpy(f->path, path);
    return lstat(path, st) < 0 ? -errno : 0;
}

int treed_attribute(const char *name)
{
    static const char *const names[] = {"id",   "kind", "origin", "owner", "created", "state", "memory",   "vcpus", "egress",
                                        "keep", "idle", "labels", "wake",  "stats",   "error", "disk.raw", "head"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name))
            return (int)i;
    return -1;
}

static uint64_t qid_path(const struct treed *d, const char *path, const struct stat *st)
{
    char dir[PATH_MAX];
    struct stat parent;
    int n = S_ISREG(st->st_mode) && !treed_is_guest(d, path) ? treed_attribute(treed_base_of(path)) : -1;
    snprintf(dir, sizeof dir, "%.*s", (int)(treed_base_of(path) - path), path);
    return n >= 0 && lstat(dir, &parent) == 0 ? 1ull << 62 | parent.st_ino << 8 | (unsigned)n : st->st_ino;
}

struct p9_qid treed_qid_of(const struct treed *d, const char *path, const struct stat *st)
{
    return (struct p9_qid){.type = S_ISDIR(st->st_mode) ? P9_QTDIR : S_ISLNK(st->st_mode) ? P9_QTSYMLINK : P9_QTFILE, .path = qid_path(d, path, st)};
}

struct treed *treed_of(struct p9_request *r)
{
    return r->user;
}

void treed_find_path(struct file *f)
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

void treed_hold_place(struct file *f)
{
    if (f->where >= 0)
        close(f->where);
    f->where = open(f->path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

struct file *treed_file_of(struct p9_request *r)
{
    treed_find_path(r->fid->aux);
    return r->fid->aux;
}

void treed_child_path(struct p9_request *r, const struct p9_fid *dir, const struct p9_str *name, char *out)
{
    (void)r;
    treed_find_path(dir->aux);
    snprintf(out, PATH_MAX, "%.3800s/%.*s", ((struct file *)dir->aux)->path, (int)name->len, name->s);
}

/* --- waiting --- */

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

void treed_on_cancel(struct p9_request *r)
{
    stop_waiting(treed_of(r), r);
    p9_fail(r, EINTR);
}

void treed_wait_for_change(struct p9_request *r)
{
    struct treed *d = treed_of(r);
    struct waiting *w = malloc(sizeof *w);
    *w = (struct waiting){.next = d->waiting, .r = r};
    d->waiting = w;
    r->cancel = treed_on_cancel;
}

void treed_changed(struct treed *d, bool release)
{
    struct waiting *all = d->waiting;
    d->waiting = NULL;
    while (all) {
        struct waiting *w = all;
        all = w->next;
        if (w->r->t->type == P9_Tread)
            treed_on_read(w->r);
        else if (!release)
            treed_wait_for_change(w->r);
        else
            p9_reply(w->r, &(struct p9_msg){.Rwrite.count = w->r->t->Twrite.data.len}); /* a hanging write was released */
        free(w);
    }
}

void treed_event(struct treed *d, const char *object, bool release)
{
    char path[PATH_MAX + 8];
    struct stat st;
    snprintf(path, sizeof path, "%s/events", d->dir);
    FILE *f = fopen(path, "a");
    if (f && stat(object, &st) == 0)
        fprintf(f, "{\"seq\":1,\"kind\":\"state\",\"id\":\"%012llx\"}\n", (unsigned long long)st.st_ino);
    if (f)
        fclose(f);
    treed_changed(d, release);
}

/* --- fids --- */

struct file *treed_file_copy(const struct file *from)
{
    struct file *f = calloc(1, sizeof *f);
    strcpy(f->path, from->path);
    f->uid = from->uid;
    f->where = f->fd = -1;
    treed_hold_place(f);
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

void treed_on_attach(struct p9_request *r)
{
    struct file *f = calloc(1, sizeof *f);
    struct stat st;
    strcpy(f->path, treed_of(r)->dir);
    f->uid = r->t->Tattach.n_uname;
    f->where = f->fd = -1;
    treed_hold_place(f);
    stat(f->path, &st);
    r->fid->aux = f;
    p9_reply(r, &(struct p9_msg){.Rattach.qid = treed_qid_of(treed_of(r), f->path, &st)});
}

void treed_on_walk(struct p9_request *r)
{
    const struct p9_names *names = &r->t->Twalk.names;
    struct file *f = treed_file_copy(treed_file_of(r));
    struct p9_msg m = {0};
    struct stat st;
    int rc = 0;
    for (uint16_t i = 0; i < names->n && rc == 0; i++) {
        rc = step(treed_of(r), f, &names->v[i], &st);
        if (rc == 0)
            m.Rwalk.qids.v[m.Rwalk.qids.n++] = treed_qid_of(treed_of(r), f->path, &st);
    }
    treed_hold_place(f);
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

const struct p9_backend treed_backend = {
    .on = {[P9_Tattach] = treed_on_attach,       [P9_Twalk] = treed_on_walk,
           [P9_Tgetattr] = treed_on_getattr,     [P9_Tsetattr] = treed_on_setattr,
           [P9_Tstatfs] = treed_on_statfs,       [P9_Treadlink] = treed_on_readlink,
           [P9_Tlopen] = treed_on_lopen,         [P9_Tlcreate] = treed_on_lcreate,
           [P9_Tread] = treed_on_read,           [P9_Twrite] = treed_on_write,
           [P9_Tfsync] = treed_on_fsync,         [P9_Treaddir] = treed_on_readdir,
           [P9_Tmkdir] = treed_on_mkdir,         [P9_Tunlinkat] = treed_on_unlinkat,
           [P9_Trenameat] = treed_on_renameat,   [P9_Tsymlink] = treed_on_symlink,
           [P9_Tmknod] = treed_on_mknod,         [P9_Tlink] = treed_on_link,
           [P9_Txattrwalk] = treed_on_xattrwalk, [P9_Txattrcreate] = treed_on_xattrcreate,
           [P9_Tclunk] = treed_on_clunk,         [P9_Tlock] = treed_on_lock,
           [P9_Tgetlock] = treed_on_getlock},
    .fid_free = fid_free,
};
