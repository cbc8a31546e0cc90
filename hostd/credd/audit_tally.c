// SPDX-License-Identifier: Apache-2.0
// Counting what would be too many lines: see audit_tally.h.
//
// Theory of operation. A guest can ask for a secret, or be denied a connection, thousands of times
// a second, and each is a line that nobody may leave out. So each tenant has `limit` lines in a
// minute (CLOCK_BOOTTIME, cut at whole minutes). What comes after them is counted, by kind,
// credential, sandbox and text, and each count is written as one line once the minute is over.
// A tenant can have KEYS_MAX counts; what finds no room is counted by its kind alone.
//
// Before the first thing is counted a line of kind `counting` says so: a space-credd that is killed
// in that minute loses counts, and the log shows that there were some, of whom, and since when.
// While counts of a minute before cannot be written nothing else of that tenant is allowed.
//
// Changes that a tenant makes itself are never counted together: beyond the limit they are refused.
#include "hostd/credd/audit_tally.h"

#include "base/hmap.h"
#include "base/str.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEYS_MAX  16u
#define KINDS_MAX 4u /* use, login, refused, denied */
#define LOOK_MSEC 1000u
#define OTHERS    "others"

struct count {
    char kind[16], text[AUDIT_TEXT_MAX];
    uint64_t credential, sandbox, count;
};

struct tenant {
    struct hmap_node by_uid;
    uint64_t minute;
    uint32_t lines, changes;
    unsigned used;
    struct count *counts; /* KEYS_MAX and KINDS_MAX; NULL: nothing is counted */
};

struct audit_tally {
    struct audit *audit;
    uint32_t limit;
    struct hmap tenants;
    uv_timer_t timer;
};

static uint64_t this_minute(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec / 60;
}

/* Those that are written are not written again. */
static int write_counts(struct audit_tally *t, struct tenant *n)
{
    while (n->used) {
        const struct count *c = &n->counts[n->used - 1];
        int rc = audit_note(t->audit, c->kind, c->credential, c->sandbox, (uint32_t)n->by_uid.key, c->count, c->text);
        if (rc < 0)
            return rc;
        n->used--;
    }
    free(n->counts);
    n->counts = NULL;
    return 0;
}

static struct tenant *tenant_of(struct audit_tally *t, uint32_t uid)
{
    struct hmap_node *node = hmap_find(&t->tenants, uid);
    if (node)
        return hmap_entry(node, struct tenant, by_uid);
    struct tenant *n = calloc(1, sizeof *n);
    if (!n)
        abort(); /* a new process starts with less */
    n->minute = this_minute();
    hmap_insert(&t->tenants, &n->by_uid, uid);
    return n;
}

/* What is left to the tenant in this minute. */
static int begin(struct audit_tally *t, uint32_t uid, struct tenant **out)
{
    struct tenant *n = tenant_of(t, uid);
    uint64_t minute = this_minute();
    *out = n;
    if (n->minute == minute)
        return 0;
    int rc = write_counts(t, n);
    if (rc < 0)
        return rc;
    n->minute = minute;
    n->lines = n->changes = 0;
    return 0;
}

static bool is_same(const struct count *c, const char *kind, uint64_t credential, uint64_t sandbox, const char *text)
{
    return c->credential == credential && c->sandbox == sandbox && !strcmp(c->kind, kind) && !strncmp(c->text, text, sizeof c->text - 1);
}

static struct count *find(struct tenant *n, const char *kind, uint64_t credential, uint64_t sandbox, const char *text, unsigned room)
{
    for (unsigned i = 0; i < n->used; i++)
        if (is_same(&n->counts[i], kind, credential, sandbox, text))
            return &n->counts[i];
    if (n->used >= room)
        return NULL;
    struct count *c = &n->counts[n->used++];
    *c = (struct count){.credential = credential, .sandbox = sandbox};
    str_copy(c->kind, sizeof c->kind, kind);
    str_copy(c->text, sizeof c->text, text);
    return c;
}

static int start_counting(struct audit_tally *t, struct tenant *n)
{
    char text[100];
    snprintf(text, sizeof text, "more than %u lines in a minute: its rest is counted", t->limit);
    int rc = audit_note(t->audit, "counting", 0, 0, (uint32_t)n->by_uid.key, 1, text);
    if (rc == 0 && !(n->counts = calloc(KEYS_MAX + KINDS_MAX, sizeof *n->counts)))
        abort();
    return rc;
}

int audit_tally_note(struct audit_tally *t, const char *kind, uint64_t credential, uint64_t sandbox, uint32_t uid, uint64_t count, const char *text)
{
    struct tenant *n;
    int rc = begin(t, uid, &n);
    if (rc < 0)
        return rc;
    if (n->lines < t->limit) {
        n->lines++;
        return audit_note(t->audit, kind, credential, sandbox, uid, count, text);
    }
    if (!n->counts && (rc = start_counting(t, n)) < 0)
        return rc;
    struct count *c = find(n, kind, credential, sandbox, text, KEYS_MAX);
    if (!c)
        c = find(n, kind, 0, 0, OTHERS, KEYS_MAX + KINDS_MAX);
    if (!c)
        return -EINVAL; /* a fifth kind */
    c->count += count;
    return 0;
}

int audit_tally_change(struct audit_tally *t, uint32_t uid)
{
    struct tenant *n;
    int rc = begin(t, uid, &n);
    if (rc == 0 && n->changes >= t->limit)
        rc = -EAGAIN;
    n->changes += rc == 0;
    return rc;
}

/* ---- life ---- */

static void forget(struct audit_tally *t, struct tenant *n)
{
    hmap_remove(&t->tenants, &n->by_uid);
    free(n->counts);
    free(n);
}

/* One that has done nothing since its minute; NULL: none. */
static struct tenant *idle_one(const struct audit_tally *t, uint64_t minute)
{
    for (struct hmap_node *i = NULL; (i = hmap_iterate(&t->tenants, i));) {
        struct tenant *n = hmap_entry(i, struct tenant, by_uid);
        if (n->minute != minute)
            return n;
    }
    return NULL;
}

static void look(uv_timer_t *timer)
{
    struct audit_tally *t = timer->data;
    uint64_t minute = this_minute();
    for (struct tenant *n; (n = idle_one(t, minute)) && write_counts(t, n) == 0;)
        forget(t, n);
}

int audit_tally_create(uv_loop_t *loop, struct audit *a, uint32_t lines, struct audit_tally **out, struct err *e)
{
    struct audit_tally *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ENOMEM, "out of memory");
    t->audit = a;
    t->limit = lines;
    if (loop) {
        uv_timer_init(loop, &t->timer);
        t->timer.data = t;
        uv_timer_start(&t->timer, look, LOOK_MSEC, LOOK_MSEC);
        uv_unref((uv_handle_t *)&t->timer);
    }
    *out = t;
    return 0;
}

void audit_tally_close(struct audit_tally *t)
{
    for (struct hmap_node *i; (i = hmap_iterate(&t->tenants, NULL));) {
        struct tenant *n = hmap_entry(i, struct tenant, by_uid);
        write_counts(t, n);
        forget(t, n);
    }
    hmap_finish(&t->tenants);
    free(t); /* with a loop, at the end of the process only */
}
