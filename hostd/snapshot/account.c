// SPDX-License-Identifier: Apache-2.0
// Accounting without quota groups: see account.h.
//
// Theory of operation. Sandboxes, snapshots and templates form trees by their parents. A snapshot comes between its sandbox and what was the sandbox's
// parent; a fork has the live disk of its source as parent until a snapshot of that is taken, or the source goes: then what came before it. So every byte that several of
// them share is counted for the one nearest to the root, exactly once. A parent that goes leaves its children to its own parent: they are measured again, and what it
// held for them is theirs.
//
// Measuring asks space-noded to compare two extent maps, some milliseconds each. One coroutine does that, one object after the other, and rests nine times as long
// as each took. Objects that cannot change are measured once; others when somebody asks for the number, and if there is a `max_disk` once a minute.
#include "hostd/snapshot/account.h"

#include "base/log.h"
#include "hostd/noded_client.h"
#include "hostd/pool/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define REST       9u     /* times as long as a measurement took */
#define REST_MAX   2000u  /* milliseconds */
#define DELAY_MSEC 200u   /* whoever waits for what was just made comes first */
#define STALE_MSEC 2000u  /* a number older than this is measured anew when somebody asks */
#define ROUND_MSEC 60000u /* with `max_disk`: how often what runs is measured */

struct measure {
    struct measure *next;
    struct ref what; /* by the row's id; the generation of a sandbox is not looked at */
};

/* The columns of one of the three kinds of rows. */
struct account {
    uint32_t kind;
    uint64_t object;
    int64_t *parent_kind, *parent, *delta;
    struct accounting *state;
};

static struct account of_sandbox(struct sandbox *sb)
{
    return (struct account){NODED_SANDBOX, (uint64_t)sb->row.object, &sb->row.parent_kind, &sb->row.parent, &sb->row.delta, &sb->account};
}

static struct account of_snapshot(struct snapshot *sn)
{
    return (struct account){NODED_SNAPSHOT, (uint64_t)sn->row.id, &sn->row.parent_kind, &sn->row.parent, &sn->row.delta, &sn->account};
}

static struct account of_template(struct template *t)
{
    return (struct account){NODED_TEMPLATE, (uint64_t)t->row.id, &t->row.parent_kind, &t->row.parent, &t->row.delta, &t->account};
}

/* ---- measuring ---- */

struct measured {
    uint64_t changed; /* bytes that the parent does not hold */
    uint64_t held;    /* bytes that take up room, of both */
};

static int compare(struct space *s, uint32_t file, uint32_t kind, uint64_t id, uint32_t kind2, uint64_t id2, struct measured *sum, struct err *e)
{
    struct noded_request req = {.op = NODED_FILE_COMPARE, .kind = kind, .id = id, .kind2 = id2 ? kind2 : 0, .id2 = id2, .file = file};
    struct noded_reply rep;
    int rc;
    do {
        rc = noded_call(s, &req, &rep, NULL, e);
        req.size = rep.extents.next;
        if (rc == 0)
            *sum = (struct measured){sum->changed + rep.extents.changed_bytes, sum->held + rep.extents.held_bytes};
    } while (rc == 0 && req.size);
    return rc;
}

/* Against nothing when there is no such parent any more. */
static int compare_or_all(struct space *s, uint32_t file, uint32_t kind, uint64_t id, int64_t kind2, int64_t id2, struct measured *sum, struct err *e)
{
    struct measured before = *sum;
    int rc = compare(s, file, kind, id, (uint32_t)kind2, (uint64_t)id2, sum, e);
    if (rc != -ENOENT || !id2)
        return rc;
    *sum = before;
    *e = (struct err){0};
    return compare(s, file, kind, id, 0, 0, sum, e);
}

static int measure_disk(struct space *s, const struct account *a, struct measured *sum, struct err *e)
{
    return a->object ? compare_or_all(s, NODED_DISK, a->kind, a->object, *a->parent_kind, *a->parent, sum, e) : 0;
}

static void measure_sandbox(struct sandbox *sb)
{
    struct account a = of_sandbox(sb);
    struct measured sum = {0};
    struct err e = {0};
    sandbox_ref(sb);
    int rc = measure_disk(sb->space, &a, &sum, &e);
    sb->account.at = uv_now(sb->space->loop);
    if (rc == 0 && !sb->gone && (uint64_t)sb->row.object == a.object && sb->row.delta != (int64_t)sum.changed) {
        sb->row.delta = (int64_t)sum.changed;
        sandbox_save(sb, NULL);
    }
    sandbox_unref(sb);
}

static void measure_snapshot(struct snapshot *sn)
{
    struct space *s = sn->space;
    struct account a = of_snapshot(sn);
    struct measured sum = {0};
    struct err e = {0};
    snapshot_ref(sn);
    int rc = measure_disk(s, &a, &sum, &e);
    sn->held_disk = rc == 0 ? sum.held : sn->held_disk;
    if (rc == 0 && sn->row.memory)
        rc = compare_or_all(s, NODED_RAM, a.kind, a.object, sn->row.base_kind, sn->row.base, &sum, &e);
    sn->held_memory = rc == 0 ? sum.held - sn->held_disk : sn->held_memory;
    sn->account.at = uv_now(s->loop);
    if (rc < 0 && !sn->gone)
        log_warn("snapshot %012" PRIx64 " could not be measured: %s", a.object, e.msg);
    if (rc == 0 && !sn->gone && sn->row.delta != (int64_t)sum.changed) {
        sn->row.delta = (int64_t)sum.changed;
        db_save(s->db, DB_SNAPSHOTS, &sn->row, NULL);
    }
    snapshot_unref(sn);
}

static void measure_template(struct template *t)
{
    struct account a = of_template(t);
    struct measured sum = {0};
    struct err e = {0};
    template_ref(t);
    int rc = measure_disk(t->space, &a, &sum, &e);
    if (rc == 0 && !t->row.deleted && t->row.delta != (int64_t)sum.changed) {
        t->row.delta = (int64_t)sum.changed;
        db_save(t->space->db, DB_TEMPLATES, &t->row, NULL);
    }
    template_unref(t);
}

static void measure(struct space *s, const struct ref *what)
{
    struct sandbox *sb = what->kind == REF_SANDBOX ? sandbox_by_id(s, what->id) : NULL;
    struct snapshot *sn = what->kind == REF_SNAPSHOT ? snapshot_by_id(s, what->id) : NULL;
    struct template *t = what->kind == REF_TEMPLATE ? template_by_id(s, what->id) : NULL;
    if (sb) {
        sb->account.queued = false; /* who asks from now on asks for another one */
        if (sandbox_is_here(sb))
            measure_sandbox(sb);
    } else if (sn) {
        sn->account.queued = false;
        if (sn->row.state == ARTIFACT_READY && snapshot_is_here(sn))
            measure_snapshot(sn);
    } else if (t) {
        t->account.queued = false;
        if (t->row.state == ARTIFACT_READY && t->row.node == s->node_id)
            measure_template(t);
    }
}

static void measure_all(void *arg)
{
    struct space *s = arg;
    co_sleep(s->co, DELAY_MSEC);
    while (s->measures) {
        struct measure *m = s->measures;
        uint64_t began = uv_hrtime(), rest;
        s->measures = m->next;
        if (!s->measures)
            s->measures_end = NULL;
        measure(s, &m->what);
        free(m);
        rest = (uv_hrtime() - began) / 1000000 * REST + 1;
        co_sleep(s->co, (unsigned)(rest > REST_MAX ? REST_MAX : rest));
    }
    s->measuring = false;
}

static void queue(struct space *s, enum ref_kind kind, int64_t id, struct accounting *state)
{
    if (state->queued)
        return;
    struct measure *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    m->what = (struct ref){kind, (uint64_t)id, 0};
    state->queued = true;
    if (s->measures_end)
        s->measures_end->next = m;
    else
        s->measures = m;
    s->measures_end = m;
    if (!s->measuring) {
        s->measuring = true;
        co_spawn(s->co, measure_all, s);
    }
}

static void queue_sandbox(struct sandbox *sb)
{
    queue(sb->space, REF_SANDBOX, sb->row.id, &sb->account);
}

static void queue_snapshot(struct snapshot *sn)
{
    queue(sn->space, REF_SNAPSHOT, sn->row.id, &sn->account);
}

/* ---- parents ---- */

static bool is(const struct account *a, uint32_t kind, uint64_t id)
{
    return *a->parent == (int64_t)id && *a->parent_kind == (int64_t)kind;
}

/* True when it had the other parent. */
static bool adopt(const struct account *a, uint32_t kind, uint64_t id, int64_t to_kind, int64_t to)
{
    if (!is(a, kind, id))
        return false;
    bool itself = (int64_t)a->kind == to_kind && (int64_t)a->object == to;
    *a->parent_kind = itself ? 0 : to_kind;
    *a->parent = itself ? 0 : to;
    return true;
}

void account_gone(struct space *s, uint32_t kind, uint64_t id, int64_t to_kind, int64_t to)
{
    if (!id)
        return;
    db_begin(s->db);
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        struct account a = of_sandbox(sb);
        if (sandbox_is_here(sb) && adopt(&a, kind, id, to_kind, to)) {
            sandbox_save(sb, NULL);
            queue_sandbox(sb);
        }
    }
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        struct account a = of_snapshot(sn);
        if (!snapshot_is_here(sn)) /* it reads on: to who has no such parent it is one that is gone */
            continue;
        bool memory = sn->row.memory && sn->row.base == (int64_t)id && sn->row.base_kind == (int64_t)kind;
        bool parent = adopt(&a, kind, id, to_kind, to);
        if (parent)
            db_save(s->db, DB_SNAPSHOTS, &sn->row, NULL);
        if (parent || memory)
            queue_snapshot(sn);
    }
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->templates, n));) {
        struct template *t = hmap_entry(n, struct template, by_id);
        struct account a = of_template(t);
        if (t->row.node == s->node_id && adopt(&a, kind, id, to_kind, to)) {
            db_save(s->db, DB_TEMPLATES, &t->row, NULL);
            queue(s, REF_TEMPLATE, t->row.id, &t->account);
        }
    }
    db_commit(s->db, NULL);
}

static void parent_of_ref(const struct space *s, const struct ref *ref, int64_t *kind, int64_t *id)
{
    const struct sandbox *src = ref->kind == REF_SANDBOX ? sandbox_by_id(s, ref->id) : NULL;
    *kind = ref->kind == REF_SNAPSHOT ? NODED_SNAPSHOT : ref->kind == REF_TEMPLATE ? NODED_TEMPLATE : src ? NODED_SANDBOX : 0;
    *id = ref->kind == REF_SANDBOX ? (src ? src->row.object : 0) : ref->kind == REF_NONE ? 0 : (int64_t)ref->id;
}

void account_loaded(struct sandbox *sb, const struct ref *ref, uint64_t old)
{
    struct space *s = sb->space;
    account_gone(s, NODED_SANDBOX, old, sb->row.parent_kind, sb->row.parent);
    parent_of_ref(s, ref, &sb->row.parent_kind, &sb->row.parent);
    if (ref->kind == REF_TEMPLATE && sb->row.base_kind == NODED_TEMPLATE && prepared_has_object(s, (uint64_t)sb->row.base))
        sb->row.parent = sb->row.base; /* the template as it was after its boot */
    sb->row.delta = -1;
    queue_sandbox(sb);
}

void account_captured(struct sandbox *sb, struct snapshot *sn)
{
    struct space *s = sb->space;
    if (!(sb->row.parent_kind == NODED_SNAPSHOT && sb->row.parent == sn->row.id)) { /* else it is taken again, with its memory */
        sn->row.parent_kind = sb->row.parent_kind;
        sn->row.parent = sb->row.parent;
    }
    sn->row.delta = -1;
    db_begin(s->db);
    db_save(s->db, DB_SNAPSHOTS, &sn->row, NULL);
    account_gone(s, NODED_SANDBOX, (uint64_t)sb->row.object, NODED_SNAPSHOT, sn->row.id); /* forks of it: a parent that does not change any more */
    sb->row.parent_kind = NODED_SNAPSHOT;
    sb->row.parent = sn->row.id;
    sandbox_save(sb, NULL);
    db_commit(s->db, NULL);
    queue_sandbox(sb);
}

void account_published(struct template *t, const struct ref *ref)
{
    parent_of_ref(t->space, ref, &t->row.parent_kind, &t->row.parent);
    t->row.delta = -1;
}

/* ---- asking ---- */

static bool stale(const struct space *s, const struct accounting *state)
{
    return uv_now(s->loop) - state->at > STALE_MSEC;
}

int64_t account_of_sandbox(struct sandbox *sb)
{
    bool changes = sb->guest || sb->row.parent_kind == NODED_SANDBOX;
    if (sb->row.delta < 0 || (changes && stale(sb->space, &sb->account)))
        queue_sandbox(sb);
    return sb->row.delta;
}

int64_t account_of_snapshot(struct snapshot *sn)
{
    if (sn->row.state == ARTIFACT_READY && (sn->row.delta < 0 || (sn->row.parent_kind == NODED_SANDBOX && stale(sn->space, &sn->account))))
        queue_snapshot(sn);
    return sn->row.delta;
}

uint64_t account_held(struct snapshot *sn, bool memory)
{
    uint64_t held = memory ? sn->held_memory : sn->held_disk;
    if (!held && sn->row.state == ARTIFACT_READY)
        queue_snapshot(sn);
    return held ? held : (uint64_t)(memory ? sn->row.memory : sn->row.size);
}

int64_t account_of_template(struct template *t)
{
    if (t->row.state == ARTIFACT_READY && (t->row.delta < 0 || (t->row.parent_kind == NODED_SANDBOX && stale(t->space, &t->account))))
        queue(t->space, REF_TEMPLATE, t->row.id, &t->account);
    return t->row.delta;
}

uint64_t account_usage(const struct space *s, uint32_t owner)
{
    int64_t sum = 0;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        const struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        sum += sb->row.owner == owner && sb->row.delta > 0 ? sb->row.delta : 0;
    }
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        const struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        sum += sn->row.owner == owner && sn->row.delta > 0 ? sn->row.delta : 0;
    }
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->templates, n));) {
        const struct template *t = hmap_entry(n, struct template, by_id);
        sum += t->row.owner == owner && t->row.delta > 0 ? t->row.delta : 0;
    }
    return (uint64_t)sum;
}

/* ---- the background ---- */

static void measure_running(uv_timer_t *timer)
{
    struct space *s = timer->data;
    for (struct hmap_node *n = NULL; s->config.max_disk && (n = hmap_iterate(&s->sandboxes, n));)
        account_of_sandbox(hmap_entry(n, struct sandbox, by_id));
}

void account_open(struct space *s)
{
    static uv_timer_t timer;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));)
        if (hmap_entry(n, struct sandbox, by_id)->row.delta < 0)
            queue_sandbox(hmap_entry(n, struct sandbox, by_id));
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));)
        if (hmap_entry(n, struct snapshot, by_id)->row.delta < 0)
            queue_snapshot(hmap_entry(n, struct snapshot, by_id));
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->templates, n));) {
        struct template *t = hmap_entry(n, struct template, by_id);
        if (t->row.delta < 0)
            queue(s, REF_TEMPLATE, t->row.id, &t->account);
    }
    timer.data = s;
    uv_timer_init(s->loop, &timer);
    uv_timer_start(&timer, measure_running, ROUND_MSEC, ROUND_MSEC);
}
