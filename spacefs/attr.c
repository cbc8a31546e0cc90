// SPDX-License-Identifier: Apache-2.0
// 9P attributes as the kernel wants them: see attr.h.
#include "spacefs/attr.h"

#include <limits.h>
#include <string.h>
#include <sys/sysmacros.h>

static struct timespec time_of(uint64_t sec, uint64_t nsec)
{
    return (struct timespec){.tv_sec = (time_t)sec, .tv_nsec = (long)(nsec < 1000000000u ? nsec : 999999999u)};
}

static uint64_t at_most(uint64_t value, uint64_t max)
{
    return value < max ? value : max;
}

void attr_to_stat(const struct p9_Rgetattr *a, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_ino = a->qid.path;
    st->st_mode = a->mode;
    st->st_uid = a->uid;
    st->st_gid = a->gid;
    st->st_nlink = (nlink_t)at_most(a->nlink, UINT32_MAX);
    st->st_rdev = (dev_t)a->rdev;
    st->st_size = (off_t)at_most(a->size, LLONG_MAX);
    st->st_blksize = (blksize_t)at_most(a->blksize ? a->blksize : 4096, 1u << 20);
    st->st_blocks = (blkcnt_t)at_most(a->blocks, LLONG_MAX / 512);
    st->st_atim = time_of(a->atime_sec, a->atime_nsec);
    st->st_mtim = time_of(a->mtime_sec, a->mtime_nsec);
    st->st_ctim = time_of(a->ctime_sec, a->ctime_nsec);
}

void attr_seen(struct node *n, const struct p9_Rgetattr *a)
{
    n->size = a->size;
    n->mtime = time_of(a->mtime_sec, a->mtime_nsec);
    if (n->kind == NODE_OBJECT || n->kind == NODE_SNAPSHOT)
        n->object_id = a->gen;
}

void attr_of_swallowed(const struct node *n, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_ino = n->qid_path;
    st->st_mode = S_IFREG | 0600;
    st->st_nlink = 1;
    st->st_uid = n->uid;
    st->st_gid = n->gid;
    st->st_blksize = 4096;
}

double attr_timeout(const struct node *n)
{
    return node_is_guest(n) ? ATTR_GUEST_TIMEOUT : 0;
}

double attr_name_timeout(const struct node *n)
{
    return n->kind == NODE_TREE && n->format == S_IFDIR ? ATTR_TREE_TIMEOUT : 0;
}
