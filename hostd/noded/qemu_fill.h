// SPDX-License-Identifier: Apache-2.0
// What the two files of the library in QEMU call of each other.
#ifndef SPACE_NODED_QEMU_FILL_H
#define SPACE_NODED_QEMU_FILL_H

#include <stdint.h>

/* Once, before QEMU's main function. */
void fill_open(void);

/* Returns when bytes [from, from + length) of the file may be read and written: at once, unless it
 * is a disk that is still arriving. -1 and errno. Any thread. */
int fill_wait(int fd, uint64_t from, uint64_t length);

/* Ends QEMU with a line in its log (qemu_ram.c). Only before its main function. */
_Noreturn void library_fail(const char *what);

#endif
