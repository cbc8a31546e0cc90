// SPDX-License-Identifier: Apache-2.0
// Fills any message of messages.def with random valid values, and compares two messages field by
// field.
#ifndef SPACE_TESTS_FILL_H
#define SPACE_TESTS_FILL_H

#include "9p/codec.h"

#include <stdbool.h>

/* A small generator (xorshift), so that runs repeat. Seed with anything but 0. */
uint64_t fill_random(uint64_t *seed);

/* False when `type` is no message. Strings and data point into static bytes. */
bool fill_message(struct p9_msg *m, uint8_t type, uint64_t *seed);

/* NULL when equal, else the name of the first field that differs. */
const char *fill_compare(const struct p9_msg *a, const struct p9_msg *b);

#endif
