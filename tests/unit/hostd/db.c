// SPDX-License-Identifier: Apache-2.0
// Two nodes over one database: what one does the other is told, a row has one owner, and of two that want it one gets it.
#include "hostd/db/db.h"
#include "unit/check.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 400

static char path[64];

static struct db *open_as(int64_t node)
{
    struct db *db;
    struct err e = {0};
    if (db_open(path, node, &db, &e) < 0)
        fprintf(stderr, "%s\n", e.msg);
    CHECK_EQ(e.code, 0);
    return db;
}

static void fresh(void)
{
    char beside[80];
    snprintf(path, sizeof path, "/tmp/space-db-%d", getpid());
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(beside, sizeof beside, "%s%s", path, ends[i]);
        unlink(beside);
    }
}

static struct sandbox_row *row_of(int64_t id, int64_t node)
{
    static struct sandbox_row row;
    row = (struct sandbox_row){.id = id, .node = node, .name = "a"};
    return &row;
}

struct told {
    unsigned count;
    enum db_table table;
    int64_t id, memory;
    bool deleted;
};

static void tell(void *user, enum db_table table, int64_t id, const void *row)
{
    struct told *t = user;
    const struct sandbox_row *sb = table == DB_SANDBOXES ? row : NULL;
    *t = (struct told){t->count + 1, table, id, sb ? sb->memory : 0, row == NULL};
}

static struct told feed(struct db *db)
{
    struct told t = {0};
    struct err e = {0};
    CHECK_EQ(db_feed(db, tell, &t, &e), 0);
    return t;
}

static void a_node_is_told_what_others_did(void)
{
    fresh();
    struct db *a = open_as(1), *b = open_as(2);
    struct err e = {0};
    CHECK_EQ(feed(b).count, 0u);
    CHECK_EQ(db_save(a, DB_SANDBOXES, row_of(7, 1), &e), 0);
    CHECK_EQ(feed(a).count, 0u); /* its own */
    struct sandbox_row *row = row_of(7, 1);
    row->memory = 5;
    CHECK_EQ(db_save(a, DB_SANDBOXES, row, &e), 0);
    struct told t = feed(b);
    CHECK_EQ(t.count, 1u); /* once, as it is now */
    CHECK(t.table == DB_SANDBOXES && t.id == 7 && t.memory == 5 && !t.deleted);
    CHECK_EQ(feed(b).count, 0u);
    CHECK_EQ(db_delete(a, DB_SANDBOXES, 7, &e), 0);
    t = feed(b);
    CHECK(t.count == 1 && t.id == 7 && t.deleted);
    struct job_row job = {.id = 1};
    CHECK_EQ(db_save(a, DB_JOBS, &job, &e), 0); /* nobody else's business */
    CHECK_EQ(feed(b).count, 0u);
    db_close(a);
    db_close(b);
}

static void a_transaction_that_failed_tells_nothing(void)
{
    fresh();
    struct db *a = open_as(1), *b = open_as(2);
    struct err e = {0};
    CHECK_EQ(db_save(b, DB_SANDBOXES, row_of(3, 2), &e), 0);
    db_begin(a);
    CHECK_EQ(db_save(a, DB_SANDBOXES, row_of(4, 1), &e), 0);
    CHECK_EQ(db_save(a, DB_SANDBOXES, row_of(3, 1), &e), -ESTALE);
    CHECK_EQ(db_commit(a, &e), -ESTALE);
    CHECK_EQ(feed(b).count, 0u);
    db_close(a);
    db_close(b);
}

static void a_row_is_changed_by_its_owner_alone(void)
{
    fresh();
    struct db *a = open_as(1), *b = open_as(2);
    struct err e = {0};
    CHECK_EQ(db_save(a, DB_SANDBOXES, row_of(7, 1), &e), 0);
    CHECK_EQ(db_save(b, DB_SANDBOXES, row_of(7, 1), &e), -ESTALE); /* as its memory says */
    CHECK_EQ(db_save(b, DB_SANDBOXES, row_of(7, 2), &e), -ESTALE); /* as the database says */
    CHECK_EQ(db_delete(b, DB_SANDBOXES, 7, &e), 0);
    db_begin(b);
    CHECK_EQ(db_take(b, DB_SANDBOXES, 7, 1, 2, &e), 0);
    CHECK_EQ(db_save(b, DB_SANDBOXES, row_of(7, 2), &e), 0);
    CHECK_EQ(db_commit(b, &e), 0);
    CHECK_EQ(db_save(a, DB_SANDBOXES, row_of(7, 1), &e), -ESTALE); /* the old owner, who has not heard of it */
    struct told t = feed(a);
    CHECK(t.count == 1 && t.id == 7 && !t.deleted);
    db_begin(a);
    CHECK_EQ(db_take(a, DB_SANDBOXES, 7, 1, 1, &e), -ESTALE);
    CHECK_EQ(db_commit(a, &e), -ESTALE);
    db_close(a);
    db_close(b);
}

/* Takes each row from node 9 as fast as it can; says which ones it got. */
static void contend(int64_t node, int out)
{
    struct db *db = open_as(node);
    struct err e = {0};
    unsigned char got[ROUNDS + 1] = {0};
    for (int64_t id = 1; id <= ROUNDS; id++) {
        db_begin(db);
        feed(db);
        int rc = db_take(db, DB_SANDBOXES, id, 9, node, &e);
        if (rc == 0)
            rc = db_save(db, DB_SANDBOXES, row_of(id, node), &e);
        int rc2 = db_commit(db, &e);
        got[id] = rc == 0 && rc2 == 0;
        CHECK(rc == 0 || rc == -ESTALE);
    }
    db_close(db);
    CHECK_EQ(write(out, got, sizeof got), sizeof got);
    _exit(0);
}

static void of_two_that_want_a_row_one_gets_it(void)
{
    fresh();
    struct db *nine = open_as(9);
    struct err e = {0};
    unsigned char got[2][ROUNDS + 1];
    int pipes[2][2];
    for (int64_t id = 1; id <= ROUNDS; id++)
        CHECK_EQ(db_save(nine, DB_SANDBOXES, row_of(id, 9), &e), 0);
    db_close(nine);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(pipe(pipes[i]), 0);
        if (fork() == 0)
            contend(i + 1, pipes[i][1]);
        close(pipes[i][1]);
    }
    unsigned won[2] = {0};
    for (int i = 0; i < 2; i++) {
        int status;
        CHECK_EQ(read(pipes[i][0], got[i], sizeof got[i]), sizeof got[i]);
        CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (int id = 1; id <= ROUNDS; id++) {
        CHECK_EQ(got[0][id] + got[1][id], 1);
        won[got[1][id]]++;
    }
    fprintf(stderr, "  one got %u, the other %u\n", won[0], won[1]);
}

static void who_was_away_for_too_long_hears_so(void)
{
    fresh();
    struct db *a = open_as(1), *b = open_as(2);
    struct err e = {0};
    struct told t = {0};
    CHECK_EQ(feed(b).count, 0u);
    db_begin(a);
    for (int i = 0; i < 18000; i++)
        CHECK_EQ(db_save(a, DB_SANDBOXES, row_of(1, 1), &e), 0);
    CHECK_EQ(db_commit(a, &e), 0);
    CHECK_EQ(db_feed(b, tell, &t, &e), -EOVERFLOW);
    db_close(a);
    db_close(b);
}

static void see_secret(void *user, const void *row)
{
    struct secret_row *out = user;
    *out = *(const struct secret_row *)row;
}

static int64_t secret_number(struct db *db, int64_t id)
{
    static struct secret_row row;
    struct err e = {0};
    row = (struct secret_row){0};
    CHECK_EQ(db_load_by(db, DB_SECRETS, "id", id, see_secret, &row, &e), 0);
    return row.number;
}

static void the_newest_version_of_a_secret_stays_and_ends_with_its_sandbox(void)
{
    fresh();
    struct db *a = open_as(1), *b = open_as(2);
    struct err e = {0};
    static struct secret_row row = {.id = 5, .sandbox = 7, .number = 10, .packed = "x"};
    CHECK_EQ(db_save(a, DB_SECRETS, &row, &e), -EIO); /* there is no such sandbox */
    CHECK_EQ(db_save(a, DB_SANDBOXES, row_of(7, 1), &e), 0);
    CHECK_EQ(db_save(a, DB_SECRETS, &row, &e), 0);
    row.number = 9;
    CHECK_EQ(db_save(b, DB_SECRETS, &row, &e), 0);
    CHECK_EQ(secret_number(a, 5), 10);
    row.number = 11;
    CHECK_EQ(db_save(b, DB_SECRETS, &row, &e), 0);
    CHECK_EQ(secret_number(a, 5), 11);
    CHECK_EQ(db_save(a, DB_SANDBOXES, row_of(7, 1), &e), 0);
    db_begin(a);
    CHECK_EQ(db_take(a, DB_SANDBOXES, 7, 1, 2, &e), 0);
    CHECK_EQ(db_commit(a, &e), 0);
    CHECK_EQ(secret_number(b, 5), 11);
    CHECK_EQ(db_delete(a, DB_SANDBOXES, 7, &e), 0); /* not its any more */
    CHECK_EQ(secret_number(b, 5), 11);
    CHECK_EQ(db_delete(b, DB_SANDBOXES, 7, &e), 0);
    CHECK_EQ(secret_number(b, 5), 0);
    db_close(a);
    db_close(b);
}

static void what_was_there_before_nodes_is_the_first_ones(void)
{
    fresh();
    struct db *a = open_as(1);
    struct err e = {0};
    sqlite3 *sql;
    CHECK_EQ(db_save(a, DB_SANDBOXES, row_of(7, 1), &e), 0);
    db_close(a);
    CHECK_EQ(sqlite3_open(path, &sql), SQLITE_OK);
    CHECK_EQ(sqlite3_exec(sql, "UPDATE sandboxes SET node = 0", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(sql);
    struct db *b = open_as(2), *c = open_as(3);
    CHECK_EQ(db_save(b, DB_SANDBOXES, row_of(7, 2), &e), 0);
    CHECK_EQ(db_save(c, DB_SANDBOXES, row_of(7, 3), &e), -ESTALE);
    db_close(b);
    db_close(c);
    fresh();
}

static const struct check_test tests[] = {
    TEST(a_node_is_told_what_others_did),
    TEST(a_transaction_that_failed_tells_nothing),
    TEST(a_row_is_changed_by_its_owner_alone),
    TEST(the_newest_version_of_a_secret_stays_and_ends_with_its_sandbox),
    TEST(of_two_that_want_a_row_one_gets_it),
    TEST(who_was_away_for_too_long_hears_so),
    TEST(what_was_there_before_nodes_is_the_first_ones),
};
CHECK_MAIN(tests)
