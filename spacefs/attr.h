// SPDX-License-Identifier: Apache-2.0
// 9P attributes as the kernel wants them.
#ifndef SPACEFS_ATTR_H
#define SPACEFS_ATTR_H

#include "9p/codec.h"
#include "spacefs/node.h"

#include <sys/stat.h>

/* Seconds for which the kernel may show a guest file's attributes without asking again. Every path walk asks anyway (names are
 * never cached below an object), so this only spares the fstat that follows an open, and the look before each cached read. */
#define ATTR_GUEST_TIMEOUT 0.1

/* The trees' own names never change while a mount lasts, and are the same for everybody. */
#define ATTR_TREE_TIMEOUT 3600.0

/* Fills in a stat; fields that the server does not know are 0. Numbers no kernel would take are cut. */
void attr_to_stat(const struct p9_Rgetattr *a, struct stat *st);

/* Remembers size and mtime in the node, and the id of an object's directory. */
void attr_seen(struct node *n, const struct p9_Rgetattr *a);

/* Attributes of a file that exists here only. */
void attr_of_swallowed(const struct node *n, struct stat *st);

double attr_timeout(const struct node *n);
double attr_name_timeout(const struct node *n);

#endif
