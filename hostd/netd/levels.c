// SPDX-License-Identifier: Apache-2.0
// The administrator's egress file: see levels.h.
#include "hostd/netd/levels.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECTIONS_MAX 1024
#define KEY_MAX      160

struct section {
    char key[KEY_MAX]; /* as in the headings; empty: the platform */
    struct policy *policy;
};

struct levels {
    struct section *sections; /* in the order of the file; the platform's is the first */
    size_t count;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Without blanks at both ends. */
static const char *trim(const char *text, size_t *len)
{
    while (*len && is_blank(*text)) {
        text++;
        --*len;
    }
    while (*len && is_blank(text[*len - 1]))
        --*len;
    return text;
}

static bool begins(const char *text, size_t len, const char *with)
{
    return len > strlen(with) && memcmp(text, with, strlen(with)) == 0;
}

/* What stands between the brackets. */
static int parse_key(const char *text, size_t len, uint32_t line, char key[KEY_MAX], struct err *e)
{
    bool label = begins(text, len, "label admin.") && memchr(text, '=', len);
    if (!label && !(begins(text, len, "tenant ") && !memchr(text + 7, ' ', len - 7)))
        return err_set(e, EINVAL, "line %u: [tenant NAME] or [label admin.KEY=VALUE] was expected, not '[%.*s]'", line, (int)(len < 80 ? len : 80),
                       text);
    if (len >= KEY_MAX)
        return err_set(e, EINVAL, "line %u: the heading is too long", line);
    memcpy(key, text, len);
    key[len] = 0;
    return 0;
}

/* A comment may follow a heading. */
static int parse_heading(const char *text, size_t len, uint32_t line, char key[KEY_MAX], struct err *e)
{
    const char *end = memchr(text, ']', len);
    size_t rest = end ? len - (size_t)(end + 1 - text) : 0, inside;
    const char *after = end ? trim(end + 1, &rest) : NULL;
    if (!end || (rest && *after != '#'))
        return err_set(e, EINVAL, "line %u: ']' was expected, and nothing behind it", line);
    inside = (size_t)(end - text) - 1;
    text = trim(text + 1, &inside);
    return parse_key(text, inside, line, key, e);
}

/* How people call it. */
static void name_of(const char *key, char out[KEY_MAX + 8])
{
    if (!key[0])
        snprintf(out, KEY_MAX + 8, "the platform");
    else
        snprintf(out, KEY_MAX + 8, "%s", key);
}

static int add(struct levels *l, const char *key, const char *text, size_t len, uint32_t lines, struct err *e)
{
    char whose[KEY_MAX + 8];
    const struct policy_above above = {l->count ? 1 : 0, {l->count ? l->sections[0].policy : NULL}};
    const struct policy_context context = {&above, whose, lines};
    name_of(key, whose);
    for (size_t i = 0; i < l->count; i++)
        if (!strcmp(l->sections[i].key, key))
            return err_set(e, EINVAL, "line %u: [%s] is there already", lines, key);
    if (l->count == SECTIONS_MAX)
        return err_set(e, E2BIG, "line %u: more than %d sections", lines, SECTIONS_MAX);
    struct section *more = realloc(l->sections, (l->count + 1) * sizeof *more);
    if (!more)
        return err_set(e, ENOMEM, "read the policy: out of memory");
    l->sections = more;
    struct section *s = &more[l->count];
    int rc = policy_parse(&context, text, len, &s->policy, e);
    if (rc < 0)
        return rc;
    snprintf(s->key, sizeof s->key, "%s", key);
    l->count++;
    return 0;
}

/* The heading is the line before `lines`; its section ends at the next one. */
static int parse_sections(struct levels *l, const char *text, size_t len, struct err *e)
{
    char key[KEY_MAX] = "";
    uint32_t line = 1, first = 0;
    size_t start = 0;
    int rc = 0;
    for (size_t at = 0; at < len && rc == 0; line++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at, trimmed = n;
        const char *words = trim(text + at, &trimmed);
        if (trimmed && *words == '[') {
            rc = add(l, key, text + start, at - start, first, e);
            if (rc == 0)
                rc = parse_heading(words, trimmed, line, key, e);
            start = end ? at + n + 1 : len;
            first = line;
        }
        at += n + (end != NULL);
    }
    return rc < 0 ? rc : add(l, key, text + start, len - start, first, e);
}

int levels_parse(const char *text, size_t len, struct levels **out, struct err *e)
{
    struct levels *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ENOMEM, "read the policy: out of memory");
    int rc = parse_sections(l, text, len, e);
    if (rc < 0)
        levels_destroy(l);
    else
        *out = l;
    return rc;
}

void levels_destroy(struct levels *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->count; i++)
        policy_destroy(l->sections[i].policy);
    free(l->sections);
    free(l);
}

static bool has_line(const char *lines, const char *key)
{
    size_t len = strlen(key);
    for (const char *at = lines; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (!strncmp(at, key, len) && (at[len] == '\n' || !at[len]))
            return true;
    return false;
}

/* Those whose headings begin so. */
static bool collect(const struct levels *l, const char *kind, const char *belongs, struct policy_above *out)
{
    for (size_t i = 1; i < l->count; i++) {
        const struct section *s = &l->sections[i];
        if (strncmp(s->key, kind, strlen(kind)) != 0 || !has_line(belongs, s->key))
            continue;
        if (out->count == POLICY_ABOVE_MAX)
            return false;
        out->policy[out->count++] = s->policy;
    }
    return true;
}

bool levels_above(const struct levels *l, const char *belongs, struct policy_above *out)
{
    out->count = 0;
    if (!l)
        return true;
    out->policy[out->count++] = l->sections[0].policy;
    return collect(l, "tenant ", belongs, out) && collect(l, "label ", belongs, out);
}

int levels_add_tenant(struct policy_above *above, const char *text, struct policy **out, struct err *e)
{
    const struct policy_context context = {.above = above, .whose = "the tenant's egress"};
    *out = NULL;
    if (!*text)
        return 0;
    if (above->count == POLICY_ABOVE_MAX)
        return err_set(e, E2BIG, "more than %d policies apply to it", POLICY_ABOVE_MAX);
    int rc = policy_parse(&context, text, strlen(text), out, e);
    if (rc == 0)
        above->policy[above->count++] = *out;
    return rc;
}
