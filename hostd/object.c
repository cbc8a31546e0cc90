// SPDX-License-Identifier: Apache-2.0
// Tables of objects, and their rows: see object.h.
#include "hostd/object.h"
#include "hostd/credential/credential.h"

#include "hostd/lifecycle/net.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/snapshot/browser.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *artifact_state_name(int64_t state)
{
    static const char *const names[] = {"", "empty", "creating", "ready", "failed", "stored", "elsewhere"};
    return state > 0 && state <= ARTIFACT_ELSEWHERE ? names[state] : "unknown";
}

/* ---- sandboxes ---- */

struct sandbox *sandbox_ref(struct sandbox *sb)
{
    sb->refs++;
    return sb;
}

void sandbox_unref(struct sandbox *sb)
{
    if (sb && --sb->refs == 0) {
        net_forget(sb);
        free(sb);
    }
}

struct sandbox *sandbox_by_id(const struct space *s, uint64_t id)
{
    struct hmap_node *n = hmap_find(&s->sandboxes, id);
    return n ? hmap_entry(n, struct sandbox, by_id) : NULL;
}

struct sandbox *sandbox_by_object(const struct space *s, uint64_t object)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        if ((uint64_t)sb->row.object == object)
            return sb;
    }
    return NULL;
}

struct sandbox *sandbox_by_name(const struct space *s, uint32_t owner, const char *name)
{
    struct hmap_node *n = hmap_find(&s->sandbox_names, space_name_key(owner, name));
    for (; n; n = hmap_find_next(n)) {
        struct sandbox *sb = hmap_entry(n, struct sandbox, by_name);
        if (sb->row.owner == owner && !strcmp(sb->row.name, name))
            return sb;
    }
    return NULL;
}

int sandbox_save(struct sandbox *sb, struct err *e)
{
    struct err local = {0};
    int rc = db_save(sb->space->db, DB_SANDBOXES, &sb->row, &local);
    if (rc < 0)
        log_error("sandbox %012" PRIx64 ": %s", (uint64_t)sb->row.id, local.msg);
    if (e)
        *e = local;
    credential_sandbox(sb);
    return rc;
}

void sandbox_set_error(struct sandbox *sb, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sb->row.error, sizeof sb->row.error, fmt, ap);
    va_end(ap);
}

void sandbox_known(struct sandbox *sb)
{
    if (!sb->unknown)
        return;
    sb->unknown = false;
    wait_done_all(&sb->known, 0, NULL);
}

void sandbox_set_state(struct sandbox *sb, enum sandbox_state state, const char *reason)
{
    struct event_scope scope = sandbox_scope(sb);
    char quoted[300];
    if (!state_may_move(sandbox_state(sb), state)) {
        log_error("sandbox %012" PRIx64 ": refused to move from %s to %s: a bug", (uint64_t)sb->row.id, state_name(sandbox_state(sb)),
                  state_name(state));
        return;
    }
    if (sandbox_state(sb) == state) { /* the row may hold more than the state */
        sandbox_save(sb, NULL);
        return;
    }
    sb->row.state = state;
    sb->row.changed = space_now();
    db_begin(sb->space->db);
    sandbox_save(sb, NULL);
    if (reason)
        event_emit(sb->space, &scope, "state", (uint64_t)sb->row.id, sb->row.name, ",\"state\":\"%s\",\"reason\":%s", state_name(state),
                   event_quote(reason, quoted, sizeof quoted));
    else
        event_emit(sb->space, &scope, "state", (uint64_t)sb->row.id, sb->row.name, ",\"state\":\"%s\"", state_name(state));
    struct err e = {0};
    if (db_commit(sb->space->db, &e) < 0)
        log_error("sandbox %012" PRIx64 ": %s", (uint64_t)sb->row.id, e.msg);
    sandbox_known(sb);
}

static struct sandbox *sandbox_attach(struct space *s, const struct sandbox_row *row)
{
    struct sandbox *sb = calloc(1, sizeof *sb);
    if (!sb)
        abort();
    sb->refs = 1;
    sb->space = s;
    sb->row = *row;
    hmap_insert(&s->sandboxes, &sb->by_id, (uint64_t)row->id);
    if (row->name[0] && row->state != SANDBOX_DESTROYING) { /* a removed one has lost its name for good, also across a start */
        hmap_insert(&s->sandbox_names, &sb->by_name, space_name_key((uint32_t)row->owner, row->name));
        sb->named = true;
    }
    return sb;
}

int sandbox_insert(struct space *s, const struct sandbox_row *row, struct sandbox **out, struct err *e)
{
    struct sandbox_row ours = *row;
    ours.node = s->node_id;
    int rc = db_save(s->db, DB_SANDBOXES, &ours, e);
    if (rc < 0)
        return rc;
    *out = sandbox_attach(s, &ours);
    credential_sandbox(*out);
    return 0;
}

struct sandbox *sandbox_learn(struct space *s, const struct sandbox_row *row)
{
    return sandbox_attach(s, row);
}

void sandbox_replace(struct sandbox *sb, const struct sandbox_row *row)
{
    bool renamed = sb->row.owner != row->owner || strcmp(sb->row.name, row->name) != 0;
    if (sb->named && (renamed || row->state == SANDBOX_DESTROYING))
        sandbox_unname(sb);
    sb->row = *row;
    sb->keep.parsed = false;
    if (!sb->named && row->name[0] && row->state != SANDBOX_DESTROYING) {
        hmap_insert(&sb->space->sandbox_names, &sb->by_name, space_name_key((uint32_t)row->owner, row->name));
        sb->named = true;
    }
}

void sandbox_unname(struct sandbox *sb)
{
    if (!sb->named)
        return;
    hmap_remove(&sb->space->sandbox_names, &sb->by_name);
    sb->named = false;
    if (sb->row.state == SANDBOX_DESTROYING)
        credential_sandbox_gone(sb);
    else
        credential_sandbox(sb);
}

void sandbox_forget(struct sandbox *sb)
{
    db_delete(sb->space->db, DB_SANDBOXES, sb->row.id, NULL);
    sandbox_drop(sb);
}

void sandbox_drop(struct sandbox *sb)
{
    sandbox_unname(sb);
    hmap_remove(&sb->space->sandboxes, &sb->by_id);
    sb->gone = true;
    sandbox_unref(sb);
}

/* ---- snapshots ---- */

struct snapshot *snapshot_ref(struct snapshot *sn)
{
    sn->refs++;
    return sn;
}

void snapshot_unref(struct snapshot *sn)
{
    if (sn && --sn->refs == 0)
        free(sn);
}

struct snapshot *snapshot_by_id(const struct space *s, uint64_t id)
{
    struct hmap_node *n = hmap_find(&s->snapshots, id);
    return n ? hmap_entry(n, struct snapshot, by_id) : NULL;
}

struct snapshot *snapshot_by_name(const struct space *s, uint64_t sandbox, const char *name)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if ((uint64_t)sn->row.sandbox == sandbox && !strcmp(sn->row.name, name))
            return sn;
    }
    return NULL;
}

bool snapshot_is_pinned(const struct snapshot *sn)
{
    const struct sandbox *sb = sandbox_by_id(sn->space, (uint64_t)sn->row.sandbox);
    return sb && sb->named && sb->row.suspended == sn->row.id;
}

void snapshot_set_state(struct snapshot *sn, enum artifact_state state, const char *error)
{
    struct event_scope scope = {sn->row.owner, sn->row.gid, sn->row.mode};
    sn->row.state = state;
    str_copy(sn->row.error, sizeof sn->row.error, error ? error : "");
    db_begin(sn->space->db);
    db_save(sn->space->db, DB_SNAPSHOTS, &sn->row, NULL);
    event_emit(sn->space, &scope, "snapshot", (uint64_t)sn->row.sandbox, sn->row.sandbox_name, ",\"snapshot\":\"%s\",\"state\":\"%s\"", sn->row.name,
               artifact_state_name(state));
    db_commit(sn->space->db, NULL);
    wait_done_all(&sn->ready, 0, NULL);
}

static struct snapshot *snapshot_attach(struct space *s, const struct snapshot_row *row)
{
    struct snapshot *sn = calloc(1, sizeof *sn);
    if (!sn)
        abort();
    sn->refs = 1;
    sn->space = s;
    sn->row = *row;
    hmap_insert(&s->snapshots, &sn->by_id, (uint64_t)row->id);
    return sn;
}

int snapshot_insert(struct space *s, const struct snapshot_row *row, struct snapshot **out, struct err *e)
{
    struct snapshot_row ours = *row;
    ours.node = s->node_id;
    int rc = db_save(s->db, DB_SNAPSHOTS, &ours, e);
    if (rc == 0)
        *out = snapshot_attach(s, &ours);
    return rc;
}

/* What the owner has in its pool is not here; what is in the store, everybody can fetch. */
static void see(struct snapshot *sn)
{
    int64_t state = sn->row.state;
    if (snapshot_is_here(sn) || (state != ARTIFACT_READY && state != ARTIFACT_STORED))
        return;
    sn->row.state = sn->copied ? ARTIFACT_READY : sn->row.durable ? ARTIFACT_STORED : ARTIFACT_ELSEWHERE;
}

struct snapshot *snapshot_learn(struct space *s, const struct snapshot_row *row)
{
    struct snapshot *sn = snapshot_attach(s, row);
    see(sn);
    return sn;
}

void snapshot_replace(struct snapshot *sn, const struct snapshot_row *row)
{
    sn->row = *row;
    sn->until = 0;
    see(sn);
    if (sn->row.state != ARTIFACT_CREATING)
        wait_done_all(&sn->ready, 0, NULL);
}

void snapshot_forget(struct snapshot *sn)
{
    db_delete(sn->space->db, DB_SNAPSHOTS, sn->row.id, NULL);
    snapshot_drop(sn);
}

void snapshot_drop(struct snapshot *sn)
{
    hmap_remove(&sn->space->snapshots, &sn->by_id);
    sn->gone = true;
    sn->row.state = ARTIFACT_FAILED; /* for who still waits for it */
    browser_close(sn->browser);
    wait_done_all(&sn->ready, 0, NULL);
    snapshot_unref(sn);
}

/* ---- templates ---- */

struct template *template_ref(struct template *t)
{
    t->refs++;
    return t;
}

void template_unref(struct template *t)
{
    if (t && --t->refs == 0)
        free(t);
}

struct template *template_by_id(const struct space *s, uint64_t id)
{
    struct hmap_node *n = hmap_find(&s->templates, id);
    return n ? hmap_entry(n, struct template, by_id) : NULL;
}

struct template *template_by_name(const struct space *s, uint32_t owner, const char *name)
{
    struct hmap_node *n = hmap_find(&s->template_names, space_name_key(owner, name));
    for (; n; n = hmap_find_next(n)) {
        struct template *t = hmap_entry(n, struct template, by_name);
        if (t->row.owner == owner && !strcmp(t->row.name, name))
            return t;
    }
    return NULL;
}

bool template_may_use(const struct template *t, const struct caller *c)
{
    if (caller_owns(c, t->row.owner) || !strcmp(t->row.share, "all"))
        return true;
    struct group *gr = t->row.share[0] ? getgrnam(t->row.share) : NULL;
    return gr && caller_may_read(c, -1, gr->gr_gid, 0050);
}

struct template *template_resolve(const struct space *s, const struct caller *c, const char *name)
{
    uint32_t owner = c->uid;
    char user[NAME_LEN_MAX + 1];
    const char *colon = strchr(name, ':');
    if (colon) {
        if ((size_t)(colon - name) >= sizeof user)
            return NULL;
        memcpy(user, name, (size_t)(colon - name));
        user[colon - name] = 0;
        if (caller_uid_of(user, &owner) < 0)
            return NULL;
        name = colon + 1;
    }
    struct template *t = template_by_name(s, owner, name);
    if (!t && !colon)
        t = template_by_name(s, 0, name);
    return t && template_may_use(t, c) ? t : NULL;
}

void template_set_state(struct template *t, enum artifact_state state, const char *error)
{
    struct event_scope scope = {t->row.owner, t->row.gid, 0700};
    t->row.state = state;
    str_copy(t->row.error, sizeof t->row.error, error ? error : "");
    db_begin(t->space->db);
    db_save(t->space->db, DB_TEMPLATES, &t->row, NULL);
    event_emit(t->space, &scope, "template", (uint64_t)t->row.id, t->row.name, ",\"state\":\"%s\"", artifact_state_name(state));
    db_commit(t->space->db, NULL);
    wait_done_all(&t->ready, 0, NULL);
}

static struct template *template_attach(struct space *s, const struct template_row *row)
{
    struct template *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    t->refs = 1;
    t->space = s;
    t->row = *row;
    hmap_insert(&s->templates, &t->by_id, (uint64_t)row->id);
    if (!row->deleted) {
        hmap_insert(&s->template_names, &t->by_name, space_name_key((uint32_t)row->owner, row->name));
        t->named = true;
    }
    return t;
}

int template_insert(struct space *s, const struct template_row *row, struct template **out, struct err *e)
{
    struct template_row ours = *row;
    ours.node = s->node_id;
    int rc = db_save(s->db, DB_TEMPLATES, &ours, e);
    if (rc == 0)
        *out = template_attach(s, &ours);
    return rc;
}

struct template *template_learn(struct space *s, const struct template_row *row)
{
    return template_attach(s, row);
}

/* A template keeps its name. */
void template_replace(struct template *t, const struct template_row *row)
{
    t->row = *row;
    if (row->deleted)
        template_unname(t);
    if (row->state != ARTIFACT_CREATING)
        wait_done_all(&t->ready, 0, NULL);
}

void template_unname(struct template *t)
{
    if (!t->named)
        return;
    hmap_remove(&t->space->template_names, &t->by_name);
    t->named = false;
}

void template_forget(struct template *t)
{
    db_delete(t->space->db, DB_TEMPLATES, t->row.id, NULL);
    template_drop(t);
}

void template_drop(struct template *t)
{
    template_unname(t);
    hmap_remove(&t->space->templates, &t->by_id);
    t->row.deleted = 1;
    t->row.state = ARTIFACT_FAILED; /* for who still waits for it */
    wait_done_all(&t->ready, 0, NULL);
    template_unref(t);
}

/* ---- loading ---- */

static void load_template(void *user, const void *row)
{
    template_attach(user, row);
}

static void load_sandbox(void *user, const void *row)
{
    struct sandbox *sb = sandbox_attach(user, row);
    sb->found = sb->unknown = sandbox_is_here(sb);
    if (sb->found)
        sb->row.locked = 0; /* an operation that we did not survive */
}

static void load_snapshot(void *user, const void *row)
{
    snapshot_learn(user, row);
}

int objects_load(struct space *s, struct err *e)
{
    int rc = db_load(s->db, DB_TEMPLATES, load_template, s, e);
    if (rc == 0)
        rc = db_load(s->db, DB_SANDBOXES, load_sandbox, s, e);
    if (rc == 0)
        rc = db_load(s->db, DB_SNAPSHOTS, load_snapshot, s, e);
    return rc;
}
