// SPDX-License-Identifier: Apache-2.0
// The administrator's egress file: the platform's policy, and those of tenants and of sandboxes
// with a label of the administrator's. docs/egress.md describes it to users.
//
//   rules of the platform
//   [tenant NAME]              rules for the sandboxes of that user (or uid)
//   [label admin.KEY=VALUE]    rules for the sandboxes with that label
//
// Pure: no input or output. What a sandbox belongs to is told as lines, "tenant alice", "tenant
// 1000", "label admin.tier=gold", one for each; order and repetition mean nothing.
#ifndef SPACE_NETD_LEVELS_H
#define SPACE_NETD_LEVELS_H

#include "hostd/netd/policy.h"

struct levels;

/* -EINVAL with a sentence that names the line; -E2BIG; -ENOMEM. Freed with levels_destroy (NULL is
 * fine). */
int levels_parse(const char *text, size_t len, struct levels **out, struct err *e);
void levels_destroy(struct levels *l);

/*
 * The policies above a sandbox: the platform's, its tenant's, those of its labels, in that order.
 * They point into `l`, which may be NULL: none. False: there are more than POLICY_ABOVE_MAX, and
 * *out is not complete.
 */
bool levels_above(const struct levels *l, const char *belongs, struct policy_above *out);

/*
 * What the tenant itself wrote comes last of those above its sandboxes: below the administrator's,
 * which are in *above already. *out is NULL for an empty text, and to be freed with policy_destroy
 * once *above is not needed any more. 0, or -errno with a sentence.
 */
int levels_add_tenant(struct policy_above *above, const char *text, struct policy **out, struct err *e);

#endif
