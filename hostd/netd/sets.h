// SPDX-License-Identifier: Apache-2.0
// Named sets of destinations, for the first five minutes: `allow tcp @pypi`.
#ifndef SPACE_NETD_SETS_H
#define SPACE_NETD_SETS_H

#include <stddef.h>

/* The targets of a set, a NULL-ended array; NULL when there is no such set. */
const char *const *set_find(const char *name, size_t len);

/* All names, for messages: "debian, github, ...". */
extern const char set_names[];

#endif
