// SPDX-License-Identifier: Apache-2.0
// Directories of the tree as tables: a row per object, a column per attribute.
#ifndef SPACE_CTL_LISTING_H
#define SPACE_CTL_LISTING_H

#include "spacectl/table.h"
#include "spacectl/tree.h"

/*
 * Adds a row for DIR/NAME: the first cell is `name`, every further one the attribute file that its
 * column is named after (several lines become one, NULL where it cannot be read). False, and no
 * row, when the object has vanished.
 */
bool listing_add(const struct tree *t, struct table *table, const struct column *columns, const char *dir, const char *name);

/* listing_add for everything in `dir`. 0 or -errno. */
int listing_add_all(const struct tree *t, struct table *table, const struct column *columns, const char *dir, struct err *e);

#endif
