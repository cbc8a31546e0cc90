// SPDX-License-Identifier: Apache-2.0
// Idle sandboxes: see idle.h.
//
// Theory of operation. What happens through the tree (a verb, a touch, an open file under root/) is known here and marks the sandbox as used. What
// happens inside is asked of its agent once a minute, and only where it matters: a job that runs is use, however silent; so are open files below root/, bytes
// on the network, and more than 1 % of a processor for what jobs started since the last answer. A guest that does not answer counts as idle: it gives nobody anything. Time is the host's CLOCK_BOOTTIME, which neither steps nor
// stands still while the host sleeps. Which line of the policy is due is judged by the seconds since the last use, so that `pause 5m` and `stop 1d` follow each
// other; a line that was carried out is not repeated until the sandbox is used again.
#include "hostd/lifecycle/idle.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"
#include "hostd/lifecycle/lifecycle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TICK_MSEC    1000u
#define ASK_SEC      60u /* how often an agent is asked, at most; less when a line is due sooner */
#define ANSWER_MSEC  5000u
#define BUSY_PERCENT 1u

static uint64_t boottime(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

enum idle_verb { IDLE_PAUSE, IDLE_SUSPEND, IDLE_STOP, IDLE_DESTROY, IDLE_VERBS };
static const char *const verbs[IDLE_VERBS] = {"pause", "suspend", "stop", "destroy"};

struct idle_policy {
    uint64_t after[IDLE_VERBS]; /* seconds; 0: not */
};

static int parse_line(char *text, struct idle_policy *p, struct err *e)
{
    char *space = strchr(text, ' ');
    uint64_t seconds;
    int v = 0;
    if (space)
        *space = 0;
    while (v < IDLE_VERBS && strcmp(text, verbs[v]) != 0)
        v++;
    if (v == IDLE_VERBS || !space || str_parse_duration(str_trim(space + 1), &seconds) < 0 || !seconds)
        return err_set(e, EINVAL, "idle takes `never`, or lines such as `pause 5m`, `suspend 1h`, `stop 1d`, `destroy 30d`, not '%.40s'", text);
    p->after[v] = seconds;
    return 0;
}

static int parse(const char *text, struct idle_policy *p, struct err *e)
{
    char copy[IDLE_TEXT_MAX], *save = NULL;
    *p = (struct idle_policy){0};
    if (strlen(text) >= sizeof copy)
        return err_set(e, EINVAL, "idle has more than %zu bytes", sizeof copy - 1);
    str_copy(copy, sizeof copy, text);
    if (!strcmp(str_trim(copy), "never"))
        return 0;
    str_copy(copy, sizeof copy, text);
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *trimmed = str_trim(line);
        int rc = *trimmed ? parse_line(trimmed, p, e) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

int idle_check(const char *text, struct err *e)
{
    struct idle_policy p;
    return parse(text, &p, e);
}

void idle_used(struct sandbox *sb)
{
    sb->idle.used = boottime();
    sb->idle.done = 0;
}

uint64_t idle_seconds(const struct sandbox *sb)
{
    uint64_t now = boottime();
    return sb->idle.used && now > sb->idle.used ? (now - sb->idle.used) / 1000 : 0;
}

/* ---- what the guest does ---- */

static bool number_after(const char *text, const char *key, uint64_t *out)
{
    const char *at = strstr(text, key);
    return at && (at == text || at[-1] == '\n') && sscanf(at + strlen(key), " %" SCNu64, out) == 1;
}

/* The agent's answer against the one before. */
static bool is_active(struct sandbox *sb, const char *text)
{
    uint64_t jobs = 0, handles = 0, net = 0, cpu = 0, now = boottime();
    uint64_t before = sb->idle.cpu_usec, net_before = sb->idle.net_bytes, since = sb->idle.asked_msec;
    number_after(text, "jobs", &jobs);
    number_after(text, "handles", &handles);
    number_after(text, "net_bytes", &net);
    bool known = number_after(text, "cpu_usec", &cpu);
    sb->idle.cpu_usec = cpu;
    sb->idle.net_bytes = net;
    sb->idle.asked_msec = now;
    if (jobs > 0 || handles > 0)
        return true;
    return known && since && ((cpu > before && (cpu - before) / 10 > (now - since) * BUSY_PERCENT) || net > net_before);
}

static void carry_out(struct sandbox *sb, enum idle_verb v)
{
    struct err e = {0};
    log_info("sandbox %012" PRIx64 " is idle: %s", (uint64_t)sb->row.id, verbs[v]);
    sb->idle.done |= 1u << v;
    if (v == IDLE_DESTROY)
        sandbox_destroy(sb, &e);
    else
        op_submit(sb, op_new(v == IDLE_PAUSE ? OP_PAUSE : v == IDLE_SUSPEND ? OP_SUSPEND : OP_STOP), false, NULL);
}

/* The last line that is due: an idle hour may have passed while nobody looked. */
static int due(const struct sandbox *sb, const struct idle_policy *p)
{
    uint64_t idle = idle_seconds(sb);
    enum sandbox_state state = sandbox_state(sb);
    for (int v = IDLE_VERBS - 1; v >= 0; v--) {
        bool fits = v == IDLE_DESTROY || state == SANDBOX_RUNNING || (v != IDLE_PAUSE && state == SANDBOX_PAUSED);
        if (p->after[v] && idle >= p->after[v] && fits && !(sb->idle.done & (1u << v)))
            return v;
    }
    return -1;
}

static void look(void *arg)
{
    struct sandbox *sb = arg;
    struct idle_policy p;
    char text[512];
    if (sandbox_state(sb) == SANDBOX_RUNNING && sb->guest && guest_activity(sb->guest, ANSWER_MSEC, text, sizeof text) == 0 && is_active(sb, text))
        idle_used(sb);
    if (!sb->gone && !sb->ops && parse(sb->row.idle, &p, NULL) == 0) {
        int v = due(sb, &p);
        if (v >= 0)
            carry_out(sb, (enum idle_verb)v);
    }
    sb->idle.looking = false;
    sandbox_unref(sb);
}

/* Is there a line for which now is the time to look closer? */
static bool worth_looking(struct sandbox *sb)
{
    struct idle_policy p;
    if (!sb->row.idle[0] || sb->idle.looking || sb->gone || parse(sb->row.idle, &p, NULL) < 0)
        return false;
    if (!sandbox_is_here(sb))
        return false;
    if (!sb->idle.used)
        idle_used(sb); /* as space-hostd finds it at its start */
    return due(sb, &p) >= 0 || (sandbox_state(sb) == SANDBOX_RUNNING && boottime() - sb->idle.asked_msec >= ASK_SEC * 1000);
}

static void tick(uv_timer_t *t)
{
    struct space *s = t->data;
    struct sandbox *batch[64]; /* the rest comes with the next tick */
    size_t n = 0;
    for (struct hmap_node *at = NULL; n < 64 && (at = hmap_iterate(&s->sandboxes, at));) {
        struct sandbox *sb = hmap_entry(at, struct sandbox, by_id);
        if (worth_looking(sb))
            batch[n++] = sandbox_ref(sb);
    }
    for (size_t i = 0; i < n; i++) {
        batch[i]->idle.looking = true;
        co_spawn(s->co, look, batch[i]);
    }
}

void idle_open(struct space *s)
{
    static uv_timer_t timer;
    timer.data = s;
    uv_timer_init(s->loop, &timer);
    uv_timer_start(&timer, tick, TICK_MSEC, TICK_MSEC);
}
