// SPDX-License-Identifier: Apache-2.0
// What a guest must be told after it was started, copied or rolled back: clock, name, identity,
// entropy.
#ifndef SPACE_GUEST_IDENTITY_H
#define SPACE_GUEST_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IDENTITY_ENTROPY_MAX  512 /* bytes */
#define IDENTITY_HOSTNAME_MAX 64
#define IDENTITY_MACHINE_ID   33 /* bytes of the file: 32 hex digits and a newline */

/* Bytes from hex digits of either case: their number, or -EINVAL (odd, empty, other characters,
 * more than `max`). */
long identity_from_hex(const char *hex, void *out, size_t max);

/* 1 to 64 letters, digits, dots, underscores and dashes. */
bool identity_hostname_valid(const char *name);

/* 0 or -errno. None of these touches the root file system. */
int identity_set_clock(int64_t nsec);
int identity_set_hostname(const char *name);
/* Credits and mixes `len` bytes into the generator whose device `random` is, and makes all
 * generators start anew from them. */
int identity_add_entropy(int random, const void *bytes, size_t len);

/*
 * Makes `hex` (32 hex digits) the content of the file `fd`, which is mapped at `map` (NULL: is
 * not): the store into memory saves an emulator the kernel's whole way of writing files. -1 is no
 * file, and no error.
 */
int identity_set_machine_id(int fd, char *map, const char *hex);

#endif
