// SPDX-License-Identifier: Apache-2.0
// A little JSON (RFC 8259): see json.h.
#include "hostd/credd/json.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 32u

static const char *blanks(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* Behind the text that begins at `p`; NULL: there is none. */
static const char *skip_text(const char *p)
{
    if (*p != '"')
        return NULL;
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && *++p == 0)
            return NULL;
    return *p ? p + 1 : NULL;
}

static const char *skip_value(const char *p, unsigned depth);

/* Of an object or a list. */
static const char *skip_members(const char *p, char end, unsigned depth)
{
    p = blanks(p + 1);
    if (*p == end)
        return p + 1;
    while (p) {
        if (end == '}') {
            p = skip_text(p);
            p = p ? blanks(p) : NULL;
            if (!p || *p != ':')
                return NULL;
            p = blanks(p + 1);
        }
        p = skip_value(p, depth + 1);
        p = p ? blanks(p) : NULL;
        if (!p || *p == end)
            return p ? p + 1 : NULL;
        if (*p != ',')
            return NULL;
        p = blanks(p + 1);
    }
    return NULL;
}

static const char *skip_value(const char *p, unsigned depth)
{
    if (depth > DEPTH_MAX)
        return NULL;
    if (*p == '{')
        return skip_members(p, '}', depth);
    if (*p == '[')
        return skip_members(p, ']', depth);
    if (*p == '"')
        return skip_text(p);
    size_t n = strspn(p, "+-.0123456789abcdefghijklmnopqrstuvwxyzE"); /* numbers, true, false, null: not looked at */
    return n ? p + n : NULL;
}

/* The value of a member of the object at `p`; NULL: not there. Names with escapes are none that is asked for. */
static const char *member(const char *p, const char *name)
{
    size_t len = strlen(name);
    if (*p != '{')
        return NULL;
    for (p = blanks(p + 1); p && *p == '"'; p = blanks(p + 1)) {
        const char *key = p + 1, *end = skip_text(p);
        p = end ? blanks(end) : NULL;
        if (!p || *p != ':')
            return NULL;
        p = blanks(p + 1);
        if ((size_t)(end - key) == len + 1 && !memcmp(key, name, len))
            return p;
        p = skip_value(p, 1);
        p = p ? blanks(p) : NULL;
        if (!p || *p != ',')
            return NULL;
    }
    return NULL;
}

static int hex4(const char *p, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", *at = p[i] ? strchr(digits, p[i] >= 'A' && p[i] <= 'F' ? p[i] + 32 : p[i]) : NULL;
        if (!at)
            return -1;
        *out = *out << 4 | (uint32_t)(at - digits);
    }
    return 0;
}

static size_t utf8(uint32_t c, char out[4])
{
    if (c < 0x80)
        return out[0] = (char)c, 1;
    if (c < 0x800)
        return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return out[0] = (char)(0xe0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63)), 3;
    return out[0] = (char)(0xf0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 63)), out[2] = (char)(0x80 | (c >> 6 & 63)),
           out[3] = (char)(0x80 | (c & 63)), 4;
}

/* One escape at *p (behind the backslash), which moves behind it. The bytes; 0: none. */
static size_t unescape(const char **p, char out[4])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t c, low;
    const char *at = strchr(from, **p);
    if (**p && at) {
        (*p)++;
        out[0] = to[at - from];
        return 1;
    }
    if (**p != 'u' || hex4(*p + 1, &c) < 0)
        return 0;
    *p += 5;
    if (c >= 0xdc00 && c < 0xe000)
        return 0;
    if (c >= 0xd800 && c < 0xdc00) {
        if ((*p)[0] != '\\' || (*p)[1] != 'u' || hex4(*p + 2, &low) < 0 || low < 0xdc00 || low > 0xdfff)
            return 0;
        *p += 6;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    return utf8(c, out);
}

static bool copy_text(const char *p, char *out, size_t size, size_t *ret_len)
{
    size_t n = 0;
    for (p++; *p != '"';) {
        char bytes[4] = {*p};
        size_t count = 1;
        if (*p == '\\') {
            p++;
            count = unescape(&p, bytes);
        } else {
            p++;
        }
        if (!count || n + count > size)
            return false;
        memcpy(out + n, bytes, count);
        n += count;
    }
    *ret_len = n;
    return true;
}

bool json_text_at(const char *text, const char *const *path, char *out, size_t size, size_t *ret_len)
{
    const char *p = blanks(text), *end = skip_value(p, 0);
    if (!end || *blanks(end))
        return false;
    for (; p && *path; path++)
        p = member(p, *path);
    return p && skip_text(p) && copy_text(p, out, size, ret_len);
}

size_t json_quote(const char *bytes, size_t len, char *out)
{
    size_t n = 0;
    out[n++] = '"';
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c < 0x20 || c == 0x7f) {
            n += (size_t)sprintf(out + n, "\\u%04x", c);
        } else {
            if (c == '"' || c == '\\')
                out[n++] = '\\';
            out[n++] = (char)c;
        }
    }
    out[n++] = '"';
    return n;
}
