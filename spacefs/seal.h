// SPDX-License-Identifier: Apache-2.0
// Secrets on their way through: credentials/SCOPE/NAME/value is sealed to space-credd's public key here, so that nobody behind sees it.
#ifndef SPACEFS_SEAL_H
#define SPACEFS_SEAL_H

#include "spacefs/node.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Before the process is confined. 0 or -errno with a sentence. */
int seal_init(struct err *e);

/* Is what is written to this file a secret? */
bool seal_wants(const struct node *n);

/*
 * What is sent in place of `size` bytes of plain text that are to go to `offset`: malloc'ed, *ret_len bytes. The plain text is wiped, also on failure. A newline at
 * its end is cut off; nothing at all stays nothing, which revokes. -EINVAL: no whole value (a second write of an open); -E2BIG: longer than CREDD_VALUE_MAX;
 * -ENOKEY: space-credd has not said yet what to seal to.
 */
int seal_value(const struct fs *fs, char *plain, size_t size, off_t offset, char **out, size_t *ret_len);

#endif
