// SPDX-License-Identifier: Apache-2.0
// Hands a QEMU that starts the descriptors of its guest's memory and network, and learns where it
// mapped the memory.
//
// The file is root's and nobody else may open it. The library in QEMU (qemu_ram.c) connects to
// RUN/ram/ID, which belongs to the virtual machine's uid, and gets a read-only descriptor. The
// directory RUN/ram can be traversed by all, listed by root only.
#ifndef SPACE_NODED_RAMFD_H
#define SPACE_NODED_RAMFD_H

#include "base/err.h"

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

struct ramfds;
struct ramfd;

/* Makes RUN/ram in the directory `run_fd`, whose path is `run`, and removes what is in it. */
int ramfds_open(int run_fd, const char *run, struct ramfds **out, struct err *e);

/* What a QEMU is given: its guest's memory (read-only), its tap and its network namespace (both -1:
 * no network), and /dev/userfaultfd (-1: its memory is all there). */
struct ramfd_gifts {
    int ram, tap, net, faults;
};

/* Waits, on a thread of its own, for the QEMU of sandbox `id`, and gives it `gifts` (they stay the
 * caller's, until ramfd_finish). */
int ramfd_start(const struct ramfds *r, uint64_t id, uid_t uid, const struct ramfd_gifts *gifts, uint64_t length, struct ramfd **out, struct err *e);
/* The socket's path. */
void ramfd_path(const struct ramfd *f, char out[PATH_MAX]);

/*
 * Where the library in the QEMU of `id` asks for chunks of a disk that arrives (ipc/fill.h):
 * RUN/ram/ID.fill. Unlike the others it is there as long as that QEMU, across restarts of this
 * process.
 */
void ramfd_fill_path(const struct ramfds *r, uint64_t id, char out[PATH_MAX]);
/* A listening socket there, for that uid, in place of the one before. */
int ramfd_fill_listen(const struct ramfds *r, uint64_t id, uid_t uid, int *ret_fd, struct err *e);
/* Missing is success. */
void ramfd_fill_remove(const struct ramfds *r, uint64_t id);

/* Ends the wait. 0: it was mapped at *ret_address by process *ret_pid; -ENODATA: it was not. NULL
 * is fine (-ENODATA). */
int ramfd_finish(struct ramfd *f, uint64_t *ret_address, pid_t *ret_pid);

#endif
