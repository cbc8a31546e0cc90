// SPDX-License-Identifier: Apache-2.0
// Encoder and decoder of 9P2000.L, driven by one field table that messages.def expands to.
#include "9p/codec.h"

#include "9p/copy.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum kind { K_END, K_U8, K_U16, K_U32, K_U64, K_STR, K_QID, K_DATA, K_NAMES, K_QIDS };

struct field {
    uint8_t kind;    /* enum kind */
    uint16_t offset; /* in struct p9_msg */
};

#define FIELD(k, M, f)             {k, offsetof(struct p9_msg, M.f)},
#define U8(M, f)                   FIELD(K_U8, M, f)
#define U16(M, f)                  FIELD(K_U16, M, f)
#define U32(M, f)                  FIELD(K_U32, M, f)
#define U64(M, f)                  FIELD(K_U64, M, f)
#define STR(M, f)                  FIELD(K_STR, M, f)
#define QID(M, f)                  FIELD(K_QID, M, f)
#define DATA(M, f)                 FIELD(K_DATA, M, f)
#define NAMES(M, f)                FIELD(K_NAMES, M, f)
#define QIDS(M, f)                 FIELD(K_QIDS, M, f)
#define P9_MSG(name, type, fields) static const struct field fields_##name[] = {fields{K_END, 0}};
#include "9p/messages.def"
#undef P9_MSG

static const struct {
    const char *name;
    const struct field *fields;
} messages[P9_TYPE_MAX] = {
#define P9_MSG(name, type, fields) [type] = {#name, fields_##name},
#include "9p/messages.def"
#undef P9_MSG
};

#define QID_SIZE 13u

/* Bytes being read or written; the first access that does not fit sets `bad`, and every later one
 * is void. */
struct cursor {
    uint8_t *w;       /* written to */
    const uint8_t *r; /* read from */
    size_t left;
    bool bad;
};

static bool take(struct cursor *c, size_t n)
{
    if (c->bad || n > c->left) {
        c->bad = true;
        return false;
    }
    c->left -= n;
    return true;
}

static void put_int(struct cursor *c, uint64_t v, unsigned n)
{
    if (!take(c, n))
        return;
    for (unsigned i = 0; i < n; i++, v >>= 8)
        *c->w++ = (uint8_t)v;
}

static void put_bytes(struct cursor *c, const void *p, size_t n)
{
    if (!take(c, n))
        return;
    p9_copy(c->w, p, n);
    c->w += n;
}

static void put_str(struct cursor *c, const struct p9_str *s)
{
    put_int(c, s->len, 2);
    put_bytes(c, s->s, s->len);
}

static void put_qid(struct cursor *c, const struct p9_qid *q)
{
    put_int(c, q->type, 1);
    put_int(c, q->version, 4);
    put_int(c, q->path, 8);
}

static uint64_t get_int(struct cursor *c, unsigned n)
{
    uint64_t v = 0;
    if (!take(c, n))
        return 0;
    for (unsigned i = 0; i < n; i++)
        v |= (uint64_t)c->r[i] << (8 * i);
    c->r += n;
    return v;
}

static const void *get_bytes(struct cursor *c, size_t n)
{
    const void *p = c->r;
    if (!take(c, n))
        return NULL;
    c->r += n;
    return p;
}

static void get_str(struct cursor *c, struct p9_str *out)
{
    out->len = (uint16_t)get_int(c, 2);
    out->s = get_bytes(c, out->len);
    if (!out->s)
        out->len = 0;
    else if (memchr(out->s, 0, out->len))
        c->bad = true;
}

static void get_qid(struct cursor *c, struct p9_qid *out)
{
    out->type = (uint8_t)get_int(c, 1);
    out->version = (uint32_t)get_int(c, 4);
    out->path = get_int(c, 8);
}

/* A count of list elements; more than fit are an error. */
static uint16_t get_count(struct cursor *c)
{
    uint16_t n = (uint16_t)get_int(c, 2);
    if (n > P9_WALK_MAX) {
        c->bad = true;
        return 0;
    }
    return n;
}

static const struct field *fields_of(uint8_t type)
{
    return type < P9_TYPE_MAX ? messages[type].fields : NULL;
}

const char *p9_type_name(uint8_t type)
{
    return type < P9_TYPE_MAX ? messages[type].name : NULL;
}

/* Wire size of one field, or 0 when it cannot be encoded (no field is empty on the wire). */
static size_t field_size(uint8_t kind, const void *p)
{
    static const uint8_t fixed[] = {[K_U8] = 1, [K_U16] = 2, [K_U32] = 4, [K_U64] = 8, [K_QID] = QID_SIZE};
    size_t size = 2;
    switch (kind) {
    case K_STR: return 2 + (size_t)((const struct p9_str *)p)->len;
    case K_DATA: return 4 + (size_t)((const struct p9_data *)p)->len;
    case K_NAMES: {
        const struct p9_names *l = p;
        if (l->n > P9_WALK_MAX)
            return 0;
        for (unsigned i = 0; i < l->n; i++)
            size += 2 + (size_t)l->v[i].len;
        return size;
    }
    case K_QIDS: {
        const struct p9_qids *l = p;
        return l->n > P9_WALK_MAX ? 0 : size + QID_SIZE * (size_t)l->n;
    }
    default: return fixed[kind];
    }
}

size_t p9_encoded_size(const struct p9_msg *m)
{
    const struct field *f = fields_of(m->type);
    size_t size = P9_HDR;
    if (!f)
        return 0;
    for (; f->kind != K_END; f++) {
        size_t n = field_size(f->kind, (const char *)m + f->offset);
        if (!n)
            return 0;
        size += n;
    }
    return size > UINT32_MAX ? 0 : size;
}

static void put_field(struct cursor *c, uint8_t kind, const void *p)
{
    switch (kind) {
    case K_U8: put_int(c, *(const uint8_t *)p, 1); break;
    case K_U16: put_int(c, *(const uint16_t *)p, 2); break;
    case K_U32: put_int(c, *(const uint32_t *)p, 4); break;
    case K_U64: put_int(c, *(const uint64_t *)p, 8); break;
    case K_STR: put_str(c, p); break;
    case K_QID: put_qid(c, p); break;
    case K_DATA: {
        const struct p9_data *d = p;
        put_int(c, d->len, 4);
        put_bytes(c, d->p, d->len);
        break;
    }
    case K_NAMES: {
        const struct p9_names *l = p;
        put_int(c, l->n, 2);
        for (unsigned i = 0; i < l->n; i++)
            put_str(c, &l->v[i]);
        break;
    }
    case K_QIDS: {
        const struct p9_qids *l = p;
        put_int(c, l->n, 2);
        for (unsigned i = 0; i < l->n; i++)
            put_qid(c, &l->v[i]);
        break;
    }
    default: c->bad = true;
    }
}

long p9_encode(const struct p9_msg *m, void *buf, size_t size)
{
    size_t total = p9_encoded_size(m);
    if (!total)
        return -EINVAL;
    if (total > size)
        return -EMSGSIZE;
    struct cursor c = {.w = buf, .left = total};
    put_int(&c, total, 4);
    put_int(&c, m->type, 1);
    put_int(&c, m->tag, 2);
    for (const struct field *f = fields_of(m->type); f->kind != K_END; f++)
        put_field(&c, f->kind, (const char *)m + f->offset);
    return c.bad ? -EINVAL : (long)total;
}

static void get_field(struct cursor *c, uint8_t kind, void *p)
{
    switch (kind) {
    case K_U8: *(uint8_t *)p = (uint8_t)get_int(c, 1); break;
    case K_U16: *(uint16_t *)p = (uint16_t)get_int(c, 2); break;
    case K_U32: *(uint32_t *)p = (uint32_t)get_int(c, 4); break;
    case K_U64: *(uint64_t *)p = get_int(c, 8); break;
    case K_STR: get_str(c, p); break;
    case K_QID: get_qid(c, p); break;
    case K_DATA: {
        struct p9_data *d = p;
        d->len = (uint32_t)get_int(c, 4);
        d->p = get_bytes(c, d->len);
        break;
    }
    case K_NAMES: {
        struct p9_names *l = p;
        l->n = get_count(c);
        for (unsigned i = 0; i < l->n; i++)
            get_str(c, &l->v[i]);
        break;
    }
    case K_QIDS: {
        struct p9_qids *l = p;
        l->n = get_count(c);
        for (unsigned i = 0; i < l->n; i++)
            get_qid(c, &l->v[i]);
        break;
    }
    default: c->bad = true;
    }
}

int p9_decode(const void *buf, size_t len, struct p9_msg *out)
{
    struct cursor c = {.r = buf, .left = len};
    uint64_t size = get_int(&c, 4);
    out->type = (uint8_t)get_int(&c, 1);
    out->tag = (uint16_t)get_int(&c, 2);
    const struct field *f = fields_of(out->type);
    if (c.bad || size != len || !f)
        return -EBADMSG;
    for (; f->kind != K_END; f++)
        get_field(&c, f->kind, (char *)out + f->offset);
    return c.bad || c.left ? -EBADMSG : 0;
}

uint32_t p9_peek_size(const void *buf)
{
    struct cursor c = {.r = buf, .left = 4};
    return (uint32_t)get_int(&c, 4);
}

int p9_str_eq(struct p9_str a, const char *s)
{
    return strlen(s) == a.len && (a.len == 0 || memcmp(a.s, s, a.len) == 0);
}

struct p9_str p9_str_of(const char *s)
{
    return (struct p9_str){.s = s, .len = (uint16_t)strnlen(s, UINT16_MAX)};
}

int p9_dirent_pack(void *buf, size_t size, size_t *pos, const struct p9_dirent *d)
{
    size_t need = QID_SIZE + 8 + 1 + 2 + (size_t)d->name.len;
    if (*pos > size || need > size - *pos)
        return -ENOSPC;
    struct cursor c = {.w = (uint8_t *)buf + *pos, .left = need};
    put_qid(&c, &d->qid);
    put_int(&c, d->offset, 8);
    put_int(&c, d->type, 1);
    put_str(&c, &d->name);
    *pos += need;
    return 0;
}

int p9_dirent_unpack(const void *buf, size_t size, size_t *pos, struct p9_dirent *out)
{
    if (*pos >= size)
        return 0;
    struct cursor c = {.r = (const uint8_t *)buf + *pos, .left = size - *pos};
    get_qid(&c, &out->qid);
    out->offset = get_int(&c, 8);
    out->type = (uint8_t)get_int(&c, 1);
    get_str(&c, &out->name);
    if (c.bad)
        return -EBADMSG;
    *pos = size - c.left;
    return 1;
}
