// SPDX-License-Identifier: Apache-2.0
// The tree of docs/tree.md as 9P: nodes, attribute tables, and what the handlers share.
//
// Theory of operation. A fid holds a node: what it names (referenced objects, never names, so renames do not matter) and who walked there. Control nodes answer
// from memory. A node below root/NAME stands for a fid in the guest's own session, and its messages are passed on (guest_fs.c). Requests that wait are
// `pending`s (waiters that answer the request when done, and unlist themselves when flushed) or `forward`s (a call in the guest's session).
#ifndef SPACE_HOSTD_TREE_H
#define SPACE_HOSTD_TREE_H

#include "9p/server.h"
#include "hostd/caller.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/object.h"

#include <stdbool.h>
#include <stdint.h>

/* Numbers are hashed into qid paths: never renumber. */
enum node_kind {
    NODE_ROOT = 1,
    NODE_ROOT_FILE = 2,
    NODE_HELP = 3,
    NODE_HELP_FILE = 4,
    NODE_TEMPLATES = 5,
    NODE_TEMPLATE = 6,
    NODE_TEMPLATE_FILE = 7,
    NODE_SANDBOXES = 8,
    NODE_SANDBOX = 9,
    NODE_SANDBOX_FILE = 10,
    NODE_SNAPSHOTS = 11,
    NODE_SNAPSHOTS_OF = 12,
    NODE_SNAPSHOT = 13,
    NODE_SNAPSHOT_FILE = 14,
    NODE_GUESTS = 15,
    NODE_GUEST = 16, /* root/NAME and everything below */
    NODE_PROCS = 17,
    NODE_PROC = 18,
    NODE_JOB = 19,
    NODE_JOB_FILE = 20,
    NODE_COPY = 21,
    NODE_FILES = 22, /* snapshots/NAME/SNAP/files and everything below */
    NODE_PORTS = 23,
    NODE_PORTS_OF = 24,
    NODE_PORT = 25,
    NODE_NODES = 26,
    NODE_NODE = 27,
    NODE_NODE_FILE = 28,
    NODE_CREDENTIALS = 30,
    NODE_CREDENTIALS_FILE = 31,
    NODE_SCOPE = 32,
    NODE_SCOPE_FILE = 33,
    NODE_CREDENTIAL = 34,
    NODE_CREDENTIAL_FILE = 35,
    NODE_KIND_COUNT
};

struct credential;
struct scope;

struct node {
    enum node_kind kind;
    uint8_t index;   /* of the attribute in its table; of the help file */
    uint16_t port;   /* NODE_PORT */
    uint64_t orphan; /* NODE_SNAPSHOTS_OF of a sandbox that is gone: its id */
    struct sandbox *sandbox;
    struct snapshot *snapshot;
    struct template *template;
    struct job *job;
    struct scope *scope; /* of a credential, with `sandbox` when it is one's own */
    struct credential *credential;
    struct node_entry *entry; /* of nodes/NODE; these are never freed */
};

/* Is it somebody else who answers for this node and what is below, a guest or a browser? */
static inline bool node_is_served(const struct node *n)
{
    return n->kind == NODE_GUEST || n->kind == NODE_FILES;
}

void node_copy(struct node *dst, const struct node *src);
void node_clear(struct node *n);

struct text {
    char *p;
    size_t len;
};
void text_add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* What lopen made. */
struct open_file {
    struct text text;    /* content of an attribute, fixed at open; or entries of a directory */
    struct text written; /* what accumulating attributes were given through this open */
    bool wrote;
    int fd;                  /* of disk.raw, or -1 */
    uint64_t cursor;         /* events: last sequence number read */
    int64_t shift;           /* stdout, stderr: stream offset minus file offset, after dropped bytes were skipped */
    uint32_t flags;          /* of the lopen */
    struct port *port;       /* a connection to the guest (ports.c) */
    struct changes *changes; /* changes: what was asked for last, read at `cursor` */
};

/* A fid in the session that serves the files: the guest's, or that of a snapshot's browser. */
struct guest_fid {
    bool root;    /* root/NAME or files itself: the session's root, whichever session that is, */
    uint32_t fid; /* unless this is set: a fid of its own */
    uint32_t generation;
    bool opened;
    bool sets_xattr;  /* between xattrcreate and its clunk */
    uint64_t session; /* serial of the connection it belongs to */
    uint32_t depth;   /* names below that root */
    uint32_t epoch;   /* of renames that change depths, at the walk */
};

struct session;
struct changes;
struct port;

struct tree_fid {
    struct node node;
    struct session *session;
    struct caller *caller;
    struct open_file *open;
    struct guest_fid guest;
};

/* Lives as long as its connection or any of its fids: a request in flight holds its fid. */
struct session {
    unsigned refs;
    struct space *space;
    uint32_t peer_uid;
    bool may_speak_for_others;
};

void session_unref(struct session *s);

static inline struct tree_fid *fid_of(struct p9_fid *f)
{
    return f ? f->aux : NULL;
}
static inline struct space *space_of(const struct p9_request *r)
{
    return ((struct session *)r->user)->space;
}

/* ---- attributes ---- */

enum attr_flags {
    ATTR_ACCUMULATE = 1, /* several writes of one open make one value */
    ATTR_STREAM = 2,     /* size 0, read by a handler of its own */
    ATTR_RAW = 4,        /* content of a file (disk.raw) */
    ATTR_ANY_STATE = 8,
};

struct attr {
    const char *name;
    uint16_t mode;
    uint16_t flags;
    /* Appends the content, with its newline. NULL: nothing to read. */
    void (*read)(struct tree_fid *f, struct text *out);
    /* Takes one whole value, trailing newline cut, NUL-ended. Answers `r` (reply_write, fail, or a pending). NULL: read-only. */
    void (*write)(struct p9_request *r, struct tree_fid *f, char *value, size_t len);
    const char *help;
};

/* The table of a directory's kind (NODE_SANDBOX, …), ended by a NULL name; NULL for kinds without. */
const struct attr *attr_table(enum node_kind dir);
/* The attribute a file node stands for. */
const struct attr *attr_of(const struct node *n);
extern const struct attr root_attrs[], template_attrs[], sandbox_attrs[], snapshot_attrs[], job_attrs[], credentials_attrs[], scope_attrs[],
    credential_attrs[], node_attrs[];
/* Is the attribute there now? (disk.raw of a sealed template is not.) */
bool attr_present(const struct node *dir, const struct attr *a);

/* ---- answering ---- */

/* Fails the request: records the sentence in the caller's /space/error. rc is negative. */
void fail(struct p9_request *r, struct tree_fid *f, int rc, const struct err *e);
void fail_errno(struct p9_request *r, struct tree_fid *f, int code, const char *sentence);
void reply_write(struct p9_request *r);
/* A reply without fields. */
void reply_empty(struct p9_request *r);

/* A request that waits for a lifecycle step; `then` (or reply_write when NULL) answers it on success. */
struct pending {
    struct waiter w;
    struct p9_request *r;
    void (*then)(struct p9_request *r);
};
struct pending *pending_new(struct p9_request *r, void (*then)(struct p9_request *r));
/* The step was refused at once. */
void pending_fail(struct pending *p, int rc, const struct err *e);
/* For verbs and heads: NULL when the fid is non-blocking; then the request is answered by reply_write now. */
struct waiter *pending_write(struct p9_request *r, struct tree_fid *f);

/* Path of a node for sentences; returns out. */
char *node_path(const struct tree_fid *f, char *out, size_t size);

/* ---- nodes (nodes.c) ---- */

struct p9_qid node_qid(const struct space *s, const struct node *n);
bool node_is_dir(const struct node *n);
/* One step. `name` is NUL-ended. 0, -ENOENT, -EACCES. `out` is initialised on success (references taken). */
int node_lookup(struct space *s, const struct caller *c, const struct node *dir, const char *name, struct node *out);
/* Calls `emit` for each entry of a control directory, in listing order. */
typedef void node_emit(void *user, const char *name, const struct node *n);
void node_list(struct space *s, const struct caller *c, const struct node *dir, node_emit *emit, void *user);
/* NAME, OWNER:NAME or #ID among the sandboxes that the caller sees; borrowed. */
struct sandbox *node_find_sandbox(struct space *s, const struct caller *c, const char *name);
/* Owner, group and permission bits. */
void node_rights(const struct node *n, uint32_t *uid, uint32_t *gid, uint32_t *mode);
bool node_gone(const struct node *n);
/* May the caller still see it? Walked-to fids are asked again at each walk and open: rights may have been taken away since. */
bool node_visible(const struct node *n, const struct caller *c);

/* ---- handlers by file ---- */

/* streams.c */
void stream_read(struct p9_request *r, struct tree_fid *f);
void raw_open(struct p9_request *r, struct tree_fid *f);
void raw_read(struct p9_request *r, struct tree_fid *f);
void raw_write(struct p9_request *r, struct tree_fid *f);
void raw_seek(struct p9_request *r, struct tree_fid *f, int whence, uint64_t offset);
void raw_truncate(struct p9_request *r, struct tree_fid *f, uint64_t size);
/* dir.c */
p9_handler dir_readdir, dir_mkdir, dir_unlinkat, dir_renameat, dir_rename;
void open_dir(struct p9_request *r, struct tree_fid *f);
void tree_reply_open(struct p9_request *r);
/* credentials.c */
int credentials_lookup_scope(struct space *s, const struct caller *c, const char *name, struct node *out);
int credentials_lookup(struct space *s, const struct node *dir, const char *name, struct node *out);
void credentials_list_scopes(struct space *s, const struct caller *c, node_emit *emit, void *user);
void credentials_list(struct space *s, const struct node *dir, node_emit *emit, void *user);
/* As the caller names it. */
void credentials_path(const struct caller *c, const struct node *n, const char *file, char *out, size_t size);
void credentials_mkdir(struct p9_request *r, struct tree_fid *f, const char *name);
void credentials_rmdir(struct p9_request *r, struct tree_fid *f, struct credential *c);
/* Its hosts were truncated, and not written. */
void credentials_emptied(struct tree_fid *f);
void credentials_open_log(struct p9_request *r, struct tree_fid *f);
/* guest_fs.c: requests on a fid for which node_is_served, or walks that lead into one */
p9_handler guest_fs_clunk, guest_fs_walk, guest_fs_lopen, guest_fs_lcreate, guest_fs_xattrwalk;
p9_handler guest_fs_pass; /* messages with one fid */
p9_handler guest_fs_two;  /* rename, renameat, link */
/* Makes r->newfid (or r->fid in place) stand for a fid of the session behind `n`. */
void tree_install_guest(struct p9_request *r, const struct node *n, const struct guest_fid *g);
/* Makes r->newfid the value of an attribute of `n`, and answers the xattrwalk. */
void tree_install_value(struct p9_request *r, const struct node *n, struct p9_str value);
/* Runs `then` when the sandbox answers. */
void guest_gate(struct p9_request *r, struct sandbox *sb, void (*then)(struct p9_request *r));
void guest_fid_release(struct tree_fid *f);

/* The backend of every session. */
extern const struct p9_backend tree_backend;

/* metrics.c */
void read_metrics(struct tree_fid *f, struct text *t);
const char *help_text(unsigned index, const char **name, char *buf, size_t size);

#endif
