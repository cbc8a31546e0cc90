// SPDX-License-Identifier: Apache-2.0
// The fid table of a 9P session: see session.h.
#include "9p/session.h"

#include <stdlib.h>

static uint64_t key_of(const struct p9_server *s, uint32_t id)
{
    return id * s->hash_seed;
}

struct fid *p9_fids_find(const struct p9_server *s, uint32_t id)
{
    struct hmap_node *n = hmap_find(&s->fids, key_of(s, id));
    return n ? hmap_entry(n, struct fid, node) : NULL;
}

struct fid *p9_fids_add(struct p9_server *s, uint32_t id)
{
    struct fid *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->pub.id = id;
    f->listed = true;
    f->refs = 1;
    p9_link_init(&f->waiting);
    hmap_insert(&s->fids, &f->node, key_of(s, id));
    return f;
}

void p9_fids_ref(struct fid *f)
{
    f->refs++;
}

void p9_fids_unref(struct p9_server *s, struct fid *f)
{
    if (!f || --f->refs)
        return;
    if (f->pub.aux && s->backend->fid_free)
        s->backend->fid_free(s->user, &f->pub);
    free(f);
}

void p9_fids_drop(struct p9_server *s, struct fid *f)
{
    if (!f->listed)
        return;
    f->listed = false;
    hmap_remove(&s->fids, &f->node);
    p9_fids_unref(s, f);
}

void p9_fids_drop_all(struct p9_server *s)
{
    /* Emptied bucket by bucket: restarting an iteration after each removal would be quadratic. */
    for (size_t i = 0; i < s->fids.size; i++)
        while (s->fids.buckets[i])
            p9_fids_drop(s, hmap_entry(s->fids.buckets[i], struct fid, node));
    hmap_finish(&s->fids);
}
