// SPDX-License-Identifier: Apache-2.0
// Which sandbox holds which uid slot: no two virtual machines may ever share a uid.
//
// A slot is taken before anything belongs to its uid, and dropped after nothing does any more. Any thread.
#ifndef SPACE_NODED_SLOTS_H
#define SPACE_NODED_SLOTS_H

#include <stdint.h>

struct slots;

/* `count` slots, all free. NULL when out of memory. */
struct slots *slots_create(uint32_t count);
void slots_destroy(struct slots *s);

/* 0, also when `id` holds this very slot; -EBUSY when another one holds it, or `id` another slot; -ERANGE. */
int slots_take(struct slots *s, uint32_t slot, uint64_t id);
/* Holding none is fine. */
void slots_drop(struct slots *s, uint64_t id);
/* The slot of `id`, or UINT32_MAX. */
uint32_t slots_find(struct slots *s, uint64_t id);
/* The holder of a slot, or 0. */
uint64_t slots_holder(struct slots *s, uint32_t slot);

#endif
