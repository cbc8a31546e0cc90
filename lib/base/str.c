// SPDX-License-Identifier: Apache-2.0
// Small-value parsing: see str.h.
#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool str_name_valid(const char *s, size_t len)
{
    if (len < 1 || len > NAME_LEN_MAX || !alnum(s[0]))
        return false;
    for (size_t i = 1; i < len; i++)
        if (!alnum(s[i]) && s[i] != '.' && s[i] != '_' && s[i] != '-')
            return false;
    return true;
}

/* Reads the digits at the start of `s`; *end is behind them. */
static int digits(const char *s, const char **end, uint64_t *out)
{
    uint64_t value = 0;
    if (*s < '0' || *s > '9')
        return -EINVAL;
    for (; *s >= '0' && *s <= '9'; s++) {
        if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, (uint64_t)(*s - '0'), &value))
            return -ERANGE;
    }
    *end = s;
    *out = value;
    return 0;
}

int str_parse_u64(const char *s, uint64_t max, uint64_t *out)
{
    const char *end;
    uint64_t value;
    int rc = digits(s, &end, &value);
    if (rc < 0)
        return rc;
    if (*end)
        return -EINVAL;
    if (value > max)
        return -ERANGE;
    *out = value;
    return 0;
}

int str_parse_id(const char *s, size_t len, uint64_t *out)
{
    uint64_t value = 0;
    if (len != 12)
        return -EINVAL;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (c >= '0' && c <= '9')
            value = value << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        else
            return -EINVAL;
    }
    *out = value;
    return 0;
}

/* A number and one optional unit letter out of `units`, whose factors are in `factor`. */
static int with_unit(const char *s, const char *units, const uint64_t *factor, uint64_t *out)
{
    const char *end;
    uint64_t value;
    int rc = digits(s, &end, &value);
    if (rc < 0)
        return rc;
    if (*end) {
        const char *u = strchr(units, *end);
        if (!u || end[1])
            return -EINVAL;
        if (__builtin_mul_overflow(value, factor[u - units], &value))
            return -ERANGE;
    }
    *out = value;
    return 0;
}

int str_parse_size(const char *s, uint64_t *out)
{
    static const uint64_t factor[] = {1ULL << 10, 1ULL << 20, 1ULL << 30, 1ULL << 40};
    return with_unit(s, "KMGT", factor, out);
}

int str_parse_duration(const char *s, uint64_t *out)
{
    static const uint64_t factor[] = {1, 60, 3600, 86400};
    return with_unit(s, "smhd", factor, out);
}

char *str_format_size(uint64_t bytes, char out[24])
{
    static const char units[] = "KMGT";
    int shift = 0;
    for (int i = 4; i >= 1; i--)
        if (bytes && bytes % (1ULL << (10 * i)) == 0) {
            shift = i;
            break;
        }
    if (shift)
        snprintf(out, 24, "%" PRIu64 "%c", bytes >> (10 * shift), units[shift - 1]);
    else
        snprintf(out, 24, "%" PRIu64, bytes);
    return out;
}

char *str_trim(char *s)
{
    while (*s == ' ' || *s == '\t')
        s++;
    size_t len = strlen(s);
    while (len && isspace((unsigned char)s[len - 1]))
        s[--len] = 0;
    return s;
}

bool str_append(char *buf, size_t size, size_t *pos, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf + *pos, size - *pos, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= size - *pos) {
        buf[*pos] = 0;
        return false;
    }
    *pos += (size_t)n;
    return true;
}

void str_copy(char *dst, size_t size, const char *src)
{
    size_t len = strnlen(src, size - 1);
    memcpy(dst, src, len);
    dst[len] = 0;
}
