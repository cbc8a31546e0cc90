// SPDX-License-Identifier: Apache-2.0
// Which sandbox holds which uid slot: no two virtual machines may ever share a uid.
//
// A slot is taken before anything belongs to its uid, and dropped after nothing does any more. Any
// thread.
#ifndef SPACE_NODED_SLOTS_H
#define SPACE_NODED_SLOTS_H

#include <stdint.h>

struct slots;

/* `count` slots, all free. NULL when out of memory. */
struct slots *slots_create(uint32_t count);
void slots_destroy(struct slots *s);

/*
 * 0, also when `id` holds this very slot; -EBUSY when another one holds it, or `id` another slot;
 * -ERANGE. A stale holder is put out: *ret_stale is its id (else 0), and the caller takes back what
 * that one had before it uses the uid, or restores it.
 */
int slots_take(struct slots *s, uint32_t slot, uint64_t id, uint64_t *ret_stale);
/* The virtual machine of `id` is gone, but not everything could be taken back from its uid yet. */
void slots_mark_stale(struct slots *s, uint64_t id);
/* Undoes a slots_take that put `stale` out. */
void slots_restore(struct slots *s, uint32_t slot, uint64_t stale);
/* Holding none is fine. */
void slots_drop(struct slots *s, uint64_t id);
/* The slot of `id`, or UINT32_MAX. */
uint32_t slots_find(struct slots *s, uint64_t id);
/* The holder of a slot, or 0. */
uint64_t slots_holder(struct slots *s, uint32_t slot);
/* Calls back for each holder, without the lock. */
void slots_each(struct slots *s, void (*cb)(void *user, uint64_t id), void *user);

#endif
