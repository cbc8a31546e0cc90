// SPDX-License-Identifier: Apache-2.0
// The FUSE operations, by file: each is a fuse_lowlevel_ops member and replies once, now or later.
#ifndef SPACEFS_OPS_H
#define SPACEFS_OPS_H

#include "spacefs/request.h"

/* ops_dir.c */
void ops_lookup(fuse_req_t fuse, fuse_ino_t parent, const char *name);
void ops_forget(fuse_req_t fuse, fuse_ino_t ino, uint64_t count);
void ops_forget_multi(fuse_req_t fuse, size_t count, struct fuse_forget_data *forgets);
void ops_opendir(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_readdir(fuse_req_t fuse, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void ops_releasedir(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_fsyncdir(fuse_req_t fuse, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

/* What a walk of one name found. */
struct found {
    bool keep;                /* in: the fid is wanted in any case */
    uint32_t fid, generation; /* the caller's to adopt or clunk; generation 0: none, the name's node has one already */
    struct p9_Rgetattr attr;
};

/* Twalk and Tgetattr of `name` in `parent` as `uid`, in one round trip, once. 0 or a task error (nothing to clunk then). */
int ops_walk_child(struct task *t, struct node *parent, uint32_t uid, const char *name, struct found *out);

/* Replies to an open with the handle, taken over (ops_file.c). */
void ops_reply_open(struct req *r, struct handle *h);

/* Replies to a create with a node and its open file, both taken over (ops_file.c). */
void ops_reply_create(struct req *r, struct node *n, struct handle *h, const struct stat *st);

/* Looks up, as often as it takes, what an operation just made or found; replies with the entry or the error. */
void ops_reply_child(struct req *r, struct node *parent, const char *name);

/* The node of what was found, with a reference; adopts or clunks the fid. NULL when out of memory. */
struct node *ops_take_found(struct req *r, struct node *parent, const char *name, const struct found *f);

/* ops_name.c */
void ops_mkdir(fuse_req_t fuse, fuse_ino_t parent, const char *name, mode_t mode);
void ops_mknod(fuse_req_t fuse, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void ops_symlink(fuse_req_t fuse, const char *target, fuse_ino_t parent, const char *name);
void ops_link(fuse_req_t fuse, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void ops_unlink(fuse_req_t fuse, fuse_ino_t parent, const char *name);
void ops_rmdir(fuse_req_t fuse, fuse_ino_t parent, const char *name);
void ops_rename(fuse_req_t fuse, fuse_ino_t parent, const char *name, fuse_ino_t to, const char *to_name, unsigned flags);

/* ops_attr.c */
void ops_getattr(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_setattr(fuse_req_t fuse, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi);
void ops_readlink(fuse_req_t fuse, fuse_ino_t ino);
void ops_access(fuse_req_t fuse, fuse_ino_t ino, int mask);
void ops_statfs(fuse_req_t fuse, fuse_ino_t ino);

/* ops_file.c */
void ops_open(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_create(fuse_req_t fuse, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi);
void ops_flush(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_release(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_fsync(fuse_req_t fuse, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

/* ops_io.c */
void ops_read(fuse_req_t fuse, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void ops_write(fuse_req_t fuse, fuse_ino_t ino, const char *data, size_t size, off_t off, struct fuse_file_info *fi);
void ops_lseek(fuse_req_t fuse, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);

/* ops_xattr.c */
void ops_getxattr(fuse_req_t fuse, fuse_ino_t ino, const char *name, size_t size);
void ops_listxattr(fuse_req_t fuse, fuse_ino_t ino, size_t size);
void ops_setxattr(fuse_req_t fuse, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags);
void ops_removexattr(fuse_req_t fuse, fuse_ino_t ino, const char *name);

/* lock.c */
void ops_getlk(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock);
void ops_setlk(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock, int sleeps);
void ops_flock(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi, int op);

/* poll.c */
void ops_poll(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *ph);

#endif
