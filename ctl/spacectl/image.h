// SPDX-License-Identifier: Apache-2.0
// An ext4 image from a directory, made by mke2fs without mounting anything.
#ifndef SPACE_CTL_IMAGE_H
#define SPACE_CTL_IMAGE_H

#include "spacectl/scratch.h"

#include <stdint.h>

#define IMAGE_SIZE_MIN (16ull << 20)
#define IMAGE_SIZE_MAX (8ull << 40) /* below what ext4 needs its 64bit feature for, with room to grow */

/*
 * Makes scratch/disk.raw of `size` bytes (a multiple of 4096 between the limits) with everything in
 * `dir`. Owners are kept; for a caller who is not root, its own files become root's. 0 or -errno.
 */
int image_make(const struct scratch *s, const char *dir, uint64_t size, const char *label, struct err *e);

#endif
