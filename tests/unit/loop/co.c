// SPDX-License-Identifier: Apache-2.0
// Coroutines: they run at once, wait, are woken from the loop and from each other, and unwind when
// aborted.
#include "loop/co.h"
#include "unit/check.h"

#include <errno.h>

struct fixture {
    uv_loop_t loop;
    uv_timer_t deadline; /* also keeps the loop turning */
    struct co_sched *sched;
    struct co *first;
    char trace[64]; /* a letter for each thing that happened, in order */
    int result;
};

static void trace(struct fixture *f, char what)
{
    size_t n = strlen(f->trace);
    CHECK(n + 1 < sizeof f->trace);
    f->trace[n] = what;
}

static void on_deadline(uv_timer_t *t)
{
    (void)t;
    fprintf(stderr, "the deadline has passed\n");
    exit(1);
}

static void setup(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    CHECK_EQ(uv_loop_init(&f->loop), 0);
    uv_timer_init(&f->loop, &f->deadline);
    uv_timer_start(&f->deadline, on_deadline, 30000, 0);
    f->sched = co_sched_create(&f->loop);
    CHECK(f->sched);
}

static void teardown(struct fixture *f)
{
    co_sched_destroy(f->sched);
    uv_close((uv_handle_t *)&f->deadline, NULL);
    CHECK_EQ(uv_run(&f->loop, UV_RUN_DEFAULT), 0);
    CHECK_EQ(uv_loop_close(&f->loop), 0);
}

static void wait_once(void *arg)
{
    struct fixture *f = arg;
    CHECK(co_self(f->sched));
    trace(f, 'a');
    f->result = co_wait(f->sched);
    trace(f, 'b');
}

static void it_runs_at_once_and_returns_the_result_of_its_wake(void)
{
    struct fixture f;
    setup(&f);
    struct co *c = co_spawn(f.sched, wait_once, &f);
    CHECK_STR(f.trace, "a");
    CHECK(!co_self(f.sched));
    co_wake(c, 42);
    CHECK_STR(f.trace, "ab");
    CHECK_EQ(f.result, 42);
    teardown(&f);
}

static void wake_first(void *arg)
{
    struct fixture *f = arg;
    trace(f, 'c');
    co_wake(f->first, 7);
    co_wake(f->first, 8); /* it has been woken: no effect */
    trace(f, 'd');
}

static void spawn_inside(void *arg)
{
    struct fixture *f = arg;
    trace(f, 'x');
    co_spawn(f->sched, wake_first, f);
    trace(f, 'y');
}

static void a_coroutine_never_runs_inside_another(void)
{
    struct fixture f;
    setup(&f);
    f.first = co_spawn(f.sched, wait_once, &f);
    co_spawn(f.sched, spawn_inside, &f);
    CHECK_STR(f.trace, "axy");
    while (strlen(f.trace) < 6)
        uv_run(&f.loop, UV_RUN_ONCE);
    CHECK_STR(f.trace, "axycdb");
    CHECK_EQ(f.result, 7);
    teardown(&f);
}

static void wait_until_aborted(void *arg)
{
    struct fixture *f = arg;
    CHECK_EQ(co_wait_uncancellable(f->sched), 5);
    trace(f, 'u');
    CHECK(co_aborted(co_self(f->sched)));
    CHECK_EQ(co_wait(f->sched), -ECANCELED);
    CHECK_EQ(co_sleep(f->sched, 60000), -ECANCELED);
    trace(f, 'e');
}

static void abort_ends_every_wait_that_may_end(void)
{
    struct fixture f;
    setup(&f);
    struct co *c = co_spawn(f.sched, wait_until_aborted, &f);
    co_abort(c);
    CHECK_STR(f.trace, "");
    co_wake(c, 5);
    CHECK_STR(f.trace, "ue");
    teardown(&f);
    setup(&f);
    c = co_spawn(f.sched, wait_once, &f);
    co_abort(c);
    CHECK_STR(f.trace, "ab");
    CHECK_EQ(f.result, -ECANCELED);
    teardown(&f);
}

static void sleep_some(void *arg)
{
    struct fixture *f = arg;
    uint64_t start = uv_hrtime();
    f->result = co_sleep(f->sched, 20);
    CHECK(uv_hrtime() - start >= 19000000);
    trace(f, 's');
}

static void sleep_takes_its_time(void)
{
    struct fixture f;
    setup(&f);
    co_spawn(f.sched, sleep_some, &f);
    CHECK_STR(f.trace, "");
    while (!*f.trace)
        uv_run(&f.loop, UV_RUN_ONCE);
    CHECK_STR(f.trace, "s");
    CHECK_EQ(f.result, 0);
    teardown(&f);
}

static void count_down(void *arg)
{
    struct fixture *f = arg;
    volatile char deep[100000]; /* a stack that is really used */
    deep[0] = deep[sizeof deep - 1] = 1;
    co_wait(f->sched);
    f->result += deep[0];
}

static void many_live_at_a_time(void)
{
    enum { N = 2000 };
    static struct co *all[N];
    struct fixture f;
    setup(&f);
    for (int i = 0; i < N; i++)
        all[i] = co_spawn(f.sched, count_down, &f);
    for (int i = N; i-- > 0;)
        co_wake(all[i], 0);
    CHECK_EQ(f.result, N);
    teardown(&f);
}

static const struct check_test tests[] = {
    TEST(it_runs_at_once_and_returns_the_result_of_its_wake),
    TEST(a_coroutine_never_runs_inside_another),
    TEST(abort_ends_every_wait_that_may_end),
    TEST(sleep_takes_its_time),
    TEST(many_live_at_a_time),
};

CHECK_MAIN(tests)
