// SPDX-License-Identifier: Apache-2.0
// When snapshots are due, and which stay.
#include "hostd/snapshot/keep.h"
#include "unit/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct keep_policy policy(const char *text)
{
    struct keep_policy p;
    struct err e = {0};
    CHECK_EQ(keep_parse(text, &p, &e), 0);
    return p;
}

static void policies_parse(void)
{
    struct keep_policy p = policy("disk every 5m for 1h\n full every 1h for 1d \n");
    CHECK_EQ(p.count, 2u);
    CHECK(!p.tier[0].full && p.tier[0].every == 300 && p.tier[0].keep_for == 3600);
    CHECK(p.tier[1].full && p.tier[1].every == 3600 && p.tier[1].keep_for == 86400);
    CHECK_EQ(policy("disk every 1s for 1s, full every 2d for 30d").count, 2u);
    CHECK_EQ(policy("none").count, 0u);
    p = policy("full every 1h for 1d to object store, disk every 5m for 1h");
    CHECK(p.count == 2 && p.tier[0].store && !p.tier[1].store);
    char line[KEEP_LINE_MAX];
    CHECK_STR(keep_format(&p.tier[0], line), "full every 1h for 1d to object store");
}

static void a_tier_stores_what_it_wants(void)
{
    struct keep_policy p = policy("disk every 10s for 100s, disk every 30s for 60s to object store");
    struct keep_item items[] = {{.taken = 0}, {.taken = 10}, {.taken = 20}, {.taken = 30}, {.taken = 40}};
    keep_thin(&p, 0, 70, items, 5);
    CHECK(!items[0].store); /* no more: its tier's time is over */
    CHECK(!items[1].store && !items[2].store && items[3].store && !items[4].store);
    for (size_t i = 0; i < 5; i++)
        CHECK(items[i].stays);
}

static void malformed_policies_are_refused(void)
{
    static const char *const bad[] = {
        "",
        "\n",
        "disk",
        "disk every 5m",
        "disk every 5m for",
        "disk every 0 for 1h",
        "disk every 1h for 5m",
        "disks every 5m for 1h",
        "disk every 5m for 1h now",
        "disk every 5m for 1h to object",
        "disk every 5m for 1h to object store now",
        "disk every -5m for 1h",
        "full every 5x for 1h",
        "none, disk every 5m for 1h",
        "disk every 5m for 1h,disk every 5m for 1h,disk every 5m for 1h,disk every 5m for 1h,disk every 5m for 1h,disk every 5m for "
        "1h,disk every 5m for 1h,disk every 5m for 1h,disk every 5m for 1h"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct keep_policy p;
        struct err e = {0};
        CHECK_EQ(keep_parse(bad[i], &p, &e), -EINVAL);
        CHECK(e.msg[0]);
    }
}

static void one_is_due_a_period(void)
{
    struct keep_policy p = policy("disk every 10s for 1m, full every 1m for 10m");
    CHECK_EQ(keep_due(&p, 0, 1000, -1, -1), KEEP_FULL);
    CHECK_EQ(keep_due(&p, 0, 1000, 1000, 1000), KEEP_NOTHING);
    CHECK_EQ(keep_due(&p, 0, 1009, 1000, 1000), KEEP_NOTHING);
    CHECK_EQ(keep_due(&p, 0, 1010, 1000, 1000), KEEP_DISK);
    CHECK_EQ(keep_due(&p, 0, 1019, 1010, 1000), KEEP_NOTHING);
    CHECK_EQ(keep_due(&p, 0, 1020, 1010, 1000), KEEP_FULL);   /* a new minute begins */
    CHECK_EQ(keep_due(&p, 0, 90000, 1020, 1020), KEEP_FULL);  /* one, after a day of downtime */
    CHECK_EQ(keep_due(&p, 0, 500, 1020, 1020), KEEP_NOTHING); /* a clock that went back causes nothing */
}

static void phases_spread_the_ticks(void)
{
    struct keep_policy p = policy("disk every 5m for 1h");
    unsigned most = 0, ticks[300] = {0};
    for (uint64_t phase = 0; phase < 3000; phase++)
        for (int64_t now = 1001; now <= 1300; now++)
            if (keep_due(&p, phase, now, now - 1, -1) == KEEP_DISK && ++ticks[now - 1001] > most)
                most = ticks[now - 1001];
    CHECK_EQ(most, 10u);
}

/* Ten days of snapshots, taken when they were due and thinned each time. */
static void retention_decays(void)
{
    struct keep_policy p = policy("disk every 5m for 1h, disk every 1h for 1d, disk every 1d for 30d, full every 1h for 6h");
    struct keep_item *items = calloc(20000, sizeof *items);
    size_t n = 0;
    const int64_t end = 1000000 + 10 * 86400;
    int64_t last = -1, full = -1;
    for (int64_t now = 1000000; now <= end; now += 20) {
        enum keep_due due = keep_due(&p, 77, now, last, full);
        if (due == KEEP_NOTHING)
            continue;
        items[n++] = (struct keep_item){.taken = now, .full = due == KEEP_FULL};
        last = now;
        full = due == KEEP_FULL ? now : full;
        keep_thin(&p, 77, now, items, n);
        size_t left = 0;
        for (size_t i = 0; i < n; i++)
            if (items[i].stays)
                items[left++] = items[i];
        n = left;
        CHECK(n < 60);
    }
    size_t hour = 0, day = 0, older = 0, full_count = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t age = end - items[i].taken;
        *(age <= 3600 ? &hour : age <= 86400 ? &day : &older) += 1;
        full_count += items[i].full && age <= 6 * 3600;
    }
    CHECK(hour >= 12 && hour <= 13);
    CHECK(day >= 22 && day <= 24);
    CHECK(older >= 8 && older <= 10);
    CHECK(full_count >= 6);
    free(items);
}

static void expiry_is_that_of_the_longest_tier(void)
{
    struct keep_policy p = policy("disk every 5m for 1h, full every 1h for 1d");
    struct keep_item items[] = {{.taken = 36000, .full = true}, {.taken = 36100}, {.taken = 36301}, {.taken = 36302}};
    char line[KEEP_LINE_MAX];
    CHECK_EQ(keep_thin(&p, 0, 36400, items, 4), 2u);
    CHECK_EQ(items[0].until, 36000 + 86400);
    CHECK(!strcmp(keep_format(&p.tier[items[0].tier], line), "full every 1h for 1d"));
    CHECK_EQ(items[1].until, 0); /* of the same five minutes as the first */
    CHECK_EQ(items[2].until, 36301 + 3600);
    CHECK(!strcmp(keep_format(&p.tier[items[2].tier], line), "disk every 5m for 1h"));
    CHECK_EQ(items[3].until, 0);
    CHECK(items[0].stays && !items[1].stays && items[2].stays && !items[3].stays);
    keep_thin(&p, 0, 36301 + 3601, items, 4);
    CHECK(items[0].stays && !items[2].stays);
}

static void lines_of_a_policy_are_written_as_they_are_read(void)
{
    static const char *const lines[] = {"disk every 1s for 90s", "full every 90m for 2d", "disk every 7d for 30d"};
    char line[KEEP_LINE_MAX];
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct keep_policy p = policy(lines[i]), again = policy(keep_format(&p.tier[0], line));
        CHECK(p.tier[0].full == again.tier[0].full && p.tier[0].every == again.tier[0].every && p.tier[0].keep_for == again.tier[0].keep_for);
    }
}

static const struct check_test tests[] = {TEST(a_tier_stores_what_it_wants),
                                          TEST(policies_parse),
                                          TEST(malformed_policies_are_refused),
                                          TEST(one_is_due_a_period),
                                          TEST(phases_spread_the_ticks),
                                          TEST(retention_decays),
                                          TEST(expiry_is_that_of_the_longest_tier),
                                          TEST(lines_of_a_policy_are_written_as_they_are_read)};

CHECK_MAIN(tests)
