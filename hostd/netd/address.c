// SPDX-License-Identifier: Apache-2.0
// IPv4 addresses: see address.h. Special ones: IANA's IPv4 special-purpose registry (RFC 6890 and
// its successors), multicast, and what clouds answer their machines' questions at.
#include "hostd/netd/address.h"

#include <stdio.h>

static const struct {
    struct range range;
    const char *what;
} special[] = {
    {{0x00000000, 8}, "of this network"},
    {{0x0a000000, 8}, "private"},
    {{0x64400000, 10}, "shared by a carrier"},
    {{0x7f000000, 8}, "loopback"},
    {{0xa9fea9fe, 32}, "a cloud's metadata service"},
    {{0xa9fe0000, 16}, "link-local"},
    {{0xa83f8110, 32}, "a cloud's metadata service"}, /* Azure: 168.63.129.16 */
    {{0xac100000, 12}, "private"},
    {{0xc0000000, 24}, "of a protocol"},
    {{0xc0000200, 24}, "for documentation"},
    {{0xc0586300, 24}, "a 6to4 relay"},
    {{0xc0a80000, 16}, "private"},
    {{0xc6120000, 15}, "for benchmarks"},
    {{0xc6336400, 24}, "for documentation"},
    {{0xcb007100, 24}, "for documentation"},
    {{0xe0000000, 4}, "multicast"},
    {{0xf0000000, 4}, "reserved"},
};

const char *address_special(uint32_t address, struct range *ret_range)
{
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        if (range_has(&special[i].range, address)) {
            *ret_range = special[i].range;
            return special[i].what;
        }
    return NULL;
}

bool address_parse(const char *text, size_t len, uint32_t *out)
{
    uint32_t address = 0;
    size_t at = 0;
    for (int part = 0; part < 4; part++) {
        uint32_t n = 0;
        size_t first = at;
        if (part > 0 && (at >= len || text[at++] != '.'))
            return false;
        first = at;
        for (; at < len && at - first < 3 && text[at] >= '0' && text[at] <= '9'; at++)
            n = n * 10 + (uint32_t)(text[at] - '0');
        if (at == first || n > 255 || (at - first > 1 && text[first] == '0'))
            return false;
        address = address << 8 | n;
    }
    *out = address;
    return at == len;
}

char *address_format(uint32_t address, char out[ADDRESS_TEXT_MAX])
{
    snprintf(out, ADDRESS_TEXT_MAX, "%u.%u.%u.%u", address >> 24, address >> 16 & 255, address >> 8 & 255, address & 255);
    return out;
}
