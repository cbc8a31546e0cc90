// SPDX-License-Identifier: Apache-2.0
// PROXY protocol version 2 (haproxy.org, proxy-protocol.txt, 2.2), as far as space-netd and HAProxy
// speak it to each other. Pure.
#ifndef SPACE_NETD_PROXY_H
#define SPACE_NETD_PROXY_H

#include "ipc/inject.h"

#include <stddef.h>
#include <stdint.h>

#define PROXY_HEAD 16u   /* bytes that tell how many follow */
#define PROXY_MAX  1024u /* bytes of a header that we read or write */

struct proxy_header {
    uint32_t source, address; /* IPv4, host order */
    uint16_t source_port, port;
    const char *name, *id; /* PP2_TYPE_AUTHORITY, PP2_TYPE_UNIQUE_ID */
};

/* Returns the bytes written; both texts have room: at most INJECT_NAME_SIZE. */
size_t proxy_write(const struct proxy_header *h, uint8_t out[PROXY_MAX]);

/* How long the whole header is, from its first PROXY_HEAD bytes; 0: it is none, or too long. */
size_t proxy_size(const uint8_t head[PROXY_HEAD]);

/* The unique id of a whole header of `len` bytes. 0, or -EBADMSG when it has none, two, or is
 * malformed. */
int proxy_read_id(const uint8_t *p, size_t len, char out[INJECT_ID_LEN + 1]);

#endif
