// SPDX-License-Identifier: Apache-2.0
// IPv4 addresses and ranges, in host byte order, and which of them are no place on the public
// internet. Guests have no IPv6, and netd connects to no IPv6 address: so there are no mapped,
// translated (NAT64) or tunnelled (6to4) forms of an address to see through.
#ifndef SPACE_NETD_ADDRESS_H
#define SPACE_NETD_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct range {
    uint32_t base;
    uint8_t bits; /* 0 to 32; what lies below them is 0 in `base` */
};

#define ADDRESS_TEXT_MAX 16 /* "255.255.255.255" */

static inline bool range_has(const struct range *r, uint32_t address)
{
    return !r->bits || (address ^ r->base) >> (32 - r->bits) == 0;
}

/* Four decimal numbers and nothing else: no octal, hexadecimal or shorter form. */
bool address_parse(const char *text, size_t len, uint32_t *out);

char *address_format(uint32_t address, char out[ADDRESS_TEXT_MAX]);

/* What a special address is (`loopback`, `private` ...), and the range that makes it so; NULL for
 * one on the public internet. */
const char *address_special(uint32_t address, struct range *ret_range);

#endif
