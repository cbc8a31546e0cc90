// SPDX-License-Identifier: Apache-2.0
// Keeping a guest's symlinks inside root/NAME: see symlink.h.
#include "hostd/tree/symlink.h"

#include <stdio.h>
#include <string.h>

bool symlink_rewrite(const char *target, size_t len, uint32_t depth, char *out, size_t size)
{
    struct {
        const char *s;
        size_t len;
    } part[SYMLINK_PARTS_MAX];
    size_t n = 0, pos = 0;
    uint32_t ups = target[0] == '/' ? depth : 0;
    bool changed = len == 0 || target[0] == '/';
    for (size_t i = 0; i < len;) {
        size_t end = i;
        while (end < len && target[end] != '/')
            end++;
        size_t plen = end - i;
        if (plen == 2 && !memcmp(target + i, "..", 2)) {
            changed = changed || n > 0 || ups == depth;
            if (n > 0)
                n--;
            else if (ups < depth)
                ups++;
        } else if (plen && !(plen == 1 && target[i] == '.')) {
            if (n == sizeof part / sizeof part[0])
                return false;
            part[n].s = target + i;
            part[n++].len = plen;
        }
        i = end + 1;
    }
    if (!changed) {
        if (len >= size)
            return false;
        memcpy(out, target, len);
        out[len] = 0;
        return true;
    }
    for (uint32_t i = 0; i < ups; i++) {
        if (pos + 4 > size)
            return false;
        pos += (size_t)snprintf(out + pos, size - pos, "..%s", i + 1 < ups || n ? "/" : "");
    }
    for (size_t i = 0; i < n; i++) {
        if (pos + part[i].len + 2 > size)
            return false;
        memcpy(out + pos, part[i].s, part[i].len);
        pos += part[i].len;
        if (i + 1 < n)
            out[pos++] = '/';
    }
    if (!pos)
        out[pos++] = '.';
    out[pos] = 0;
    return true;
}
