// SPDX-License-Identifier: Apache-2.0
// Holes of files over 9P: see seek.h.
#include "9p/seek.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PREFIX_DATA "space.seek.data."
#define PREFIX_HOLE "space.seek.hole."

void p9_seek_name(char out[P9_SEEK_TEXT_MAX], int whence, uint64_t offset)
{
    snprintf(out, P9_SEEK_TEXT_MAX, "%s%" PRIu64, whence == SEEK_DATA ? PREFIX_DATA : PREFIX_HOLE, offset);
}

/* Digits and nothing else, of a number that off_t holds. */
static bool parse_offset(const char *p, size_t len, uint64_t *out)
{
    uint64_t n = 0;
    if (!len)
        return false;
    for (size_t i = 0; i < len; i++) {
        uint64_t digit = (uint64_t)(unsigned char)p[i] - '0';
        if (digit > 9 || n > ((uint64_t)INT64_MAX - digit) / 10)
            return false;
        n = n * 10 + digit;
    }
    *out = n;
    return true;
}

bool p9_seek_parse(struct p9_str name, int *ret_whence, uint64_t *ret_offset)
{
    const size_t prefix = sizeof PREFIX_DATA - 1;
    if (name.len <= prefix)
        return false;
    if (!memcmp(name.s, PREFIX_DATA, prefix))
        *ret_whence = SEEK_DATA;
    else if (!memcmp(name.s, PREFIX_HOLE, prefix))
        *ret_whence = SEEK_HOLE;
    else
        return false;
    return parse_offset(name.s + prefix, name.len - prefix, ret_offset);
}

bool p9_seek_value(struct p9_data value, uint64_t *ret_offset)
{
    return parse_offset(value.p, value.len, ret_offset);
}
