// SPDX-License-Identifier: Apache-2.0
// PROXY protocol version 2: see proxy.h.
#include "hostd/netd/proxy.h"

#include <errno.h>
#include <string.h>

#define COMMAND_PROXY  0x21 /* version 2 */
#define FAMILY_TCP4    0x11
#define TYPE_AUTHORITY 0x02
#define TYPE_UNIQUE_ID 0x05

static const uint8_t signature[12] = {0x0d, 0x0a, 0x0d, 0x0a, 0, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a};

static uint8_t *put16(uint8_t *p, size_t value)
{
    *p++ = (uint8_t)(value >> 8);
    *p++ = (uint8_t)value;
    return p;
}

static uint8_t *put32(uint8_t *p, uint32_t value)
{
    return put16(put16(p, value >> 16), value & 0xffff);
}

static uint8_t *put_text(uint8_t *p, uint8_t type, const char *text)
{
    size_t len = strlen(text);
    *p++ = type;
    p = put16(p, len);
    memcpy(p, text, len);
    return p + len;
}

size_t proxy_write(const struct proxy_header *h, uint8_t out[PROXY_MAX])
{
    uint8_t *p = out + sizeof signature;
    memcpy(out, signature, sizeof signature);
    *p++ = COMMAND_PROXY;
    *p++ = FAMILY_TCP4;
    p = put32(p + 2, h->source);
    p = put32(p, h->address);
    p = put16(p, h->source_port);
    p = put16(p, h->port);
    p = put_text(p, TYPE_AUTHORITY, h->name);
    p = put_text(p, TYPE_UNIQUE_ID, h->id);
    put16(out + PROXY_HEAD - 2, (size_t)(p - out) - PROXY_HEAD);
    return (size_t)(p - out);
}

static size_t get16(const uint8_t *p)
{
    return (size_t)p[0] << 8 | p[1];
}

size_t proxy_size(const uint8_t head[PROXY_HEAD])
{
    size_t size = PROXY_HEAD + get16(head + PROXY_HEAD - 2);
    return memcmp(head, signature, sizeof signature) == 0 && head[12] == COMMAND_PROXY && size <= PROXY_MAX ? size : 0;
}

/* Bytes of addresses, by the family; SIZE_MAX: one that we do not know. */
static size_t addresses_of(uint8_t family)
{
    switch (family >> 4) {
    case 0: return 0;
    case 1: return 12;
    case 2: return 36;
    case 3: return 216;
    default: return SIZE_MAX;
    }
}

int proxy_read_id(const uint8_t *p, size_t len, char out[INJECT_ID_LEN + 1])
{
    size_t skip = len < PROXY_HEAD ? SIZE_MAX : addresses_of(p[13]);
    const uint8_t *end = p + len;
    int found = 0;
    if (len < PROXY_HEAD || skip > len - PROXY_HEAD)
        return -EBADMSG;
    for (p += PROXY_HEAD + skip; p < end;) {
        if (end - p < 3 || get16(p + 1) > (size_t)(end - p - 3))
            return -EBADMSG;
        size_t size = get16(p + 1);
        if (p[0] == TYPE_UNIQUE_ID && (found++ || size != INJECT_ID_LEN))
            return -EBADMSG;
        if (p[0] == TYPE_UNIQUE_ID) {
            memcpy(out, p + 3, size);
            out[size] = 0;
        }
        p += 3 + size;
    }
    return found && !memchr(out, 0, INJECT_ID_LEN) ? 0 : -EBADMSG;
}
