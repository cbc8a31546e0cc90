// SPDX-License-Identifier: Apache-2.0
// Spooled streams keep their offsets whatever is dropped, and survive a restart.
#include "hostd/jobs/spool.h"
#include "unit/check.h"

#include <unistd.h>

static char path[] = "/tmp/spool-test-XXXXXX";

static void reads_what_was_appended(void)
{
    struct spool s = {.fd = -1};
    struct err e = {0};
    char buf[64];
    CHECK_EQ(spool_open(&s, path, 0, &e), 0);
    CHECK_EQ(spool_append(&s, "hello ", 6, 1 << 20, &e), 0);
    CHECK_EQ(spool_append(&s, "world", 5, 1 << 20, &e), 0);
    CHECK_EQ(spool_read(&s, path, 0, buf, sizeof buf), 11);
    CHECK(!memcmp(buf, "hello world", 11));
    CHECK_EQ(spool_read(&s, path, 6, buf, 3), 3);
    CHECK(!memcmp(buf, "wor", 3));
    CHECK_EQ(spool_read(&s, path, 11, buf, 3), 0);
    spool_close(&s);
    CHECK_EQ(spool_read(&s, path, 6, buf, sizeof buf), 5);
    CHECK(!memcmp(buf, "world", 5));
    CHECK_EQ(spool_open(&s, path, 0, &e), 0);
    CHECK_EQ((long long)s.end, 11);
    spool_close(&s);
}

static void drops_the_oldest_beyond_the_limit(void)
{
    struct spool s = {.fd = -1};
    struct err e = {0};
    enum { LIMIT = 1 << 20, PIECE = 1 << 16, PIECES = 64 };
    static char piece[PIECE], buf[PIECE];
    CHECK_EQ(truncate(path, 0), 0);
    CHECK_EQ(spool_open(&s, path, 0, &e), 0);
    for (int i = 0; i < PIECES; i++) {
        memset(piece, 'a' + i % 26, PIECE);
        CHECK_EQ(spool_append(&s, piece, PIECE, LIMIT, &e), 0);
        CHECK(s.end - s.base <= 2u * LIMIT + PIECE);
    }
    CHECK_EQ((long long)s.end, (long long)PIECE * PIECES);
    CHECK(s.base > 0 && s.end - s.base >= LIMIT);
    for (uint64_t at = (s.base + PIECE - 1) / PIECE * PIECE; at < s.end; at += PIECE) {
        CHECK_EQ(spool_read(&s, path, at, buf, PIECE), PIECE);
        CHECK_EQ(buf[0], 'a' + (int)(at / PIECE) % 26);
    }
    spool_close(&s);
}

static const struct check_test tests[] = {TEST(reads_what_was_appended), TEST(drops_the_oldest_beyond_the_limit)};

int main(int argc, char **argv)
{
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
    int rc = check_run(tests, sizeof tests / sizeof tests[0], argc, argv);
    unlink(path);
    return rc;
}
