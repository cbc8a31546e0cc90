// SPDX-License-Identifier: Apache-2.0
// Texts of credentials: see rules.h.
#include "hostd/credd/rules.h"

#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* ---- methods ---- */

/* A token of RFC 9110, which names of headers are; parameters take the same. */
static bool is_token(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || strchr("!#$%&'*+-.^_`|~", *s)))
            return false;
    return true;
}

static bool is_printable(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return false;
    return true;
}

/* Headers that say where a request goes or how long it is: no secret. */
static bool is_reserved(const char *name)
{
    static const char *const names[] = {"host",    "content-length", "transfer-encoding", "connection",      "upgrade", "te",
                                        "trailer", "expect",         "keep-alive",        "proxy-connection"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcasecmp(name, names[i]))
            return true;
    return false;
}

/* Cuts the first word off. */
static char *word(char **rest)
{
    char *w = *rest + strspn(*rest, " \t");
    char *end = w + strcspn(w, " \t");
    *rest = end + strspn(end, " \t");
    *end = 0;
    return w;
}

static int parse_header(char *rest, struct method *m, struct err *e)
{
    const char *name = word(&rest);
    char *hole = strstr(rest, "{}");
    if (!is_token(name) || is_reserved(name))
        return err_set(e, EINVAL, "'%.40s' is no header that a secret can go to", name);
    str_copy(m->name, sizeof m->name, name);
    if (*rest && (!hole || strstr(hole + 2, "{}")))
        return err_set(e, EINVAL, "the format of a header holds {} once, where the value goes: header Authorization Bearer {}");
    if (hole) {
        *hole = 0;
        str_copy(m->before, sizeof m->before, rest);
        str_copy(m->after, sizeof m->after, hole + 2);
    }
    return 0;
}

static int parse_user(const char *rest, enum method_kind kind, struct method *m, struct err *e)
{
    if (!*rest || (kind == METHOD_BASIC && strchr(rest, ':')))
        return err_set(e, EINVAL, kind == METHOD_BASIC ? "basic takes a user's name, without a colon" : "autofill takes a user's name");
    m->kind = kind;
    str_copy(m->name, sizeof m->name, rest);
    return 0;
}

static void normalise(const struct method *m, char out[CREDD_METHOD_SIZE])
{
    static const char *const kinds[] = {"header", "basic", "query", "autofill"};
    const char *hole = m->kind == METHOD_HEADER && (m->before[0] || m->after[0]) ? "{}" : "";
    size_t pos = 0;
    str_append(out, CREDD_METHOD_SIZE, &pos, "%s %s%s%s%s%s", kinds[m->kind], m->name, *hole ? " " : "", m->before, hole, m->after);
}

int method_parse(const char *text, struct method *out, char normal[CREDD_METHOD_SIZE], struct err *e)
{
    char copy[CREDD_METHOD_SIZE - 8]; /* so that the normal form fits */
    *out = (struct method){.kind = METHOD_HEADER};
    if (strlen(text) >= sizeof copy || !is_printable(text))
        return err_set(e, EINVAL, "a method is one line of at most %zu bytes", sizeof copy - 1);
    str_copy(copy, sizeof copy, text);
    char *rest = str_trim(copy);
    const char *kind = word(&rest);
    int rc;
    if (!strcmp(kind, "header")) {
        rc = parse_header(rest, out, e);
    } else if (!strcmp(kind, "basic")) {
        rc = parse_user(rest, METHOD_BASIC, out, e);
    } else if (!strcmp(kind, "autofill")) {
        rc = parse_user(rest, METHOD_AUTOFILL, out, e);
    } else if (!strcmp(kind, "query")) {
        out->kind = METHOD_QUERY;
        str_copy(out->name, sizeof out->name, rest);
        rc = is_token(rest) && !strpbrk(rest, "&#%+") ? 0 : err_set(e, EINVAL, "query takes the name of a parameter");
    } else {
        rc = err_set(e, EINVAL, "'%.32s' is no method: header NAME [FORMAT], basic USER, query NAME, or autofill USER", kind);
    }
    if (rc == 0 && normal)
        normalise(out, normal);
    return rc;
}

int value_check(const struct method *m, const char *value, size_t len, struct err *e)
{
    if (!len || len > CREDD_VALUE_MAX)
        return err_set(e, EINVAL, "a value has 1 to %u bytes", CREDD_VALUE_MAX);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)value[i] < 0x20 || value[i] == 0x7f)
            return err_set(e, EINVAL,
                           m->kind == METHOD_AUTOFILL ? "a login's value is one line without control characters"
                                                      : "a value that goes into a request is one line without control characters");
    return 0;
}

/* ---- hosts ---- */

static bool name_valid(const char *s, size_t len)
{
    if (!len || len > RULES_HOST_MAX || s[0] == '.' || s[len - 1] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < len; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '-' || s[i] == '_' || (s[i] == '.' && s[i - 1] != '.')))
            return false;
    return true;
}

/* HOST[:PORT], cut in place. */
static int split(char *line, char **ret_name, uint16_t *ret_port)
{
    char *colon = strchr(line, ':');
    uint64_t port = 443;
    if (colon) {
        *colon = 0;
        if (str_parse_u64(colon + 1, 65535, &port) < 0 || port == 0)
            return -EINVAL;
    }
    for (char *c = line; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c + 32);
    const char *name = !strncmp(line, "*.", 2) ? line + 2 : line;
    if (!name_valid(name, strlen(name)) || (name != line && !strchr(name, '.')))
        return -EINVAL;
    *ret_name = line;
    *ret_port = (uint16_t)port;
    return 0;
}

int hosts_parse(const char *text, char out[CREDD_HOSTS_SIZE], struct err *e)
{
    size_t pos = 0;
    unsigned number = 1;
    out[0] = 0;
    for (const char *at = text; *at; number++) {
        char line[RULES_HOST_MAX + 16], *name;
        size_t n = strcspn(at, "\n");
        uint16_t port;
        if (n >= sizeof line)
            return err_set(e, EINVAL, "line %u is longer than a host's name can be", number);
        snprintf(line, sizeof line, "%.*s", (int)n, at);
        at += n + (at[n] == '\n');
        char *trimmed = str_trim(line);
        if (!*trimmed)
            continue;
        if (split(trimmed, &name, &port) < 0)
            return err_set(e, EINVAL, "line %u: '%.80s' is no host: api.example.com, *.example.com, or one with :PORT", number, trimmed);
        bool good =
            port == 443 ? str_append(out, CREDD_HOSTS_SIZE, &pos, "%s\n", name) : str_append(out, CREDD_HOSTS_SIZE, &pos, "%s:%u\n", name, port);
        if (!good)
            return err_set(e, E2BIG, "hosts have more than %u bytes", CREDD_HOSTS_SIZE - 1);
    }
    return 0;
}

/* One normalised line, `len` bytes; 0 at the end. */
static size_t next_line(const char **hosts, const char **ret_line, size_t *ret_name, uint16_t *ret_port)
{
    const char *line = *hosts;
    size_t len = strcspn(line, "\n");
    if (!len)
        return 0;
    const char *colon = memchr(line, ':', len);
    *hosts = line + len + (line[len] == '\n');
    *ret_line = line;
    *ret_name = colon ? (size_t)(colon - line) : len;
    *ret_port = colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : 443;
    return len;
}

/* Does the pattern cover `host`, which may be a pattern itself? */
static enum host_match line_match(const char *line, size_t len, const char *host, size_t host_len)
{
    if (len == host_len && !memcmp(line, host, len))
        return HOST_EXACT;
    bool wild = len > 2 && line[0] == '*';
    if (wild && host_len > len - 1 && !memcmp(host + host_len - (len - 1), line + 1, len - 1))
        return HOST_WILD;
    return HOST_NONE;
}

enum host_match hosts_match(const char *hosts, const char *host, uint16_t port)
{
    enum host_match best = HOST_NONE;
    const char *line;
    size_t name;
    uint16_t at;
    while (next_line(&hosts, &line, &name, &at)) {
        enum host_match m = at == port && host[0] != '*' ? line_match(line, name, host, strlen(host)) : HOST_NONE;
        best = m > best ? m : best;
    }
    return best;
}

static bool covers(const char *wide, const char *line, size_t len, uint16_t port)
{
    const char *other;
    size_t name;
    uint16_t at;
    while (next_line(&wide, &other, &name, &at))
        if (at == port && line_match(other, name, line, len) != HOST_NONE)
            return true;
    return false;
}

bool hosts_cover(const char *wide, const char *narrow)
{
    const char *line;
    size_t name;
    uint16_t port;
    while (next_line(&narrow, &line, &name, &port))
        if (!covers(wide, line, name, port))
            return false;
    return true;
}

/* ---- times and rates ---- */

#define SECOND 1000000000ll

int expires_parse(const char *text, int64_t now, int64_t *out, struct err *e)
{
    struct tm tm = {0};
    uint64_t seconds;
    *out = 0;
    if (!strcmp(text, "never") || !*text)
        return 0;
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (end && !*end) {
        time_t at = timegm(&tm);
        if (at > 0 && at < INT64_MAX / SECOND) {
            *out = (int64_t)at * SECOND;
            return 0;
        }
    } else if (str_parse_duration(text, &seconds) == 0 && seconds > 0 && seconds < (uint64_t)(INT64_MAX / SECOND / 4)) {
        *out = (now / SECOND + (int64_t)seconds) * SECOND;
        return 0;
    }
    return err_set(e, EINVAL, "'%.40s' is no time: never, 2026-12-31T23:59:59Z, or a duration from now such as 30d", text);
}

void expires_format(int64_t expires, char out[32])
{
    time_t at = expires / SECOND;
    struct tm tm;
    if (expires == 0 || !gmtime_r(&at, &tm) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm))
        str_copy(out, 32, "never");
}

int rate_parse(const char *text, uint32_t *uses, uint32_t *seconds, struct err *e)
{
    char copy[32];
    uint64_t n, s;
    *uses = *seconds = 0;
    if (!strcmp(text, "none") || !*text)
        return 0;
    str_copy(copy, sizeof copy, text);
    char *slash = strchr(copy, '/');
    if (slash)
        *slash = 0;
    if (!slash || strlen(text) >= sizeof copy || str_parse_u64(copy, UINT32_MAX, &n) < 0 || n == 0 || str_parse_duration(slash + 1, &s) < 0 ||
        s == 0 || s > UINT32_MAX)
        return err_set(e, EINVAL, "'%.40s' is no rate: none, or USES/DURATION such as 100/1m", text);
    *uses = (uint32_t)n;
    *seconds = (uint32_t)s;
    return 0;
}

void rate_format(uint32_t uses, uint32_t seconds, char out[32])
{
    if (!uses)
        str_copy(out, 32, "none");
    else
        snprintf(out, 32, "%u/%us", uses, seconds);
}

bool label_valid(const char *label)
{
    size_t len = strlen(label), key = strcspn(label, "=");
    if (strncmp(label, "admin.", 6) != 0 || len >= CREDD_LABEL_SIZE || key == 6 || key == len)
        return false;
    for (const char *c = label; *c; c++)
        if ((unsigned char)*c <= 0x20 || *c == 0x7f || *c == '/' || *c == ':')
            return false;
    return true;
}
