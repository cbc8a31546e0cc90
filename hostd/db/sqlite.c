// SPDX-License-Identifier: Apache-2.0
// The database on sqlite: see db.h. Statements are made from the column tables, once.
#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/db/db.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The log is folded into the database beyond this size. */
#define CHECKPOINT_BYTES (4 << 20)

struct column {
    const char *name;
    size_t offset, size; /* size 0: int64_t */
};

#define ROW_COLUMNS(rowtype, list)                                                                 \
    static const struct column rowtype##_columns[] = {list(ROW_INT, ROW_TEXT){0}};
#define ROW_INT(name)        {#name, offsetof(struct ROW, name), 0},
#define ROW_TEXT(name, size) {#name, offsetof(struct ROW, name), size},
#define ROW sandbox_row
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

static const struct table {
    const char *name;
    const struct column *columns;
    size_t row_size;
} tables[DB_TABLE_COUNT] = {
    [DB_SANDBOXES] = {"sandboxes", sandbox_row_columns, sizeof(struct sandbox_row)},
    [DB_TEMPLATES] = {"templates", template_row_columns, sizeof(struct template_row)},
    [DB_SNAPSHOTS] = {"snapshots", snapshot_row_columns, sizeof(struct snapshot_row)},
    [DB_JOBS] = {"jobs", job_row_columns, sizeof(struct job_row)},
    [DB_EVENTS] = {"events", event_row_columns, sizeof(struct event_row)},
    [DB_HEADS] = {"heads", head_row_columns, sizeof(struct head_row)},
    [DB_ARTIFACTS] = {"artifacts", artifact_row_columns, sizeof(struct artifact_row)},
};

#define ACCOUNTED(table)                                                                           \
    "ALTER TABLE " table " ADD COLUMN parent_kind INTEGER NOT NULL DEFAULT 0; ALTER TABLE " table  \
    " ADD COLUMN parent INTEGER NOT NULL DEFAULT 0; ALTER TABLE " table " ADD COLUMN delta INTEGER NOT NULL DEFAULT -1;"

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
};
#define VERSION ((int)(sizeof migrations / sizeof migrations[0]))

struct db {
    sqlite3 *sql;
    sqlite3 *checkpointer; /* used by db_barrier only, on its thread: a checkpoint syncs, and the loop must not wait for that */
    char *wal;
    int depth;  /* of nested transactions */
    int failed; /* first failure inside the transaction */
    sqlite3_stmt *save[DB_TABLE_COUNT], *delete[DB_TABLE_COUNT];
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
        return err_set(e, EPROTO, "the database has version %d and this space-hostd knows %d: install the newer build again",
                       version, VERSION);
    for (; version < VERSION; version++) {
        char done[64];
        snprintf(done, sizeof done, "PRAGMA user_version = %d; COMMIT", version + 1);
        if ((rc = run(db, "BEGIN", e)) < 0 || (rc = run(db, migrations[version], e)) < 0 || (rc = run(db, done, e)) < 0)
            return rc;
    }
    return 0;
}

static int prepare(struct db *db, const char *sql, sqlite3_stmt **out, struct err *e)
{
    if (sqlite3_prepare_v3(db->sql, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL) != SQLITE_OK)
        return fail(db, e, sql);
    return 0;
}

static int prepare_table(struct db *db, enum db_table t, struct err *e)
{
    char sql[2048];
    size_t pos = 0;
    int n = 0;
    str_append(sql, sizeof sql, &pos, "INSERT OR REPLACE INTO %s(", tables[t].name);
    for (const struct column *c = tables[t].columns; c->name; c++, n++)
        str_append(sql, sizeof sql, &pos, "%s%s", n ? "," : "", c->name);
    str_append(sql, sizeof sql, &pos, ") VALUES(");
    for (int i = 0; i < n; i++)
        str_append(sql, sizeof sql, &pos, "%s?", i ? "," : "");
    str_append(sql, sizeof sql, &pos, ")");
    int rc = prepare(db, sql, &db->save[t], e);
    if (rc < 0)
        return rc;
    snprintf(sql, sizeof sql, "DELETE FROM %s WHERE id = ?", tables[t].name);
    return prepare(db, sql, &db->delete[t], e);
}

int db_open(const char *path, struct db **out, struct err *e)
{
    struct db *db = calloc(1, sizeof *db);
    int rc = 0;
    if (!db || asprintf(&db->wal, "%s-wal", path) < 0) {
        free(db);
        return err_set(e, ENOMEM, "open the database: out of memory");
    }
    if (sqlite3_open_v2(path, &db->sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        rc = err_set(e, EIO, "open the database %s: %s", path, sqlite3_errmsg(db->sql));
    if (rc == 0)
        rc = run(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0; PRAGMA temp_store=MEMORY; PRAGMA foreign_keys=ON", e);
    if (rc == 0)
        rc = migrate(db, e);
    if (rc == 0 && sqlite3_open_v2(path, &db->checkpointer, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        rc = err_set(e, EIO, "open the database %s again: %s", path, sqlite3_errmsg(db->checkpointer));
    for (int t = 0; rc == 0 && t < DB_TABLE_COUNT; t++)
        rc = prepare_table(db, (enum db_table)t, e);
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
    }
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

int db_save(struct db *db, enum db_table table, const void *row, struct err *e)
{
    sqlite3_stmt *st = db->save[table];
    int i = 1;
    for (const struct column *c = tables[table].columns; c->name; c++, i++) {
        const char *field = (const char *)row + c->offset;
        if (c->size)
            sqlite3_bind_text(st, i, field, -1, SQLITE_STATIC);
        else
            sqlite3_bind_int64(st, i, *(const int64_t *)(const void *)field);
    }
    return finish(db, st, e, "save");
}

int db_delete(struct db *db, enum db_table table, int64_t id, struct err *e)
{
    sqlite3_bind_int64(db->delete[table], 1, id);
    return finish(db, db->delete[table], e, "delete");
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

int db_load(struct db *db, enum db_table table, void (*each)(void *user, const void *row), void *user, struct err *e)
{
    char sql[2048];
    size_t pos = 0;
    str_append(sql, sizeof sql, &pos, "SELECT ");
    for (const struct column *c = tables[table].columns; c->name; c++)
        str_append(sql, sizeof sql, &pos, "%s%s", c == tables[table].columns ? "" : ",", c->name);
    str_append(sql, sizeof sql, &pos, " FROM %s ORDER BY id", tables[table].name);
    AUTO_FREE char *row = calloc(1, tables[table].row_size);
    sqlite3_stmt *st;
    int rc = prepare(db, sql, &st, e);
    if (rc < 0 || !row)
        return rc < 0 ? rc : err_set(e, ENOMEM, "load %s: out of memory", tables[table].name);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        fill(st, tables[table].columns, row);
        each(user, row);
    }
    rc = rc == SQLITE_DONE ? 0 : fail(db, e, "load");
    sqlite3_finalize(st);
    return rc;
}

void db_begin(struct db *db)
{
    if (db->depth++ == 0) {
        db->failed = 0;
        if (sqlite3_exec(db->sql, "BEGIN", NULL, NULL, NULL) != SQLITE_OK)
            db->failed = -EIO;
    }
}

int db_commit(struct db *db, struct err *e)
{
    if (--db->depth > 0)
        return 0;
    if (db->failed) {
        sqlite3_exec(db->sql, "ROLLBACK", NULL, NULL, NULL);
        return err_set(e, -db->failed, "the database refused a transaction: %s", sqlite3_errmsg(db->sql));
    }
    int rc = run(db, "COMMIT", e);
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
