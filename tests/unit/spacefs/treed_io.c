// SPDX-License-Identifier: Apache-2.0
// The test server: opening, reading, writing, listing. See treed.h.
#include "unit/spacefs/treed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_MAX 65536

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
    f->control = !treed_is_guest(d, f->path);
    f->nonblock = flags & P9_NONBLOCK;
    f->writes = (flags & P9_ACCMODE) != P9_RDONLY;
    if (f->control)
        flags &= ~(uint32_t)P9_TRUNC;
    f->fd = open(f->path, host_flags(flags));
    if (f->fd < 0)
        return -errno;
    f->stream = f->control && treed_is_stream(treed_base_of(f->path));
    return f->control && !f->stream && !f->writes && strcmp(treed_base_of(f->path), "mute") ? read_text(f) : 0;
}

void treed_on_lopen(struct p9_request *r)
{
    struct file *f = treed_file_of(r);
    struct stat st;
    int rc = open_file(treed_of(r), f, r->t->Tlopen.flags);
    if (rc < 0) {
        p9_fail(r, -rc);
        return;
    }
    lstat(f->path, &st);
    p9_reply(r, &(struct p9_msg){.Rlopen.qid = treed_qid_of(treed_of(r), f->path, &st)});
}

void treed_on_lcreate(struct p9_request *r)
{
    struct file *f = treed_file_of(r);
    struct stat st;
    char path[PATH_MAX];
    treed_child_path(r, r->fid, &r->t->Tlcreate.name, path);
    if (!treed_is_guest(treed_of(r), path)) {
        p9_fail(r, access(path, F_OK) == 0 ? EEXIST : EPERM);
        return;
    }
    f->fd = open(path, host_flags(r->t->Tlcreate.flags) | O_CREAT, r->t->Tlcreate.mode);
    if (f->fd < 0) {
        p9_fail(r, errno);
        return;
    }
    strcpy(f->path, path);
    treed_hold_place(f);
    fstat(f->fd, &st);
    p9_reply(r, &(struct p9_msg){.Rlcreate.qid = treed_qid_of(treed_of(r), f->path, &st)});
}

/* --- reading and writing --- */

static void reply_bytes(struct p9_request *r, const void *p, size_t len)
{
    p9_reply(r, &(struct p9_msg){.Rread.data = {p, (uint32_t)len}});
}

static bool has_ended(const char *stream)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/ended", (int)(treed_base_of(stream) - stream - 1), stream);
    return access(path, F_OK) == 0;
}

void treed_on_read(struct p9_request *r)
{
    const struct p9_Tread *t = &r->t->Tread;
    struct file *f = treed_file_of(r);
    if (f->text) {
        uint64_t at = t->offset < f->len ? t->offset : f->len;
        uint64_t n = f->len - at < t->count ? f->len - at : t->count;
        reply_bytes(r, f->text + at, (size_t)n);
        return;
    }
    char *buf = malloc(t->count + 1u);
    ssize_t n = strcmp(treed_base_of(f->path), "mute") ? pread(f->fd, buf, t->count, (off_t)t->offset) : 0;
    if (n < 0)
        p9_fail(r, errno);
    else if (n == 0 && f->nonblock && f->stream)
        p9_fail(r, EAGAIN);
    else if (n == 0 && ((f->stream && !has_ended(f->path)) || !strcmp(treed_base_of(f->path), "mute")))
        treed_wait_for_change(r);
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
    treed_event(treed_of(r), f->path, false);
    p9_reply(r, &(struct p9_msg){.Rwrite.count = r->t->Twrite.data.len});
}

static void write_state(struct p9_request *r, struct file *f)
{
    const struct p9_data *data = &r->t->Twrite.data;
    char object[PATH_MAX];
    snprintf(object, sizeof object, "%.*s", (int)(treed_base_of(f->path) - f->path - 1), f->path);
    if (data->len >= 4 && !memcmp(data->p, "hang", 4) && !f->nonblock) {
        treed_wait_for_change(r);
        return;
    }
    int fd = open(f->path, O_WRONLY | O_TRUNC);
    ssize_t n = write(fd, data->p, data->len);
    close(fd);
    treed_event(treed_of(r), object, data->len >= 7 && !memcmp(data->p, "release", 7));
    p9_reply(r, &(struct p9_msg){.Rwrite.count = n < 0 ? 0 : (uint32_t)n});
}

static void set_value(struct file *f, const struct p9_Twrite *t)
{
    if (t->offset > f->size || t->data.len > f->size - t->offset)
        return;
    memcpy(f->text + t->offset, t->data.p, t->data.len);
    f->len = t->offset + t->data.len;
}

void treed_on_write(struct p9_request *r)
{
    const struct p9_Twrite *t = &r->t->Twrite;
    struct treed *d = treed_of(r); /* the request goes with its reply */
    struct file *f = treed_file_of(r);
    if (f->kind == K_COPY) {
        commit(r, f);
    } else if (f->kind == K_XATTR_SET) {
        set_value(f, t);
        p9_reply(r, &(struct p9_msg){.Rwrite.count = t->data.len});
    } else if (f->control && !strcmp(treed_base_of(f->path), "state")) {
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
        treed_changed(d, false);
    }
}

void treed_on_fsync(struct p9_request *r)
{
    p9_reply(r, &(struct p9_msg){0});
}

static int by_table(const struct dirent **a, const struct dirent **b)
{
    int m = treed_attribute((*a)->d_name), n = treed_attribute((*b)->d_name);
    return m != n ? m - n : strcmp((*a)->d_name, (*b)->d_name);
}

static struct p9_qid entry_qid(struct p9_request *r, const struct dirent *e)
{
    char path[PATH_MAX + NAME_MAX + 2];
    struct stat st = {.st_ino = e->d_ino};
    snprintf(path, sizeof path, "%s/%s", treed_file_of(r)->path, e->d_name);
    if (lstat(path, &st) < 0)
        st.st_mode = S_IFDIR;
    return treed_qid_of(treed_of(r), path, &st);
}

/* Attributes come in the order of their qid paths, as from space-hostd. */
static void read_attributes(struct p9_request *r)
{
    const struct p9_Treaddir *t = &r->t->Treaddir;
    struct dirent **list;
    int n = scandir(treed_file_of(r)->path, &list, NULL, by_table);
    char *buf = malloc(t->count);
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        struct p9_dirent out = {.qid = entry_qid(r, list[i]), .offset = (uint64_t)i + 1, .type = list[i]->d_type, .name = p9_str_of(list[i]->d_name)};
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
void treed_on_readdir(struct p9_request *r)
{
    const struct p9_Treaddir *t = &r->t->Treaddir;
    if (!treed_is_guest(treed_of(r), treed_file_of(r)->path)) {
        read_attributes(r);
        return;
    }
    DIR *d = fdopendir(openat(treed_file_of(r)->fd, ".", O_RDONLY | O_DIRECTORY));
    char *buf = malloc(t->count);
    size_t used = 0;
    struct dirent *e;
    if (t->offset)
        seekdir(d, (long)t->offset);
    while ((e = readdir(d))) {
        struct p9_dirent out = {.qid = {.path = e->d_ino}, .offset = (uint64_t)telldir(d), .type = e->d_type, .name = p9_str_of(e->d_name)};
        if (p9_dirent_pack(buf, t->count, &used, &out) < 0)
            break;
    }
    closedir(d);
    p9_reply(r, &(struct p9_msg){.Rreaddir.data = {buf, (uint32_t)used}});
    free(buf);
}
