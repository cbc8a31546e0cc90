// SPDX-License-Identifier: Apache-2.0
// The database on sqlite: see db.h. Statements are made from the column tables, once.
#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/db/db.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The log is folded into the database beyond this size. */
#define CHECKPOINT_BYTES (4 << 20)
/* Another node's transaction is waited for; it takes well under a millisecond. */
#define BUSY_MSEC 5000
/* Changes that are kept for the others to read, and how often the rest is removed. */
#define CHANGES_KEPT  16384
#define CHANGES_PRUNE 1024

struct column {
    const char *name;
    size_t offset, size; /* size 0: int64_t */
};

#define ROW_COLUMNS(rowtype, list) static const struct column rowtype##_columns[] = {list(ROW_INT, ROW_TEXT){0}};
#define ROW_INT(name)              {#name, offsetof(struct ROW, name), 0},
#define ROW_TEXT(name, size)       {#name, offsetof(struct ROW, name), size},
#define ROW                        sandbox_row
ROW_COLUMNS(sandbox_row, DB_SANDBOX_COLUMNS)
#undef ROW
#define ROW template_row
ROW_COLUMNS(template_row, DB_TEMPLATE_COLUMNS)
#undef ROW
#define ROW snapshot_row
ROW_COLUMNS(snapshot_row, DB_SNAPSHOT_COLUMNS)
#undef ROW
#define ROW job_row
ROW_COLUMNS(job_row, DB_JOB_COLUMNS)
#undef ROW
#define ROW event_row
ROW_COLUMNS(event_row, DB_EVENT_COLUMNS)
#undef ROW
#define ROW head_row
ROW_COLUMNS(head_row, DB_HEAD_COLUMNS)
#undef ROW
#define ROW artifact_row
ROW_COLUMNS(artifact_row, DB_ARTIFACT_COLUMNS)
#undef ROW
#define ROW node_row
ROW_COLUMNS(node_row, DB_NODE_COLUMNS)
#undef ROW
#define ROW tenant_row
ROW_COLUMNS(tenant_row, DB_TENANT_COLUMNS)
#undef ROW
#define ROW secret_row
ROW_COLUMNS(secret_row, DB_SECRET_COLUMNS)
#undef ROW

enum {
    OWNED = 1, /* belongs to the node of its column `node` */
    TOLD = 2,  /* other nodes are told */
    NEWER = 4, /* only a higher `number` replaces a row */
};

static const struct table {
    const char *name;
    const struct column *columns;
    size_t row_size;
    unsigned flags;
    size_t node; /* offset of the owner's column */
} tables[DB_TABLE_COUNT] = {
    [DB_SANDBOXES] = {"sandboxes", sandbox_row_columns, sizeof(struct sandbox_row), OWNED | TOLD, offsetof(struct sandbox_row, node)},
    [DB_TEMPLATES] = {"templates", template_row_columns, sizeof(struct template_row), OWNED | TOLD, offsetof(struct template_row, node)},
    [DB_SNAPSHOTS] = {"snapshots", snapshot_row_columns, sizeof(struct snapshot_row), OWNED | TOLD, offsetof(struct snapshot_row, node)},
    [DB_JOBS] = {"jobs", job_row_columns, sizeof(struct job_row), 0, 0},
    [DB_EVENTS] = {"events", event_row_columns, sizeof(struct event_row), 0, 0},
    [DB_HEADS] = {"heads", head_row_columns, sizeof(struct head_row), 0, 0},
    [DB_ARTIFACTS] = {"artifacts", artifact_row_columns, sizeof(struct artifact_row), TOLD, 0},
    [DB_NODES] = {"nodes", node_row_columns, sizeof(struct node_row), TOLD, 0},
    [DB_TENANTS] = {"tenants", tenant_row_columns, sizeof(struct tenant_row), TOLD, 0},
    [DB_SECRETS] = {"secrets", secret_row_columns, sizeof(struct secret_row), NEWER, 0},
};

#define ACCOUNTED(table)                                                                                                                             \
    "ALTER TABLE " table " ADD COLUMN parent_kind INTEGER NOT NULL DEFAULT 0; ALTER TABLE " table                                                    \
    " ADD COLUMN parent INTEGER NOT NULL DEFAULT 0; ALTER TABLE " table " ADD COLUMN delta INTEGER NOT NULL DEFAULT -1;"

#define OF_A_NODE(table) "ALTER TABLE " table " ADD COLUMN node INTEGER NOT NULL DEFAULT 0;"

/* migrations[n] leads from version n to n + 1. Never edit one that was released; append. */
static const char *const migrations[] = {
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
    "CREATE TABLE sandboxes(id INTEGER PRIMARY KEY, owner INTEGER, gid INTEGER, mode INTEGER, created INTEGER, changed INTEGER,"
    " state INTEGER, desired INTEGER, object INTEGER, next_object INTEGER, generation INTEGER, memory INTEGER, vcpus INTEGER,"
    " disk INTEGER, wake_manual INTEGER, slot INTEGER, touched INTEGER, running_since INTEGER, name TEXT, origin TEXT, want TEXT,"
    " labels TEXT, error TEXT) STRICT;"
    "CREATE TABLE templates(id INTEGER PRIMARY KEY, owner INTEGER, gid INTEGER, created INTEGER, state INTEGER, size INTEGER,"
    " deleted INTEGER, name TEXT, share TEXT, error TEXT) STRICT;"
    "CREATE TABLE snapshots(id INTEGER PRIMARY KEY, sandbox INTEGER, owner INTEGER, gid INTEGER, mode INTEGER, created INTEGER,"
    " state INTEGER, consistent INTEGER, automatic INTEGER, size INTEGER, name TEXT, sandbox_name TEXT, error TEXT) STRICT;"
    "CREATE TABLE jobs(id INTEGER PRIMARY KEY, sandbox INTEGER, created INTEGER, started INTEGER, state INTEGER, code INTEGER,"
    " timeout INTEGER, object INTEGER, out_mark INTEGER, err_mark INTEGER, out_base INTEGER, err_base INTEGER, name TEXT, user TEXT,"
    " tty TEXT, cwd TEXT, env TEXT) STRICT;"
    "CREATE TABLE events(id INTEGER PRIMARY KEY, owner INTEGER, gid INTEGER, mode INTEGER, line TEXT) STRICT;",
    "ALTER TABLE sandboxes ADD COLUMN base_kind INTEGER; ALTER TABLE sandboxes ADD COLUMN base INTEGER;"
    "ALTER TABLE sandboxes ADD COLUMN idle TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE snapshots ADD COLUMN memory INTEGER; ALTER TABLE snapshots ADD COLUMN vcpus INTEGER;"
    "ALTER TABLE snapshots ADD COLUMN base_kind INTEGER; ALTER TABLE snapshots ADD COLUMN base INTEGER;"
    "ALTER TABLE snapshots ADD COLUMN changed_bytes INTEGER; ALTER TABLE jobs ADD COLUMN guest_id INTEGER;"
    "CREATE TABLE heads(id INTEGER PRIMARY KEY, template INTEGER, memory INTEGER, vcpus INTEGER, disk INTEGER, created INTEGER,"
    " accel INTEGER) STRICT;",
    "ALTER TABLE sandboxes ADD COLUMN keep TEXT NOT NULL DEFAULT ''; ALTER TABLE snapshots ADD COLUMN taken INTEGER;",
    ACCOUNTED("sandboxes") ACCOUNTED("snapshots") ACCOUNTED("templates"),
    "ALTER TABLE snapshots ADD COLUMN generation INTEGER NOT NULL DEFAULT -1;", /* of its sandbox; -1: not known */
    "ALTER TABLE sandboxes ADD COLUMN egress TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE sandboxes ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0; ALTER TABLE snapshots ADD COLUMN durable INTEGER NOT NULL DEFAULT 0;"
    "CREATE TABLE artifacts(id INTEGER PRIMARY KEY, kind INTEGER, object INTEGER, file INTEGER, state INTEGER, size INTEGER, stored INTEGER,"
    " created INTEGER, tenant TEXT, name TEXT, base TEXT) STRICT;",
    OF_A_NODE("sandboxes") OF_A_NODE("templates") OF_A_NODE("snapshots") OF_A_NODE("jobs") OF_A_NODE("heads") OF_A_NODE(
        "artifacts") "ALTER TABLE sandboxes ADD COLUMN locked INTEGER NOT NULL DEFAULT 0; ALTER TABLE snapshots ADD COLUMN accel INTEGER NOT NULL "
                     "DEFAULT 0;"
                     "ALTER TABLE jobs ADD COLUMN out_end INTEGER NOT NULL DEFAULT 0; ALTER TABLE jobs ADD COLUMN err_end INTEGER NOT NULL DEFAULT 0;"
                     "CREATE TABLE nodes(id INTEGER PRIMARY KEY, seen INTEGER, started INTEGER, dead INTEGER, accel INTEGER, cpus INTEGER, memory "
                     "INTEGER,"
                     " guest_memory INTEGER, pool_size INTEGER, pool_free INTEGER, name TEXT, version TEXT, qemu TEXT, kernel TEXT, cpu TEXT) STRICT;"
                     "CREATE TABLE changes(seq INTEGER PRIMARY KEY AUTOINCREMENT, node INTEGER NOT NULL, tab INTEGER NOT NULL, row INTEGER NOT NULL) "
                     "STRICT;",
    "CREATE TABLE tenants(id INTEGER PRIMARY KEY, egress TEXT NOT NULL) STRICT;",
    "CREATE TABLE secrets(id INTEGER PRIMARY KEY, sandbox INTEGER NOT NULL REFERENCES sandboxes(id) ON DELETE CASCADE, number INTEGER NOT NULL,"
    " removed INTEGER NOT NULL, key TEXT NOT NULL, packed TEXT NOT NULL) STRICT; CREATE INDEX secrets_of ON secrets(sandbox);"
    "ALTER TABLE nodes ADD COLUMN key TEXT NOT NULL DEFAULT '';",
};
#define VERSION ((int)(sizeof migrations / sizeof migrations[0]))

struct db {
    sqlite3 *sql;
    sqlite3 *checkpointer; /* used by db_barrier only, on its thread: a checkpoint syncs, and the loop must not wait for that */
    char *wal;
    int64_t node;
    int64_t told, version; /* the last change that db_feed looked at, and sqlite's count of others' commits then */
    int depth;             /* of nested transactions */
    int failed;            /* first failure inside the transaction */
    sqlite3_stmt *save[DB_TABLE_COUNT], *delete[DB_TABLE_COUNT], *last[DB_TABLE_COUNT], *tell, *begin, *commit, *data_version, *changed;
};

static int fail(struct db *db, struct err *e, const char *what)
{
    int code = sqlite3_errcode(db->sql) == SQLITE_FULL ? ENOSPC : EIO;
    return err_set(e, code, "%s in the database: %s", what, sqlite3_errmsg(db->sql));
}

static int run(struct db *db, const char *sql, struct err *e)
{
    return sqlite3_exec(db->sql, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : fail(db, e, sql);
}

static int user_version(struct db *db, int *out, struct err *e)
{
    sqlite3_stmt *st;
    if (sqlite3_prepare_v2(db->sql, "PRAGMA user_version", -1, &st, NULL) != SQLITE_OK)
        return fail(db, e, "read the version");
    int ok = sqlite3_step(st) == SQLITE_ROW;
    *out = sqlite3_column_int(st, 0);
    sqlite3_finalize(st);
    return ok ? 0 : fail(db, e, "read the version");
}

static int migrate(struct db *db, struct err *e)
{
    int version = 0, rc = user_version(db, &version, e);
    if (rc < 0)
        return rc;
    if (version > VERSION)
        return err_set(e, EPROTO, "the database has version %d and this space-hostd knows %d: install the newer build again", version, VERSION);
    for (; version < VERSION; version++) {
        char done[64];
        int now = 0;
        snprintf(done, sizeof done, "PRAGMA user_version = %d; COMMIT", version + 1);
        if ((rc = run(db, "BEGIN IMMEDIATE", e)) < 0 || (rc = user_version(db, &now, e)) < 0)
            return rc;
        if (now > version) { /* another node was faster */
            run(db, "COMMIT", NULL);
            continue;
        }
        if ((rc = run(db, migrations[version], e)) < 0 || (rc = run(db, done, e)) < 0)
            return rc;
    }
    return 0;
}

/* What was there before there were nodes. */
static int claim(struct db *db, struct err *e)
{
    static const enum db_table of_a_node[] = {DB_SANDBOXES, DB_TEMPLATES, DB_SNAPSHOTS, DB_JOBS, DB_HEADS, DB_ARTIFACTS};
    int rc = 0;
    for (size_t i = 0; i < sizeof of_a_node / sizeof of_a_node[0] && rc == 0; i++) {
        char sql[96];
        snprintf(sql, sizeof sql, "UPDATE %s SET node = %lld WHERE node = 0", tables[of_a_node[i]].name, (long long)db->node);
        rc = run(db, sql, e);
    }
    return rc;
}

static int prepare(struct db *db, const char *sql, sqlite3_stmt **out, struct err *e)
{
    if (sqlite3_prepare_v3(db->sql, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL) != SQLITE_OK)
        return fail(db, e, sql);
    return 0;
}

static int prepare_table(struct db *db, enum db_table t, struct err *e)
{
    char sql[4096];
    size_t pos = 0;
    int n = 0;
    str_append(sql, sizeof sql, &pos, "INSERT INTO %s(", tables[t].name);
    for (const struct column *c = tables[t].columns; c->name; c++, n++)
        str_append(sql, sizeof sql, &pos, "%s%s", n ? "," : "", c->name);
    str_append(sql, sizeof sql, &pos, ") VALUES(");
    for (int i = 0; i < n; i++)
        str_append(sql, sizeof sql, &pos, "%s?", i ? "," : "");
    str_append(sql, sizeof sql, &pos, ") ON CONFLICT(id) DO UPDATE SET ");
    for (const struct column *c = tables[t].columns + 1; c->name; c++)
        str_append(sql, sizeof sql, &pos, "%s%s = excluded.%s", c == tables[t].columns + 1 ? "" : ",", c->name, c->name);
    if (tables[t].flags & OWNED)
        str_append(sql, sizeof sql, &pos, " WHERE %s.node = excluded.node", tables[t].name);
    if (tables[t].flags & NEWER)
        str_append(sql, sizeof sql, &pos, " WHERE excluded.number > %s.number", tables[t].name);
    int rc = prepare(db, sql, &db->save[t], e);
    if (rc < 0)
        return rc;
    snprintf(sql, sizeof sql, "DELETE FROM %s WHERE id = ?1 %s", tables[t].name, tables[t].flags & OWNED ? "AND node = ?2" : "");
    rc = prepare(db, sql, &db->delete[t], e);
    if (rc < 0)
        return rc;
    snprintf(sql, sizeof sql, "SELECT max(id) FROM %s", tables[t].name);
    return prepare(db, sql, &db->last[t], e);
}

static int prepare_others(struct db *db, struct err *e)
{
    int rc = prepare(db, "INSERT INTO changes(node, tab, row) VALUES(?, ?, ?)", &db->tell, e);
    if (rc == 0)
        rc = prepare(db, "BEGIN IMMEDIATE", &db->begin, e);
    if (rc == 0)
        rc = prepare(db, "COMMIT", &db->commit, e);
    if (rc == 0)
        rc = prepare(db, "PRAGMA data_version", &db->data_version, e);
    return rc < 0 ? rc : prepare(db, "SELECT seq, node, tab, row FROM changes WHERE seq > ? ORDER BY seq", &db->changed, e);
}

/* The only value of the only row; 0 where there is none. */
static int64_t one_number(sqlite3_stmt *st)
{
    int64_t n = sqlite3_step(st) == SQLITE_ROW ? sqlite3_column_int64(st, 0) : 0;
    sqlite3_reset(st);
    return n;
}

static int start_feed(struct db *db, struct err *e)
{
    sqlite3_stmt *st;
    int rc = prepare(db, "SELECT max(seq) FROM changes", &st, e);
    if (rc < 0)
        return rc;
    db->version = -1;
    db->told = one_number(st);
    sqlite3_finalize(st);
    return 0;
}

int db_open(const char *path, int64_t node, struct db **out, struct err *e)
{
    struct db *db = calloc(1, sizeof *db);
    int rc = 0;
    if (!db || asprintf(&db->wal, "%s-wal", path) < 0) {
        free(db);
        return err_set(e, ENOMEM, "open the database: out of memory");
    }
    db->node = node;
    if (sqlite3_open_v2(path, &db->sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        rc = err_set(e, EIO, "open the database %s: %s", path, sqlite3_errmsg(db->sql));
    sqlite3_busy_timeout(db->sql, BUSY_MSEC);
    if (rc == 0)
        rc = run(db,
                 "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0; PRAGMA temp_store=MEMORY; PRAGMA foreign_keys=ON",
                 e);
    if (rc == 0)
        rc = migrate(db, e);
    if (rc == 0 && sqlite3_open_v2(path, &db->checkpointer, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        rc = err_set(e, EIO, "open the database %s again: %s", path, sqlite3_errmsg(db->checkpointer));
    for (int t = 0; rc == 0 && t < DB_TABLE_COUNT; t++)
        rc = prepare_table(db, (enum db_table)t, e);
    if (rc == 0)
        rc = prepare_others(db, e);
    if (rc == 0)
        rc = claim(db, e);
    if (rc == 0)
        rc = start_feed(db, e);
    if (rc < 0) {
        db_close(db);
        return rc;
    }
    *out = db;
    return 0;
}

void db_close(struct db *db)
{
    if (!db)
        return;
    for (int t = 0; t < DB_TABLE_COUNT; t++) {
        sqlite3_finalize(db->save[t]);
        sqlite3_finalize(db->delete[t]);
        sqlite3_finalize(db->last[t]);
    }
    sqlite3_finalize(db->tell);
    sqlite3_finalize(db->begin);
    sqlite3_finalize(db->commit);
    sqlite3_finalize(db->data_version);
    sqlite3_finalize(db->changed);
    sqlite3_close(db->checkpointer);
    sqlite3_close(db->sql);
    free(db->wal);
    free(db);
}

static int finish(struct db *db, sqlite3_stmt *st, struct err *e, const char *what)
{
    int ok = sqlite3_step(st) == SQLITE_DONE;
    int rc = ok ? 0 : fail(db, e, what);
    sqlite3_reset(st);
    if (rc < 0 && db->depth)
        db->failed = rc;
    return rc;
}

/* Others are told of it, in the same transaction. */
static int tell(struct db *db, enum db_table table, int64_t id, struct err *e)
{
    if (!(tables[table].flags & TOLD))
        return 0;
    sqlite3_bind_int64(db->tell, 1, db->node);
    sqlite3_bind_int64(db->tell, 2, table);
    sqlite3_bind_int64(db->tell, 3, id);
    int rc = finish(db, db->tell, e, "tell other nodes");
    int64_t seq = sqlite3_last_insert_rowid(db->sql);
    if (rc < 0 || seq % CHANGES_PRUNE)
        return rc;
    char sql[80];
    snprintf(sql, sizeof sql, "DELETE FROM changes WHERE seq < %lld", (long long)(seq - CHANGES_KEPT));
    return run(db, sql, e);
}

/* A transaction around one statement and what tells of it, unless the caller has one. */
static void begin_one(struct db *db, enum db_table table)
{
    if (tables[table].flags & TOLD)
        db_begin(db);
}

static int end_one(struct db *db, enum db_table table, int rc, struct err *e)
{
    struct err ignored = {0};
    if (!(tables[table].flags & TOLD))
        return rc;
    int rc2 = db_commit(db, rc < 0 ? &ignored : e);
    return rc < 0 ? rc : rc2;
}

static void bind_row(sqlite3_stmt *st, const struct column *columns, const char *row)
{
    int i = 1;
    for (const struct column *c = columns; c->name; c++, i++) {
        const char *field = row + c->offset;
        if (c->size)
            sqlite3_bind_text(st, i, field, -1, SQLITE_STATIC);
        else
            sqlite3_bind_int64(st, i, *(const int64_t *)(const void *)field);
    }
}

int db_save(struct db *db, enum db_table table, const void *row, struct err *e)
{
    return db_save_for(db, table, row, db->node, e);
}

int db_save_for(struct db *db, enum db_table table, const void *row, int64_t node, struct err *e)
{
    const struct table *t = &tables[table];
    bool owned = t->flags & OWNED;
    if (owned && *(const int64_t *)(const void *)((const char *)row + t->node) != node)
        return err_set(e, ESTALE, "save in the database: the row belongs to another node");
    begin_one(db, table);
    bind_row(db->save[table], t->columns, row);
    int rc = finish(db, db->save[table], e, "save");
    if (rc == 0 && owned && sqlite3_changes(db->sql) == 0)
        rc = db->failed = err_set(e, ESTALE, "save in the database: the row belongs to another node by now");
    if (rc == 0)
        rc = tell(db, table, *(const int64_t *)row, e);
    return end_one(db, table, rc, e);
}

int db_delete(struct db *db, enum db_table table, int64_t id, struct err *e)
{
    begin_one(db, table);
    sqlite3_bind_int64(db->delete[table], 1, id);
    if (tables[table].flags & OWNED)
        sqlite3_bind_int64(db->delete[table], 2, db->node);
    int rc = finish(db, db->delete[table], e, "delete");
    if (rc == 0 && sqlite3_changes(db->sql))
        rc = tell(db, table, id, e);
    return end_one(db, table, rc, e);
}

int db_take(struct db *db, enum db_table table, int64_t id, int64_t from, int64_t to, struct err *e)
{
    char sql[128];
    snprintf(sql, sizeof sql, "UPDATE %s SET node = %lld WHERE id = %lld AND node = %lld", tables[table].name, (long long)to, (long long)id,
             (long long)from);
    int rc = run(db, sql, e);
    if (rc == 0 && sqlite3_changes(db->sql) == 0)
        rc = err_set(e, ESTALE, "it belongs to another node by now");
    if (rc == 0)
        rc = tell(db, table, id, e);
    if (rc < 0)
        db->failed = rc;
    return rc;
}

int db_delete_below(struct db *db, enum db_table table, int64_t id, struct err *e)
{
    char sql[96];
    snprintf(sql, sizeof sql, "DELETE FROM %s WHERE id < %lld", tables[table].name, (long long)id);
    return run(db, sql, e);
}

static void fill(sqlite3_stmt *st, const struct column *columns, char *row)
{
    int i = 0;
    for (const struct column *c = columns; c->name; c++, i++) {
        if (c->size) {
            const char *text = (const char *)sqlite3_column_text(st, i);
            str_copy(row + c->offset, c->size, text ? text : "");
        } else {
            *(int64_t *)(void *)(row + c->offset) = sqlite3_column_int64(st, i);
        }
    }
}

/* Rows for which `where` (with one number) holds. */
static int load_where(struct db *db, enum db_table table, const char *where, int64_t value, void (*each)(void *user, const void *row), void *user,
                      struct err *e)
{
    char sql[4096];
    size_t pos = 0;
    str_append(sql, sizeof sql, &pos, "SELECT ");
    for (const struct column *c = tables[table].columns; c->name; c++)
        str_append(sql, sizeof sql, &pos, "%s%s", c == tables[table].columns ? "" : ",", c->name);
    str_append(sql, sizeof sql, &pos, " FROM %s WHERE %s ORDER BY id", tables[table].name, where);
    AUTO_FREE char *row = calloc(1, tables[table].row_size);
    sqlite3_stmt *st;
    int rc = prepare(db, sql, &st, e);
    if (rc < 0 || !row)
        return rc < 0 ? rc : err_set(e, ENOMEM, "load %s: out of memory", tables[table].name);
    sqlite3_bind_int64(st, 1, value);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        fill(st, tables[table].columns, row);
        each(user, row);
    }
    rc = rc == SQLITE_DONE ? 0 : fail(db, e, "load");
    sqlite3_finalize(st);
    return rc;
}

int db_load(struct db *db, enum db_table table, void (*each)(void *user, const void *row), void *user, struct err *e)
{
    return load_where(db, table, "id >= ?", INT64_MIN, each, user, e);
}

int db_load_above(struct db *db, enum db_table table, int64_t id, void (*each)(void *user, const void *row), void *user, struct err *e)
{
    return load_where(db, table, "id > ?", id, each, user, e);
}

int db_load_by(struct db *db, enum db_table table, const char *column, int64_t value, void (*each)(void *user, const void *row), void *user,
               struct err *e)
{
    char where[80];
    snprintf(where, sizeof where, "%.60s = ?", column);
    return load_where(db, table, where, value, each, user, e);
}

int64_t db_last(struct db *db, enum db_table table)
{
    return one_number(db->last[table]);
}

/* ---- what others did ---- */

struct change {
    enum db_table table;
    int64_t id;
};

struct changes {
    struct change *list;
    size_t count, room;
    int64_t last; /* seq */
    bool gap;     /* what came right after the last ones told is not there any more */
};

static void add_change(struct changes *c, enum db_table table, int64_t id)
{
    for (size_t i = c->count; i-- > 0;)
        if (c->list[i].table == table && c->list[i].id == id)
            return; /* it is told as it is now */
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 16;
        c->list = realloc(c->list, c->room * sizeof *c->list);
        if (!c->list)
            abort();
    }
    c->list[c->count++] = (struct change){table, id};
}

static int read_changes(struct db *db, struct changes *c, struct err *e)
{
    sqlite3_stmt *st = db->changed;
    int rc;
    sqlite3_bind_int64(st, 1, db->told);
    c->last = db->told;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        int64_t table = sqlite3_column_int64(st, 2), seq = sqlite3_column_int64(st, 0);
        c->gap = c->gap || (c->last == db->told && seq != db->told + 1);
        c->last = seq;
        if (sqlite3_column_int64(st, 1) != db->node && table >= 0 && table < DB_TABLE_COUNT)
            add_change(c, (enum db_table)table, sqlite3_column_int64(st, 3));
    }
    rc = rc == SQLITE_DONE ? 0 : fail(db, e, "read what other nodes did");
    sqlite3_reset(st);
    return rc;
}

struct telling {
    void (*each)(void *user, enum db_table table, int64_t id, const void *row);
    void *user;
    enum db_table table;
    bool there;
};

static void tell_row(void *user, const void *row)
{
    struct telling *t = user;
    t->there = true;
    t->each(t->user, t->table, *(const int64_t *)row, row);
}

int db_feed(struct db *db, void (*each)(void *user, enum db_table table, int64_t id, const void *row), void *user, struct err *e)
{
    int64_t version = one_number(db->data_version);
    struct changes c = {0};
    if (version == db->version)
        return 0;
    int rc = read_changes(db, &c, e);
    if (rc == 0 && c.gap)
        rc = err_set(e, EOVERFLOW, "other nodes did more than is remembered");
    if (rc == 0) {
        db->version = version;
        db->told = c.last;
    }
    for (size_t i = 0; i < c.count && rc == 0; i++) {
        struct telling t = {each, user, c.list[i].table, false};
        rc = load_where(db, t.table, "id = ?", c.list[i].id, tell_row, &t, e);
        if (rc == 0 && !t.there)
            each(user, t.table, c.list[i].id, NULL);
    }
    free(c.list);
    return rc;
}

/* ---- transactions ---- */

void db_begin(struct db *db)
{
    if (db->depth++ == 0) {
        db->failed = 0;
        int rc = sqlite3_step(db->begin);
        sqlite3_reset(db->begin);
        if (rc != SQLITE_DONE)
            db->failed = -EIO;
    }
}

int db_commit(struct db *db, struct err *e)
{
    if (--db->depth > 0)
        return 0;
    if (db->failed) {
        sqlite3_exec(db->sql, "ROLLBACK", NULL, NULL, NULL);
        return err_set(e, -db->failed, "the database refused a transaction: %s",
                       db->failed == -ESTALE ? "a row belongs to another node" : sqlite3_errmsg(db->sql));
    }
    int rc = finish(db, db->commit, e, "commit");
    if (rc < 0)
        sqlite3_exec(db->sql, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

int db_meta_set(struct db *db, const char *key, const char *value, struct err *e)
{
    sqlite3_stmt *st;
    int rc = prepare(db, "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)", &st, e);
    if (rc < 0)
        return rc;
    sqlite3_bind_text(st, 1, key, -1, SQLITE_STATIC);
    sqlite3_bind_text(st, 2, value, -1, SQLITE_STATIC);
    rc = finish(db, st, e, "save a setting");
    sqlite3_finalize(st);
    return rc;
}

int db_meta(struct db *db, const char *key, const char *fallback, char *out, size_t size, struct err *e)
{
    sqlite3_stmt *st;
    int rc = prepare(db, "SELECT value FROM meta WHERE key = ?", &st, e);
    if (rc < 0)
        return rc;
    sqlite3_bind_text(st, 1, key, -1, SQLITE_STATIC);
    int step = sqlite3_step(st);
    if (step == SQLITE_ROW)
        str_copy(out, size, (const char *)sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
    if (step == SQLITE_ROW)
        return 0;
    if (step != SQLITE_DONE)
        return fail(db, e, "read a setting");
    str_copy(out, size, fallback);
    return db_meta_set(db, key, fallback, e);
}

int db_barrier(struct db *db)
{
    AUTO_CLOSE int fd = open(db->wal, O_RDWR | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fdatasync(fd) < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size > CHECKPOINT_BYTES)
        sqlite3_wal_checkpoint_v2(db->checkpointer, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    return 0;
}
