// SPDX-License-Identifier: Apache-2.0
// Tags and fids of a 9P client: see numbers.h.
#include "9p/numbers.h"

#include "9p/codec.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_TAGS  512u
#define FIRST_WORDS 4u

static bool grow(struct p9_tagset *t)
{
    uint32_t cap = t->cap ? t->cap * 2 : FIRST_TAGS;
    if (cap > P9_TAGS_MAX)
        cap = P9_TAGS_MAX;
    if (cap == t->cap)
        return false;
    void **owners = realloc(t->owners, cap * sizeof *owners);
    if (owners)
        t->owners = owners;
    uint16_t *tags = realloc(t->free, cap * sizeof *tags);
    if (tags)
        t->free = tags;
    if (!owners || !tags)
        return false;
    for (uint32_t tag = cap; tag-- > t->cap;) {
        owners[tag] = NULL;
        tags[t->n_free++] = (uint16_t)tag;
    }
    t->cap = cap;
    return true;
}

bool p9_tagset_take(struct p9_tagset *t, void *owner, uint32_t reserve, uint16_t *out)
{
    while (t->n_free <= reserve)
        if (!grow(t))
            return false;
    *out = t->free[--t->n_free];
    t->owners[*out] = owner;
    return true;
}

void *p9_tagset_find(const struct p9_tagset *t, uint16_t tag)
{
    return tag < t->cap ? t->owners[tag] : NULL;
}

void p9_tagset_orphan(struct p9_tagset *t, uint16_t tag)
{
    t->owners[tag] = NULL;
}

void p9_tagset_release(struct p9_tagset *t, uint16_t tag)
{
    t->owners[tag] = NULL;
    t->free[t->n_free++] = tag;
}

void p9_tagset_release_all(struct p9_tagset *t)
{
    t->n_free = 0;
    for (uint32_t tag = t->cap; tag-- > 0;)
        p9_tagset_release(t, (uint16_t)tag);
}

void p9_tagset_finish(struct p9_tagset *t)
{
    free(t->owners);
    free(t->free);
    *t = (struct p9_tagset){0};
}

static bool grow_bits(struct p9_fidset *f)
{
    uint32_t words = f->words ? f->words * 2 : FIRST_WORDS;
    if (f->base + (uint64_t)words * 64 >= P9_NOFID)
        return false;
    uint64_t *bits = realloc(f->bits, words * sizeof *bits);
    if (!bits)
        return false;
    memset(bits + f->words, 0, (words - f->words) * sizeof *bits);
    f->bits = bits;
    f->words = words;
    return true;
}

uint32_t p9_fidset_take(struct p9_fidset *f)
{
    while (f->hint < f->words && f->bits[f->hint] == UINT64_MAX)
        f->hint++;
    if (f->hint == f->words && !grow_bits(f))
        return P9_NOFID;
    unsigned bit = (unsigned)__builtin_ctzll(~f->bits[f->hint]);
    f->bits[f->hint] |= 1ull << bit;
    return f->base + f->hint * 64 + bit;
}

void p9_fidset_release(struct p9_fidset *f, uint32_t fid)
{
    uint32_t index = fid - f->base;
    if (fid < f->base || index / 64 >= f->words)
        return;
    f->bits[index / 64] &= ~(1ull << (index % 64));
    if (index / 64 < f->hint)
        f->hint = index / 64;
}

void p9_fidset_renew(struct p9_fidset *f)
{
    uint32_t base = f->base + f->words * 64;
    p9_fidset_finish(f);
    /* Starting over is safe: by then nobody holds numbers of the first connections. */
    f->base = base > UINT32_MAX / 2 ? 0 : base;
}

void p9_fidset_finish(struct p9_fidset *f)
{
    free(f->bits);
    *f = (struct p9_fidset){0};
}
