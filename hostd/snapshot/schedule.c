// SPDX-License-Identifier: Apache-2.0
// The snapshot scheduler: see schedule.h; the policy itself is keep.c.
//
// Theory of operation. Once a second every running sandbox is asked whether its policy has something due. What is due is taken by a coroutine of its own,
// a few at a time on the node, so that one with a mute guest delays nobody; the sandbox's queue keeps it apart from everything else that happens to it.
// Nothing is taken when nothing changed: the disk's image has the modification time that it had after the last one, and for a checkpoint no job used a
// processor either. Time is a clock that starts with the real one and then follows CLOCK_BOOTTIME, so that a step of the host's clock neither takes nor
// removes anything; within one boot of the host it goes on across restarts of space-hostd. Removing is a sweep over all automatic snapshots.
#include "hostd/snapshot/schedule.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/noded_client.h"
#include "hostd/snapshot/keep.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TICK_MSEC        1000u
#define AT_ONCE          8u /* captures by the scheduler, on the node */
#define SWEEP_TICKS      10u
#define UNDO_SEC         3600 /* the state before a roll back stays at least so long */
#define LOW_PERCENT      15u  /* of the pool free: below it nothing is taken, and tiers keep a quarter as long */
#define STORE_AGAIN_MSEC 60000u
#define BUSY_USEC        100000 /* of the jobs' processor time since the last checkpoint: something ran */

/* ---- the clock ---- */

static int64_t boottime(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec;
}

int64_t schedule_now(const struct space *s)
{
    return s->schedule_base + boottime();
}

static void boot_id(char out[40])
{
    AUTO_CLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, 36);
    out[n > 0 ? n : 0] = 0;
}

/* What was taken before this start. The clock goes on behind all of that, also when the host's was ahead then and is not any more. */
static void recall(struct space *s)
{
    for (struct hmap_node *at = NULL; (at = hmap_iterate(&s->snapshots, at));) {
        const struct snapshot *sn = hmap_entry(at, struct snapshot, by_id);
        if (sn->row.taken > schedule_now(s))
            s->schedule_base += sn->row.taken - schedule_now(s);
        struct sandbox *sb = sn->row.automatic ? sandbox_by_id(s, (uint64_t)sn->row.sandbox) : NULL;
        if (sb && sn->row.taken > sb->keep.last)
            sb->keep.last = sn->row.taken;
        if (sb && sn->row.memory && sn->row.taken > sb->keep.last_full)
            sb->keep.last_full = sn->row.taken;
    }
}

/* Another node's clock was ahead of ours: from now on ours is there, too. */
void schedule_saw(struct space *s, int64_t taken)
{
    if (taken > schedule_now(s))
        s->schedule_base += taken - schedule_now(s);
}

void schedule_recall(struct sandbox *sb)
{
    sb->keep.last = sb->keep.last_full = 0;
    for (struct hmap_node *at = NULL; (at = hmap_iterate(&sb->space->snapshots, at));) {
        const struct snapshot *sn = hmap_entry(at, struct snapshot, by_id);
        if (sn->row.sandbox != sb->row.id || !sn->row.automatic)
            continue;
        if (sn->row.taken > sb->keep.last)
            sb->keep.last = sn->row.taken;
        if (sn->row.memory && sn->row.taken > sb->keep.last_full)
            sb->keep.last_full = sn->row.taken;
    }
}

static int open_clock(struct space *s, struct err *e)
{
    char id[40], stored[80], text[80], was[40], key[64];
    int64_t base;
    boot_id(id);
    s->schedule_base = space_now() / 1000000000 - boottime();
    snprintf(key, sizeof key, "schedule_clock %012" PRIx64, (uint64_t)s->node_id);
    int rc = db_meta(s->db, key, "", stored, sizeof stored, e);
    if (rc == 0 && sscanf(stored, "%39s %" SCNd64, was, &base) == 2 && !strcmp(was, id))
        s->schedule_base = base;
    recall(s);
    snprintf(text, sizeof text, "%s %" PRId64, id, s->schedule_base);
    return rc < 0 ? rc : db_meta_set(s->db, key, text, e);
}

/* ---- policies ---- */

const char *schedule_text(const struct sandbox *sb)
{
    return sb->row.keep[0] ? sb->row.keep : sb->space->config.keep;
}

static const struct keep_policy *policy_of(struct sandbox *sb)
{
    if (!sb->keep.parsed) {
        keep_parse(schedule_text(sb), &sb->keep.policy, NULL);
        sb->keep.parsed = true;
    }
    return &sb->keep.policy;
}

int schedule_set(struct sandbox *sb, const char *text, struct err *e)
{
    struct keep_policy p;
    bool standard = !strcmp(text, "default");
    int rc = standard                              ? 0
             : strlen(text) >= sizeof sb->row.keep ? err_set(e, EINVAL, "keep has more than %zu bytes", sizeof sb->row.keep - 1)
                                                   : keep_parse(text, &p, e);
    if (rc < 0)
        return rc;
    str_copy(sb->row.keep, sizeof sb->row.keep, standard ? "" : text);
    sb->keep.parsed = false;
    for (struct hmap_node *at = NULL; (at = hmap_iterate(&sb->space->snapshots, at));)
        if (hmap_entry(at, struct snapshot, by_id)->row.sandbox == sb->row.id)
            hmap_entry(at, struct snapshot, by_id)->until = 0;
    return sandbox_save(sb, e);
}

/* ---- taking ---- */

/* Modification time of an object's disk, in nanoseconds; 0 when it cannot be known. */
static int64_t disk_time(struct space *s, uint32_t kind, uint64_t id)
{
    struct noded_request req = {.op = NODED_FILE_OPEN, .kind = kind, .id = id, .file = NODED_DISK};
    AUTO_CLOSE int fd = -1;
    struct stat st;
    struct err e = {0};
    if (noded_call(s, &req, NULL, &fd, &e) < 0 || fstat(fd, &st) < 0)
        return 0;
    return (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

/* The processor time that jobs have used so far; 0 when the agent does not say. */
static uint64_t work_done(struct sandbox *sb)
{
    char text[512];
    uint64_t usec = 0;
    const char *at;
    if (!sb->guest || guest_activity(sb->guest, 5000, text, sizeof text) < 0 || !(at = strstr(text, "cpu_usec ")))
        return 0;
    sscanf(at, "cpu_usec %" SCNu64, &usec);
    return usec;
}

static int take(struct sandbox *sb, bool full, struct err *e)
{
    struct snapshot *sn;
    struct ref ref = {REF_SANDBOX, (uint64_t)sb->row.id, (uint64_t)sb->row.generation};
    char name[NAME_LEN_MAX + 1];
    time_t now = space_now() / 1000000000;
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(name, sizeof name, full ? "auto-%Y%m%dT%H%M%SZ-full" : "auto-%Y%m%dT%H%M%SZ-disk", &tm);
    if (snapshot_by_name(sb->space, (uint64_t)sb->row.id, name))
        return err_set(e, EEXIST, "'%s' was taken this second", name);
    int rc = admit_disk(sb->space, (uint32_t)sb->row.owner, e);
    if (rc == 0)
        rc = snapshot_record(sb, name, true, &sn, e);
    return rc < 0 ? rc : snapshot_take(sn, &ref, full, e);
}

static void take_due(struct sandbox *sb, enum keep_due due)
{
    struct space *s = sb->space;
    struct err e = {0};
    int64_t now = schedule_now(s), changed = disk_time(s, NODED_SANDBOX, (uint64_t)sb->row.object);
    uint64_t work = due == KEEP_FULL ? work_done(sb) : 0;
    bool idle = changed && changed == sb->keep.disk_time && (due == KEEP_DISK || (work >= sb->keep.work && work - sb->keep.work < BUSY_USEC));
    int rc = idle ? 0 : take(sb, due == KEEP_FULL, &e);
    sb->keep.last = now; /* also when it failed or nothing changed: the next period is the next chance */
    if (due == KEEP_FULL)
        sb->keep.last_full = now;
    if (rc < 0) {
        log_warn("sandbox %012" PRIx64 ": its automatic snapshot failed: %s", (uint64_t)sb->row.id, e.msg);
    } else if (!idle) {
        sb->keep.disk_time = disk_time(s, NODED_SANDBOX, (uint64_t)sb->row.object); /* thawing writes, too */
        if (due == KEEP_FULL)
            sb->keep.work = work;
    }
}

static void work(void *arg)
{
    struct sandbox *sb = arg;
    struct space *s = sb->space;
    take_due(sb, sb->keep.due);
    sb->keep.busy = false;
    s->scheduled--;
    sandbox_unref(sb);
}

static bool low_on_space(struct space *s)
{
    static bool was;
    admit_space(s, NULL);
    bool low = s->pool_size && s->pool_free < s->pool_size / 100 * LOW_PERCENT;
    if (low != was) {
        struct event_scope scope = {0, 0, 0700};
        log_warn("%s", low ? "the pool is low on space: no automatic snapshots, and they are kept a quarter as long" : "the pool has space again");
        event_emit(s, &scope, low ? "low-space" : "space-again", 0, s->config.node, ",\"free_bytes\":%" PRIu64, s->pool_free);
    }
    was = low;
    return low;
}

static enum keep_due due_of(struct sandbox *sb, int64_t now)
{
    if (!sandbox_is_here(sb) || sandbox_state(sb) != SANDBOX_RUNNING || !sb->row.object || !sb->named || sb->fill || sb->keep.busy ||
        sb->copy == COPY_HELD)
        return KEEP_NOTHING;
    if (!sb->keep.last) { /* a new one has its first at the end of its first period */
        sb->keep.last = sb->keep.last_full = now;
        return KEEP_NOTHING;
    }
    if (!sb->keep.last_full)
        sb->keep.last_full = now;
    return keep_due(policy_of(sb), (uint64_t)sb->row.id, now, sb->keep.last, sb->keep.last_full);
}

/* Keeps the `room` that were served the longest ago: else those with short periods could keep others from ever having their turn. */
static size_t put_by_age(struct sandbox **batch, size_t n, size_t room, struct sandbox *sb)
{
    size_t at = n;
    while (at > 0 && batch[at - 1]->keep.last > sb->keep.last)
        at--;
    if (at == room)
        return n;
    n = n < room ? n + 1 : n;
    memmove(batch + at + 1, batch + at, (n - at - 1) * sizeof *batch);
    batch[at] = sb;
    return n;
}

static void look(struct space *s)
{
    int64_t now = schedule_now(s);
    struct sandbox *batch[AT_ONCE];
    size_t n = 0;
    size_t room = s->scheduled < AT_ONCE ? AT_ONCE - s->scheduled : 0;
    for (struct hmap_node *at = NULL; room && (at = hmap_iterate(&s->sandboxes, at));) {
        struct sandbox *sb = hmap_entry(at, struct sandbox, by_id);
        enum keep_due due = due_of(sb, now);
        if (due == KEEP_NOTHING)
            continue;
        sb->keep.due = due;
        n = put_by_age(batch, n, room, sb);
    }
    for (size_t i = 0; i < n; i++) {
        sandbox_ref(batch[i]);
        batch[i]->keep.busy = true;
        s->scheduled++;
        co_spawn(s->co, work, batch[i]);
    }
}

/* ---- removing ---- */

static int by_sandbox_and_time(const void *a, const void *b)
{
    const struct snapshot *x = *(struct snapshot *const *)a, *y = *(struct snapshot *const *)b;
    if (x->row.sandbox != y->row.sandbox)
        return x->row.sandbox < y->row.sandbox ? -1 : 1;
    return x->row.taken < y->row.taken ? -1 : x->row.taken > y->row.taken;
}

/* Says how long each stays, of the automatic snapshots of one sandbox, the oldest first. */
static void judge(struct sandbox *sb, struct snapshot **list, size_t n, int64_t now, bool low)
{
    struct keep_policy p = *policy_of(sb);
    struct keep_item *items = calloc(n, sizeof *items);
    if (!items)
        abort();
    for (unsigned i = 0; low && i < p.count; i++)
        p.tier[i].keep_for /= 4;
    for (size_t i = 0; i < n; i++)
        items[i] = (struct keep_item){.taken = list[i]->row.taken, .full = list[i]->row.memory != 0};
    keep_thin(&p, (uint64_t)sb->row.id, now, items, n);
    for (size_t i = 0; i < n; i++) {
        int64_t undo = strstr(list[i]->row.name, "-before-") ? list[i]->row.taken + UNDO_SEC : 1;
        list[i]->until = items[i].until > undo ? items[i].until : undo;
        list[i]->tier = items[i].until ? p.tier[items[i].tier] : (struct keep_tier){0};
        list[i]->store = items[i].store;
    }
    free(items);
}

/* It is ours, nobody reads it, it is not being loaded or stored, and nobody is suspended to it. */
static bool free_to_go(const struct snapshot *sn)
{
    return snapshot_is_here(sn) && !sn->readers && !sn->loads && !snapshot_is_pinned(sn);
}

/* What the next upload of its sandbox is counted from, so that it costs what changed since: the newest that is both here and in the store. */
static const struct snapshot *counted_from(struct snapshot **list, size_t n)
{
    while (n > 0 && !(list[n - 1]->row.durable && list[n - 1]->row.state == ARTIFACT_READY))
        n--;
    return n ? list[n - 1] : NULL;
}

/* What a tier wants in the object store, and is not there: one at a time, the newest first. What fails is tried again a minute later. */
static void store(struct space *s, struct snapshot **list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i]->task)
            return;
    for (size_t i = n; i-- > 0;) {
        struct snapshot *sn = list[i];
        if (!sn->store || sn->row.durable || sn->row.state != ARTIFACT_READY || !snapshot_is_here(sn) || uv_now(s->loop) < sn->store_again)
            continue;
        sn->store_again = uv_now(s->loop) + STORE_AGAIN_MSEC;
        volume_upload(sn, NULL);
        return;
    }
}

static void thin(struct space *s, struct snapshot **list, size_t n, int64_t now, bool low)
{
    struct sandbox *sb = sandbox_by_id(s, (uint64_t)list[0]->row.sandbox);
    if (!sb || !sb->named)
        return; /* they go with it */
    judge(sb, list, n, now, low);
    store(s, list, n);
    const struct snapshot *parent = low ? NULL : counted_from(list, n);
    for (size_t i = 0; i < n; i++)
        if (list[i]->until < now && list[i] != parent && free_to_go(list[i]))
            snapshot_destroy(list[i]);
}

/* The automatic ones of that sandbox, or of all for NULL, by sandbox and time; the caller frees. */
static struct snapshot **automatic_ones(struct space *s, const struct sandbox *sb, size_t *count)
{
    struct snapshot **all = calloc(s->snapshots.count + 1, sizeof(struct snapshot *));
    size_t n = 0;
    if (!all)
        abort();
    for (struct hmap_node *at = NULL; (at = hmap_iterate(&s->snapshots, at));) {
        struct snapshot *sn = hmap_entry(at, struct snapshot, by_id);
        if (sn->row.automatic && sn->row.state != ARTIFACT_CREATING && (!sb || sn->row.sandbox == sb->row.id))
            all[n++] = sn;
    }
    qsort(all, n, sizeof all[0], by_sandbox_and_time);
    *count = n;
    return all;
}

/* Judges it with the others of its sandbox, if that was not done yet. False when it has no end of its own. */
static bool judged(struct snapshot *sn)
{
    struct space *s = sn->space;
    struct sandbox *sb = sn->row.automatic ? sandbox_by_id(s, (uint64_t)sn->row.sandbox) : NULL;
    size_t n;
    if (!sb || !sb->named || sn->row.state == ARTIFACT_CREATING || snapshot_is_pinned(sn))
        return false;
    if (!sn->until) {
        struct snapshot **list = automatic_ones(s, sb, &n);
        judge(sb, list, n, schedule_now(s), low_on_space(s));
        free(list);
    }
    return true;
}

int64_t schedule_expires(struct snapshot *sn)
{
    return judged(sn) ? space_now() + (sn->until - schedule_now(sn->space)) * 1000000000 : -1;
}

const char *schedule_tier(struct snapshot *sn, char out[KEEP_LINE_MAX])
{
    return judged(sn) && sn->tier.every ? keep_format(&sn->tier, out) : "";
}

static void sweep(struct space *s)
{
    size_t n;
    bool low = low_on_space(s);
    int64_t now = schedule_now(s);
    struct snapshot **all = automatic_ones(s, NULL, &n);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && all[end]->row.sandbox == all[i]->row.sandbox;)
            end++;
        thin(s, all + i, end - i, now, low);
    }
    free(all);
}

static void tick(uv_timer_t *t)
{
    static unsigned ticks;
    struct space *s = t->data;
    if (++ticks % SWEEP_TICKS == 0)
        sweep(s);
    if (!low_on_space(s))
        look(s);
}

int schedule_open(struct space *s, struct err *e)
{
    static uv_timer_t timer;
    struct keep_policy p;
    int rc = keep_parse(s->config.keep, &p, e);
    if (rc < 0)
        return err_wrap(e, "`keep` in the configuration");
    rc = open_clock(s, e);
    if (rc < 0)
        return rc;
    timer.data = s;
    uv_timer_init(s->loop, &timer);
    uv_timer_start(&timer, tick, TICK_MSEC, TICK_MSEC);
    return 0;
}
