// SPDX-License-Identifier: Apache-2.0
// The database behind one small header: tables of flat rows, saved and deleted by id, loaded at the start. space-hostd is the only writer.
// sqlite in WAL mode with synchronous=NORMAL: a killed process loses nothing; after a power failure the newest moments may be missing, so
// db_barrier lets an operation wait until what it depends on is on the disk.
#ifndef SPACE_HOSTD_DB_H
#define SPACE_HOSTD_DB_H

#include "base/err.h"

#include <stdint.h>

struct db;

#define IDLE_TEXT_MAX 129
#define EGRESS_TEXT_MAX 16385

/* Columns: INT(name) is an int64_t, TEXT(name, size) a NUL-ended array. The first is the primary key `id`. */
/* What the object holds of its own (snapshot/account.h); delta -1: not measured yet. */
#define DB_ACCOUNT_COLUMNS(INT) INT(parent_kind) INT(parent) INT(delta)

#define DB_SANDBOX_COLUMNS(INT, TEXT)                                                              \
    INT(id)                                                                                        \
    INT(owner) INT(gid) INT(mode) INT(created) INT(changed) INT(state) INT(desired) INT(object)    \
    INT(next_object) INT(generation) INT(memory) INT(vcpus) INT(disk) INT(wake_manual) INT(slot)   \
    INT(touched) INT(running_since) INT(base_kind) INT(base) INT(suspended) DB_ACCOUNT_COLUMNS(INT) TEXT(name, 65) TEXT(origin, 64) TEXT(want, 64)                 \
    TEXT(labels, 4097) TEXT(idle, IDLE_TEXT_MAX) TEXT(keep, 512) TEXT(egress, EGRESS_TEXT_MAX) TEXT(error, ERR_MAX)

#define DB_TEMPLATE_COLUMNS(INT, TEXT)                                                             \
    INT(id) INT(owner) INT(gid) INT(created) INT(state) INT(size) INT(deleted) DB_ACCOUNT_COLUMNS(INT) TEXT(name, 65)      \
    TEXT(share, 65) TEXT(error, ERR_MAX)

#define DB_SNAPSHOT_COLUMNS(INT, TEXT)                                                             \
    INT(id) INT(sandbox) INT(owner) INT(gid) INT(mode) INT(created) INT(state) INT(consistent)     \
    INT(automatic) INT(size) INT(memory) INT(vcpus) INT(base_kind) INT(base) INT(changed_bytes)    \
    INT(taken) INT(generation) INT(durable) DB_ACCOUNT_COLUMNS(INT)                                                                     \
    TEXT(name, 65) TEXT(sandbox_name, 65) TEXT(error, ERR_MAX)

#define DB_JOB_COLUMNS(INT, TEXT)                                                                  \
    INT(id) INT(sandbox) INT(created) INT(started) INT(state) INT(code) INT(timeout) INT(object)   \
    INT(out_mark) INT(err_mark) INT(out_base) INT(err_base) INT(guest_id) TEXT(name, 65) TEXT(user, 65)          \
    TEXT(tty, 16) TEXT(cwd, 1025) TEXT(env, 16385)

#define DB_HEAD_COLUMNS(INT, TEXT)                                                                 \
    INT(id) INT(template) INT(memory) INT(vcpus) INT(disk) INT(created) INT(accel)

/* A file of a snapshot or of a base in the object store (hostd/volume). */
#define DB_ARTIFACT_COLUMNS(INT, TEXT)                                                             \
    INT(id) INT(kind) INT(object) INT(file) INT(state) INT(size) INT(stored) INT(created)          \
    TEXT(tenant, 65) TEXT(name, 33) TEXT(base, 33)

#define DB_EVENT_COLUMNS(INT, TEXT)                                                                \
    INT(id) INT(owner) INT(gid) INT(mode) TEXT(line, 900)

#define DB_INT(name)        int64_t name;
#define DB_TEXT(name, size) char name[size];
struct sandbox_row {
    DB_SANDBOX_COLUMNS(DB_INT, DB_TEXT)
};
struct template_row {
    DB_TEMPLATE_COLUMNS(DB_INT, DB_TEXT)
};
struct snapshot_row {
    DB_SNAPSHOT_COLUMNS(DB_INT, DB_TEXT)
};
struct job_row {
    DB_JOB_COLUMNS(DB_INT, DB_TEXT)
};
struct head_row {
    DB_HEAD_COLUMNS(DB_INT, DB_TEXT)
};
struct artifact_row {
    DB_ARTIFACT_COLUMNS(DB_INT, DB_TEXT)
};
struct event_row {
    DB_EVENT_COLUMNS(DB_INT, DB_TEXT)
};
#undef DB_INT
#undef DB_TEXT

enum db_table { DB_SANDBOXES, DB_TEMPLATES, DB_SNAPSHOTS, DB_JOBS, DB_EVENTS, DB_HEADS, DB_ARTIFACTS, DB_TABLE_COUNT };

/* Opens or creates PATH, migrates to the current version, checks integrity of the schema. A newer version is refused (-EPROTO). */
int db_open(const char *path, struct db **out, struct err *e);
void db_close(struct db *db);

/* Inserts or replaces the row (a struct of that table). 0 or -EIO, -ENOSPC with the sentence. */
int db_save(struct db *db, enum db_table table, const void *row, struct err *e);

/* Missing is success. */
int db_delete(struct db *db, enum db_table table, int64_t id, struct err *e);

/* Deletes rows with id below `id`. */
int db_delete_below(struct db *db, enum db_table table, int64_t id, struct err *e);

/* Calls `each` with every row, by id ascending; the row is borrowed. Not for use inside `each`. */
int db_load(struct db *db, enum db_table table, void (*each)(void *user, const void *row), void *user, struct err *e);

/* Groups what follows until db_commit into one transaction; nests. */
void db_begin(struct db *db);
int db_commit(struct db *db, struct err *e);

/* A persistent setting; `fallback` is stored when it was not there. */
int db_meta(struct db *db, const char *key, const char *fallback, char *out, size_t size, struct err *e);
int db_meta_set(struct db *db, const char *key, const char *value, struct err *e);

/* fdatasyncs the write-ahead log and folds a long one into the database. Blocking; from any thread, one at a time. 0 or -errno. */
int db_barrier(struct db *db);

#endif
