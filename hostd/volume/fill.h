// SPDX-License-Identifier: Apache-2.0
// Disks and memory that arrive from the store while their machine runs (ipc/fill.h): one struct fill for each machine, of it until a sandbox takes it, then of the sandbox.
#ifndef SPACE_HOSTD_VOLUME_FILL_H
#define SPACE_HOSTD_VOLUME_FILL_H

#include "hostd/object.h"

struct fill;

/* From a coroutine. What `object` is filled with from the stored snapshot begins to arrive, or goes on after a start of space-hostd. Its memory, if that does, at once: space-noded has
 * started its QEMU with NODED_FILLING. */
struct fill *fill_start(struct space *s, uint64_t object, struct snapshot *sn, bool memory);
/* And its disk, once space-noded has loaded it with NODED_FILLING. Until then nothing is complete. */
void fill_start_disk(struct fill *f);
/* It ends where it is, soon, and *f is NULL. NULL is fine. */
void fill_stop(struct fill **f);

/* The sandbox, whose object it is, has it from now on, and is told what becomes of it; sb->fill is NULL afterwards, when it is complete already. When it
 * is complete the row is no longer `suspended`, that is saved, and sb->fill is NULL. */
void fill_give(struct fill *f, struct sandbox *sb);

/* From a coroutine: until all of the sandbox's disk and memory is there. 0 too when none arrives; -ECANCELED; -EKEYREVOKED, it will not. */
int fill_wait(struct sandbox *sb, struct err *e);
/* Bytes that have arrived of those that were stored; 0 of 0 before that is known. */
void fill_progress(const struct fill *f, uint64_t *ret_done, uint64_t *ret_total);
/* Why nothing arrives; "" when something does, or for NULL. */
const char *fill_why(const struct fill *f);
/* sb->row.error says so, if it does: for who has cleared that, or has the fill only now. */
void fill_say_why(struct sandbox *sb);
/* Is its machine paused because of that, as yet? Then it need not be woken. */
bool fill_is_stalled(const struct sandbox *sb);
/* QEMU paused the machine after an error of its disk: true when that was a part which did not arrive, and sb->row.error says so. It is resumed when the store is
 * back. A machine that waits for its memory is found by fill itself, and paused so. */
bool fill_stalled(struct sandbox *sb);
/* A space-hostd that ended had found that. */
void fill_was_stalled(struct sandbox *sb);

#endif
