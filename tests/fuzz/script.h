// SPDX-License-Identifier: Apache-2.0
// Reads a fuzz input as a script: bytes taken one after the other; zeros after the end.
#ifndef SPACE_TESTS_SCRIPT_H
#define SPACE_TESTS_SCRIPT_H

#include "9p/codec.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct script {
    const uint8_t *p;
    size_t left;
};

static inline uint8_t script_byte(struct script *s)
{
    if (!s->left)
        return 0;
    s->left--;
    return *s->p++;
}

/* Up to `n` bytes; their number in *ret_len. */
static inline const uint8_t *script_bytes(struct script *s, size_t n, size_t *ret_len)
{
    const uint8_t *p = s->p;
    *ret_len = n < s->left ? n : s->left;
    s->p += *ret_len;
    s->left -= *ret_len;
    return p;
}

/* A malloc'ed message of this type whose body is `n` bytes of the script; its size field is right.
 */
static inline uint8_t *script_message(struct script *s, uint8_t type, uint16_t tag, size_t n, size_t *ret_size)
{
    size_t body_len;
    const uint8_t *body = script_bytes(s, n, &body_len);
    size_t size = P9_HDR + body_len;
    uint8_t *m = malloc(size);
    for (int i = 0; i < 4; i++)
        m[i] = (uint8_t)(size >> (8 * i));
    m[4] = type;
    m[5] = (uint8_t)tag;
    m[6] = (uint8_t)(tag >> 8);
    if (body_len)
        memcpy(m + P9_HDR, body, body_len);
    *ret_size = size;
    return m;
}

/* The n-th of all types whose number is even (T-messages) or odd; wraps around. */
static inline uint8_t script_type(unsigned n, unsigned odd)
{
    for (;;)
        for (unsigned type = 0; type < P9_TYPE_MAX; type++)
            if (type % 2 == odd && p9_type_name((uint8_t)type) && n-- == 0)
                return (uint8_t)type;
}

#endif
