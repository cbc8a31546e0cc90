// SPDX-License-Identifier: Apache-2.0
// Random messages from messages.def: see fill.h.
#include "unit/9p/fill.h"

#include <string.h>

/* No NUL in it: any piece is a valid string. */
static const char bytes[] = "abcdefghijklmnopqrstuvwxyz/..\xc3\xa9\x01\xff 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                            "the quick brown fox jumps over the lazy dog";

uint64_t fill_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static struct p9_str some_str(uint64_t *seed)
{
    size_t len = fill_random(seed) % (sizeof bytes);
    size_t start = fill_random(seed) % (sizeof bytes - len);
    return (struct p9_str){.s = bytes + start, .len = (uint16_t)len};
}

static struct p9_qid some_qid(uint64_t *seed)
{
    return (struct p9_qid){.type = (uint8_t)fill_random(seed), .version = (uint32_t)fill_random(seed), .path = fill_random(seed)};
}

static struct p9_names some_names(uint64_t *seed)
{
    struct p9_names l = {.n = (uint16_t)(fill_random(seed) % (P9_WALK_MAX + 1))};
    for (unsigned i = 0; i < l.n; i++)
        l.v[i] = some_str(seed);
    return l;
}

static struct p9_qids some_qids(uint64_t *seed)
{
    struct p9_qids l = {.n = (uint16_t)(fill_random(seed) % (P9_WALK_MAX + 1))};
    for (unsigned i = 0; i < l.n; i++)
        l.v[i] = some_qid(seed);
    return l;
}

static struct p9_data some_data(uint64_t *seed)
{
    struct p9_str s = some_str(seed);
    return (struct p9_data){.p = s.s, .len = s.len};
}

bool fill_message(struct p9_msg *m, uint8_t type, uint64_t *seed)
{
    memset(m, 0, sizeof *m);
    m->type = type;
    m->tag = (uint16_t)fill_random(seed);
    switch (type) {
#define U8(M, f)    m->M.f = (uint8_t)fill_random(seed);
#define U16(M, f)   m->M.f = (uint16_t)fill_random(seed);
#define U32(M, f)   m->M.f = (uint32_t)fill_random(seed);
#define U64(M, f)   m->M.f = fill_random(seed);
#define STR(M, f)   m->M.f = some_str(seed);
#define QID(M, f)   m->M.f = some_qid(seed);
#define DATA(M, f)  m->M.f = some_data(seed);
#define NAMES(M, f) m->M.f = some_names(seed);
#define QIDS(M, f)  m->M.f = some_qids(seed);
#define P9_MSG(name, number, fields)                                                                                                                 \
    case number: {                                                                                                                                   \
        fields                                                                                                                                       \
    }                                                                                                                                                \
        return true;
#include "9p/messages.def"
#undef P9_MSG
#undef U8
#undef U16
#undef U32
#undef U64
#undef STR
#undef QID
#undef DATA
#undef NAMES
#undef QIDS
    default: return false;
    }
}

static bool same_str(const struct p9_str *a, const struct p9_str *b)
{
    return a->len == b->len && memcmp(a->s, b->s, a->len) == 0;
}

static bool same_qid(const struct p9_qid *a, const struct p9_qid *b)
{
    return a->type == b->type && a->version == b->version && a->path == b->path;
}

static bool same_data(const struct p9_data *a, const struct p9_data *b)
{
    return a->len == b->len && memcmp(a->p, b->p, a->len) == 0;
}

static bool same_names(const struct p9_names *a, const struct p9_names *b)
{
    for (unsigned i = 0; a->n == b->n && i < a->n; i++)
        if (!same_str(&a->v[i], &b->v[i]))
            return false;
    return a->n == b->n;
}

static bool same_qids(const struct p9_qids *a, const struct p9_qids *b)
{
    for (unsigned i = 0; a->n == b->n && i < a->n; i++)
        if (!same_qid(&a->v[i], &b->v[i]))
            return false;
    return a->n == b->n;
}

const char *fill_compare(const struct p9_msg *a, const struct p9_msg *b)
{
    if (a->type != b->type)
        return "type";
    if (a->tag != b->tag)
        return "tag";
    switch (a->type) {
#define NUMBER(M, f)                                                                                                                                 \
    if (a->M.f != b->M.f)                                                                                                                            \
        return #M "." #f;
#define COMPOUND(M, f, same)                                                                                                                         \
    if (!same(&a->M.f, &b->M.f))                                                                                                                     \
        return #M "." #f;
#define U8(M, f)    NUMBER(M, f)
#define U16(M, f)   NUMBER(M, f)
#define U32(M, f)   NUMBER(M, f)
#define U64(M, f)   NUMBER(M, f)
#define STR(M, f)   COMPOUND(M, f, same_str)
#define QID(M, f)   COMPOUND(M, f, same_qid)
#define DATA(M, f)  COMPOUND(M, f, same_data)
#define NAMES(M, f) COMPOUND(M, f, same_names)
#define QIDS(M, f)  COMPOUND(M, f, same_qids)
#define P9_MSG(name, number, fields)                                                                                                                 \
    case number: {                                                                                                                                   \
        fields                                                                                                                                       \
    }                                                                                                                                                \
        return NULL;
#include "9p/messages.def"
    default: return "unknown type";
    }
}
