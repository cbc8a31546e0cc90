// SPDX-License-Identifier: Apache-2.0
// Egress policy: an ordered list of rules, parsed from text, and the decision on a destination.
// Pure: no input or output, no clock. docs/egress.md describes the language to users.
//
//   rule   = ("allow" | "deny") "tcp" target [option...]
//   set    = "set" label target...       (of names, addresses: for "@label" further down, and in
//   the policies below this one) limit  = "limit" ("connections" number | "rate" number | "bytes"
//   size) target = (name | "*." name | "*" | address ["/" bits]) ":" ports  |  "@" set ports  = "*"
//   | port ["-" port] {"," port ["-" port]} option = "at" range {"," range}      (of a name: may be
//   found at these special addresses)
//          | "ech"                       (of a name: a client may hide the name it talks to)
//
// A line each, `#` begins a comment. The first rule that matches decides; none: deny. A name rule
// matches a destination that has that name, whatever its address; an address rule matches by
// address, whatever its name; "*" matches both, and "*." any name below. What a rule allows by name
// must be on the public internet, but for the ranges after `at`; what it allows by address, too,
// unless the rule's range lies inside the special one (so 10.0.0.0/8 allows private addresses, and
// 0.0.0.0/0 does not).
//
// Matching is by index, not by walking the list: a table of names and suffixes, and a trie of
// address prefixes, each with its rules in order.
#ifndef SPACE_NETD_POLICY_H
#define SPACE_NETD_POLICY_H

#include "base/err.h"
#include "hostd/netd/address.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POLICY_NAME_MAX  253   /* bytes of a name, without a final dot */
#define POLICY_RULES_MAX 20000 /* sets written out */
#define POLICY_PORTS_MAX 8     /* ranges of a rule */
#define POLICY_AT_MAX    4
#define POLICY_ABOVE_MAX 16
#define POLICY_SETS_MAX  64 /* of a policy's own */

struct policy;

/* Policies above one: what they deny is denied, whatever it says, their limits count, and it may
 * use their sets. From the widest to the closest; borrowed. */
struct policy_above {
    size_t count;
    const struct policy *policy[POLICY_ABOVE_MAX];
};

/* What a text is read as. */
struct policy_context {
    const struct policy_above *above; /* NULL: none */
    const char *whose;                /* for who asks which rule decided: "line 3 of WHOSE"; NULL: the sandbox's own */
    uint32_t lines;                   /* before the text in its file */
};

/*
 * -EINVAL with a sentence that begins with line and column, and says what was expected; -E2BIG when
 * there are too many rules; -ENOMEM. An empty text is a policy that allows nothing. `context` may
 * be NULL. Freed with policy_destroy (NULL is fine).
 */
int policy_parse(const struct policy_context *context, const char *text, size_t len, struct policy **out, struct err *e);
void policy_destroy(struct policy *p);

size_t policy_rules(const struct policy *p);

/* What `limit` lines say, the smallest of each; 0: nothing. */
struct policy_limits {
    uint64_t connections; /* at once */
    uint64_t rate;        /* connections and questions that begin, a second */
    uint64_t bytes;       /* in both directions, of one machine */
};
const struct policy_limits *policy_limits(const struct policy *p);

/* Where somebody wants to go. */
struct destination {
    const char *name; /* lower case, without a final dot; NULL: by address alone */
    uint32_t address;
    bool has_address; /* false: a question about the name (explain) */
    uint16_t port;
};

enum policy_by { POLICY_BY_NONE, POLICY_BY_NAME, POLICY_BY_ADDRESS, POLICY_BY_ANY };

struct decision {
    bool allowed;
    enum policy_by by; /* what the rule names; NONE: no rule matched */
    const char *whose; /* decided by this policy above; NULL: its own. Borrowed from that */
    bool ech;          /* the rule's option */
    bool exact;        /* the rule names this very address, and no other (or after `at`) */
    unsigned line;     /* of the rule, from 1; 0: none */
    char rule[128];    /* its text, cut */
    char why[96];      /* when denied */
};

/* `above` may be NULL. The result is complete in every case. */
void policy_decide(const struct policy *p, const struct policy_above *above, const struct destination *d, struct decision *out);

/* May the guest know where that name is? Only when some rule could allow it at some port. */
bool policy_may_resolve(const struct policy *p, const struct policy_above *above, const char *name);

/* May the guest be told that the name is at that address? False for special ones that no rule
 * names. */
bool policy_may_be_at(const struct policy *p, const char *name, uint32_t address);

/* Is this a name, in lower case: labels of 1 to 63 of [a-z0-9_-], not ending like an address? */
bool policy_name_valid(const char *name, size_t len);

/* The decision in a sentence. */
void policy_explain(const struct decision *d, char *out, size_t size);

#endif
