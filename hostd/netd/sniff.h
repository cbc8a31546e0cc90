// SPDX-License-Identifier: Apache-2.0
// What a client's first bytes say of whom it wants to talk to. Pure, bounded, and asked again with
// more bytes until it knows: so no delay gets past it.
#ifndef SPACE_NETD_SNIFF_H
#define SPACE_NETD_SNIFF_H

#include "hostd/netd/policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SNIFF_MAX 16384 /* with so many bytes there is no SNIFF_MORE any more */

enum sniff {
    SNIFF_MORE,
    SNIFF_TLS,  /* a whole ClientHello */
    SNIFF_HTTP, /* a request with all of its head */
    SNIFF_RAW,  /* something else */
    SNIFF_BAD,  /* begins like TLS or HTTP and is neither, or is too long */
};

struct sniffed {
    bool has_name; /* SNI or Host: `name`, lower case */
    bool ech;      /* the name may not be the one that counts */
    bool tunnel;   /* CONNECT, or HTTP/2 in the clear: names that we will not see follow */
    char name[POLICY_NAME_MAX + 1];
};

enum sniff sniff(const uint8_t *p, size_t len, struct sniffed *out);

#endif
