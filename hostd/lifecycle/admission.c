// SPDX-License-Identifier: Apache-2.0
// Admission: what is refused before anything is done, so that mkdir fails with an errno and leaves nothing behind.
#include "hostd/lifecycle/lifecycle.h"

#include "base/str.h"
#include "hostd/pool/pool.h"
#include "hostd/snapshot/account.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/statvfs.h>

int admit_space(struct space *s, struct err *e)
{
    struct statvfs v;
    if (statvfs(s->config.pool, &v) == 0) { /* a memory look-up in btrfs: not slower than asking a cache */
        s->pool_size = (uint64_t)v.f_blocks * v.f_frsize;
        s->pool_free = (uint64_t)v.f_bavail * v.f_frsize;
    }
    if (s->pool_size && s->pool_free < s->pool_size / 100 * s->config.reserve_percent)
        return err_set(e, ENOSPC, "the pool %s is full: %" PRIu64 " MiB are free and %u %% are kept in reserve; remove snapshots or sandboxes",
                       s->config.pool, s->pool_free >> 20, s->config.reserve_percent);
    return 0;
}

int admit_disk(const struct space *s, uint32_t owner, struct err *e)
{
    uint64_t limit = s->config.max_disk, used = limit ? account_usage(s, owner) : 0;
    if (limit && used >= limit)
        return err_set(e, EDQUOT,
                       "sandboxes, snapshots and templates of this owner hold %" PRIu64 " MiB of their own, and max_disk is %" PRIu64
                       " MiB; remove some",
                       used >> 20, limit >> 20);
    return 0;
}

int admit_memory(struct space *s, uint64_t bytes, struct err *e)
{
    uint64_t limit = s->host_memory / 100 * s->config.overcommit_percent;
    if (s->host_memory && (bytes > limit || s->guest_memory > limit - bytes))
        return err_set(e, ENOMEM,
                       "no room for %" PRIu64 " MiB more guest memory: %" PRIu64 " of %" PRIu64
                       " MiB (%u %% of the host's) are taken; stop or remove a sandbox",
                       bytes >> 20, s->guest_memory >> 20, limit >> 20, s->config.overcommit_percent);
    return 0;
}

int admit_create(struct space *s, const struct caller *c, struct err *e)
{
    uint32_t count = 0;
    if (!c->may_create)
        return err_set(e, EPERM, "only root and members of the group '%s' may make things here", s->config.group);
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        const struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        count += sb->row.owner == c->uid && sb->named;
    }
    if (count >= s->config.max_sandboxes)
        return err_set(e, EDQUOT, "you have %u sandboxes already, as many as max_sandboxes allows", count);
    int rc = admit_disk(s, c->uid, e);
    return rc < 0 ? rc : admit_space(s, e);
}

int vm_charge(struct sandbox *sb, struct err *e)
{
    uint32_t slot;
    vm_release(sb);
    int rc = machine_charge(sb->space, (uint64_t)sb->row.object, (uint64_t)sb->row.memory, false, &slot, e);
    if (rc < 0)
        return rc;
    sb->row.slot = slot;
    sb->slot_taken = true;
    sb->charged = (uint64_t)sb->row.memory;
    return 0;
}

void vm_release(struct sandbox *sb)
{
    if (!sb->slot_taken)
        return;
    machine_discharge(sb->space, sb->charged, false, (uint32_t)sb->row.slot);
    sb->charged = 0;
    sb->slot_taken = false;
}
