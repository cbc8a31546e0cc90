// SPDX-License-Identifier: Apache-2.0
// Objects that nobody needs any more, deleted one after the other with pauses: a thousand snapshots
// that are removed at once delay nobody.
//
// A deletion may fail for a while: btrfs needs room to delete, and a full pool may have none until
// the commit after the next deletion. What failed is tried again, later each time. What is still
// there when the daemon ends is an orphan, which reconciliation finds at the next start.
#include "base/log.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/noded_client.h"
#include "loop/co.h"

#include <inttypes.h>
#include <stdlib.h>
#include <uv.h>

#define REST       2   /* times as long as a deletion took, */
#define REST_MAX   200 /* milliseconds */
#define AGAIN_MSEC 1000
#define AGAIN_MAX  6 /* the rest before another try doubles so many times: to 64 s */

struct doomed {
    struct doomed *next;
    uint32_t kind;
    uint64_t id;
    unsigned tries;
    uint64_t due; /* ms of the loop's clock: not tried again before */
};

static int delete_now(struct space *s, uint32_t kind, uint64_t id, struct err *e)
{
    struct noded_request req = {.op = NODED_OBJECT_DELETE, .kind = kind, .id = id};
    return noded_call(s, &req, NULL, NULL, e);
}

static void append(struct doomed **list, struct doomed *d)
{
    while (*list)
        list = &(*list)->next;
    d->next = NULL;
    *list = d;
}

static void enqueue(struct space *s, struct doomed *d);

/* Puts what is due back into the queue. */
static void try_again(void *arg)
{
    struct space *s = arg;
    while (s->undeleted && co_sleep(s->co, AGAIN_MSEC) == 0) {
        for (struct doomed **at = &s->undeleted, *d; (d = *at);) {
            if (d->due > uv_hrtime() / 1000000) {
                at = &d->next;
                continue;
            }
            *at = d->next;
            enqueue(s, d);
        }
    }
}

static void failed(struct space *s, struct doomed *d, const struct err *e)
{
    if (d->tries == 0)
        log_warn("object %012" PRIx64 " is deleted later: %s", d->id, e->msg);
    d->due = uv_hrtime() / 1000000 + ((uint64_t)AGAIN_MSEC << (d->tries < AGAIN_MAX ? d->tries : AGAIN_MAX));
    d->tries++;
    bool first = !s->undeleted;
    append(&s->undeleted, d);
    if (first)
        co_spawn(s->co, try_again, s);
}

static void delete_doomed(void *arg)
{
    struct space *s = arg;
    for (struct doomed *d; (d = s->doomed);) {
        struct err e = {0};
        uint64_t began = uv_hrtime();
        int rc = delete_now(s, d->kind, d->id, &e);
        s->doomed = d->next; /* what was added meanwhile is behind it */
        if (rc < 0) {
            failed(s, d, &e);
        } else {
            free(d);
            s->counts.deleted++;
            s->doomed_count--;
        }
        uint64_t msec = (uv_hrtime() - began) / 1000000 * REST;
        if (s->doomed)
            co_sleep(s->co, msec > REST_MAX ? REST_MAX : msec + 1);
    }
    s->deleting = false;
}

static void enqueue(struct space *s, struct doomed *d)
{
    append(&s->doomed, d);
    if (!s->deleting) {
        s->deleting = true;
        co_spawn(s->co, delete_doomed, s);
    }
}

static struct doomed *doom(struct space *s, uint32_t kind, uint64_t id)
{
    struct doomed *d = calloc(1, sizeof *d);
    if (!d)
        abort();
    d->kind = kind;
    d->id = id;
    s->doomed_count++;
    return d;
}

void object_delete_later(struct space *s, uint32_t kind, uint64_t id)
{
    enqueue(s, doom(s, kind, id));
}

void object_delete(struct space *s, uint32_t kind, uint64_t id)
{
    struct err e = {0};
    if (delete_now(s, kind, id, &e) < 0)
        failed(s, doom(s, kind, id), &e);
}
