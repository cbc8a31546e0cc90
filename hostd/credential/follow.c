// SPDX-License-Identifier: Apache-2.0
// A sandbox's own credentials follow it to other nodes: docs/decisions/0019.
//
// Theory of operation. space-credd of the node that has the sandbox keeps them. The database has a row of each beside it, packed: ciphertext that every space-credd with the same
// master key can read, and nobody else. Each version has a number, a removal is a version, too, and of two the higher number is the credential: so rows and records are brought
// together by comparing numbers, whatever was killed in between, and the same may be done twice.
//   a change    space-credd has it, then its row (follow_keep), then it is answered. Killed before: the next hello finds the record newer than the row
//   arrival     all rows go to space-credd (CREDD_TAKE); then, and only if all were taken, the sandbox is told of (CREDD_KNOW). Until then it uses nothing
//   departure   space-credd forgets them (CREDD_MOVED): the rows have all that was answered
//   hello       each of the above, for whatever was not done
// A sandbox for which something is being brought together is `settling`; one for which that failed is not told of before the next hello. Rows end with the sandbox's own, in the same transaction.
#include "hostd/cluster/cluster.h"
#include "hostd/credential/credential_impl.h"

#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct settling {
    struct credentials *cs;
    uint64_t sandbox;
    unsigned calls; /* that are not answered, and one until all were made */
    bool failed;
};

static void *allocate(size_t size)
{
    void *p = calloc(1, size);
    if (!p)
        abort();
    return p;
}

static struct settling *settling_of(struct credentials *cs, struct sandbox *sb)
{
    if (sb->settling)
        return sb->settling;
    struct settling *t = allocate(sizeof *t);
    *t = (struct settling){cs, (uint64_t)sb->row.id, 1, false};
    sb->settling = t;
    return t;
}

/* One call less. After the last the sandbox is told of, as it is by then. */
static void settled(struct settling *t)
{
    if (--t->calls)
        return;
    struct sandbox *sb = sandbox_by_id(t->cs->space, t->sandbox);
    if (sb) {
        sb->settling = NULL;
        sb->credentials_refused = t->failed;
    }
    if (!t->failed && sb)
        credentials_tell(t->cs, sb);
    else if (!t->failed)
        credentials_forget(t->cs, t->sandbox, CREDD_GONE);
    free(t);
}

/* ---- rows ---- */

static const char *key_of(const struct credentials *cs, char out[64])
{
    size_t len = strcspn(cs->key, "\n");
    memcpy(out, cs->key, len);
    out[len] = 0;
    return out;
}

struct removed {
    struct {
        int64_t id, number;
    } rows[CREDD_REMOVED_MAX + 1];
    unsigned count, oldest;
};

static void count_removed(void *user, const void *row)
{
    struct removed *r = user;
    const struct secret_row *s = row;
    if (!s->removed || r->count > CREDD_REMOVED_MAX)
        return;
    r->rows[r->count].id = s->id;
    r->rows[r->count].number = s->number;
    r->oldest = s->number < r->rows[r->oldest].number ? r->count : r->oldest;
    r->count++;
}

/* Of those that were removed the newest are remembered, as space-credd does. */
static int forget_oldest(struct credentials *cs, int64_t sandbox, struct err *e)
{
    struct removed r = {0};
    int rc = db_load_by(cs->space->db, DB_SECRETS, "sandbox", sandbox, count_removed, &r, e);
    return rc < 0 || r.count <= CREDD_REMOVED_MAX ? rc : db_delete(cs->space->db, DB_SECRETS, r.rows[r.oldest].id, e);
}

/* A node that lost the sandbox writes nothing: it would not reach the one that has it. */
static int save(struct credentials *cs, const struct credd_record *rec, const char *packed, struct err *e)
{
    struct sandbox *sb = sandbox_by_id(cs->space, rec->scope.sandbox);
    struct secret_row *row = allocate(sizeof *row);
    char key[64];
    *row = (struct secret_row){
        .id = (int64_t)rec->id, .sandbox = (int64_t)rec->scope.sandbox, .number = (int64_t)rec->number, .removed = rec->removed != 0};
    str_copy(row->key, sizeof row->key, key_of(cs, key));
    str_copy(row->packed, sizeof row->packed, packed);
    int rc = sb ? cluster_hold(sandbox_ref(sb), e) : err_set(e, ESTALE, "the sandbox is gone");
    if (rc == 0) {
        struct err ignored = {0};
        rc = db_save(cs->space->db, DB_SECRETS, row, e);
        if (rc == 0 && rec->removed)
            rc = forget_oldest(cs, row->sandbox, e);
        int rc2 = db_commit(cs->space->db, rc < 0 ? &ignored : e);
        rc = rc < 0 ? rc : rc2;
    }
    if (sb)
        sandbox_unref(sb);
    free(row);
    return rc;
}

struct keeping {
    struct credentials *cs;
    follow_done *done;
    void *user;
};

static void packed(void *user, const struct credd_reply *rep, const char *bytes, size_t len)
{
    struct keeping *k = user;
    struct credd_record rec;
    struct err e = {0};
    int rc = rep->error;
    if (rc < 0)
        err_set(&e, -rc, "%s", rep->sentence);
    else if (len <= sizeof rec)
        rc = err_set(&e, EPROTO, "space-credd gave no record");
    if (rc == 0) {
        memcpy(&rec, bytes, sizeof rec);
        rc = save(k->cs, &rec, bytes + sizeof rec, &e);
    }
    k->done(k->user, rc, &e);
    free(k);
}

void follow_keep(struct credentials *cs, uint64_t sandbox, uint64_t credential, follow_done *done, void *user)
{
    const struct credd_request q = {.op = CREDD_PACK, .credential = credential, .sandbox = sandbox};
    struct keeping *k = allocate(sizeof *k);
    *k = (struct keeping){cs, done, user};
    credd_send(cs->credd, &q, NULL, 0, packed, k);
}

/* ---- to space-credd ---- */

struct handing {
    struct settling *to;
    uint64_t number; /* of the row */
};

static void kept(void *user, int rc, const struct err *e)
{
    struct settling *t = user;
    if (rc < 0 && rc != -ENOTCONN)
        log_warn("a credential of sandbox %012" PRIx64 " is not in the database yet: %s", t->sandbox, e->msg);
    t->failed = t->failed || rc == -ENOTCONN;
    settled(t);
}

/* What space-credd has, and the row has not. */
static void bring(struct settling *t, uint64_t credential)
{
    t->calls++;
    follow_keep(t->cs, t->sandbox, credential, kept, t);
}

static void refused(struct settling *t, const struct credd_reply *rep)
{
    struct sandbox *sb = sandbox_by_id(t->cs->space, t->sandbox);
    t->failed = true;
    if (rep->error == -ENOTCONN)
        return; /* all of it is done anew */
    log_error("sandbox %012" PRIx64 " uses no credentials here: %s", t->sandbox, rep->sentence);
    if (sb)
        sandbox_set_error(sb, "it uses no credentials on this node, and hosts are refused that may need one: %s", rep->sentence);
}

static void taken(void *user, const struct credd_reply *rep, const char *bytes, size_t len)
{
    struct handing *h = user;
    struct settling *t = h->to;
    struct credd_record rec;
    if (rep->error < 0) {
        refused(t, rep);
    } else if (len == sizeof rec) {
        memcpy(&rec, bytes, sizeof rec);
        credentials_saw(t->cs, &rec);
        credentials_changed(t->cs);
        if (rec.number > h->number)
            bring(t, rec.id);
    }
    free(h);
    settled(t);
}

static void hand_over(struct settling *t, const struct secret_row *row)
{
    const struct credd_request q = {.op = CREDD_TAKE, .sandbox = t->sandbox};
    char key[64];
    if (row->removed && strcmp(row->key, key_of(t->cs, key)) != 0)
        return; /* under another master key nobody here had it, nor can read that it was removed */
    struct handing *h = allocate(sizeof *h);
    *h = (struct handing){t, (uint64_t)row->number};
    t->calls++;
    credd_send(t->cs->credd, &q, row->packed, strlen(row->packed), taken, h);
}

static void hand_row(void *user, const void *row)
{
    hand_over(user, row);
}

void credential_sandbox_arrived(struct sandbox *sb)
{
    struct credentials *cs = sb->space->credentials;
    struct err e = {0};
    if (!cs || !credd_up(cs->credd))
        return; /* done when it is back */
    struct settling *t = settling_of(cs, sb);
    t->calls++;
    if (db_load_by(cs->space->db, DB_SECRETS, "sandbox", sb->row.id, hand_row, t, &e) < 0) {
        log_error("sandbox %012" PRIx64 " uses no credentials: %s", t->sandbox, e.msg);
        t->failed = true;
    }
    settled(t);
    settled(t);
}

/* ---- hello ---- */

struct record {
    struct hmap_node by_id;
    const struct credd_record *rec;
    uint64_t number; /* of its row; 0: there is none */
};

struct meeting {
    struct credentials *cs;
    struct hmap records; /* of sandboxes' own */
};

/* What a row has, and space-credd has not. */
static void meet_row(void *user, const void *data)
{
    struct meeting *m = user;
    const struct secret_row *row = data;
    struct hmap_node *n = hmap_find(&m->records, (uint64_t)row->id);
    struct record *r = n ? hmap_entry(n, struct record, by_id) : NULL;
    struct sandbox *sb = sandbox_by_id(m->cs->space, (uint64_t)row->sandbox);
    if (r)
        r->number = (uint64_t)row->number;
    if (sb && sb->named && sandbox_is_here(sb) && (!r || r->rec->number < (uint64_t)row->number))
        hand_over(settling_of(m->cs, sb), row);
}

/* The other way round. Of sandboxes that are nowhere nothing stays; of those that are elsewhere, what has a row. */
static void meet_record(struct meeting *m, const struct record *r)
{
    struct sandbox *sb = sandbox_by_id(m->cs->space, r->rec->scope.sandbox);
    if (!sb || !sb->named) {
        credentials_forget(m->cs, r->rec->scope.sandbox, CREDD_GONE);
        return;
    }
    if (!sandbox_is_here(sb) && !r->number)
        return; /* it was made before there were rows: it counts again when the sandbox comes back */
    struct settling *t = settling_of(m->cs, sb);
    if (r->rec->number > r->number && sandbox_is_here(sb))
        bring(t, r->rec->id);
}

static void add_record(struct meeting *m, const struct credd_record *rec)
{
    struct record *r = allocate(sizeof *r);
    r->rec = rec;
    hmap_insert(&m->records, &r->by_id, rec->id);
}

void follow_connected(struct credentials *cs, const struct credd_record *records, size_t count)
{
    struct meeting m = {.cs = cs};
    struct err e = {0};
    for (size_t i = 0; i < count; i++)
        if (records[i].scope.kind == CREDD_SANDBOX)
            add_record(&m, &records[i]);
    int rc = db_load(cs->space->db, DB_SECRETS, meet_row, &m, &e);
    for (struct hmap_node *n; (n = hmap_iterate(&m.records, NULL));) {
        struct record *r = hmap_entry(n, struct record, by_id);
        if (rc == 0)
            meet_record(&m, r);
        hmap_remove(&m.records, n);
        free(r);
    }
    hmap_finish(&m.records);
    if (rc < 0)
        log_error("sandboxes use no credentials: %s", e.msg);
    for (struct hmap_node *n = NULL; rc == 0 && (n = hmap_iterate(&cs->space->sandboxes, n));) {
        struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        sb->credentials_refused = false;
        if (sb->settling)
            settled(sb->settling);
        else if (sb->named && sandbox_is_here(sb))
            credentials_tell(cs, sb);
        else
            sb->credentials_told = 0;
    }
}

/* ---- moving ---- */

struct readable {
    const char *key;
    unsigned others; /* that are of another master key */
};

static void look_at(void *user, const void *row)
{
    struct readable *r = user;
    const struct secret_row *s = row;
    r->others += !s->removed && strcmp(s->key, r->key) != 0;
}

int credential_check_move(const struct sandbox *sb, const struct node_row *to, struct err *e)
{
    struct readable r = {.key = to->key};
    int rc = db_load_by(sb->space->db, DB_SECRETS, "sandbox", sb->row.id, look_at, &r, e);
    if (rc < 0 || !r.others)
        return rc;
    return err_set(e, ENOKEY,
                   "sandbox '%s' has %u credentials of its own that node %s cannot read: %s. Nodes that share sandboxes share `master` "
                   "(docs/credentials.md); or "
                   "remove credentials/sandbox.%s/* first",
                   sb->row.name, r.others, to->name, to->key[0] ? "its space-credd has another master key" : "its space-credd was not seen yet",
                   sb->row.name);
}
