// SPDX-License-Identifier: Apache-2.0
// Builds a TLS ClientHello for tests, cut into records of `piece` bytes.
#ifndef SPACE_TESTS_HELLO_H
#define SPACE_TESTS_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline size_t put_number(uint8_t *p, size_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> 8 * (bytes - 1 - i));
    return (size_t)bytes;
}

/* `name` NULL: without server_name. Returns the size. */
static inline size_t hello_make(uint8_t *out, const char *name, bool ech, size_t piece)
{
    uint8_t h[1024], ext[600];
    size_t n = 4, e = 0, size = 0;
    n += put_number(h + n, 0x0303, 2);
    memset(h + n, 7, 32);
    n += 32;
    n += put_number(h + n, 0, 1);
    n += put_number(h + n, 2, 2);
    n += put_number(h + n, 0x1301, 2);
    n += put_number(h + n, 1, 1);
    n += put_number(h + n, 0, 1);
    if (name) {
        size_t len = strlen(name);
        e += put_number(ext + e, 0, 2);
        e += put_number(ext + e, len + 5, 2);
        e += put_number(ext + e, len + 3, 2);
        e += put_number(ext + e, 0, 1);
        e += put_number(ext + e, len, 2);
        memcpy(ext + e, name, len);
        e += len;
    }
    e += put_number(ext + e, 43, 2); /* supported_versions */
    e += put_number(ext + e, 3, 2);
    e += put_number(ext + e, 0x020304, 3);
    if (ech) {
        e += put_number(ext + e, 0xfe0d, 2);
        e += put_number(ext + e, 1, 2);
        e += put_number(ext + e, 0, 1);
    }
    n += put_number(h + n, e, 2);
    memcpy(h + n, ext, e);
    n += e;
    h[0] = 1;
    put_number(h + 1, n - 4, 3);
    for (size_t at = 0; at < n; at += piece) {
        size_t len = n - at < piece ? n - at : piece;
        size += put_number(out + size, 0x160301, 3);
        size += put_number(out + size, len, 2);
        memcpy(out + size, h + at, len);
        size += len;
    }
    return size;
}

#endif
