// SPDX-License-Identifier: Apache-2.0
// What a guest must be told after it was started, copied or rolled back: clock, name, identity,
// entropy.
#ifndef SPACE_GUEST_IDENTITY_H
#define SPACE_GUEST_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

#define IDENTITY_ENTROPY_MAX 512 /* bytes */

/* Bytes from hex digits of either case: their number, or -EINVAL (odd, empty, other characters,
 * more than `max`). */
long identity_from_hex(const char *hex, void *out, size_t max);

/* 0 or -errno. None of these touches the root file system. */
int identity_set_clock(int64_t nsec);
int identity_set_hostname(const char *name);
/* Credits and mixes `len` bytes into the generator whose device `random` is, and makes all
 * generators start anew from them. */
int identity_add_entropy(int random, const void *bytes, size_t len);

/* Writes /etc/machine-id (32 hex digits) or /etc/hostname: for helpers. 0 or -errno. */
int identity_write_machine_id(const char *hex);
int identity_write_hostname(const char *name);

#endif
