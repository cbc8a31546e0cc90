// SPDX-License-Identifier: Apache-2.0
// Owners as tenants of space-volumed: may their key be used, and what becomes of what they have here when it may not be any more. See volume.h.
//
// Theory of operation. Every `key_check` seconds space-volumed is asked for each owner, and asks the key service itself, whatever it has cached. So a key that
// was taken away is known here within a minute or so, and five minutes later at the latest nothing can be decrypted anywhere. From then on, until the service
// gives the key again, volume_key refuses: snapshots are neither read nor loaded, what is paused or stopped is not brought back, and the output of jobs that do not run is
// not read. What becomes of what lies in the pool: revoked.c. A tenant with a service of its own that has something in the clear here has its key renewed by each look
// (VOLUMED_KEY_HOLD), so that there is time to encrypt it when the key is taken away.
//
// A service that does not answer takes nothing away. But for a tenant with a service of its own an answer is good for five minutes only, as a key is in
// space-volumed; then volume_key says EAGAIN.
//
// What was found is kept in the database's settings: a space-hostd that was just started refuses what the one before refused.
#include "base/log.h"
#include "base/str.h"
#include "hostd/volume/volume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MSEC 15000u
#define FIRST_MSEC  500u

uint64_t volume_boottime(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- questions ---- */

/* One that may be given up: space-volumed may hang. */
struct question {
    struct co *co;
    bool answered, abandoned;
    struct volumed_reply rep;
};

static void answered(void *user, const struct volumed_reply *rep, int fd)
{
    struct question *q = user;
    if (fd >= 0)
        close(fd);
    if (q->abandoned) {
        free(q);
        return;
    }
    q->answered = true;
    q->rep = *rep;
    co_wake(q->co, 0);
}

/* 0 too when the owner has no key yet: the first upload makes one. */
static int ask(struct space *s, int64_t owner, uint32_t flags, struct volumed_reply *rep, struct err *e)
{
    struct volumed_request req = {.op = VOLUMED_KEY, .flags = flags};
    struct question *q = calloc(1, sizeof *q);
    if (!q)
        abort();
    q->co = co_self(s->co);
    snprintf(req.object.tenant, sizeof req.object.tenant, "u%" PRId64, owner);
    volumed_send(s->volume->conn, &req, NULL, 0, &(struct volumed_hooks){.done = answered, .user = q});
    int rc = co_wait_msec(s->co, ANSWER_MSEC);
    if (!q->answered) {
        q->abandoned = true;
        memset(rep, 0, sizeof *rep);
        return rc == -ETIMEDOUT ? err_set(e, ETIMEDOUT, "space-volumed does not answer") : rc;
    }
    *rep = q->rep;
    free(q);
    rc = rep->error == -ENOENT ? 0 : rep->error;
    return rc < 0 ? err_set(e, -rc, "%s", rep->sentence) : 0;
}

/* ---- what is known ---- */

static void setting(int64_t owner, char out[32])
{
    snprintf(out, 32, "key u%" PRId64, owner);
}

static struct tenant_watch *watch_of(struct volume *v, int64_t owner)
{
    struct tenant_watch *t = v->tenants;
    char name[32], value[16];
    while (t && t->owner != owner)
        t = t->next;
    if (t)
        return t;
    t = calloc(1, sizeof *t);
    if (!t)
        abort();
    *t = (struct tenant_watch){.next = v->tenants, .volume = v, .owner = owner, .confirmed = volume_boottime()};
    v->tenants = t;
    setting(owner, name);
    t->revoked = db_meta(v->space->db, name, "good", value, sizeof value, NULL) == 0 && !strcmp(value, "revoked");
    return t;
}

int volume_key(const struct space *s, int64_t owner, struct err *e)
{
    const struct tenant_watch *t = watch_of(s->volume, owner);
    if (t->revoked)
        return err_set(e, EKEYREVOKED,
                       "the key of tenant u%" PRId64
                       " was revoked: nothing that it has stored or paused can be had until its key service gives the key again",
                       owner);
    if (t->own && volume_boottime() - t->confirmed > KEY_GOOD_MSEC)
        return err_set(e, EAGAIN,
                       "the key service of tenant u%" PRId64 " has not answered for %" PRIu64 " s: `spacectl key show u%" PRId64 "` says why", owner,
                       (volume_boottime() - t->confirmed) / 1000, owner);
    return 0;
}

void volume_forget_key(const struct tenant_watch *t)
{
    struct volumed_reply rep;
    struct err e = {0};
    ask(t->volume->space, t->owner, VOLUMED_KEY_FORGET, &rep, &e); /* unheard, it ends by itself */
}

bool volume_leaves_nothing(const struct space *s, int64_t owner)
{
    return !s->config.suspend_keep || watch_of(s->volume, owner)->own;
}

/* ---- the look ---- */

static void changed(struct volume *v, struct tenant_watch *t, bool revoked, const char *why)
{
    static const char *const policies[] = {[KEY_PAUSE] = "pause", [KEY_CONTINUE] = "continue", [KEY_KILL] = "kill"};
    struct event_scope scope = {t->owner, 0, 0700};
    char name[32], quoted[300];
    t->revoked = revoked;
    setting(t->owner, name);
    db_meta_set(v->space->db, name, revoked ? "revoked" : "good", NULL);
    snprintf(name, sizeof name, "u%" PRId64, t->owner);
    if (revoked) {
        log_warn("the key of tenant %s was revoked: %s", name, why);
        event_emit(v->space, &scope, "key-revoked", 0, name, ",\"policy\":\"%s\",\"why\":%s", policies[t->policy < 3 ? t->policy : 0],
                   event_quote(why, quoted, sizeof quoted));
    } else {
        log_info("the key of tenant %s can be had again", name);
        event_emit(v->space, &scope, "key-returned", 0, name, "%s", "");
        revoked_returned(t);
    }
}

/* The next owner of anything after `after`; -1: none. */
static int64_t next_owner(const struct volume *v, int64_t after)
{
    const struct space *s = v->space;
    int64_t best = -1;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        int64_t owner = hmap_entry(n, struct sandbox, by_id)->row.owner;
        best = owner > after && (best < 0 || owner < best) ? owner : best;
    }
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        int64_t owner = hmap_entry(n, struct snapshot, by_id)->row.owner;
        best = owner > after && (best < 0 || owner < best) ? owner : best;
    }
    return best;
}

/* False: space-volumed is not there, the others need not be asked after. */
static bool look_at(struct volume *v, int64_t owner)
{
    struct volumed_reply rep;
    struct err e = {0};
    uint64_t began = volume_boottime();
    struct tenant_watch *t = watch_of(v, owner);
    int rc = ask(v->space, owner, revoked_has_clear(t) ? VOLUMED_KEY_HOLD : VOLUMED_KEY_FRESH, &rep, &e);
    if (rc == -ENOTCONN || rc == -ETIMEDOUT || rc == -ECANCELED)
        return false;
    t->own = rep.key.own;
    t->policy = rep.key.policy;
    t->unpacked = rep.key.unpacked;
    if (rc == 0)
        t->confirmed = began;
    if ((rc == -EKEYREVOKED && !t->revoked) || (rc == 0 && t->revoked))
        changed(v, t, rc < 0, e.msg);
    return true;
}

static void look(void *arg)
{
    struct volume *v = arg;
    bool there = true;
    for (int64_t owner = -1; (owner = next_owner(v, owner)) >= 0;) {
        there = there && look_at(v, owner);
        revoked_apply(watch_of(v, owner));
    }
    v->looking = false;
    uv_timer_start(&v->key_timer, volume_look_at_keys, v->space->config.key_check * 1000u, 0);
}

void volume_look_at_keys(uv_timer_t *timer)
{
    struct volume *v = timer->data;
    if (v->looking)
        return;
    v->looking = true;
    co_spawn(v->space->co, look, v);
}

void volume_watch_keys(struct volume *v)
{
    uv_timer_init(v->space->loop, &v->key_timer);
    v->key_timer.data = v;
    uv_timer_start(&v->key_timer, volume_look_at_keys, FIRST_MSEC, 0);
}

int volume_check(struct space *s, int64_t owner, struct err *e)
{
    struct volumed_reply rep;
    int rc = ask(s, owner, 0, &rep, e);
    if (rc == 0)
        watch_of(s->volume, owner)->own = rep.key.own; /* before the first look */
    return rc;
}
