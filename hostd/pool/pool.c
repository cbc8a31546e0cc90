// SPDX-License-Identifier: Apache-2.0
// How many machines wait, and of what. See pool.h.
//
// Theory of operation. Each base that is in use has a `shelf`: how many slots and ready machines it should have. The default template's shelf has what the
// configuration says at least; beyond that a shelf holds as many as were taken within any short time lately (a burst that came once comes again), and
// that figure decays. One coroutine at a time makes what is missing, one machine after the other, and rests while somebody waits for a sandbox to run, and until
// its first command has had its time: it competes for the same processors. When that never ends it makes one machine all the same, now and then. Machines beyond the figure end with the next decay. The pool's memory is charged on top of that of the sandboxes,
// and gives way to it.
#include "hostd/pool/pool.h"
#include "base/log.h"
#include "hostd/guest/guest.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/noded_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MSEC     1000u
#define BURST_MSEC    3000u       /* what is taken within this is one burst: a machine is made in a fraction of it */
#define DECAY_TICKS   120u        /* after so many quiet seconds a shelf's figures shrink */
#define BACKOFF_TICKS 30u         /* after a machine could not be made */
#define REST_MSEC     150u        /* after a sandbox came to run: its first command's */
#define STARVED_MSEC  1000u       /* a machine is missing for so long: it is made whatever else there is to do */
#define FAR_BYTES     (16u << 20) /* a head that changed more than this against its base is worth mapping itself */

struct shelf {
    struct shelf *next;
    struct head base;
    struct {
        uint32_t wanted, burst;
        uint64_t burst_began; /* uv_now */
    } of[2];                  /* slots, ready machines */
    unsigned quiet;           /* ticks since the last demand */
    unsigned backoff;         /* ticks */
    bool standing;            /* the default template's */
};

struct pool {
    struct space *space;
    struct shelf *shelves;
    uv_timer_t tick;
    bool refilling;
    bool again;
    uint64_t rest;  /* uv_now until which nothing is made, */
    uint64_t since; /* and since when something is missing; 0: nothing is */
};

static unsigned index_of(enum machine_state kind)
{
    return kind == MACHINE_READY;
}

static struct shelf *shelf_of(struct pool *p, const struct head *base, bool make)
{
    struct shelf *sh = p->shelves;
    while (sh && !head_same(&sh->base, base))
        sh = sh->next;
    if (!sh && make) {
        sh = calloc(1, sizeof *sh);
        if (!sh)
            abort();
        sh->base = *base;
        sh->next = p->shelves;
        p->shelves = sh;
    }
    return sh;
}

static bool in_pool(const struct space *s, uint64_t id)
{
    const struct snapshot *sn = snapshot_by_id(s, id);
    return sn && sn->row.state == ARTIFACT_READY;
}

struct head head_base(const struct space *s, const struct head *h)
{
    struct head base = *h;
    bool there = h->base_kind == NODED_TEMPLATE ? prepared_has_object(s, h->base) : h->base_kind == NODED_SNAPSHOT && in_pool(s, h->base);
    if (h->base && there && h->changed <= FAR_BYTES) {
        base.kind = h->base_kind;
        base.id = h->base;
    }
    base.base = 0;
    base.filling = base.arrives = false;
    return base;
}

/* Of one that was restored so before, `changed` counts from then. */
bool head_arrives(const struct space *s, const struct head *h)
{
    return s->memory_arrives && head_base(s, h).id == h->id && (h->changed > FAR_BYTES || h->base_kind == NODED_SNAPSHOT);
}

static uint32_t count(const struct space *s, const struct shelf *sh, enum machine_state state)
{
    uint32_t n = 0;
    for (const struct machine *m = s->machines; m; m = m->next)
        n += m->state == state && (!sh || head_same(&m->base, &sh->base));
    return n;
}

uint32_t pool_count(const struct space *s, enum machine_state state)
{
    return count(s, NULL, state);
}

bool pool_has_object(const struct space *s, uint64_t object)
{
    for (const struct machine *m = s->machines; m; m = m->next)
        if (m->object == object)
            return true;
    return false;
}

bool pool_vm_gone(struct space *s, uint64_t object)
{
    struct machine *m = s->machines;
    while (m && m->object != object)
        m = m->next;
    if (!m)
        return false;
    m->lost = true;
    if (m->state == MACHINE_WAITING || m->state == MACHINE_READY)
        machine_discard(m);
    return true;
}

void pool_demand(struct space *s, const struct head *base, enum machine_state kind, bool found)
{
    struct shelf *sh = shelf_of(s->pool, base, true);
    unsigned i = index_of(kind);
    uint64_t now = uv_now(s->loop);
    sh->quiet = 0;
    if (now - sh->of[i].burst_began > BURST_MSEC) {
        sh->of[i].burst_began = now;
        sh->of[i].burst = 0;
    }
    sh->of[i].burst++;
    if (sh->of[i].burst > sh->of[i].wanted)
        sh->of[i].wanted = sh->of[i].burst < s->config.pool_max ? sh->of[i].burst : s->config.pool_max;
    if (!found)
        log_debug("no %s of base %012" PRIx64 " was there", i ? "ready machine" : "slot", base->id);
    pool_kick(s);
}

/* ---- making what is missing ---- */

static int make(struct space *s, const struct head *base, enum machine_state kind, struct err *e)
{
    struct machine *m = NULL;
    int rc = machine_take_new(s, base, &m, e);
    if (rc == 0 && kind == MACHINE_READY) {
        rc = machine_load(m, base, e);
        if (rc == 0)
            rc = machine_warm(m, e);
    }
    if (rc == 0 && m->lost)
        rc = -EIO;
    if (rc < 0)
        machine_discard(m);
    else
        m->state = kind;
    return rc;
}

/* The shelf that lacks most, and what. */
static struct shelf *most_wanted(struct pool *p, enum machine_state *kind)
{
    static const enum machine_state kinds[] = {MACHINE_READY, MACHINE_WAITING};
    struct shelf *best = NULL;
    uint32_t most = 0;
    for (struct shelf *sh = p->shelves; sh; sh = sh->next)
        for (unsigned i = 0; i < 2; i++) {
            uint32_t have = count(p->space, sh, kinds[i]), wanted = sh->of[index_of(kinds[i])].wanted;
            if (!sh->backoff && have < wanted && wanted - have > most) {
                most = wanted - have;
                best = sh;
                *kind = kinds[i];
            }
        }
    return best;
}

/* May a machine be made? Waits out a rest. False: the end of what somebody waits for will ask again. */
static bool may_make(struct pool *p)
{
    struct space *s = p->space;
    if (!p->since)
        p->since = uv_now(s->loop);
    for (;;) {
        uint64_t now = uv_now(s->loop);
        if (now - p->since > STARVED_MSEC)
            return true;
        if (s->urgent)
            return false;
        if (now >= p->rest)
            return true;
        co_sleep(s->co, p->rest - now);
    }
}

static struct shelf *next_missing(struct pool *p, enum machine_state *kind)
{
    struct space *s = p->space;
    bool room = pool_count(s, MACHINE_WAITING) + pool_count(s, MACHINE_READY) < s->config.pool_max;
    struct shelf *sh = room ? most_wanted(p, kind) : NULL;
    if (!sh)
        p->since = 0;
    return sh;
}

static void refill(void *arg)
{
    struct pool *p = arg;
    struct space *s = p->space;
    do {
        enum machine_state kind = MACHINE_WAITING;
        struct shelf *sh;
        p->again = false;
        while (next_missing(p, &kind) && may_make(p) && (sh = next_missing(p, &kind))) {
            struct err e = {0};
            struct head base = sh->base; /* the shelf may go while we wait */
            p->since = 0;
            int rc = make(s, &base, kind, &e);
            sh = shelf_of(p, &base, false);
            if (rc < 0 && sh) {
                log_warn("a machine of base %012" PRIx64 " could not be made: %s", base.id, e.msg[0] ? e.msg : strerror(-rc));
                sh->backoff = BACKOFF_TICKS;
                prepared_failed(s, base.id, rc, e.msg);
            }
        }
        if (!s->urgent)
            prepare_next(s);
    } while (p->again);
    p->refilling = false;
}

void pool_kick(struct space *s)
{
    struct pool *p = s->pool;
    p->again = true;
    if (p->refilling || !s->surveyed)
        return;
    p->refilling = true;
    co_spawn(s->co, refill, p);
}

void pool_rest(struct space *s)
{
    s->pool->rest = uv_now(s->loop) + REST_MSEC;
    pool_kick(s);
}

/* ---- giving back what is too much ---- */

static void shrink(struct space *s, struct shelf *sh, enum machine_state kind, uint32_t keep)
{
    uint32_t have = count(s, sh, kind);
    for (struct machine *m = s->machines; m && have > keep; m = m->next)
        if (m->state == kind && head_same(&m->base, &sh->base)) {
            machine_discard(m);
            have--;
        }
}

static void decay(struct space *s, struct shelf *sh)
{
    for (unsigned i = 0; i < 2; i++) {
        uint32_t least = !sh->standing ? 0 : i ? s->config.pool_ready : s->config.pool_slots;
        uint32_t less = sh->of[i].wanted / 4 + 1;
        sh->of[i].wanted = sh->of[i].wanted > least + less ? sh->of[i].wanted - less : least;
        shrink(s, sh, i ? MACHINE_READY : MACHINE_WAITING, sh->of[i].wanted);
    }
}

static void remove_empty(struct pool *p)
{
    for (struct shelf **at = &p->shelves; *at;) {
        struct shelf *sh = *at;
        if (sh->standing || sh->of[0].wanted || sh->of[1].wanted) {
            at = &sh->next;
            continue;
        }
        *at = sh->next;
        free(sh);
    }
}

/* The default template's shelf stands; another that was the default before becomes one as all others. */
static void keep_default(struct pool *p)
{
    struct space *s = p->space;
    struct template *t = template_by_name(s, 0, s->config.template_);
    struct head h;
    struct shelf *standing = NULL;
    if (t && t->row.state == ARTIFACT_READY && template_head(t, s->config.memory, s->config.vcpus, &h) && s->config.pool_ready + s->config.pool_slots)
        standing = shelf_of(p, &h, true);
    for (struct shelf *sh = p->shelves; sh; sh = sh->next) {
        sh->standing = sh == standing;
        for (unsigned i = 0; sh->standing && i < 2; i++) {
            uint32_t least = i ? s->config.pool_ready : s->config.pool_slots;
            if (sh->of[i].wanted < least)
                sh->of[i].wanted = least;
        }
    }
}

static void tick(uv_timer_t *timer)
{
    struct pool *p = timer->data;
    struct space *s = p->space;
    keep_default(p);
    for (struct shelf *sh = p->shelves; sh; sh = sh->next) {
        if (sh->backoff)
            sh->backoff--;
        if (++sh->quiet % DECAY_TICKS == 0)
            decay(s, sh);
    }
    if (s->pool_memory && admit_memory(s, s->pool_memory, NULL) < 0) /* sandboxes need the room */
        for (struct shelf *sh = p->shelves; sh; sh = sh->next)
            decay(s, sh);
    remove_empty(p);
    pool_kick(s);
}

void pool_drain(struct space *s, uint64_t head)
{
    for (struct shelf **at = &s->pool->shelves; *at;) {
        struct shelf *sh = *at;
        if (sh->base.id != head) {
            at = &sh->next;
            continue;
        }
        *at = sh->next;
        shrink(s, sh, MACHINE_WAITING, 0);
        shrink(s, sh, MACHINE_READY, 0);
        free(sh);
    }
}

void pool_open(struct space *s)
{
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    p->space = s;
    s->pool = p;
    uv_timer_init(s->loop, &p->tick);
    p->tick.data = p;
    uv_timer_start(&p->tick, tick, TICK_MSEC, TICK_MSEC);
}
