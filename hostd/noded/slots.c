// SPDX-License-Identifier: Apache-2.0
// The slot table: see slots.h. Searched from end to end: a few thousand numbers, a few times for
// each start of a QEMU.
#include "hostd/noded/slots.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct slots {
    pthread_mutex_t lock;
    uint32_t count;
    struct {
        uint64_t holder; /* 0: free */
        bool stale;
    } v[];
};

struct slots *slots_create(uint32_t count)
{
    struct slots *s = calloc(1, sizeof *s + count * sizeof s->v[0]);
    if (!s)
        return NULL;
    s->count = count;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void slots_destroy(struct slots *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* With the lock. */
static uint32_t find(const struct slots *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->v[i].holder == id)
            return i;
    return UINT32_MAX;
}

int slots_take(struct slots *s, uint32_t slot, uint64_t id, uint64_t *ret_stale)
{
    *ret_stale = 0;
    if (slot >= s->count)
        return -ERANGE;
    pthread_mutex_lock(&s->lock);
    uint32_t now = find(s, id);
    uint64_t other = s->v[slot].holder == id ? 0 : s->v[slot].holder;
    int rc = (other && !s->v[slot].stale) || (now != UINT32_MAX && now != slot) ? -EBUSY : 0;
    if (rc == 0) {
        *ret_stale = other;
        s->v[slot].holder = id;
        s->v[slot].stale = false;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void slots_mark_stale(struct slots *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    uint32_t slot = find(s, id);
    if (slot != UINT32_MAX)
        s->v[slot].stale = true;
    pthread_mutex_unlock(&s->lock);
}

void slots_restore(struct slots *s, uint32_t slot, uint64_t stale)
{
    pthread_mutex_lock(&s->lock);
    s->v[slot].holder = stale;
    s->v[slot].stale = true;
    pthread_mutex_unlock(&s->lock);
}

void slots_drop(struct slots *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    uint32_t slot = find(s, id);
    if (slot != UINT32_MAX)
        s->v[slot].holder = 0;
    pthread_mutex_unlock(&s->lock);
}

uint32_t slots_find(struct slots *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    uint32_t slot = find(s, id);
    pthread_mutex_unlock(&s->lock);
    return slot;
}

uint64_t slots_holder(struct slots *s, uint32_t slot)
{
    pthread_mutex_lock(&s->lock);
    uint64_t id = slot < s->count ? s->v[slot].holder : 0;
    pthread_mutex_unlock(&s->lock);
    return id;
}

void slots_each(struct slots *s, void (*cb)(void *user, uint64_t id), void *user)
{
    for (uint32_t i = 0; i < s->count; i++) {
        uint64_t id = slots_holder(s, i);
        if (id)
            cb(user, id);
    }
}
