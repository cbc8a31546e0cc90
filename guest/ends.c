// SPDX-License-Identifier: Apache-2.0
// Ends of the files server: see ends.h.
#include "guest/ends.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct ends_read {
    struct p9_link link;
    struct p9_request *r;
};

static void answer(const struct ends *e, struct p9_request *r)
{
    char text[24];
    struct p9_msg m = {0};
    int n = snprintf(text, sizeof text, "%" PRIu64 "\n", e->n);
    m.Rread.data.p = text;
    m.Rread.data.len = (uint32_t)n < r->t->Tread.count ? (uint32_t)n : r->t->Tread.count;
    p9_reply(r, &m);
}

static void read_cancel(struct p9_request *r)
{
    struct ends_read *w = r->aux;
    p9_link_remove(&w->link);
    free(w);
    p9_fail(r, EINTR);
}

void ends_init(struct ends *e)
{
    e->n = 0;
    p9_link_init(&e->reads);
}

void ends_count(struct ends *e)
{
    struct p9_link all;
    e->n++;
    p9_link_init(&all);
    p9_link_splice(&all, &e->reads);
    while (!p9_link_empty(&all)) {
        struct ends_read *w = p9_link_entry(all.next, struct ends_read, link);
        struct p9_request *r = w->r;
        p9_link_remove(&w->link);
        free(w);
        r->cancel = NULL;
        r->aux = NULL;
        answer(e, r);
    }
}

void ends_read(struct ends *e, struct p9_request *r)
{
    struct ends_read *w;
    if (r->t->Tread.offset != e->n) {
        answer(e, r);
    } else if (!(w = malloc(sizeof *w))) {
        p9_fail(r, ENOMEM);
    } else {
        w->r = r;
        r->aux = w;
        r->cancel = read_cancel;
        p9_link_append(&e->reads, &w->link);
    }
}
