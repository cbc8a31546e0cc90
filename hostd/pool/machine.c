// SPDX-License-Identifier: Apache-2.0
// One machine: started, loaded, given to a sandbox or discarded. See pool.h.
#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/lifecycle/net.h"
#include "hostd/noded_client.h"
#include "hostd/pool/pool.h"
#include "hostd/volume/fill.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ARRIVE_TRIES 6      /* of HELLO_MSEC, when its memory arrives */
#define HELLO_MSEC   20000u /* from the load to the agent's echo: milliseconds on an idle host */

/* Sandboxes and what is made for them come before machines that wait for somebody. */
static bool pool_make_room(struct space *s, uint64_t memory)
{
    for (struct machine *m = s->machines; m && admit_memory(s, memory + s->pool_memory, NULL) < 0; m = m->next)
        if (m->state == MACHINE_WAITING || m->state == MACHINE_READY)
            machine_discard(m);
    return admit_memory(s, memory + s->pool_memory, NULL) == 0;
}

int machine_charge(struct space *s, uint64_t object, uint64_t memory, bool pooled, uint32_t *ret_slot, struct err *e)
{
    uint32_t slot = 0;
    if (s->going_down)
        return err_set(e, ESHUTDOWN, "the host goes down");
    int rc = admit_memory(s, pooled ? memory + s->pool_memory : memory, e);
    if (rc < 0 && pooled && pool_make_room(s, memory)) {
        *e = (struct err){0};
        rc = 0;
    }
    if (rc < 0)
        return rc;
    while (slot < s->config.uid_count && s->slots[slot])
        slot++;
    if (slot == s->config.uid_count)
        return err_set(e, EAGAIN, "all %u user ids for virtual machines are in use (uid_count)", s->config.uid_count);
    s->slots[slot] = object;
    *(pooled ? &s->pool_memory : &s->guest_memory) += memory;
    *ret_slot = slot;
    return 0;
}

void machine_discharge(struct space *s, uint64_t memory, bool pooled, uint32_t slot)
{
    s->slots[slot] = 0;
    *(pooled ? &s->pool_memory : &s->guest_memory) -= memory;
}

static void unlist(struct machine *m)
{
    struct machine **p = &m->space->machines;
    while (*p != m)
        p = &(*p)->next;
    *p = m->next;
}

static void discard(void *arg)
{
    struct machine *m = arg;
    struct space *s = m->space;
    struct err e = {0};
    struct noded_request end = {.op = NODED_VM_KILL, .kind = NODED_SANDBOX, .id = m->object};
    struct noded_request remove = {.op = NODED_OBJECT_DELETE, .kind = NODED_SANDBOX, .id = m->object};
    int ended = noded_call(s, &end, NULL, NULL, &e), rc = ended;
    if (rc == 0)
        rc = noded_call(s, &remove, NULL, NULL, &e);
    if (rc < 0)
        log_warn("machine %012" PRIx64 " is left to reconciliation: %s", m->object, e.msg);
    if (ended == 0) /* else it keeps its uid, until that ends it */
        machine_discharge(s, 0, true, m->slot);
    unlist(m);
    free(m);
}

void machine_discard(struct machine *m)
{
    if (!m || m->state == MACHINE_ENDING)
        return;
    m->state = MACHINE_ENDING;
    net_kick(m->space);
    m->space->pool_memory -= m->base.memory; /* its uid follows when QEMU has ended */
    guest_close(m->guest);
    m->guest = NULL;
    fill_stop(&m->fill);
    co_spawn(m->space->co, discard, m);
}

/* A QEMU on a copy of the base. */
int machine_take_new(struct space *s, const struct head *base, struct machine **out, struct err *e)
{
    struct machine *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    *m = (struct machine){.space = s, .state = MACHINE_STARTING, .base = *base, .object = space_new_id(), .from = "new"};
    int rc = survey_wait(s, e);
    if (rc == 0)
        rc = machine_charge(s, m->object, base->memory, true, &m->slot, e);
    if (rc < 0) {
        free(m);
        return rc;
    }
    m->next = s->machines;
    s->machines = m;
    struct noded_request copy = {.op = NODED_OBJECT_SNAPSHOT, .kind = NODED_SANDBOX, .id = m->object, .kind2 = base->kind, .id2 = base->id};
    struct noded_request run = {.op = NODED_VM_START,
                                .kind = NODED_SANDBOX,
                                .id = m->object,
                                .kind2 = base->kind,
                                .id2 = base->id,
                                .flags = NODED_INCOMING | (base->arrives ? NODED_FILLING : 0),
                                .memory = base->memory,
                                .vcpus = base->vcpus,
                                .accel = s->accel,
                                .slot = m->slot};
    rc = noded_call(s, &copy, NULL, NULL, e);
    if (rc == 0)
        rc = noded_call(s, &run, NULL, NULL, e);
    if (rc == 0 && m->lost)
        rc = err_set(e, EIO, "a new machine ended before it was used");
    if (rc < 0) {
        machine_discard(m);
        return rc;
    }
    m->started = true;
    net_kick(s);
    if (base->arrives) /* its load needs some of it */
        m->fill = fill_start(s, m->object, snapshot_by_id(s, base->id), true);
    *out = m;
    return 0;
}

static struct machine *find(struct space *s, const struct head *base, enum machine_state state)
{
    for (struct machine *m = s->machines; m; m = m->next)
        if (m->state == state && !m->lost && head_same(&m->base, base))
            return m;
    return NULL;
}

int machine_take_slot(struct space *s, const struct head *base, struct machine **out, struct err *e)
{
    struct machine *m = find(s, base, MACHINE_WAITING);
    pool_demand(s, base, MACHINE_WAITING, m != NULL);
    if (!m)
        return machine_take_new(s, base, out, e);
    m->state = MACHINE_STARTING; /* nobody else's */
    m->from = "slot";
    *out = m;
    return 0;
}

static void lost(void *user, int code, const char *why)
{
    (void)code;
    struct machine *m = user;
    log_info("machine %012" PRIx64 ": %s", m->object, why);
    m->lost = true;
    if (m->state == MACHINE_READY)
        machine_discard(m);
}

/* As long as something arrives, a guest that needs it may take its time. */
static int say_hello(struct machine *m, unsigned tries, struct err *e)
{
    struct guest_hooks hooks = {.lost = lost, .user = m};
    uint64_t before, done = 0, total;
    int rc;
    do {
        before = done;
        *e = (struct err){0};
        rc = guest_connect(m->space, m->object, &hooks, HELLO_MSEC, &m->guest, e);
        if (m->fill)
            fill_progress(m->fill, &done, &total);
    } while (rc == -ETIMEDOUT && --tries && done > before && !*fill_why(m->fill));
    return rc;
}

int machine_load(struct machine *m, const struct head *h, struct err *e)
{
    struct space *s = m->space;
    struct noded_request load = {.op = NODED_VM_LOAD,
                                 .kind = NODED_SANDBOX,
                                 .id = m->object,
                                 .kind2 = h->kind,
                                 .id2 = h->id,
                                 .flags = (head_same(h, &m->base) ? NODED_OWN_DISK : 0) | (h->filling ? NODED_FILLING : 0)};
    uint64_t began = uv_hrtime();
    int rc = noded_call(s, &load, NULL, NULL, e);
    uint64_t loaded = uv_hrtime();
    m->disk = h->disk;
    m->load_nsec = loaded - began;
    if (rc == 0 && h->filling && !m->fill)
        m->fill = fill_start(s, m->object, snapshot_by_id(s, h->id), false);
    if (rc == 0 && h->filling) /* before anybody talks to its guest, which may need its disk for that */
        fill_start_disk(m->fill);
    if (rc == 0)
        rc = say_hello(m, h->arrives ? ARRIVE_TRIES : 1, e);
    if (rc < 0 && *fill_why(m->fill))
        err_wrap(e, "what it needs does not arrive (%s)", fill_why(m->fill));
    m->hello_nsec = uv_hrtime() - loaded;
    return rc;
}

#define WARM_ROUNDS 2 /* the first command of a guest takes 160 ms of an emulator's time, the second 25, all others 20 */

int machine_warm(struct machine *m, struct err *e)
{
    static const char record[] = "id=1\0arg=/bin/sh\0arg=-c\0arg=true";
    int rc = vm_introduce(m->guest, "ready", e); /* the first one costs 8 ms, what its taker gives it 1 */
    if (rc < 0)
        return rc;
    for (int i = 0; rc == 0 && i < WARM_ROUNDS; i++)
        rc = guest_run(m->guest, HELLO_MSEC, 1, record, sizeof record);
    if (rc == -ENOENT || rc == -EACCES) /* a template without a shell */
        rc = 0;
    return rc < 0 ? err_set(e, -rc, "a first command in a new machine: %s", strerror(-rc)) : 0;
}

static int take_filling(struct space *s, const struct head *base, const struct head *h, struct machine **out, struct err *e)
{
    struct machine *m = NULL;
    int rc = machine_take_new(s, base, &m, e);
    if (rc == 0)
        rc = machine_load(m, h, e);
    if (rc < 0)
        machine_discard(m);
    else
        *out = m;
    return rc;
}

int machine_take(struct space *s, const struct head *h, struct machine **out, struct err *e)
{
    struct head base = head_base(s, h);
    if (h->arrives) {
        base = *h;
        base.base = 0;
    }
    if (h->filling && base.id == h->id) /* nobody makes more of them */
        return take_filling(s, &base, h, out, e);
    struct machine *m = base.id == h->id ? find(s, h, MACHINE_READY) : NULL;
    if (base.id == h->id)
        pool_demand(s, h, MACHINE_READY, m != NULL);
    if (m) {
        m->state = MACHINE_STARTING;
        m->from = "ready";
        m->load_nsec = m->hello_nsec = 0; /* before anyone waited */
        *out = m;
        return 0;
    }
    int rc = machine_take_slot(s, &base, &m, e);
    if (rc == 0)
        rc = machine_load(m, h, e);
    if (rc < 0)
        machine_discard(m);
    else
        *out = m;
    return rc;
}

/* What the sandbox was, as a machine of nobody's. Its uid, if it has none any more, is the count: discharged without effect. */
static struct machine *machine_of(struct sandbox *sb)
{
    struct space *s = sb->space;
    struct machine *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    *m = (struct machine){.space = s,
                          .state = MACHINE_STARTING,
                          .object = (uint64_t)sb->row.object,
                          .slot = sb->slot_taken ? (uint32_t)sb->row.slot : s->config.uid_count,
                          .guest = sb->guest,
                          .next = s->machines};
    m->base.memory = sb->charged;
    s->guest_memory -= sb->charged;
    s->pool_memory += sb->charged;
    sb->charged = 0;
    sb->slot_taken = false;
    sb->guest = NULL;
    fill_stop(&sb->fill);
    s->machines = m;
    return m;
}

struct machine *machine_give(struct machine *m, struct sandbox *sb)
{
    struct space *s = m->space;
    struct machine *before = sb->row.object ? machine_of(sb) : NULL;
    unlist(m);
    s->pool_memory -= m->base.memory;
    s->guest_memory += m->base.memory;
    sb->charged = m->base.memory;
    sb->row.slot = m->slot;
    sb->slot_taken = true;
    sb->row.object = (int64_t)m->object;
    sb->row.base_kind = m->base.kind;
    sb->row.base = (int64_t)m->base.id;
    sb->row.memory = (int64_t)m->base.memory;
    sb->row.vcpus = m->base.vcpus;
    sb->guest = m->guest;
    sb->vm_event = 0;
    vm_watch(sb);
    fill_give(m->fill, sb);
    free(m);
    pool_kick(s);
    return before;
}
