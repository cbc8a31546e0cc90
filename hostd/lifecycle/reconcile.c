// SPDX-License-Identifier: Apache-2.0
// Convergence: what the database says against what libvirt and the pool hold, on start and whenever events may have been lost.
#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/noded_client.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What we make is known to us before it is made. What is younger than this may be what space-noded still makes for a space-hostd that has ended. */
#define ORPHAN_AGE_SEC 10

#define INTERRUPTED "space-hostd ended while it was taken"

struct domain {
    struct hmap_node node; /* by object id */
    bool running;
    bool held; /* space-noded keeps a uid for it, and libvirt knows nothing of it: a start that failed while libvirt was away */
    uint32_t slot;
};

/* A list operation's descriptor as text; NULL on failure. */
static char *list_text(struct space *s, enum noded_op op, struct err *e)
{
    struct noded_request req = {.op = op};
    AUTO_CLOSE int fd = -1;
    if (noded_call(s, &req, NULL, &fd, e) < 0)
        return NULL;
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = size < 0 ? NULL : calloc(1, (size_t)size + 1);
    if (!text || pread(fd, text, (size_t)size, 0) != size) {
        err_set(e, EIO, "read a list from space-noded");
        free(text);
        return NULL;
    }
    return text;
}

static bool is_ours(const struct space *s, uint64_t object)
{
    return pool_has_object(s, object) || object == s->preparing || sandbox_by_object(s, object);
}

/* Most of all the machines of the pool of a space-hostd that ended. What was ours when they were listed may have gone, and its uid be another's, meanwhile. */
static void kill_orphan(struct space *s, uint64_t object, const struct domain *d)
{
    struct err e = {0};
    struct noded_request req = {.op = NODED_VM_KILL, .kind = NODED_SANDBOX, .id = object};
    log_warn("domain of object %012" PRIx64 " belongs to no running sandbox: killed", object);
    if (noded_call(s, &req, NULL, NULL, &e) < 0)
        return;
    if (s->slots[d->slot] == object)
        s->slots[d->slot] = 0;
    object_delete_later(s, NODED_SANDBOX, object);
}

static int read_domains(struct space *s, struct hmap *domains, struct err *e)
{
    AUTO_FREE char *text = list_text(s, NODED_VM_LIST, e);
    char *save = NULL, state[16];
    if (!text)
        return -e->code;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        uint64_t id;
        unsigned slot;
        if (sscanf(line, "%" SCNx64 " %15s %u", &id, state, &slot) != 3 || slot >= s->config.uid_count)
            continue;
        struct hmap_node *n = hmap_find(domains, id);
        struct domain *d = n ? hmap_entry(n, struct domain, node) : calloc(1, sizeof *d);
        if (!d)
            abort();
        d->running = !strcmp(state, "running");
        d->held = !strcmp(state, "held");
        d->slot = slot;
        if (!n)
            hmap_insert(domains, &d->node, id);
    }
    return 0;
}

static void free_domains(struct hmap *domains)
{
    for (struct hmap_node *n; (n = hmap_iterate(domains, NULL));) {
        hmap_remove(domains, n);
        free(hmap_entry(n, struct domain, node));
    }
    hmap_finish(domains);
}

/* A domain that runs keeps its uid slot and its memory's charge. */
static void adopt(struct sandbox *sb, const struct domain *d)
{
    struct space *s = sb->space;
    if (sb->slot_taken)
        return;
    sb->row.slot = d->slot;
    s->slots[d->slot] = (uint64_t)sb->row.object;
    sb->slot_taken = true;
    sb->charged = (uint64_t)sb->row.memory;
    s->guest_memory += sb->charged;
}

/* Before what was asked for since space-hostd started, none of which has begun; a machine that is to end anyway is not looked for before. */
static void submit_found(struct sandbox *sb, struct op *op)
{
    bool ends = sb->ops && (sb->ops->kind == OP_KILL || sb->ops->kind == OP_DESTROY);
    op_submit(sb, op, !sb->runner && !ends, NULL);
}

static void resume_load(struct sandbox *sb)
{
    struct op *op = op_new(OP_LOAD);
    if (ref_parse(sb->row.want, &op->ref) < 0) { /* a copy that never committed */
        struct err e = {0};
        free(op);
        sandbox_destroy(sb, &e);
        return;
    }
    submit_found(sb, op);
}

static const struct domain *domain_of(const struct sandbox *sb, const struct hmap *domains)
{
    struct hmap_node *n = hmap_find(domains, (uint64_t)sb->row.object);
    const struct domain *d = n ? hmap_entry(n, struct domain, node) : NULL;
    return d && !d->held ? d : NULL;
}

static void recover(struct sandbox *sb, const struct domain *d)
{
    struct op *op = op_new(OP_RECOVER);
    op->vm_exists = d != NULL;
    op->vm_running = d && d->running;
    submit_found(sb, op);
}

/* Does what is queued decide itself what becomes of it? */
static bool is_decided(const struct sandbox *sb)
{
    const struct op *op = sb->ops;
    while (op && op->kind != OP_KILL && op->kind != OP_DESTROY && op->kind != OP_LOAD)
        op = op->next;
    return op;
}

/* The first look comes before all that was asked of it since space-hostd started; later ones leave one alone that an operation is at. */
static void take_up(struct sandbox *sb, const struct domain *d)
{
    bool leave = (sb->runner || sb->ops) && !sb->found;
    if (!sandbox_is_here(sb) || leave)
        return;
    sb->found = false;
    if (d)
        adopt(sb, d);
    switch (sandbox_state(sb)) {
    case SANDBOX_CREATING:
    case SANDBOX_ROLLING_BACK:
        if (sb->copy != COPY_HELD && !is_decided(sb))
            resume_load(sb);
        break;
    case SANDBOX_DESTROYING:
        sandbox_unname(sb);
        if (!sb->sources && !sb->ending)
            sandbox_end(sb);
        break;
    default: recover(sb, d); return; /* also where there is nothing to do: it serves who waits */
    }
    sandbox_known(sb);
    op_start(sb);
}

/* ---- what was promised when space-hostd ended ---- */

static bool loads(const struct sandbox *sb)
{
    return sandbox_is_here(sb) && (sandbox_state(sb) == SANDBOX_CREATING || sandbox_state(sb) == SANDBOX_ROLLING_BACK);
}

/* What it was is not in its row any more. */
static enum sandbox_state removed_as(const struct sandbox *src, const struct domain *d)
{
    if (d)
        return d->running ? SANDBOX_RUNNING : SANDBOX_PAUSED;
    return src->row.suspended ? SANDBOX_SUSPENDED : SANDBOX_FAILED;
}

/* A removed one that somebody still gets the state of; NULL when there is no such, or its disk may not have arrived. */
static struct sandbox *hold_removed(struct sandbox *src, const struct hmap *domains)
{
    if (!src || sandbox_state(src) != SANDBOX_DESTROYING || src->ending || !sandbox_is_here(src) || (src->row.suspended && src->row.object))
        return NULL;
    const struct domain *d = domain_of(src, domains);
    if (src->sources++ == 0)
        src->removed_as = removed_as(src, d);
    take_up(src, d);
    return sandbox_ref(src);
}

/* The source of a load that goes on. */
static struct sandbox *hold_source(struct sandbox *sb, const struct hmap *domains)
{
    struct ref want;
    struct sandbox *src = loads(sb) && ref_parse(sb->row.want, &want) == 0 ? source_of(sb->space, &want) : NULL;
    return src == sb ? NULL : hold_removed(src, domains);
}

/* Snapshots of sandboxes that were removed before they were taken. */
static void take_again(struct space *s, const struct hmap *domains)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (!sn->again)
            continue;
        sn->again = false;
        struct sandbox *src = hold_removed(sandbox_by_id(s, (uint64_t)sn->row.sandbox), domains);
        if (src)
            snapshot_again(sn, src);
        else
            snapshot_set_state(sn, ARTIFACT_FAILED, INTERRUPTED);
        source_release(src);
    }
}

/* The sandboxes that exist now, referenced: operations may change the table while we wait. */
static struct sandbox **all_sandboxes(struct space *s, size_t *count)
{
    struct sandbox **all = calloc(s->sandboxes.count + 1, sizeof(struct sandbox *));
    if (!all)
        abort();
    *count = 0;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));)
        all[(*count)++] = sandbox_ref(hmap_entry(n, struct sandbox, by_id));
    return all;
}

static bool object_known(const struct space *s, const char *kind, uint64_t id)
{
    if (!strcmp(kind, "template"))
        return template_by_id(s, id) || prepared_has_object(s, id) || id == s->preparing_head || volume_has_object(s, id);
    if (!strcmp(kind, "snapshot"))
        return snapshot_by_id(s, id) && (snapshot_is_here(snapshot_by_id(s, id)) || snapshot_by_id(s, id)->copied || snapshot_by_id(s, id)->task);
    if (is_ours(s, id))
        return true;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));)
        if ((uint64_t)hmap_entry(n, struct sandbox, by_id)->row.next_object == id)
            return true;
    return false;
}

/* False when some are too young to be judged. */
static bool remove_orphan_objects(struct space *s)
{
    struct err e = {0};
    bool all = true;
    AUTO_FREE char *text = list_text(s, NODED_OBJECT_LIST, &e);
    char *save = NULL, kind[16];
    if (!text)
        return true; /* the next connection to space-noded starts over */
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        uint64_t id;
        int64_t created;
        if (sscanf(line, "%15s %" SCNx64 " %" SCNd64, kind, &id, &created) != 3 || object_known(s, kind, id))
            continue;
        if (space_now() / 1000000000 - created < ORPHAN_AGE_SEC) {
            all = false;
            continue;
        }
        log_warn("%s object %012" PRIx64 " belongs to nothing: deleted", kind, id);
        object_delete_later(s, !strcmp(kind, "template") ? NODED_TEMPLATE : !strcmp(kind, "snapshot") ? NODED_SNAPSHOT : NODED_SANDBOX, id);
    }
    return all;
}

/* Young orphans are looked at again when they are old enough: nobody may start anything for weeks. */
static void remove_orphans(struct space *s)
{
    static bool waiting; /* one coroutine is enough */
    while (!remove_orphan_objects(s) && !waiting) {
        waiting = true;
        co_sleep(s->co, (ORPHAN_AGE_SEC + 1) * 1000u);
        waiting = false;
    }
}

/* Who opens something of a sandbox waits so long for the first look, at the most. */
#define KNOWN_MSEC 3000

/* Nobody waits any more to open something of a sandbox, or, when we are blind, for an operation to begin. */
static void wait_no_longer(struct space *s)
{
    size_t count;
    struct sandbox **all = all_sandboxes(s, &count);
    for (size_t i = 0; i < count; i++) {
        sandbox_known(all[i]);
        if (s->blind)
            op_start(all[i]);
        sandbox_unref(all[i]);
    }
    free(all);
}

/* A space-noded that is not there is not waited for, nor one that does not say what runs. */
static void give_up_look(struct space *s)
{
    s->blind = true;
    wait_no_longer(s);
}

static void limit_look(void *arg)
{
    struct space *s = arg;
    struct noded_request there = {.op = NODED_HELLO};
    struct err e = {0};
    co_sleep(s->co, KNOWN_MSEC);
    wait_no_longer(s);
    if (!s->surveyed && noded_call(s, &there, NULL, NULL, &e) < 0)
        give_up_look(s);
}

void lifecycle_open(struct space *s)
{
    co_spawn(s->co, limit_look, s);
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (sn->row.state != ARTIFACT_CREATING || !snapshot_is_here(sn))
            continue;
        const struct sandbox *sb = sandbox_by_id(s, (uint64_t)sn->row.sandbox);
        sn->again = !sn->row.automatic && sb && sandbox_state(sb) == SANDBOX_DESTROYING; /* nobody could take it anew */
        if (!sn->again)
            snapshot_set_state(sn, ARTIFACT_FAILED, INTERRUPTED);
    }
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->templates, n));) {
        struct template *t = hmap_entry(n, struct template, by_id);
        if (t->row.state == ARTIFACT_CREATING && t->row.node == s->node_id)
            template_set_state(t, ARTIFACT_FAILED, "space-hostd ended while it was made");
    }
}

/* From now on it is known which uids are taken: nothing is started before. */
static void survey(struct space *s, const struct hmap *domains)
{
    if (s->surveyed)
        return;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(domains, n));) {
        const struct domain *d = hmap_entry(n, struct domain, node);
        if (!d->held || !is_ours(s, n->key)) /* what is ours gives it back when it starts */
            s->slots[d->slot] = n->key;
    }
    s->surveyed = true;
    wait_done_all(&s->survey_waiters, 0, NULL);
}

int survey_wait(struct space *s, struct err *e)
{
    struct noded_request there = {.op = NODED_HELLO};
    int rc = s->surveyed ? 0 : noded_call(s, &there, NULL, NULL, e);
    if (rc < 0 || s->surveyed)
        return rc;
    rc = wait_in_list(s->co, &s->survey_waiters, 0); /* it is trying out KVM, perhaps */
    return rc < 0 ? err_set(e, -rc, "looking at what runs on this host: %s", strerror(-rc)) : 0;
}

/* What they load from is found first. A removed source that one of them was promised stays until then. */
static void take_up_all(struct space *s, const struct hmap *domains)
{
    size_t count;
    struct sandbox **all = all_sandboxes(s, &count), **held = calloc(count + 1, sizeof *held);
    bool *late = calloc(count + 1, sizeof *late);
    if (!held || !late)
        abort();
    for (size_t i = 0; i < count; i++) {
        held[i] = hold_source(all[i], domains);
        late[i] = loads(all[i]);
    }
    for (size_t i = 0; i < 2 * count; i++) {
        struct sandbox *sb = all[i % count];
        if (late[i % count] == (i >= count) && !sb->gone)
            take_up(sb, domain_of(sb, domains));
    }
    for (size_t i = 0; i < count; i++) {
        source_release(held[i]);
        sandbox_unref(all[i]);
    }
    free(late);
    free(held);
    free(all);
}

static void reconcile(void *arg)
{
    struct space *s = arg;
    struct err e = {0};
    struct hmap domains = {0};
    static bool first = true; /* only this process's own start may take up what was interrupted */
    if (accel_wait(s, &e) < 0 || read_domains(s, &domains, &e) < 0) {
        log_error("reconciliation waits for space-noded: %s", e.msg);
        give_up_look(s);
        return; /* its next connection starts another */
    }
    survey(s, &domains);
    if (first) {
        volume_resume(s);
        take_again(s, &domains);
    }
    first = false;
    take_up_all(s, &domains);
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&domains, n));) /* last: each takes its time, and sandboxes that run are waited for */
        if (!is_ours(s, n->key))
            kill_orphan(s, n->key, hmap_entry(n, struct domain, node));
    free_domains(&domains);
    remove_orphans(s);
}

void lifecycle_reconcile(struct space *s)
{
    co_spawn(s->co, reconcile, s);
}

/* ---- the host goes down ---- */

#define SUSPEND_MSEC 45000 /* space-guests.service waits 90 s for all of it */
#define FLUSH_MSEC   10000
#define FROZEN_MSEC  30000 /* it thaws by itself after this, should it not be ended */

/* Work for many at once. */
struct crowd {
    struct space *space;
    unsigned left;
    struct wait_list done;
};

struct one {
    struct crowd *crowd;
    struct sandbox *sandbox; /* to be brought to rest, or */
    uint64_t object;         /* to be ended */
};

/* One that is at something else for long, or whose disk is still arriving, is not suspended. */
static int suspend_one(struct sandbox *sb, struct err *e)
{
    struct space *s = sb->space;
    struct co_waiter w = co_waiter_of(s->co, e);
    struct op *op = op_new(OP_SUSPEND);
    op->here = true;
    op_submit(sb, op, false, &w.w);
    int rc = co_wait_msec(s->co, SUSPEND_MSEC);
    wait_remove(&w.w);
    return rc;
}

/* What is on the disk is all that is left of it. */
static void flush_one(struct sandbox *sb)
{
    int rc = sb->guest && sandbox_state(sb) == SANDBOX_RUNNING ? guest_ctl(sb->guest, FLUSH_MSEC, "freeze %d", FROZEN_MSEC) : 0;
    if (rc < 0)
        log_warn("sandbox %012" PRIx64 " ends without a flush of its disk: %s", (uint64_t)sb->row.id, strerror(-rc));
}

static void rest_one(struct sandbox *sb)
{
    struct err e = {0};
    int rc = sb->fill ? err_set(&e, EBUSY, "its disk is still arriving") : suspend_one(sb, &e);
    if (rc == 0)
        return;
    log_warn("sandbox %012" PRIx64 " is not suspended: %s", (uint64_t)sb->row.id, e.code ? e.msg : strerror(-rc));
    flush_one(sb);
}

static void run_one(void *arg)
{
    struct one *o = arg;
    struct crowd *c = o->crowd;
    struct noded_request kill = {.op = NODED_VM_KILL, .kind = NODED_SANDBOX, .id = o->object};
    struct err e = {0};
    if (o->object && noded_call(c->space, &kill, NULL, NULL, &e) < 0)
        log_warn("machine of object %012" PRIx64 " goes on: %s", o->object, e.msg);
    if (o->sandbox)
        rest_one(o->sandbox);
    sandbox_unref(o->sandbox);
    free(o);
    if (--c->left == 0)
        wait_done_all(&c->done, 0, NULL);
}

static void send_one(struct crowd *c, struct sandbox *sb, uint64_t object)
{
    struct one *o = malloc(sizeof *o);
    if (!o)
        abort();
    *o = (struct one){c, sb ? sandbox_ref(sb) : NULL, object};
    c->left++;
    co_spawn(c->space->co, run_one, o);
}

/* All that have a machine are suspended to the pool; the file systems of those that cannot be are flushed, and stay frozen. Then all machines end, those of
 * nobody as well. The row of one that was not suspended does not change: the next space-hostd finds it to have crashed, and brings it back. */
static void host_down(void *arg)
{
    struct space *s = arg;
    struct crowd c = {.space = s, .left = 1};
    struct hmap domains = {0};
    struct err e = {0};
    size_t count;
    struct sandbox **all = all_sandboxes(s, &count);
    for (size_t i = 0; i < count; i++) {
        if (sandbox_is_here(all[i]) && (sandbox_state(all[i]) == SANDBOX_RUNNING || sandbox_state(all[i]) == SANDBOX_PAUSED))
            send_one(&c, all[i], 0);
        sandbox_unref(all[i]);
    }
    free(all);
    if (--c.left)
        wait_in_list(s->co, &c.done, 0);
    if (read_domains(s, &domains, &e) < 0)
        log_error("the machines go on: %s", e.msg);
    c.left = 1;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&domains, n));)
        send_one(&c, NULL, n->key);
    if (--c.left)
        wait_in_list(s->co, &c.done, 0);
    log_info("the host goes down: %zu machines were ended", domains.count);
    free_domains(&domains);
}

void lifecycle_host_down(struct space *s)
{
    if (s->going_down)
        return;
    s->going_down = true;
    co_spawn(s->co, host_down, s);
}
