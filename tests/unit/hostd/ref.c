// SPDX-License-Identifier: Apache-2.0
// Refs and the state machine's tables.
#include "hostd/ref.h"
#include "hostd/lifecycle/state.h"
#include "unit/check.h"

#include <errno.h>

static void refs_read_back_as_written(void)
{
    static const char *const good[] = {"template/0123456789ab", "snapshot/ffffffffffff", "sandbox/00000000000a@1",
                                       "sandbox/00000000000a@9223372036854775807"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct ref r;
        char text[REF_TEXT_MAX];
        CHECK_EQ(ref_parse(good[i], &r), 0);
        CHECK_STR(ref_format(&r, text), good[i]);
    }
}

static void malformed_refs_are_refused(void)
{
    static const char *const bad[] = {"",
                                      "/",
                                      "template",
                                      "template/",
                                      "template/123",
                                      "template/0123456789AB",
                                      "template/0123456789ab@1",
                                      "template/0123456789abc",
                                      "sandbox/0123456789ab",
                                      "sandbox/0123456789ab@",
                                      "sandbox/0123456789ab@x",
                                      "sandbox/0123456789ab@1 ",
                                      "sandbox/0123456789ab@-1",
                                      "sandbox/0123456789ab@9223372036854775808",
                                      "Sandbox/0123456789ab@1",
                                      "node/0123456789ab",
                                      " template/0123456789ab"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct ref r;
        CHECK_EQ(ref_parse(bad[i], &r), -EINVAL);
    }
}

static void destroying_is_reached_from_everywhere_and_never_left(void)
{
    for (int s = 1; s < SANDBOX_STATE_COUNT; s++) {
        CHECK(state_may_move((enum sandbox_state)s, SANDBOX_DESTROYING));
        CHECK(s == SANDBOX_DESTROYING || !state_may_move(SANDBOX_DESTROYING, (enum sandbox_state)s));
    }
}

static void every_transitional_state_can_fail(void)
{
    for (int s = 1; s < SANDBOX_STATE_COUNT; s++)
        if (state_is_transitional((enum sandbox_state)s) && s != SANDBOX_DESTROYING)
            CHECK(state_may_move((enum sandbox_state)s, SANDBOX_FAILED));
}

static void kill_is_refused_only_by_what_is_going_away(void)
{
    for (int s = 1; s < SANDBOX_STATE_COUNT; s++)
        CHECK_EQ(verb_allowed((enum sandbox_state)s, VERB_KILL) == VERB_REFUSED, s == SANDBOX_DESTROYING);
}

static void verbs_have_names(void)
{
    for (int v = 0; v < VERB_COUNT; v++)
        CHECK_EQ(verb_of(verb_name((enum verb)v)), v);
    CHECK_EQ(verb_of("restart"), VERB_COUNT);
    CHECK_EQ(verb_of(""), VERB_COUNT);
}

static const struct check_test tests[] = {TEST(refs_read_back_as_written),
                                          TEST(malformed_refs_are_refused),
                                          TEST(destroying_is_reached_from_everywhere_and_never_left),
                                          TEST(every_transitional_state_can_fail),
                                          TEST(kill_is_refused_only_by_what_is_going_away),
                                          TEST(verbs_have_names)};

CHECK_MAIN(tests)
