// SPDX-License-Identifier: Apache-2.0
// Symlink targets of a hostile guest stay inside root/NAME.
#include "hostd/tree/symlink.h"
#include "unit/check.h"

static const char *rewritten(const char *target, uint32_t depth)
{
    static char out[4096];
    CHECK(symlink_rewrite(target, strlen(target), depth, out, sizeof out));
    return out;
}

static void safe_targets_are_untouched(void)
{
    CHECK_STR(rewritten("file", 0), "file");
    CHECK_STR(rewritten("a/b//./c/", 0), "a/b//./c/");
    CHECK_STR(rewritten("../x", 1), "../x");
    CHECK_STR(rewritten("../../x/y", 2), "../../x/y");
    CHECK_STR(rewritten("..", 1), "..");
}

static void absolute_targets_start_at_the_root_of_the_sandbox(void)
{
    CHECK_STR(rewritten("/etc/shadow", 0), "etc/shadow");
    CHECK_STR(rewritten("/etc/shadow", 3), "../../../etc/shadow");
    CHECK_STR(rewritten("/", 0), ".");
    CHECK_STR(rewritten("/", 2), "../..");
    CHECK_STR(rewritten("//etc//x", 1), "../etc/x");
    CHECK_STR(rewritten("/../../etc", 1), "../etc");
}

static void ups_are_bounded_by_the_depth(void)
{
    CHECK_STR(rewritten("..", 0), ".");
    CHECK_STR(rewritten("../../../../etc/shadow", 1), "../etc/shadow");
    CHECK_STR(rewritten("../../../../etc/shadow", 0), "etc/shadow");
    CHECK_STR(rewritten("./../x", 0), "x");
}

static void ups_behind_a_name_are_cut_lexically(void)
{
    CHECK_STR(rewritten("link/../../..", 2), "../..");
    CHECK_STR(rewritten("a/../b", 0), "b");
    CHECK_STR(rewritten("a/b/../../../x", 1), "../x");
}

/* Whatever the target: no ".." behind a name, and never more than `depth` of them. */
static void no_target_leaves(void)
{
    static const char *const parts[] = {"..", ".", "a", "", "bb"};
    char target[64], out[4096];
    for (unsigned n = 0; n < 5 * 5 * 5 * 5 * 5 * 2; n++)
        for (uint32_t depth = 0; depth < 3; depth++) {
            unsigned v = n / 2;
            int len = snprintf(target, sizeof target, "%s", n % 2 ? "/" : "");
            for (int i = 0; i < 5; i++, v /= 5)
                len += snprintf(target + len, sizeof target - (size_t)len, "%s%s", parts[v % 5], i < 4 ? "/" : "");
            CHECK(symlink_rewrite(target, (size_t)len, depth, out, sizeof out));
            CHECK(out[0] != '/' && out[0]);
            uint32_t ups = 0;
            bool named = false;
            for (char *save = NULL, *part = strtok_r(out, "/", &save); part; part = strtok_r(NULL, "/", &save)) {
                bool up = !strcmp(part, "..");
                CHECK(!(up && named));
                ups += up;
                named = named || (!up && strcmp(part, ".") != 0);
            }
            CHECK(ups <= depth);
        }
}

static void too_long_ones_are_refused(void)
{
    char out[16], many[2 * SYMLINK_PARTS_MAX + 8];
    CHECK(!symlink_rewrite("/a/long/target/that/does/not/fit", 32, 0, out, sizeof out));
    CHECK(!symlink_rewrite("0123456789abcdef", 16, 0, out, sizeof out));
    CHECK(!symlink_rewrite("/x", 2, 1000, out, sizeof out));
    for (size_t i = 0; i < sizeof many; i++)
        many[i] = i % 2 ? '/' : 'a';
    CHECK(!symlink_rewrite(many, sizeof many, 0, out, sizeof out));
}

static const struct check_test tests[] = {TEST(safe_targets_are_untouched),
                                          TEST(absolute_targets_start_at_the_root_of_the_sandbox),
                                          TEST(ups_are_bounded_by_the_depth),
                                          TEST(ups_behind_a_name_are_cut_lexically),
                                          TEST(no_target_leaves),
                                          TEST(too_long_ones_are_refused)};

CHECK_MAIN(tests)
