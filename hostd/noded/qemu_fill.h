// SPDX-License-Identifier: Apache-2.0
// What the files of the library in QEMU call of each other.
#ifndef SPACE_NODED_QEMU_FILL_H
#define SPACE_NODED_QEMU_FILL_H

#include "ipc/fill.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Once, before QEMU's main function. */
void fill_open(void);

/* Returns when bytes [from, from + length) of the file may be read and written: at once, unless it
 * is a disk that is still arriving. -1 and errno. Any thread. */
int fill_wait(int fd, uint64_t from, uint64_t length);

/* A file that arrives, as its bits tell. */
struct fill_part {
    const struct fill_header *header; /* NULL: this QEMU is never loaded that way */
    int file;
    enum fill_file what;
    pthread_mutex_t lock; /* while the bits are mapped */
    _Atomic(const uint8_t *) bits;
    uint64_t size;
};

#define FILL_PART(kind)                                                                                                                              \
    {                                                                                                                                                \
        .file = -1, .what = (kind), .lock = PTHREAD_MUTEX_INITIALIZER                                                                                \
    }

/* Maps the header of the file `name` in the folder of the sandbox's object. Before QEMU's main
 * function; ends QEMU. */
void fill_part_open(struct fill_part *p, const char *name);
enum fill_state fill_part_state(const struct fill_part *p);
/* The bits, once the state is FILL_RUNS; again is free. -1 and errno. */
int fill_part_bits(struct fill_part *p);
/* Is the chunk there? */
bool fill_part_has(const struct fill_part *p, uint64_t chunk);
/* Asks space-hostd for a chunk that is not there, and for what is missing right behind it, before
 * chunk `end`. 0: look again; -1, errno EIO: it cannot be had now. */
int fill_part_ask(const struct fill_part *p, uint64_t chunk, uint64_t end);

/* Ends QEMU with a line in its log (qemu_ram.c). Only before its main function. */
_Noreturn void library_fail(const char *what);

#endif
