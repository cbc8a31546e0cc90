// SPDX-License-Identifier: Apache-2.0
// A request of a backend, for coroutines: started, waited for, answered.
#ifndef SPACE_VOLUMED_BACKEND_CO_H
#define SPACE_VOLUMED_BACKEND_CO_H

#include "hostd/volumed/backend/backend.h"
#include "loop/co.h"

/*
 * Starts `r` (its `done` and `user` are not looked at) and waits. Returns its rc, and its sentence in `e`. `out` may be NULL; its `objects`
 * are NULL: for a LIST use backend_list_co. An abort of the coroutine cancels the request and is -ECANCELED, after the buffers are free.
 */
int backend_run_co(struct co_sched *s, struct backend *b, const struct backend_request *r, struct backend_result *out, struct err *e);

/* A page in one malloc'ed block, which is the caller's (free). */
struct backend_page {
    struct backend_object *objects;
    size_t count;
    bool more;
};
int backend_list_co(struct co_sched *s, struct backend *b, const char *prefix, const char *after, struct backend_page *out, struct err *e);

#endif
