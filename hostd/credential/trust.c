// SPDX-License-Identifier: Apache-2.0
// The CA of a tenant in its guests: see trust.h.
//
// What space-credd answered is kept for each tenant until something changes there, which `version` counts. What a guest was told is remembered as a hash of the text and the
// guest's connection, so that another machine of the same sandbox is told anew.
//
// A guest need not answer. So the guests of one tenant are told one after the other, by a coroutine of that tenant's: nobody waits for another tenant's. Those that did not
// answer are asked again in a few seconds, and so on.
#include "hostd/credential/trust.h"

#include "base/log.h"
#include "hostd/credential/client.h"
#include "hostd/credential/credential.h"
#include "hostd/guest/guest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ANSWER_MSEC 2000u
#define GUEST_MSEC  5000u
#define RETRY_MSEC  5000u
#define LOOK_MSEC   (3600u * 1000u) /* the CA of the next epoch is made by the clock alone */

struct trust {
    struct space *space;
    struct hmap tenants;
    uint64_t version; /* of what tenants were asked about */
    uint64_t visits;
    uv_timer_t timer, retry;
};

struct tenant {
    struct hmap_node by_uid;
    struct trust *trust;
    uint64_t visit;      /* the last */
    bool telling, again; /* its guests; once more */
    char *text;          /* NULL: it has no CA */
    uint64_t version;    /* as of which `text` is */
    bool asking;
    uint64_t asked; /* the version then */
    struct wait_list waiters;
};

static struct tenant *tenant_of(struct trust *t, uint32_t uid)
{
    struct hmap_node *n = hmap_find(&t->tenants, uid);
    if (n)
        return hmap_entry(n, struct tenant, by_uid);
    struct tenant *new = calloc(1, sizeof *new);
    if (!new)
        abort();
    new->trust = t;
    hmap_insert(&t->tenants, &new->by_uid, uid);
    return new;
}

/* ---- space-credd ---- */

static void told(void *user, const struct credd_reply *rep, const char *bytes, size_t len)
{
    struct tenant *t = user;
    t->asking = false;
    if (rep->error == 0) {
        free(t->text);
        t->text = len ? strndup(bytes, len) : NULL;
        t->version = t->asked;
    }
    wait_done_all(&t->waiters, rep->error, NULL);
}

static void ask(struct trust *t, struct tenant *tenant)
{
    const struct credd_request q = {.op = CREDD_TRUST, .uid = (uint32_t)tenant->by_uid.key};
    if (tenant->asking)
        return;
    tenant->asking = true;
    tenant->asked = t->version;
    credential_send(t->space, &q, told, tenant);
}

/* NULL: none, or not known in time. */
static const char *text_of(struct trust *t, uint32_t uid)
{
    struct tenant *tenant = tenant_of(t, uid);
    for (int tries = 0; tenant->version != t->version && tries < 2; tries++) {
        struct co_waiter c = co_waiter_of(t->space->co, NULL);
        wait_add(&tenant->waiters, &c.w);
        ask(t, tenant);
        int rc = tenant->asking || c.w.prev ? co_wait_msec(t->space->co, ANSWER_MSEC) : 0;
        wait_remove(&c.w);
        if (rc < 0)
            return NULL;
    }
    return tenant->text;
}

struct search {
    uint32_t uid;
    bool found;
};

static void look_at(void *user, struct credential *c)
{
    struct search *s = user;
    s->found = s->found || c->rec.scope.kind == CREDD_PLATFORM || c->rec.scope.tenant == s->uid;
}

static bool has_credentials(const struct space *s, uint32_t uid)
{
    struct search search = {.uid = uid};
    if (s->credentials)
        credential_each(s, look_at, &search);
    return search.found;
}

/* ---- guests ---- */

static void retry(uv_timer_t *timer);

void trust_settle(struct sandbox *sb, struct guest *g)
{
    struct trust *t = sb->space->trust;
    uint32_t uid = (uint32_t)sb->row.owner;
    if (!t || !g || !has_credentials(sb->space, uid))
        return;
    const char *text = text_of(t, uid);
    if (!text)
        return;
    uint64_t want = XXH3_64bits_withSeed(text, strlen(text), guest_serial(g));
    if (sb->trust_told == want)
        return;
    int rc = guest_write(g, "trust", text, (uint32_t)strlen(text), GUEST_MSEC);
    if (rc == 0 || rc == -ENOENT) /* an agent of before */
        sb->trust_told = want;
    if (sb->trust_told == want)
        sb->trust_late = false;
    if (sb->trust_told == want || rc == -ECANCELED)
        return;
    if (!sb->trust_late)
        log_warn("sandbox %012" PRIx64 " is not told its CA: %s; tried again until it answers", (uint64_t)sb->row.id, strerror(-rc));
    sb->trust_late = true;
    uv_timer_start(&t->retry, retry, RETRY_MSEC, 0);
}

static bool is_told(const struct sandbox *sb)
{
    return sb->row.state == SANDBOX_RUNNING && sb->guest; /* the others are when they come up */
}

static uint64_t *list_ids(const struct space *s, uint32_t uid, size_t *ret_count)
{
    uint64_t *ids = calloc(s->sandboxes.count + 1, sizeof *ids);
    if (!ids)
        abort();
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        const struct sandbox *sb = sandbox_by_id(s, n->key);
        if (sb && is_told(sb) && (uint32_t)sb->row.owner == uid)
            ids[(*ret_count)++] = n->key;
    }
    return ids;
}

static void tell_guests(void *arg)
{
    struct tenant *tenant = arg;
    struct space *s = tenant->trust->space;
    while (tenant->again) {
        size_t count = 0;
        uint64_t *ids = list_ids(s, (uint32_t)tenant->by_uid.key, &count);
        tenant->again = false;
        for (size_t i = 0; i < count; i++) {
            struct sandbox *sb = sandbox_by_id(s, ids[i]);
            if (!sb || !is_told(sb))
                continue;
            sandbox_ref(sb);
            trust_settle(sb, sb->guest);
            sandbox_unref(sb);
        }
        free(ids);
    }
    tenant->telling = false;
}

static void visit(struct trust *t)
{
    t->visits++;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&t->space->sandboxes, n));) {
        const struct sandbox *sb = sandbox_by_id(t->space, n->key);
        struct tenant *tenant = sb && is_told(sb) ? tenant_of(t, (uint32_t)sb->row.owner) : NULL;
        if (!tenant || tenant->visit == t->visits)
            continue;
        tenant->visit = t->visits;
        tenant->again = has_credentials(t->space, (uint32_t)sb->row.owner);
        if (!tenant->again || tenant->telling)
            continue;
        tenant->telling = true;
        co_spawn(t->space->co, tell_guests, tenant);
    }
}

static void retry(uv_timer_t *timer)
{
    visit(((struct space *)timer->data)->trust);
}

void trust_kick(struct space *s)
{
    if (!s->trust)
        return;
    s->trust->version++;
    visit(s->trust);
}

static void look(uv_timer_t *timer)
{
    trust_kick(timer->data);
}

int trust_open(struct space *s, struct err *e)
{
    struct trust *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ENOMEM, "tell guests what to trust: out of memory");
    t->space = s;
    t->version = 1;
    uv_timer_init(s->loop, &t->timer);
    t->timer.data = s;
    uv_timer_start(&t->timer, look, LOOK_MSEC, LOOK_MSEC);
    uv_unref((uv_handle_t *)&t->timer);
    uv_timer_init(s->loop, &t->retry);
    t->retry.data = s;
    uv_unref((uv_handle_t *)&t->retry);
    s->trust = t;
    return 0;
}
