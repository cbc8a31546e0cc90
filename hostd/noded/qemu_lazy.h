// SPDX-License-Identifier: Apache-2.0
// The guest's memory while it arrives, in the library inside QEMU.
#ifndef SPACE_NODED_QEMU_LAZY_H
#define SPACE_NODED_QEMU_LAZY_H

#include <stddef.h>

/*
 * `at` is an anonymous mapping that nobody has touched. From now on each first access to a chunk of
 * it, by QEMU or by the kernel for QEMU, waits until the chunk is in the file `ram`, which is then
 * mapped privately in its place. `device` is /dev/userfaultfd, and is closed. Once; ends QEMU when
 * that cannot be.
 */
void lazy_start(void *at, size_t length, int prot, int ram, int device);

#endif
