// SPDX-License-Identifier: Apache-2.0
// Egress policy: see policy.h.
//
// Theory of operation. The parser makes rules in order; a set becomes one rule for each of its
// targets, all with the set's line. The index then has, for each name, for each suffix of a
// wildcard, and for each prefix in the trie of addresses, the chain of its rules in ascending
// order. A decision looks up the name, its suffixes and the prefixes of the address: a few chains,
// each walked until a rule matches the port; the lowest number of those wins. That is what walking
// the list would give.
#include "hostd/netd/policy.h"

#include "base/str.h"
#include "hostd/netd/sets.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

enum target { TARGET_NAME, TARGET_SUFFIX, TARGET_RANGE, TARGET_ANY };

struct ports {
    uint16_t first, last;
};

struct rule {
    bool allow, ech;
    uint8_t target; /* enum target */
    uint8_t port_count, at_count;
    uint16_t name_len;
    uint32_t name;                /* offset in the text: a name, or the suffix behind "*." */
    uint32_t line, start, length; /* in the text, to show it */
    struct range range;
    struct ports ports[POLICY_PORTS_MAX];
    struct range at[POLICY_AT_MAX];
    uint32_t next; /* of its chain */
};

struct entry {            /* of the table of names */
    uint32_t first, last; /* rules; NONE: free */
    bool suffix;
};

struct prefix { /* a node of the trie */
    uint32_t child[2];
    uint32_t first, last; /* rules; NONE: none ends here */
};

/* A set that was defined here: its targets, as they were written. */
struct own_set {
    uint32_t name, name_len, targets, targets_len; /* in the text */
};

struct policy {
    char *whose; /* NULL: a sandbox's own */
    struct own_set sets[POLICY_SETS_MAX];
    uint32_t set_count;
    char *text; /* ours, lower case from where names are compared; targets of sets come behind it */
    size_t text_len, text_size;
    struct rule *rules;
    uint32_t count, room;
    struct entry *table;
    uint32_t table_size; /* a power of two, or 0 */
    struct prefix *trie; /* 0: the root */
    uint32_t trie_count, trie_room;
    uint32_t any_first, any_last;
    struct policy_limits limits;
};

/* ---- names ---- */

static bool is_label_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

bool policy_name_valid(const char *name, size_t len)
{
    size_t label = 0;
    bool letter = false; /* in the last label: else it is some form of an address */
    if (!len || len > POLICY_NAME_MAX)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (name[i] == '.') {
            if (!label || i + 1 == len)
                return false;
            label = 0;
            letter = false;
            continue;
        }
        if (!is_label_char(name[i]) || ++label > 63)
            return false;
        letter = letter || name[i] < '0' || name[i] > '9';
    }
    size_t last = len - label;
    return letter && strncmp(name + last, "0x", 2) != 0;
}

static uint32_t hash_name(const char *name, size_t len, bool suffix)
{
    uint32_t h = suffix ? 0x9747b28cu : 0x811c9dc5u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)name[i]) * 16777619u;
    return h ^ h >> 15;
}

/* ---- the parser ---- */

struct parser {
    struct policy *p;
    const char *text; /* of this line or set's target */
    size_t at, end;
    size_t base; /* of text in p->text */
    uint32_t line;
    struct rule rule;
    const struct policy_above *above;
    struct err *e;
};

static int complain(const struct parser *in, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int complain(const struct parser *in, const char *fmt, ...)
{
    char what[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(in->e, EINVAL, "line %u, column %zu: %s", in->line, in->at + 1, what);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static void skip_blanks(struct parser *in)
{
    while (in->at < in->end && is_blank(in->text[in->at]))
        in->at++;
}

static bool at_end(struct parser *in)
{
    skip_blanks(in);
    return in->at == in->end || in->text[in->at] == '#';
}

/* The length of the word that begins here. */
static size_t word(struct parser *in)
{
    size_t n = 0;
    skip_blanks(in);
    while (in->at + n < in->end && !is_blank(in->text[in->at + n]) && in->text[in->at + n] != '#')
        n++;
    return n;
}

static bool word_is(const struct parser *in, size_t n, const char *what)
{
    return n == strlen(what) && memcmp(in->text + in->at, what, n) == 0;
}

/* For messages: what stands here. */
#define HERE(in, n) (int)((n) > 60 ? 60 : (n)), (in)->text + (in)->at

static int parse_number(struct parser *in, uint32_t max, const char *what, uint32_t *out)
{
    uint32_t n = 0;
    size_t first = in->at;
    for (; in->at < in->end && in->text[in->at] >= '0' && in->text[in->at] <= '9'; in->at++) {
        n = n * 10 + (uint32_t)(in->text[in->at] - '0');
        if (n > max) {
            in->at = first;
            return complain(in, "%s from 0 to %u was expected", what, max);
        }
    }
    if (in->at == first)
        return complain(in, "%s was expected", what);
    *out = n;
    return 0;
}

static int parse_one_port(struct parser *in, uint16_t *out)
{
    uint32_t n = 0;
    size_t first = in->at;
    int rc = parse_number(in, 65535, "a port", &n);
    if (rc == 0 && n == 0) {
        in->at = first;
        rc = complain(in, "a port from 1 to 65535 was expected, not 0");
    }
    *out = (uint16_t)n;
    return rc;
}

static int parse_ports(struct parser *in)
{
    struct rule *r = &in->rule;
    if (in->at < in->end && in->text[in->at] == '*') {
        in->at++;
        r->ports[r->port_count++] = (struct ports){1, 65535};
        return 0;
    }
    for (;;) {
        struct ports *to = &r->ports[r->port_count];
        if (r->port_count == POLICY_PORTS_MAX)
            return complain(in, "at most %d ports or ranges fit in a rule", POLICY_PORTS_MAX);
        int rc = parse_one_port(in, &to->first);
        to->last = to->first;
        if (rc == 0 && in->at < in->end && in->text[in->at] == '-') {
            in->at++;
            rc = parse_one_port(in, &to->last);
        }
        if (rc < 0)
            return rc;
        if (to->last < to->first)
            return complain(in, "the range of ports ends below its beginning");
        r->port_count++;
        if (in->at == in->end || in->text[in->at] != ',')
            return 0;
        in->at++;
    }
}

/* An address, with a length of prefix if there is one. `n`: bytes up to what follows it. */
static int parse_range(struct parser *in, size_t n, struct range *out)
{
    const char *text = in->text + in->at, *slash = memchr(text, '/', n);
    size_t len = slash ? (size_t)(slash - text) : n;
    uint32_t bits = 32;
    if (!address_parse(text, len, &out->base))
        return complain(in, "an IPv4 address of four decimal numbers was expected, not '%.*s'", HERE(in, n));
    in->at += len;
    if (slash) {
        in->at++;
        int rc = parse_number(in, 32, "a length of prefix", &bits);
        if (rc < 0)
            return rc;
    }
    out->bits = (uint8_t)bits;
    if (bits < 32 && (bits ? out->base << bits : out->base) != 0) {
        char right[ADDRESS_TEXT_MAX];
        address_format(bits ? out->base & ~(UINT32_MAX >> bits) : 0, right);
        return complain(in, "the address has bits below its prefix: %s/%u was expected", right, bits);
    }
    return 0;
}

static int parse_name(struct parser *in, size_t n)
{
    struct rule *r = &in->rule;
    const char *text = in->text + in->at;
    bool wild = n >= 2 && memcmp(text, "*.", 2) == 0;
    size_t skip = wild ? 2 : 0;
    if (memchr(text + skip, '*', n - skip))
        return complain(in, "'*' stands for all labels in front, as in *.example.org, or alone");
    if (!policy_name_valid(text + skip, n - skip))
        return complain(in,
                        "a host name, an IPv4 address, '*' or '@' and a set was expected, not "
                        "'%.*s' (names in ASCII: xn--...)",
                        HERE(in, n));
    r->target = wild ? TARGET_SUFFIX : TARGET_NAME;
    r->name = (uint32_t)(in->base + in->at + skip);
    r->name_len = (uint16_t)(n - skip);
    in->at += n;
    return 0;
}

static bool looks_like_address(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((text[i] < '0' || text[i] > '9') && text[i] != '.' && text[i] != '/')
            return false;
    return n > 0;
}

static int parse_target(struct parser *in)
{
    size_t n = word(in);
    const char *text = in->text + in->at, *colon;
    if (n && text[0] == '[')
        return complain(in, "IPv6 addresses are not supported: guests have IPv4 only");
    colon = memchr(text, ':', n);
    if (!colon) {
        in->at += n;
        return complain(in, "':' and a port was expected, as in example.org:443");
    }
    if (memchr(colon + 1, ':', n - (size_t)(colon - text) - 1))
        return complain(in, "IPv6 addresses are not supported: guests have IPv4 only");
    size_t len = (size_t)(colon - text);
    int rc;
    if (len == 1 && *text == '*') {
        in->rule.target = TARGET_ANY;
        in->at++;
        rc = 0;
    } else if (looks_like_address(text, len)) {
        in->rule.target = TARGET_RANGE;
        rc = parse_range(in, len, &in->rule.range);
    } else {
        rc = parse_name(in, len);
    }
    if (rc < 0)
        return rc;
    if (in->at >= in->end || in->text[in->at] != ':')
        return complain(in, "':' and a port was expected");
    in->at++;
    rc = parse_ports(in);
    if (rc == 0 && in->at < in->end && !is_blank(in->text[in->at]) && in->text[in->at] != '#')
        rc = complain(in, "a port, ',' or the end of the target was expected");
    return rc;
}

static int parse_at(struct parser *in)
{
    struct rule *r = &in->rule;
    size_t n = word(in);
    const char *end = in->text + in->at + n;
    do {
        const char *text = in->text + in->at, *comma = memchr(text, ',', (size_t)(end - text));
        if (r->at_count == POLICY_AT_MAX)
            return complain(in, "at most %d ranges fit behind 'at'", POLICY_AT_MAX);
        int rc = parse_range(in, (size_t)((comma ? comma : end) - text), &r->at[r->at_count++]);
        if (rc < 0)
            return rc;
        if (in->text + in->at != (comma ? comma : end))
            return complain(in, "',' or the end of the ranges was expected");
        if (comma)
            in->at++;
    } while (in->text + in->at < end);
    return 0;
}

static int parse_options(struct parser *in)
{
    struct rule *r = &in->rule;
    bool by_name = r->target == TARGET_NAME || r->target == TARGET_SUFFIX;
    while (!at_end(in)) {
        size_t n = word(in);
        bool at = word_is(in, n, "at"), ech = word_is(in, n, "ech");
        if (!at && !ech)
            return complain(in, "'at', 'ech' or the end of the line was expected, not '%.*s'", HERE(in, n));
        if (!by_name || !r->allow)
            return complain(in, "'%.*s' is for rules that allow a name", HERE(in, n));
        in->at += n;
        r->ech = r->ech || ech;
        int rc = at ? parse_at(in) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int add_rule(struct parser *in)
{
    struct policy *p = in->p;
    if (p->count == POLICY_RULES_MAX)
        return err_set(in->e, E2BIG, "line %u: a policy has at most %d rules", in->line, POLICY_RULES_MAX);
    if (p->count == p->room) {
        uint32_t room = p->room ? p->room * 2 : 16;
        struct rule *rules = realloc(p->rules, room * sizeof *rules);
        if (!rules)
            return err_set(in->e, ENOMEM, "read the policy: out of memory");
        p->rules = rules;
        p->room = room;
    }
    in->rule.next = NONE;
    p->rules[p->count++] = in->rule;
    return 0;
}

/* ---- sets ---- */

static const struct own_set *find_own(const struct policy *p, const char *name, size_t len)
{
    for (uint32_t i = 0; i < p->set_count; i++)
        if (p->sets[i].name_len == len && memcmp(p->text + p->sets[i].name, name, len) == 0)
            return &p->sets[i];
    return NULL;
}

/* Its own, or that of the closest policy above that has one; `*of` gets which. */
static const struct own_set *find_defined(const struct parser *in, const char *name, size_t len, const struct policy **of)
{
    *of = in->p;
    const struct own_set *s = find_own(in->p, name, len);
    for (size_t i = in->above ? in->above->count : 0; !s && i > 0; i--) {
        *of = in->above->policy[i - 1];
        s = find_own(*of, name, len);
    }
    return s;
}

/* The target as if it had been written here. */
static int expand_target(struct parser *in, const char *target, size_t len)
{
    if (in->p->text_len + len > in->p->text_size)
        return err_set(in->e, E2BIG, "line %u: too many sets", in->line);
    memcpy(in->p->text + in->p->text_len, target, len);
    struct parser sub = *in;
    sub.base = in->p->text_len;
    sub.text = in->p->text + sub.base;
    sub.at = 0;
    sub.end = len;
    in->p->text_len += len;
    int rc = parse_target(&sub);
    return rc < 0 ? rc : add_rule(&sub);
}

static int expand_defined(struct parser *in, const struct policy *of, const struct own_set *s)
{
    int rc = 0;
    for (uint32_t at = 0, n; rc == 0 && at < s->targets_len; at += n) {
        const char *text = of->text + s->targets + at;
        for (n = 0; at + n < s->targets_len && !is_blank(text[n]);)
            n++;
        if (n)
            rc = expand_target(in, text, n);
        else
            n = 1;
    }
    return rc;
}

static int expand_set(struct parser *in)
{
    size_t n = word(in);
    const char *name = in->text + in->at + 1;
    const struct policy *of;
    const struct own_set *defined = find_defined(in, name, n - 1, &of);
    const char *const *targets = defined ? NULL : set_find(name, n - 1);
    if (!defined && !targets)
        return complain(in, "'%.*s' is no set: neither one of %s nor defined above", HERE(in, n), set_names);
    in->at += n;
    int rc = at_end(in) ? 0 : complain(in, "the end of the line was expected");
    if (rc == 0 && defined)
        rc = expand_defined(in, of, defined);
    for (; rc == 0 && targets && *targets; targets++)
        rc = expand_target(in, *targets, strlen(*targets));
    return rc;
}

/* set NAME TARGET... */
static int parse_set(struct parser *in)
{
    struct policy *p = in->p;
    size_t n = word(in);
    for (size_t i = 0; i < n; i++)
        if (!is_label_char(in->text[in->at + i]))
            return complain(in, "a name of letters, digits, '-' and '_' was expected, not '%.*s'", HERE(in, n));
    if (!n || n > 63)
        return complain(in, "a name of 1 to 63 letters, digits, '-' and '_' was expected");
    if (find_own(p, in->text + in->at, n))
        return complain(in, "the set '%.*s' is there already", HERE(in, n));
    if (p->set_count == POLICY_SETS_MAX)
        return complain(in, "a policy defines at most %d sets", POLICY_SETS_MAX);
    struct own_set s = {.name = (uint32_t)(in->base + in->at), .name_len = (uint32_t)n};
    in->at += n;
    if (at_end(in))
        return complain(in, "targets were expected, such as example.org:443");
    s.targets = (uint32_t)(in->base + in->at);
    while (!at_end(in)) {
        if (in->text[in->at] == '@')
            return complain(in, "a set has no other sets in it");
        in->rule = (struct rule){.line = in->line};
        int rc = parse_target(in);
        if (rc < 0)
            return rc;
        s.targets_len = (uint32_t)(in->base + in->at) - s.targets;
    }
    p->sets[p->set_count++] = s;
    return 0;
}

static int parse_limit(struct parser *in)
{
    struct policy_limits *l = &in->p->limits;
    char text[24];
    uint64_t value = 0;
    size_t n = word(in);
    uint64_t *to = word_is(in, n, "connections") ? &l->connections : word_is(in, n, "rate") ? &l->rate : word_is(in, n, "bytes") ? &l->bytes : NULL;
    if (!to)
        return complain(in, "'connections', 'rate' or 'bytes' was expected");
    in->at += n;
    n = word(in);
    snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : 0), in->text + in->at);
    for (char *c = text; *c; c++) /* the policy is lower case by now */
        *c = *c >= 'a' && *c <= 'z' ? (char)(*c - 32) : *c;
    int rc = to == &l->bytes ? str_parse_size(text, &value) : str_parse_u64(text, UINT32_MAX, &value);
    if (rc < 0 || value == 0)
        return complain(in, "a number from 1 was expected%s", to == &l->bytes ? ", such as 500M" : "");
    in->at += n;
    *to = *to && *to < value ? *to : value;
    return at_end(in) ? 0 : complain(in, "the end of the line was expected");
}

static int parse_line(struct parser *in)
{
    size_t first = in->at, n;
    if (at_end(in))
        return 0;
    first = in->at;
    n = word(in);
    in->rule = (struct rule){.line = in->line, .start = (uint32_t)(in->base + first)};
    if (word_is(in, n, "limit")) {
        in->at += n;
        return parse_limit(in);
    }
    if (word_is(in, n, "set")) {
        in->at += n;
        return parse_set(in);
    }
    if (word_is(in, n, "allow"))
        in->rule.allow = true;
    else if (!word_is(in, n, "deny"))
        return complain(in, "'allow', 'deny', 'limit' or 'set' was expected, not '%.*s'", HERE(in, n));
    in->at += n;
    n = word(in);
    if (!word_is(in, n, "tcp"))
        return n ? complain(in, "'tcp' was expected, not '%.*s': nothing else leaves", HERE(in, n)) : complain(in, "'tcp' was expected");
    in->at += n;
    size_t length = in->end;
    const char *comment = memchr(in->text + in->at, '#', in->end - in->at);
    if (comment)
        length = (size_t)(comment - in->text);
    while (length > first && is_blank(in->text[length - 1]))
        length--;
    in->rule.length = (uint32_t)(length - first);
    n = word(in);
    if (!n)
        return complain(in, "a target was expected, such as example.org:443 or @pypi");
    if (in->text[in->at] == '@')
        return expand_set(in);
    int rc = parse_target(in);
    if (rc == 0)
        rc = parse_options(in);
    return rc < 0 ? rc : add_rule(in);
}

/* ---- the index ---- */

static bool entry_is(const struct policy *p, const struct entry *at, const char *name, size_t len, bool suffix)
{
    const struct rule *r = &p->rules[at->first];
    return at->suffix == suffix && r->name_len == len && memcmp(p->text + r->name, name, len) == 0;
}

/* Where the name is, or where it would be. */
static struct entry *find_entry(const struct policy *p, const char *name, size_t len, bool suffix)
{
    uint32_t mask = p->table_size - 1, i = hash_name(name, len, suffix) & mask;
    while (p->table[i].first != NONE && !entry_is(p, &p->table[i], name, len, suffix))
        i = (i + 1) & mask;
    return &p->table[i];
}

static void append(struct policy *p, uint32_t *first, uint32_t *last, uint32_t rule)
{
    if (*first == NONE)
        *first = rule;
    else
        p->rules[*last].next = rule;
    *last = rule;
}

static int add_prefix(struct policy *p, uint32_t rule)
{
    const struct range *range = &p->rules[rule].range;
    uint32_t at = 0;
    for (unsigned bit = 0; bit < range->bits; bit++) {
        unsigned side = range->base >> (31 - bit) & 1;
        if (p->trie[at].child[side] == NONE) {
            if (p->trie_count == p->trie_room) {
                uint32_t room = p->trie_room * 2;
                struct prefix *trie = realloc(p->trie, room * sizeof *trie);
                if (!trie)
                    return -ENOMEM;
                p->trie = trie;
                p->trie_room = room;
            }
            p->trie[p->trie_count] = (struct prefix){{NONE, NONE}, NONE, NONE};
            p->trie[at].child[side] = p->trie_count++;
        }
        at = p->trie[at].child[side];
    }
    append(p, &p->trie[at].first, &p->trie[at].last, rule);
    return 0;
}

static int build_index(struct policy *p)
{
    p->table_size = 16;
    while (p->table_size < p->count * 2)
        p->table_size *= 2;
    p->table = malloc(p->table_size * sizeof *p->table);
    p->trie_room = 64;
    p->trie = malloc(p->trie_room * sizeof *p->trie);
    if (!p->table || !p->trie)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->table_size; i++)
        p->table[i] = (struct entry){NONE, NONE, false};
    p->trie[0] = (struct prefix){{NONE, NONE}, NONE, NONE};
    p->trie_count = 1;
    p->any_first = p->any_last = NONE;
    int rc = 0;
    for (uint32_t i = 0; i < p->count && rc == 0; i++) {
        struct rule *r = &p->rules[i];
        if (r->target == TARGET_ANY) {
            append(p, &p->any_first, &p->any_last, i);
        } else if (r->target == TARGET_RANGE) {
            rc = add_prefix(p, i);
        } else {
            bool suffix = r->target == TARGET_SUFFIX;
            struct entry *at = find_entry(p, p->text + r->name, r->name_len, suffix);
            at->suffix = suffix;
            append(p, &at->first, &at->last, i);
        }
    }
    return rc;
}

static int parse_all(const struct policy_context *context, struct policy *p, size_t len, struct err *e)
{
    uint32_t line = 1 + context->lines;
    for (size_t at = 0; at < len; line++) {
        const char *start = p->text + at, *end = memchr(start, '\n', len - at);
        size_t n = end ? (size_t)(end - start) : len - at;
        struct parser in = {.p = p, .text = start, .end = n, .base = at, .line = line, .above = context->above, .e = e};
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)start[i] < 0x20 && !is_blank(start[i])) {
                in.at = i;
                return complain(&in, "a control character");
            }
        int rc = parse_line(&in);
        if (rc < 0)
            return rc;
        at += n + (end != NULL);
    }
    return 0;
}

#define SETS_ROOM 262144 /* for targets of sets behind the text */

int policy_parse(const struct policy_context *context, const char *text, size_t len, struct policy **out, struct err *e)
{
    static const struct policy_context plain;
    context = context ? context : &plain;
    struct policy *p = len < UINT32_MAX / 2 ? calloc(1, sizeof *p) : NULL;
    if (p) {
        p->text_size = len + (memchr(text, '@', len) ? SETS_ROOM : 0);
        p->text = malloc(p->text_size + 1);
        p->whose = context->whose ? strdup(context->whose) : NULL;
    }
    if (!p || !p->text || (context->whose && !p->whose)) {
        policy_destroy(p);
        return err_set(e, ENOMEM, "read the policy: out of memory");
    }
    for (size_t i = 0; i < len; i++)
        p->text[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] + 32) : text[i];
    p->text_len = len;
    int rc = parse_all(context, p, len, e);
    if (rc == 0 && build_index(p) < 0)
        rc = err_set(e, ENOMEM, "read the policy: out of memory");
    if (rc < 0) {
        policy_destroy(p);
        return rc;
    }
    char *fitting = realloc(p->text, p->text_len + 1);
    if (fitting)
        p->text = fitting;
    *out = p;
    return 0;
}

void policy_destroy(struct policy *p)
{
    if (!p)
        return;
    free(p->whose);
    free(p->text);
    free(p->rules);
    free(p->table);
    free(p->trie);
    free(p);
}

size_t policy_rules(const struct policy *p)
{
    return p->count;
}

const struct policy_limits *policy_limits(const struct policy *p)
{
    return &p->limits;
}

/* ---- decisions ---- */

static bool has_port(const struct rule *r, uint16_t port)
{
    for (unsigned i = 0; i < r->port_count; i++)
        if (port >= r->ports[i].first && port <= r->ports[i].last)
            return true;
    return false;
}

/* The first rule of the chain with that port, if it comes before `best`. */
static uint32_t walk(const struct policy *p, uint32_t rule, uint16_t port, uint32_t best)
{
    for (; rule != NONE && rule < best; rule = p->rules[rule].next)
        if (has_port(&p->rules[rule], port))
            return rule;
    return best;
}

static uint32_t match_name(const struct policy *p, const char *name, uint16_t port, uint32_t best)
{
    size_t len = strlen(name);
    const struct entry *at = find_entry(p, name, len, false);
    best = walk(p, at->first, port, best);
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        at = find_entry(p, dot + 1, len - (size_t)(dot + 1 - name), true);
        best = walk(p, at->first, port, best);
    }
    return best;
}

static uint32_t match_address(const struct policy *p, uint32_t address, uint16_t port, uint32_t best)
{
    uint32_t at = 0;
    for (unsigned bit = 0; at != NONE; bit++) {
        best = walk(p, p->trie[at].first, port, best);
        if (bit == 32)
            break;
        at = p->trie[at].child[address >> (31 - bit) & 1];
    }
    return best;
}

static uint32_t match(const struct policy *p, const struct destination *d)
{
    uint32_t best = walk(p, p->any_first, d->port, NONE);
    if (d->name)
        best = match_name(p, d->name, d->port, best);
    return d->has_address ? match_address(p, d->address, d->port, best) : best;
}

static void show(const struct policy *p, const struct rule *r, struct decision *out)
{
    static const enum policy_by by[] = {
        [TARGET_NAME] = POLICY_BY_NAME, [TARGET_SUFFIX] = POLICY_BY_NAME, [TARGET_RANGE] = POLICY_BY_ADDRESS, [TARGET_ANY] = POLICY_BY_ANY};
    out->allowed = r->allow;
    out->by = by[r->target];
    out->ech = r->ech;
    out->line = r->line;
    out->whose = p->whose;
    snprintf(out->rule, sizeof out->rule, "%.*s", (int)(r->length > 120 ? 120 : r->length), p->text + r->start);
}

/* May what the rule allows be at this special address? */
static bool names_special(const struct rule *r, const struct range *special, uint32_t address)
{
    if (r->target == TARGET_RANGE)
        return r->range.bits >= special->bits;
    for (unsigned i = 0; i < r->at_count; i++)
        if (range_has(&r->at[i], address) && r->at[i].bits >= special->bits)
            return true;
    return false;
}

/* The one address, not as one of many. */
static bool names_exactly(const struct rule *r, uint32_t address)
{
    if (r->target == TARGET_RANGE)
        return r->range.bits == 32;
    for (unsigned i = 0; i < r->at_count; i++)
        if (r->at[i].bits == 32 && r->at[i].base == address)
            return true;
    return false;
}

static void check_special(const struct rule *r, uint32_t address, struct decision *out)
{
    struct range range;
    char text[ADDRESS_TEXT_MAX];
    const char *what = address_special(address, &range);
    if (!what || names_special(r, &range, address))
        return;
    out->allowed = false;
    snprintf(out->why, sizeof out->why, "%s is %s, which the rule does not name", address_format(address, text), what);
}

/* The widest one that denies it. */
static bool is_denied_above(const struct policy_above *above, const struct destination *d, struct decision *out)
{
    for (size_t i = 0; above && i < above->count; i++) {
        const struct policy *a = above->policy[i];
        uint32_t rule = match(a, d);
        if (rule == NONE || a->rules[rule].allow)
            continue;
        show(a, &a->rules[rule], out);
        snprintf(out->why, sizeof out->why, "%.60s denies it", a->whose ? a->whose : "a policy above");
        return true;
    }
    return false;
}

void policy_decide(const struct policy *p, const struct policy_above *above, const struct destination *d, struct decision *out)
{
    *out = (struct decision){0};
    if (is_denied_above(above, d, out))
        return;
    uint32_t rule = match(p, d);
    if (rule == NONE) {
        snprintf(out->why, sizeof out->why, "no rule allows it");
        return;
    }
    show(p, &p->rules[rule], out);
    if (!out->allowed) {
        snprintf(out->why, sizeof out->why, "the rule denies it");
    } else if (d->has_address) {
        out->exact = names_exactly(&p->rules[rule], d->address);
        check_special(&p->rules[rule], d->address, out);
    }
}

/* ---- names without a port ---- */

static bool covers_all_ports(const struct rule *r)
{
    return r->port_count == 1 && r->ports[0].first == 1 && r->ports[0].last == 65535;
}

/* The first rule of the chain that is `allow`, or that denies every port. */
static uint32_t walk_ports(const struct policy *p, uint32_t rule, bool allow, uint32_t best)
{
    for (; rule != NONE && rule < best; rule = p->rules[rule].next)
        if (p->rules[rule].allow == allow && (allow || covers_all_ports(&p->rules[rule])))
            return rule;
    return best;
}

static uint32_t match_ports(const struct policy *p, const char *name, bool allow)
{
    size_t len = strlen(name);
    uint32_t best = walk_ports(p, p->any_first, allow, NONE);
    best = walk_ports(p, find_entry(p, name, len, false)->first, allow, best);
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        const struct entry *at = find_entry(p, dot + 1, len - (size_t)(dot + 1 - name), true);
        best = walk_ports(p, at->first, allow, best);
    }
    return best;
}

/* Does a policy above forbid it whatever the port? */
static bool denies_all_ports(const struct policy *p, const char *name)
{
    uint32_t denies = match_ports(p, name, false);
    return denies != NONE && denies < match_ports(p, name, true);
}

bool policy_may_resolve(const struct policy *p, const struct policy_above *above, const char *name)
{
    for (size_t i = 0; above && i < above->count; i++)
        if (denies_all_ports(above->policy[i], name))
            return false;
    uint32_t allows = match_ports(p, name, true);
    return allows != NONE && allows < match_ports(p, name, false);
}

static bool chain_names(const struct policy *p, uint32_t rule, const struct range *special, uint32_t address)
{
    for (; rule != NONE; rule = p->rules[rule].next)
        if (p->rules[rule].allow && names_special(&p->rules[rule], special, address))
            return true;
    return false;
}

static bool name_is_at(const struct policy *p, const char *name, const struct range *special, uint32_t address)
{
    size_t len = strlen(name);
    if (chain_names(p, find_entry(p, name, len, false)->first, special, address))
        return true;
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        size_t rest = len - (size_t)(dot + 1 - name);
        if (chain_names(p, find_entry(p, dot + 1, rest, true)->first, special, address))
            return true;
    }
    return false;
}

bool policy_may_be_at(const struct policy *p, const char *name, uint32_t address)
{
    struct range special;
    if (!address_special(address, &special) || name_is_at(p, name, &special, address))
        return true;
    uint32_t at = 0;
    for (unsigned bit = 0; at != NONE; bit++) {
        if (chain_names(p, p->trie[at].first, &special, address))
            return true;
        if (bit == 32)
            break;
        at = p->trie[at].child[address >> (31 - bit) & 1];
    }
    return false;
}

void policy_explain(const struct decision *d, char *out, size_t size)
{
    const char *of = d->whose ? " of " : "", *whose = d->whose ? d->whose : "";
    if (d->line && d->why[0] && !d->allowed)
        snprintf(out, size, "denied: %s (line %u%s%.80s: %s)", d->why, d->line, of, whose, d->rule);
    else if (d->line)
        snprintf(out, size, "%s by line %u%s%.80s: %s", d->allowed ? "allowed" : "denied", d->line, of, whose, d->rule);
    else
        snprintf(out, size, "denied: %s", d->why);
}
