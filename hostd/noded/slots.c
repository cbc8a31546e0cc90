// SPDX-License-Identifier: Apache-2.0
// The slot table: see slots.h. Searched from end to end: a few thousand numbers, a few times for each start of a QEMU.
#include "hostd/noded/slots.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct slots {
    pthread_mutex_t lock;
    uint32_t count;
    uint64_t holder[]; /* 0: free */
};

struct slots *slots_create(uint32_t count)
{
    struct slots *s = calloc(1, sizeof *s + count * sizeof s->holder[0]);
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
        if (s->holder[i] == id)
            return i;
    return UINT32_MAX;
}

int slots_take(struct slots *s, uint32_t slot, uint64_t id)
{
    if (slot >= s->count)
        return -ERANGE;
    pthread_mutex_lock(&s->lock);
    uint32_t now = find(s, id);
    int rc = (s->holder[slot] && s->holder[slot] != id) || (now != UINT32_MAX && now != slot) ? -EBUSY : 0;
    if (rc == 0)
        s->holder[slot] = id;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void slots_drop(struct slots *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    uint32_t slot = find(s, id);
    if (slot != UINT32_MAX)
        s->holder[slot] = 0;
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
    uint64_t id = slot < s->count ? s->holder[slot] : 0;
    pthread_mutex_unlock(&s->lock);
    return id;
}
