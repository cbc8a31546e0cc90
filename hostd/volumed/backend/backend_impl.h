// SPDX-License-Identifier: Apache-2.0
// What the implementations of a backend share: the queue, the answer, the check of names.
#ifndef SPACE_VOLUMED_BACKEND_IMPL_H
#define SPACE_VOLUMED_BACKEND_IMPL_H

#include "hostd/volumed/backend/backend.h"

#include <stdatomic.h>
#include <sys/queue.h>

/* Names that the backends use themselves: objects that a CHECK makes and removes. Not in a LIST. */
#define BACKEND_OWN_PREFIX "probe-"

enum op_state { OP_WAITS, OP_RUNS, OP_DONE };

TAILQ_HEAD(op_list, backend_op);

struct backend_op {
    TAILQ_ENTRY(backend_op) link; /* in the list of its state */
    struct backend *backend;
    struct backend_request r; /* name, after and iov are the operation's own */
    uint64_t length;          /* PUT: bytes of iov */
    struct backend_result result;
    void *memory; /* what `result.objects` lies in: malloc'ed, freed after `done` */
    enum op_state state;
    bool cancel_told; /* to the implementation */
    atomic_bool cancelled;
    union { /* the implementation's */
        uv_work_t work;
        void *own;
    };
};

/* All of it is called from the loop's own stack. */
struct backend_class {
    void (*start)(struct backend_op *op);  /* ends in backend_finish, now or later */
    void (*cancel)(struct backend_op *op); /* called once, while it runs; may be too late */
    void (*destroy)(struct backend *b);    /* no operation is left; ends in backend_gone */
};

struct backend {
    const struct backend_class *class;
    uv_loop_t *loop;
    uv_async_t kick;
    struct op_list waiting[2], running, done; /* waiting: urgent ones, others */
    unsigned flight;                          /* bound of `running` */
    unsigned features;
    struct backend_stats stats;
    bool closing, destroyed;
    void (*closed)(void *user);
    void *closed_user;
    char description[512];
};

/* Zeroed memory expected. 0 or -errno; after a failure the memory is the caller's to free. */
int backend_init(struct backend *b, uv_loop_t *loop, const struct backend_class *class, unsigned flight);
/* Takes the operation out of those that run; its result is set. */
void backend_finish(struct backend_op *op);
/* The last step of `destroy`: frees `b` itself and calls `closed`. */
void backend_gone(struct backend *b);

/* Sets rc and sentence (code is a positive errno); returns -code. */
int op_fail(struct backend_op *op, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A name, or with `prefix` the beginning of one. */
bool backend_name_valid(const char *name, bool prefix);

/* What a LIST is made of: grows one block, in which the names are offsets until page_end. */
struct page {
    struct backend_object *objects;
    size_t count, objects_size;
    char *names;
    size_t names_len, names_size;
};
int page_add(struct page *p, const char *name, uint64_t size, int64_t modified); /* 0 or -ENOMEM */
int page_end(struct page *p, struct backend_op *op);                             /* into op's result; `p` is empty then */
void page_free(struct page *p);

#endif
