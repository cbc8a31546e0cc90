// SPDX-License-Identifier: Apache-2.0
// The closed list of operations: who takes which fields, where each runs, and the one function that
// checks a request.
#ifndef SPACE_NODED_OPS_H
#define SPACE_NODED_OPS_H

#include "base/err.h"
#include "hostd/noded/node.h"
#include "hostd/noded/queue.h"
#include "ipc/noded.h"

/*
 * Does the operation, on a thread of its lane. The request was checked. Fills in the part of the
 * reply that the operation answers with, and *ret_fd (else -1). 0 or -errno with the sentence.
 */
typedef int op_run(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e);

struct op {
    const char *name;
    op_run *run;
    uint32_t fields; /* enum op_field: those that count; all others must be 0 */
    uint32_t flags;  /* enum noded_flags that may be set */
    enum lane lane;
    uint32_t limit_msec;   /* answered with ETIMEDOUT after this; 0: no limit */
    bool ordered;          /* one after another for each object */
    bool ends;             /* must not wait for a hung operation on its object: op_interrupt goes ahead of it */
    bool needs_libvirt;    /* refused at once while libvirt is away, whatever still hangs from before */
    const struct op *undo; /* follows when it succeeds after its limit, since the answer was that it
                              failed; gets kind and id */
};

enum op_field {
    OP_OBJECT = 1,     /* kind, id */
    OP_SOURCE = 2,     /* kind2, id2 */
    OP_SANDBOX = 4,    /* id; kind NODED_SANDBOX or 0 */
    OP_TEMPLATE = 8,   /* id; kind NODED_TEMPLATE or 0 */
    OP_FILE = 16,      /* file */
    OP_SIZE = 32,      /* size */
    OP_MACHINE = 64,   /* memory vcpus accel slot */
    OP_PORT = 128,     /* port */
    OP_HEAD = 256,     /* kind2, id2: a template or snapshot */
    OP_BASE = 512,     /* the same, when flags has NODED_INCOMING */
    OP_CAPTURE = 1024, /* kind, id: a new template or snapshot; id2: a sandbox, whose line it waits in */
    OP_OTHER = 2048,   /* kind2, id2: an object, or both 0 */
    OP_FROM = 4096,    /* size: where to begin, may be 0 */
};

/* By number; NULL when there is no such operation. */
const struct op *op_find(uint32_t number);

/* True when the request is one that `op` may be run with; else -EINVAL or -ERANGE and the field's
 * name in the sentence. */
int op_check(const struct op *op, const struct node *n, const struct noded_request *q, struct err *e);

/* The object whose line a request waits in. */
uint64_t op_key(const struct op *op, const struct noded_request *q);

/* Not to be asked for: what space-noded does by itself. All take `id`. */
extern const struct op op_kill;      /* as NODED_VM_KILL */
extern const struct op op_interrupt; /* ends the QEMU, so that an operation which hangs on it returns */
extern const struct op op_remove;    /* as NODED_OBJECT_DELETE; takes `kind`, too */
extern const struct op op_reap;      /* takes back uid, disk and channels, if its domain is gone */

#endif
