// SPDX-License-Identifier: Apache-2.0
// The database behind one small header: tables of flat rows, saved and deleted by id, loaded at the start. The space-hostd of each node has all
// rows in memory, writes those that belong to its node, and is told of what others wrote (db_feed).
//
// Ownership. A row of sandboxes, templates and snapshots has the id of the node that it belongs to, and only that one saves or deletes it: a save is refused
// when memory or the database says otherwise. From db_begin to db_commit nobody else writes, and once db_feed was called inside, memory is all there is: so what is
// looked at, decided and saved there happened at one instant for all nodes. That is how a row changes hands (db_take), and how a name is given once.
//
// sqlite in WAL mode with synchronous=NORMAL: a killed process loses nothing; after a power failure the newest moments may be missing, so
// db_barrier lets an operation wait until what it depends on is on the disk. Another database is another file beside sqlite.c.
#ifndef SPACE_HOSTD_DB_H
#define SPACE_HOSTD_DB_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct db;

#define IDLE_TEXT_MAX   129
#define EGRESS_TEXT_MAX 16385

// clang-format off
/* Columns: INT(name) is an int64_t, TEXT(name, size) a NUL-ended array. The first is the primary key `id`. */
/* What the object holds of its own (snapshot/account.h); delta -1: not measured yet. */
#define DB_ACCOUNT_COLUMNS(INT) INT(parent_kind) INT(parent) INT(delta)

#define DB_SANDBOX_COLUMNS(INT, TEXT)                                                              \
    INT(id)                                                                                        \
    INT(owner) INT(gid) INT(mode) INT(created) INT(changed) INT(state) INT(desired) INT(object)    \
    INT(next_object) INT(generation) INT(memory) INT(vcpus) INT(disk) INT(wake_manual) INT(slot)   \
    INT(touched) INT(running_since) INT(base_kind) INT(base) INT(suspended) INT(node) INT(locked) DB_ACCOUNT_COLUMNS(INT) TEXT(name, 65) TEXT(origin, 64) TEXT(want, 64)                 \
    TEXT(labels, 4097) TEXT(idle, IDLE_TEXT_MAX) TEXT(keep, 512) TEXT(egress, EGRESS_TEXT_MAX) TEXT(error, ERR_MAX)

#define DB_TEMPLATE_COLUMNS(INT, TEXT)                                                             \
    INT(id) INT(owner) INT(gid) INT(created) INT(state) INT(size) INT(deleted) INT(node) DB_ACCOUNT_COLUMNS(INT) TEXT(name, 65)      \
    TEXT(share, 65) TEXT(error, ERR_MAX)

#define DB_SNAPSHOT_COLUMNS(INT, TEXT)                                                             \
    INT(id) INT(sandbox) INT(owner) INT(gid) INT(mode) INT(created) INT(state) INT(consistent)     \
    INT(automatic) INT(size) INT(memory) INT(vcpus) INT(base_kind) INT(base) INT(changed_bytes)    \
    INT(taken) INT(generation) INT(durable) INT(node) INT(accel) DB_ACCOUNT_COLUMNS(INT)                                                                     \
    TEXT(name, 65) TEXT(sandbox_name, 65) TEXT(error, ERR_MAX)

#define DB_JOB_COLUMNS(INT, TEXT)                                                                  \
    INT(id) INT(sandbox) INT(created) INT(started) INT(state) INT(code) INT(timeout) INT(object)   \
    INT(out_mark) INT(err_mark) INT(out_base) INT(err_base) INT(out_end) INT(err_end) INT(guest_id) INT(node) TEXT(name, 65) TEXT(user, 65)          \
    TEXT(tty, 16) TEXT(cwd, 1025) TEXT(env, 16385)

#define DB_HEAD_COLUMNS(INT, TEXT)                                                                 \
    INT(id) INT(template) INT(memory) INT(vcpus) INT(disk) INT(created) INT(accel) INT(node)

/* A file of a snapshot or of a base in the object store (hostd/volume). */
#define DB_ARTIFACT_COLUMNS(INT, TEXT)                                                             \
    INT(id) INT(kind) INT(object) INT(file) INT(state) INT(size) INT(stored) INT(created) INT(node) \
    TEXT(tenant, 65) TEXT(name, 33) TEXT(base, 33)

/* A node: what it last said of itself (hostd/cluster). */
#define DB_NODE_COLUMNS(INT, TEXT)                                                                 \
    INT(id) INT(seen) INT(started) INT(dead) INT(accel) INT(cpus) INT(memory) INT(guest_memory)    \
    INT(pool_size) INT(pool_free) TEXT(name, 65) TEXT(version, 33) TEXT(qemu, 33) TEXT(kernel, 65) TEXT(cpu, 65) TEXT(key, 45)

/* What a user said for all its sandboxes: `id` is the uid. */
#define DB_TENANT_COLUMNS(INT, TEXT) INT(id) TEXT(egress, EGRESS_TEXT_MAX)

/* A credential of a sandbox's own, packed by space-credd under the master key that `key` (its public key) is of: nobody here can read it (hostd/credential). Goes
 * with the sandbox's row. Of two versions the one with the higher number stays. */
#define DB_SECRET_COLUMNS(INT, TEXT) INT(id) INT(sandbox) INT(number) INT(removed) TEXT(key, 45) TEXT(packed, 28416)

#define DB_EVENT_COLUMNS(INT, TEXT)                                                                \
    INT(id) INT(owner) INT(gid) INT(mode) TEXT(line, 900)
// clang-format on

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
struct node_row {
    DB_NODE_COLUMNS(DB_INT, DB_TEXT)
};
struct tenant_row {
    DB_TENANT_COLUMNS(DB_INT, DB_TEXT)
};
struct secret_row {
    DB_SECRET_COLUMNS(DB_INT, DB_TEXT)
};
struct event_row {
    DB_EVENT_COLUMNS(DB_INT, DB_TEXT)
};
#undef DB_INT
#undef DB_TEXT

/* Stored: never renumber. */
enum db_table {
    DB_SANDBOXES,
    DB_TEMPLATES,
    DB_SNAPSHOTS,
    DB_JOBS,
    DB_EVENTS,
    DB_HEADS,
    DB_ARTIFACTS,
    DB_NODES,
    DB_TENANTS,
    DB_SECRETS,
    DB_TABLE_COUNT
};

/* Opens or creates PATH for the node of that id, migrates to the current version, checks integrity of the schema. A newer version is refused (-EPROTO).
 * Rows of before there were nodes become this node's. */
int db_open(const char *path, int64_t node, struct db **out, struct err *e);
void db_close(struct db *db);

/* Inserts or replaces the row (a struct of that table). 0 or -EIO, -ENOSPC with the sentence; -ESTALE when it belongs to another node, as the row says (nothing
 * happens), or as the database does (the transaction fails, if there is one). A secret that is not newer than the row is not saved, which is success. */
int db_save(struct db *db, enum db_table table, const void *row, struct err *e);

/* Missing is success, and so is another node's (nothing happens). */
int db_delete(struct db *db, enum db_table table, int64_t id, struct err *e);

/* Deletes rows with id below `id`. */
int db_delete_below(struct db *db, enum db_table table, int64_t id, struct err *e);

/* Calls `each` with every row, by id ascending; the row is borrowed. Not for use inside `each`. */
int db_load(struct db *db, enum db_table table, void (*each)(void *user, const void *row), void *user, struct err *e);

/* Those of which the integer column `column` is `value`; and those with an id above `id`. */
int db_load_by(struct db *db, enum db_table table, const char *column, int64_t value, void (*each)(void *user, const void *row), void *user,
               struct err *e);
int db_load_above(struct db *db, enum db_table table, int64_t id, void (*each)(void *user, const void *row), void *user, struct err *e);

/* The highest id of the table; 0: none. */
int64_t db_last(struct db *db, enum db_table table);

/*
 * What other nodes saved or deleted since the last call (the first one: since db_open), each row once, as it is now; NULL: deleted. Of sandboxes, templates,
 * snapshots, artifacts, nodes and tenants. Costs a few microseconds when there is nothing. -EOVERFLOW: so long ago that it is not known any more; all is to be loaded anew.
 */
int db_feed(struct db *db, void (*each)(void *user, enum db_table table, int64_t id, const void *row), void *user, struct err *e);

/* The row `id` of a table with owners belongs to node `to` from now on, if it belonged to `from`: else -ESTALE. In a transaction, before it is saved. */
int db_take(struct db *db, enum db_table table, int64_t id, int64_t from, int64_t to, struct err *e);

/* db_save of a row that db_take gave to that node. */
int db_save_for(struct db *db, enum db_table table, const void *row, int64_t node, struct err *e);

/* Groups what follows until db_commit into one transaction, in which no other node writes; nests. */
void db_begin(struct db *db);
int db_commit(struct db *db, struct err *e);

/* A persistent setting; `fallback` is stored when it was not there. */
int db_meta(struct db *db, const char *key, const char *fallback, char *out, size_t size, struct err *e);
int db_meta_set(struct db *db, const char *key, const char *value, struct err *e);

/* fdatasyncs the write-ahead log and folds a long one into the database. Blocking; from any thread, one at a time. 0 or -errno. */
int db_barrier(struct db *db);

#endif
