// SPDX-License-Identifier: Apache-2.0
// First bytes of a connection: see sniff.h. TLS: RFC 8446, 4.1.2, and RFC 6066, 3. HTTP: RFC 9112.
#include "hostd/netd/sniff.h"

#include <string.h>
#include <strings.h>

/* ---- names ---- */

/* An IPv4 address in decimal is a name here, too: it is compared with where the client went. */
static bool set_name(struct sniffed *out, const uint8_t *p, size_t len)
{
    uint32_t address;
    if (len && p[len - 1] == '.')
        len--;
    if (!len || len > POLICY_NAME_MAX)
        return false;
    for (size_t i = 0; i < len; i++)
        out->name[i] = (char)(p[i] >= 'A' && p[i] <= 'Z' ? p[i] + 32 : p[i]);
    out->name[len] = 0;
    out->has_name = policy_name_valid(out->name, len) || address_parse(out->name, len, &address);
    return out->has_name;
}

/* ---- TLS ---- */

/* Bytes with a sticky error. */
struct cursor {
    const uint8_t *p;
    size_t left;
    bool bad;
};

static const uint8_t *take(struct cursor *c, size_t n)
{
    if (c->bad || n > c->left) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += n;
    c->left -= n;
    return p;
}

static size_t take_number(struct cursor *c, size_t bytes)
{
    const uint8_t *p = take(c, bytes);
    size_t n = 0;
    for (size_t i = 0; p && i < bytes; i++)
        n = n << 8 | p[i];
    return n;
}

/* A vector with a length of that many bytes. */
static struct cursor take_vector(struct cursor *c, size_t bytes)
{
    size_t n = take_number(c, bytes);
    const uint8_t *p = take(c, n);
    return (struct cursor){p, p ? n : 0, !p};
}

/* More than one name, or one that is none: the server might see another than we do. */
static bool read_server_name(struct cursor *c, struct sniffed *out)
{
    struct cursor list = take_vector(c, 2);
    size_t type = take_number(&list, 1);
    struct cursor name = take_vector(&list, 2);
    return !name.bad && type == 0 && list.left == 0 && c->left == 0 && !out->has_name && set_name(out, name.p, name.left);
}

#define EXTENSION_SERVER_NAME 0
#define EXTENSION_ECH         0xfe0d

static enum sniff read_hello(struct cursor *c, struct sniffed *out)
{
    take(c, 2 + 32); /* version, random */
    take_vector(c, 1);
    take_vector(c, 2);
    take_vector(c, 1);
    if (c->bad)
        return SNIFF_BAD;
    if (!c->left)
        return SNIFF_TLS;
    struct cursor all = take_vector(c, 2);
    while (!all.bad && all.left) {
        size_t type = take_number(&all, 2);
        struct cursor e = take_vector(&all, 2);
        if (e.bad || (type == EXTENSION_SERVER_NAME && !read_server_name(&e, out)))
            return SNIFF_BAD;
        out->ech = out->ech || type == EXTENSION_ECH;
    }
    return all.bad || c->left ? SNIFF_BAD : SNIFF_TLS;
}

/* The handshake may be cut into records anywhere. */
static enum sniff sniff_tls(const uint8_t *p, size_t len, struct sniffed *out)
{
    uint8_t hello[SNIFF_MAX];
    size_t at = 0, n = 0, want = 4;
    while (n < want) {
        if (len - at < 5)
            return SNIFF_MORE;
        size_t size = (size_t)(p[at + 3] << 8 | p[at + 4]);
        if (p[at] != 22 || p[at + 1] != 3 || size == 0 || size > 16384 + 256)
            return SNIFF_BAD;
        size_t here = size < len - at - 5 ? size : len - at - 5;
        if (here > sizeof hello - n)
            here = sizeof hello - n;
        memcpy(hello + n, p + at + 5, here);
        n += here;
        at += 5 + here;
        if (n >= 4)
            want = 4 + ((size_t)hello[1] << 16 | (size_t)hello[2] << 8 | hello[3]);
        if (n >= 1 && hello[0] != 1)
            return SNIFF_BAD;
        if (want > sizeof hello)
            return SNIFF_BAD;
        if (here < size && n < want)
            return SNIFF_MORE;
    }
    struct cursor c = {hello + 4, want - 4, false};
    return read_hello(&c, out);
}

/* ---- HTTP ---- */

static bool is_letter(uint8_t c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Host, or the authority of a request's target: a name and perhaps a port. */
static bool set_authority(struct sniffed *out, const uint8_t *p, size_t len)
{
    const uint8_t *colon = memchr(p, ':', len);
    size_t n = colon ? (size_t)(colon - p) : len;
    for (size_t i = n + 1; i < len; i++)
        if (p[i] < '0' || p[i] > '9')
            return false;
    return set_name(out, p, n);
}

/* The line's end, and where the next one begins; NULL: not there yet. */
static const uint8_t *end_of_line(const uint8_t *p, const uint8_t *end, const uint8_t **next)
{
    const uint8_t *lf = memchr(p, '\n', (size_t)(end - p));
    if (!lf)
        return NULL;
    *next = lf + 1;
    return lf > p && lf[-1] == '\r' ? lf - 1 : lf;
}

static enum sniff read_headers(const uint8_t *p, const uint8_t *end, struct sniffed *out)
{
    bool host = false;
    for (;;) {
        const uint8_t *next, *stop = end_of_line(p, end, &next);
        if (!stop)
            return SNIFF_MORE;
        if (stop == p)
            return SNIFF_HTTP;
        const uint8_t *colon = memchr(p, ':', (size_t)(stop - p));
        if (!colon || *p == ' ' || *p == '\t')
            return SNIFF_BAD; /* folded lines, too: servers differ on them */
        size_t name = (size_t)(colon - p);
        while (name && (p[name - 1] == ' ' || p[name - 1] == '\t'))
            name--;
        if (name == 4 && strncasecmp((const char *)p, "host", 4) == 0) {
            const uint8_t *value = colon + 1;
            while (value < stop && (*value == ' ' || *value == '\t'))
                value++;
            while (stop > value && (stop[-1] == ' ' || stop[-1] == '\t'))
                stop--;
            if (host || name != (size_t)(colon - p) || !set_authority(out, value, (size_t)(stop - value)))
                return SNIFF_BAD;
            host = true;
        }
        p = next;
    }
}

/* Does the request's target name the host itself, as for a proxy? Then it must be Host's. */
static bool target_agrees(const uint8_t *line, const uint8_t *stop, const struct sniffed *host)
{
    struct sniffed in_target = {0};
    const uint8_t *target = memchr(line, ' ', (size_t)(stop - line));
    if (!target || ++target == stop || *target == '/' || *target == '*')
        return true;
    const uint8_t *end = memchr(target, ' ', (size_t)(stop - target));
    size_t len = (size_t)((end ? end : stop) - target);
    if (len < 7 || strncasecmp((const char *)target, "http://", 7) != 0)
        return false;
    target += 7;
    len -= 7;
    size_t n = 0;
    while (n < len && target[n] != '/' && target[n] != '?')
        n++;
    return host->has_name && set_authority(&in_target, target, n) && strcmp(in_target.name, host->name) == 0;
}

static bool has_version(const uint8_t *line, const uint8_t *stop)
{
    for (const uint8_t *p = line; p + 6 <= stop; p++)
        if (memcmp(p, " HTTP/", 6) == 0)
            return true;
    return false;
}

static bool begins(const uint8_t *line, const uint8_t *stop, const char *with)
{
    size_t n = strlen(with);
    return (size_t)(stop - line) >= n && memcmp(line, with, n) == 0;
}

/* A word and a blank: many protocols begin so, and only the line's end tells. */
static enum sniff sniff_line(const uint8_t *p, size_t len, struct sniffed *out)
{
    const uint8_t *end = p + len, *next, *line = p;
    while (line < end && (*line == '\r' || *line == '\n'))
        line++; /* servers skip empty lines in front */
    if (line == end)
        return SNIFF_MORE;
    const uint8_t *word = line;
    while (word < end && (is_letter(*word) || *word == '-' || *word == '_'))
        word++;
    if (word == line || (word < end && *word != ' ' && *word != '\t'))
        return SNIFF_RAW;
    const uint8_t *stop = end_of_line(line, end, &next);
    if (!stop)
        return SNIFF_MORE;
    if (!has_version(line, stop))
        return SNIFF_RAW;
    if (begins(line, stop, "CONNECT ") || begins(line, stop, "PRI * HTTP/2")) {
        out->tunnel = true;
        return SNIFF_HTTP;
    }
    enum sniff kind = read_headers(next, end, out);
    return kind == SNIFF_HTTP && !target_agrees(line, stop, out) ? SNIFF_BAD : kind;
}

enum sniff sniff(const uint8_t *p, size_t len, struct sniffed *out)
{
    enum sniff kind = SNIFF_MORE;
    *out = (struct sniffed){0};
    if (len > SNIFF_MAX)
        len = SNIFF_MAX;
    if (len && p[0] == 22)
        kind = sniff_tls(p, len, out);
    else if (len)
        kind = sniff_line(p, len, out);
    return kind == SNIFF_MORE && len == SNIFF_MAX ? SNIFF_BAD : kind;
}
