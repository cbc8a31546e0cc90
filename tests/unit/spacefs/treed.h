// SPDX-License-Identifier: Apache-2.0
// A 9P server over a directory of the host with the manners of space-hostd: what spacefs is tested against without a VM.
#ifndef TEST_TREED_H
#define TEST_TREED_H

#include "9p/server.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <uv.h>

/*
 * DIR/root/NAME/... is the "guest". Everything else is control files, real files of DIR, with these manners:
 *   mkdir sandboxes/X    fills X with attributes; hidden names #ID and #copy work; a touched X refuses #copy
 *   X/state              a write of `hang` blocks until flushed or until another write `release`
 *   proc/NAME/JOB/stdout a stream: a read at the end blocks until more is there, or JOB/ended exists
 *   events               a stream of lines, one per write to a `state`
 *   X/mute               reads of it block until flushed
 */
struct treed {
    uv_loop_t *loop;
    char dir[PATH_MAX];
    struct waiting *waiting;
    struct copying *copies;
};

extern const struct p9_backend treed_backend;

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

bool treed_is_under(const struct treed *d, const char *path, const char *tree);
bool treed_is_guest(const struct treed *d, const char *path);
const char *treed_base_of(const char *path);
bool treed_is_object(const struct treed *d, const char *path);
bool treed_is_stream(const char *name);
/* Position in the order of space-hostd's tables, -1 for what is no attribute of an object. */
int treed_attribute(const char *name);
/* As from space-hostd, the qid paths of a directory's attributes ascend in the order of their table. */
struct p9_qid treed_qid_of(const struct treed *d, const char *path, const struct stat *st);
struct treed *treed_of(struct p9_request *r);
void treed_hold_place(struct file *f);
struct file *treed_file_of(struct p9_request *r);
void treed_child_path(struct p9_request *r, const struct p9_fid *dir, const struct p9_str *name, char *out);
void treed_wait_for_change(struct p9_request *r);
void treed_changed(struct treed *d, bool release);
void treed_event(struct treed *d, const char *object, bool release);
struct file *treed_file_copy(const struct file *from);
void treed_find_path(struct file *f);
void treed_on_cancel(struct p9_request *r);
void treed_on_attach(struct p9_request *r);
void treed_on_walk(struct p9_request *r);
void treed_on_getattr(struct p9_request *r);
void treed_on_setattr(struct p9_request *r);
void treed_on_statfs(struct p9_request *r);
void treed_on_readlink(struct p9_request *r);
void treed_on_lopen(struct p9_request *r);
void treed_on_lcreate(struct p9_request *r);
void treed_on_read(struct p9_request *r);
void treed_on_write(struct p9_request *r);
void treed_on_fsync(struct p9_request *r);
void treed_on_readdir(struct p9_request *r);
void treed_on_mkdir(struct p9_request *r);
void treed_on_unlinkat(struct p9_request *r);
void treed_on_renameat(struct p9_request *r);
void treed_on_symlink(struct p9_request *r);
void treed_on_mknod(struct p9_request *r);
void treed_on_link(struct p9_request *r);
void treed_on_xattrwalk(struct p9_request *r);
void treed_on_xattrcreate(struct p9_request *r);
void treed_on_clunk(struct p9_request *r);
void treed_on_lock(struct p9_request *r);
void treed_on_getlock(struct p9_request *r);

/* A request that answers later: asked again on every change of anything. */
struct waiting {
    struct waiting *next;
    struct p9_request *r;
};

/* An open #copy. */
struct copying {
    struct copying *next;
    char path[PATH_MAX];
    bool committed;
};

#endif
