// SPDX-License-Identifier: Apache-2.0
// Inodes behind fids: see node.h.
//
// Theory of operation. A node is anchored by an O_PATH descriptor, so renames do not move it and no path is ever looked up twice. A client that walks
// a large tree may hold tens of thousands of fids; the least recently used descriptors are then given up for the inode's file handle, and
// opened again by it. An inode that was removed meanwhile is ESTALE; one that the client has open is kept by that descriptor.
#include "guest/files/node.h"

#include "guest/files/dir.h"
#include "guest/files/xattr.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct handle_room {
    struct file_handle h;
    unsigned char bytes[sizeof((struct handle *)0)->bytes];
};

static void read_handle(int fd, struct handle *out)
{
    struct handle_room room = {.h.handle_bytes = sizeof room.bytes};
    int mount_id;
    if (name_to_handle_at(fd, "", &room.h, &mount_id, AT_EMPTY_PATH) < 0)
        return;
    out->type = room.h.handle_type;
    out->len = room.h.handle_bytes;
    memcpy(out->bytes, room.h.f_handle, out->len);
}

static int open_handle(const struct files *fs, const struct handle *h, int flags)
{
    struct handle_room room = {.h = {.handle_bytes = h->len, .handle_type = h->type}};
    memcpy(room.h.f_handle, h->bytes, h->len);
    return open_by_handle_at(fs->top, &room.h, flags | O_CLOEXEC);
}

/* ---- the descriptors in use ---- */

static void unlist(struct files *fs, struct node *n)
{
    if (p9_link_empty(&n->used))
        return;
    p9_link_remove(&n->used);
    fs->n_used--;
}

/* Most recently used; gives up the least recently used one when there are too many. */
static void touch(struct files *fs, struct node *n)
{
    unlist(fs, n);
    p9_link_append(&fs->used, &n->used);
    if (++fs->n_used <= NODE_FDS_MAX)
        return;
    struct node *old = p9_link_entry(fs->used.next, struct node, used);
    if (!node_handle(fs, old)) /* a file system without handles: the limit of descriptors is what bounds it */
        return;
    unlist(fs, old);
    close(old->fd);
    old->fd = -1;
}

const struct handle *node_handle(struct files *fs, struct node *n)
{
    if (!n->self.len) {
        int fd = n->io >= 0 ? n->io : n->fd;
        if (fd >= 0)
            read_handle(fd, &n->self);
    }
    (void)fs;
    return n->self.len ? &n->self : NULL;
}

int node_fd(struct files *fs, struct node *n)
{
    if (n->io >= 0)
        return n->io;
    if (n->fd < 0) {
        n->fd = open_handle(fs, &n->self, O_PATH | O_NOFOLLOW);
        if (n->fd < 0)
            return -1;
    }
    touch(fs, n);
    return n->fd;
}

int node_path(struct files *fs, struct node *n, char out[16])
{
    int fd = node_fd(fs, n);
    if (fd < 0)
        return -1;
    snprintf(out, 16, "%d", fd);
    return 0;
}

/* ---- life ---- */

struct node *node_create(struct files *fs, int fd, mode_t mode)
{
    struct node *n = calloc(1, sizeof *n);
    if (!n) {
        close(fd);
        errno = ENOMEM;
        return NULL;
    }
    p9_link_init(&n->used);
    n->fd = fd;
    n->io = -1;
    n->type = mode & S_IFMT;
    touch(fs, n);
    return n;
}

struct node *node_clone(struct files *fs, struct node *n)
{
    int fd = node_fd(fs, n);
    if (fd < 0)
        return NULL;
    /* of an opened fid too: a clone that shared its open file would share its locks */
    char path[16];
    snprintf(path, sizeof path, "%d", fd);
    int copy = n->io >= 0 ? open(path, O_PATH | O_CLOEXEC) : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return NULL;
    struct node *c = node_create(fs, copy, n->type);
    if (!c)
        return NULL;
    c->self = n->self;
    c->parent = n->parent;
    c->name = n->name ? strdup(n->name) : NULL;
    return c;
}

void node_destroy(struct files *fs, struct node *n)
{
    if (!n)
        return;
    unlist(fs, n);
    if (n->fd >= 0)
        close(n->fd);
    if (n->io >= 0)
        close(n->io);
    free(n->name);
    dir_destroy(n->dir);
    xattr_destroy(n->xattr);
    free(n);
}

/* ---- parents ---- */

void node_set_parent(struct node *n, int dirfd, const char *name, size_t len)
{
    n->parent.len = 0;
    read_handle(dirfd, &n->parent);
    free(n->name);
    n->name = strndup(name, len);
}

int node_open_parent(struct files *fs, struct node *n, const char **name)
{
    struct stat here, there;
    if (!n->name || !n->parent.len) {
        errno = EOPNOTSUPP;
        return -1;
    }
    int fd = node_fd(fs, n);
    if (fd < 0 || fstat(fd, &here) < 0)
        return -1;
    int dir = open_handle(fs, &n->parent, O_RDONLY | O_DIRECTORY);
    if (dir < 0)
        return -1;
    if (fstatat(dir, n->name, &there, AT_SYMLINK_NOFOLLOW) < 0 || there.st_dev != here.st_dev || there.st_ino != here.st_ino) {
        close(dir);
        errno = ESTALE;
        return -1;
    }
    *name = n->name;
    return dir;
}

/* ---- small things ---- */

int node_reopen(struct files *fs, struct node *n, int flags)
{
    char path[16];
    if (!S_ISREG(n->type) && !S_ISDIR(n->type)) {
        errno = S_ISLNK(n->type) ? ELOOP : ENXIO;
        return -1;
    }
    if (node_path(fs, n, path) < 0)
        return -1;
    return open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

struct p9_qid node_qid(const struct stat *st)
{
    uint8_t type = S_ISDIR(st->st_mode) ? P9_QTDIR : S_ISLNK(st->st_mode) ? P9_QTSYMLINK : P9_QTFILE;
    uint64_t t = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
    uint32_t version = (uint32_t)((t * 0x9e3779b97f4a7c15u) >> 32);
    return (struct p9_qid){.type = type, .version = version ? version : 1, .path = st->st_ino};
}

bool node_name(struct p9_str s, char out[P9_NAME_MAX + 1])
{
    if (!s.len || s.len > P9_NAME_MAX || memchr(s.s, '/', s.len))
        return false;
    memcpy(out, s.s, s.len);
    out[s.len] = 0;
    return true;
}
