// SPDX-License-Identifier: Apache-2.0
// The root file system as a 9P tree; shared by files_*.c.
//
// Theory of operation. A fid holds an O_PATH descriptor, so it names its object whatever is
// renamed, and never a symlink's target. Walks go name by name with O_NOFOLLOW below the clone of
// the root mount, which ".." does not leave. What needs a real descriptor or a path reaches the
// object through /proc's magic link of its descriptor ("self/fd/N", relative to the clone of /proc
// that is the working directory). All calls are made in order, in one thread, as root.
//
// What must wait for the disk does so in the kernel (ring.h): an fsync, and a write to a file that
// was opened with O_SYNC or O_DSYNC, are answered when they are done, while other requests go on.
//
// Large reads and writes. Under emulation the processor of the guest is what limits, and ext4
// spends most of it on pages of the cache (measured for 128 MiB: 1.3 s to write through the cache,
// 0.2 s directly; to read 0.5 s and 0.1 s). So data goes between the disk and our buffer directly
// where that is safe: a write that begins at the end of the file or behind it, as no page of the
// cache can hold such data and nobody can have mapped it; and the part of a read that is not in the
// cache. It also keeps a host that copies much from pushing out of the guest's memory what the
// guest uses.
#ifndef SPACE_GUEST_FILES_BACKEND_H
#define SPACE_GUEST_FILES_BACKEND_H

#include "9p/server.h"

#include <sys/stat.h>

#define FILES_FIDS_MAX  30000u /* two descriptors each at most, in a table of 65536 */
#define FILES_XATTR_MAX 65536u

struct ring;

struct files_backend {
    int tree;     /* the root, O_PATH */
    uint8_t *buf; /* P9_MSIZE_MAX bytes for replies */
    struct ring *ring;
    _Atomic uint32_t *handles; /* counts opened fids */
};

enum files_sync { FILES_SYNC_NONE, FILES_SYNC_DATA, FILES_SYNC_ALL };

struct files_dir;   /* an opened directory's read-ahead */
struct files_xattr; /* a fid that is an attribute's value */

struct file {
    int path;             /* O_PATH; -1 for an xattr fid that owns none */
    int io;               /* once opened, else -1 */
    enum files_sync sync; /* after each write */
    mode_t mode;
    struct files_dir *dir;
    struct files_xattr *xattr;
};

int files_backend_init(struct files_backend *b);
const struct p9_backend *files_backend(void);
const struct p9_server_config *files_backend_config(void);

static inline struct file *files_of(const struct p9_fid *f)
{
    return f->aux;
}

/* files_fid.c */
/* A fid's object; takes over `path`. NULL when out of memory (and `path` is closed). */
struct file *files_file_new(int path, mode_t mode);
void files_file_free(struct file *f);
/* "self/fd/N" of its descriptor. */
const char *files_link(const struct file *f, char out[32]);
/* NUL-ended copy of a name. */
const char *files_name(struct p9_str name, char out[P9_NAME_MAX + 1]);
struct p9_qid files_qid(const struct stat *st);
/* Answers with nothing, or with -rc when rc is negative. */
void files_reply(struct p9_request *r, int rc);
void files_attach(struct p9_request *r);
void files_walk(struct p9_request *r);
void files_lopen(struct p9_request *r);
void files_lcreate(struct p9_request *r);
void files_clunk(struct p9_request *r);

/* files_io.c */
/* Of Tlopen's and Tlcreate's flags. */
enum files_sync files_sync_of(uint32_t flags);
void files_read(struct p9_request *r);
void files_write(struct p9_request *r);
void files_fsync(struct p9_request *r);
void files_lock(struct p9_request *r);
void files_getlock(struct p9_request *r);

/* files_dir.c */
void files_readdir(struct p9_request *r);
void files_dir_free(struct files_dir *d);

/* files_attr.c */
void files_getattr(struct p9_request *r);
void files_setattr(struct p9_request *r);
void files_statfs(struct p9_request *r);
void files_readlink(struct p9_request *r);

/* files_xattr.c */
void files_xattrwalk(struct p9_request *r);
void files_xattrcreate(struct p9_request *r);
void files_xattr_read(struct p9_request *r);
void files_xattr_write(struct p9_request *r);
/* Sets what was written. 0 or -errno. */
int files_xattr_commit(const struct file *f);
void files_xattr_free(struct files_xattr *x);

/* files_tree.c */
void files_mkdir(struct p9_request *r);
void files_mknod(struct p9_request *r);
void files_symlink(struct p9_request *r);
void files_link_to(struct p9_request *r);
void files_renameat(struct p9_request *r);
void files_unlinkat(struct p9_request *r);

#endif
