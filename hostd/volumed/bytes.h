// SPDX-License-Identifier: Apache-2.0
// Little-endian numbers in and out of byte ranges. A cursor's error is sticky: look once, at the end.
#ifndef SPACE_VOLUMED_BYTES_H
#define SPACE_VOLUMED_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cursor {
    const uint8_t *p;
    size_t left;
    bool bad; /* something was read behind the end: everything read since is 0 */
};

static inline struct cursor cursor_of(const void *p, size_t size)
{
    return (struct cursor){p, size, false};
}

/* `size` bytes, borrowed; NULL behind the end. */
static inline const uint8_t *cursor_take(struct cursor *c, size_t size)
{
    if (c->bad || size > c->left) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += size;
    c->left -= size;
    return p;
}

static inline void cursor_copy(struct cursor *c, void *out, size_t size)
{
    const uint8_t *p = cursor_take(c, size);
    if (p)
        memcpy(out, p, size);
    else
        memset(out, 0, size);
}

static inline uint16_t cursor_u16(struct cursor *c)
{
    uint16_t v;
    cursor_copy(c, &v, sizeof v);
    return le16toh(v);
}

static inline uint32_t cursor_u32(struct cursor *c)
{
    uint32_t v;
    cursor_copy(c, &v, sizeof v);
    return le32toh(v);
}

static inline uint64_t cursor_u64(struct cursor *c)
{
    uint64_t v;
    cursor_copy(c, &v, sizeof v);
    return le64toh(v);
}

/* `size` bytes that must be 0. */
static inline void cursor_zeros(struct cursor *c, size_t size)
{
    const uint8_t *p = cursor_take(c, size);
    for (size_t i = 0; p && i < size; i++)
        c->bad = c->bad || p[i] != 0;
}

/* The other way; the room is the caller's to know. */
static inline uint8_t *put_bytes(uint8_t *p, const void *from, size_t size)
{
    memcpy(p, from, size);
    return p + size;
}

static inline uint8_t *put_u16(uint8_t *p, uint16_t v)
{
    v = htole16(v);
    return put_bytes(p, &v, sizeof v);
}

static inline uint8_t *put_u32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    return put_bytes(p, &v, sizeof v);
}

static inline uint8_t *put_u64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    return put_bytes(p, &v, sizeof v);
}

static inline uint8_t *put_zeros(uint8_t *p, size_t size)
{
    memset(p, 0, size);
    return p + size;
}

#endif
