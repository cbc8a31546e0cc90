// SPDX-License-Identifier: Apache-2.0
// Keeping a guest's symlinks inside root/NAME: a link to /etc/shadow must not lead a host program to the host's file.
#ifndef SPACE_HOSTD_SYMLINK_H
#define SPACE_HOSTD_SYMLINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Components of a target that are followed; longer ones are refused. */
#define SYMLINK_PARTS_MAX 256

/*
 * The target (`len` bytes, from the guest) as seen from a link in a directory `depth` names below root/NAME. The result cannot leave: every ".." comes first,
 * and there are no more of them than `depth`. Absolute targets start at root/NAME, as in a chroot. "a/.." is cut lexically: behind a name that is itself a
 * symlink, ".." could lead anywhere. A target that is safe already is returned byte for byte. False when it has too many parts or does not fit `size`.
 */
bool symlink_rewrite(const char *target, size_t len, uint32_t depth, char *out, size_t size);

#endif
