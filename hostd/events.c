// SPDX-License-Identifier: Apache-2.0
// Event ring with readers, and failure rings: see events.h.
#include "hostd/events.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/db/db.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PRUNE_EVERY    256
#define FAILURES_KEPT  16
#define FAILURE_LENGTH 1024

struct event {
    uint64_t seq;
    struct event_scope scope;
    char *line;
};

struct events {
    struct event ring[EVENTS_KEPT]; /* event N at N % EVENTS_KEPT */
    uint64_t last;
    struct wait_list readers;
};

static void keep(struct events *ev, uint64_t seq, const struct event_scope *scope, const char *line)
{
    struct event *slot = &ev->ring[seq % EVENTS_KEPT];
    free(slot->line);
    *slot = (struct event){seq, *scope, strdup(line)};
    ev->last = seq;
}

static void load_one(void *user, const void *row)
{
    const struct event_row *r = row;
    struct event_scope scope = {r->owner, r->gid, r->mode};
    keep(user, (uint64_t)r->id, &scope, r->line);
}

int events_open(struct space *s, struct err *e)
{
    s->events = calloc(1, sizeof *s->events);
    if (!s->events)
        return err_set(e, ENOMEM, "events: out of memory");
    return db_load(s->db, DB_EVENTS, load_one, s->events, e);
}

void events_close(struct events *ev)
{
    if (!ev)
        return;
    for (int i = 0; i < EVENTS_KEPT; i++)
        free(ev->ring[i].line);
    free(ev);
}

static void format_time(char out[40])
{
    int64_t now = space_now();
    time_t sec = now / 1000000000;
    struct tm tm;
    gmtime_r(&sec, &tm);
    size_t n = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 40 - n, ".%03dZ", (int)(now / 1000000 % 1000));
}

void event_emit(struct space *s, const struct event_scope *scope, const char *kind, uint64_t id, const char *name, const char *extra_fmt, ...)
{
    struct event_row row = {.owner = scope->owner, .gid = scope->gid, .mode = scope->mode};
    char time[40], extra[600], quoted[160];
    va_list ap;
    va_start(ap, extra_fmt);
    vsnprintf(extra, sizeof extra, extra_fmt, ap);
    va_end(ap);
    format_time(time);
    db_begin(s->db); /* numbers are one series for all nodes */
    events_sync(s);
    row.id = (int64_t)s->events->last + 1;
    size_t len =
        (size_t)snprintf(row.line, sizeof row.line, "{\"seq\":%" PRId64 ",\"time\":\"%s\",\"kind\":\"%s\",\"id\":\"%012" PRIx64 "\",\"name\":%s%s}\n",
                         row.id, time, kind, id, event_quote(name, quoted, sizeof quoted), extra);
    struct err e = {0};
    if (len >= sizeof row.line || db_save(s->db, DB_EVENTS, &row, &e) < 0)
        log_error("event %s of %012" PRIx64 " was not kept: %s", kind, id, len >= sizeof row.line ? "too long" : e.msg);
    if (row.id % PRUNE_EVERY == 0)
        db_delete_below(s->db, DB_EVENTS, row.id - EVENTS_KEPT, NULL);
    db_commit(s->db, NULL);
    if (len >= sizeof row.line)
        return;
    keep(s->events, (uint64_t)row.id, scope, row.line);
    wait_done_all(&s->events->readers, 0, NULL);
}

void events_sync(struct space *s)
{
    uint64_t before = s->events->last;
    if (db_last(s->db, DB_EVENTS) > (int64_t)before)
        db_load_above(s->db, DB_EVENTS, (int64_t)before, load_one, s->events, NULL);
    if (s->events->last != before)
        wait_done_all(&s->events->readers, 0, NULL);
}

char *event_quote(const char *text, char *out, size_t size)
{
    size_t n = 0;
    out[n++] = '"';
    for (; *text && n + 8 < size; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            out[n++] = '\\';
            out[n++] = (char)c;
        } else if (c < 0x20 || c == 0x7f) {
            n += (size_t)snprintf(out + n, size - n, "\\u%04x", c);
        } else {
            out[n++] = (char)c;
        }
    }
    out[n++] = '"';
    out[n] = 0;
    return out;
}

uint64_t events_last(const struct events *ev)
{
    return ev->last;
}

size_t events_read(struct events *ev, const struct caller *c, uint64_t *cursor, char *out, size_t size)
{
    size_t pos = 0;
    if (ev->last > EVENTS_KEPT && *cursor < ev->last - EVENTS_KEPT)
        *cursor = ev->last - EVENTS_KEPT;
    for (; *cursor < ev->last; (*cursor)++) {
        const struct event *e = &ev->ring[(*cursor + 1) % EVENTS_KEPT];
        if (e->seq != *cursor + 1 || !e->line || !caller_may_read(c, e->scope.owner, e->scope.gid, e->scope.mode))
            continue;
        size_t len = strlen(e->line);
        if (len > size - pos)
            break;
        memcpy(out + pos, e->line, len);
        pos += len;
    }
    return pos;
}

void events_wait(struct events *ev, struct waiter *w)
{
    wait_add(&ev->readers, w);
}

struct failure_ring {
    struct hmap_node node; /* by uid */
    unsigned next;
    char line[FAILURES_KEPT][FAILURE_LENGTH];
};

struct failures {
    struct hmap rings;
};

static struct failure_ring *ring_of(struct space *s, uint32_t uid)
{
    struct hmap_node *n = s->failures ? hmap_find(&s->failures->rings, uid) : NULL;
    return n ? hmap_entry(n, struct failure_ring, node) : NULL;
}

void failure_record(struct space *s, uint32_t uid, const char *path, int code, const char *sentence)
{
    struct failure_ring *r = ring_of(s, uid);
    if (!s->failures)
        s->failures = calloc(1, sizeof *s->failures);
    if (!r && s->failures && (r = calloc(1, sizeof *r)))
        hmap_insert(&s->failures->rings, &r->node, uid);
    if (!r)
        return;
    char time[40];
    format_time(time);
    char *line = r->line[r->next++ % FAILURES_KEPT];
    snprintf(line, FAILURE_LENGTH, "%s %s %s %s\n", time, path, strerrorname_np(code) ? strerrorname_np(code) : "EIO", sentence);
    line[FAILURE_LENGTH - 2] = line[FAILURE_LENGTH - 2] ? '\n' : 0;
    for (char *c = line; *c && c[1]; c++) /* it may quote a name with newlines: one failure stays one line */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

char *failure_text(struct space *s, uint32_t uid)
{
    struct failure_ring *r = ring_of(s, uid);
    char *out = calloc(1, FAILURES_KEPT * FAILURE_LENGTH + 1);
    if (!out || !r)
        return out;
    char *p = out;
    for (unsigned i = 0; i < FAILURES_KEPT; i++)
        p = stpcpy(p, r->line[(r->next + i) % FAILURES_KEPT]);
    return out;
}

void failures_close(struct failures *f)
{
    if (!f)
        return;
    for (struct hmap_node *n; (n = hmap_iterate(&f->rings, NULL));) {
        hmap_remove(&f->rings, n);
        free(hmap_entry(n, struct failure_ring, node));
    }
    hmap_finish(&f->rings);
    free(f);
}
