// SPDX-License-Identifier: Apache-2.0
// Assertions that print both values, and a list of named tests run one after the other. The first
// failure ends the program.
#ifndef SPACE_TESTS_CHECK_H
#define SPACE_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct check_test {
    const char *name; /* the behaviour */
    void (*run)(void);
};

#define TEST(fn)                                                                                                                                     \
    {                                                                                                                                                \
#fn, fn                                                                                                                                      \
    }

static inline void check_int(const char *file, int line, const char *what, long long got, long long want)
{
    if (got == want)
        return;
    fprintf(stderr, "%s:%d: %s is %lld (0x%llx), expected %lld (0x%llx)\n", file, line, what, got, (unsigned long long)got, want,
            (unsigned long long)want);
    exit(1);
}

static inline void check_mem(const char *file, int line, const char *what, const void *got, size_t got_len, const void *want, size_t want_len)
{
    if (got_len == want_len && (!got_len || memcmp(got, want, got_len) == 0))
        return;
    fprintf(stderr, "%s:%d: %s is '%.*s' (%zu bytes), expected '%.*s' (%zu bytes)\n", file, line, what, (int)got_len, (const char *)got, got_len,
            (int)want_len, (const char *)want, want_len);
    exit(1);
}

static inline void check_true(const char *file, int line, const char *what, int holds)
{
    if (holds)
        return;
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    exit(1);
}

#define CHECK(cond)                             check_true(__FILE__, __LINE__, #cond, !!(cond))
#define CHECK_EQ(got, want)                     check_int(__FILE__, __LINE__, #got, (long long)(got), (long long)(want))
#define CHECK_STR(got, want)                    check_mem(__FILE__, __LINE__, #got, got, strlen(got), want, strlen(want))
#define CHECK_MEM(got, got_len, want, want_len) check_mem(__FILE__, __LINE__, #got, got, got_len, want, want_len)

/* With an argument, only the test of that name. */
static inline int check_run(const struct check_test *tests, size_t n, int argc, char **argv)
{
    size_t ran = 0;
    for (size_t i = 0; i < n; i++) {
        if (argc > 1 && strcmp(argv[1], tests[i].name) != 0)
            continue;
        fprintf(stderr, "%s\n", tests[i].name);
        tests[i].run();
        ran++;
    }
    fprintf(stderr, "%zu tests passed\n", ran);
    return ran == 0;
}

#define CHECK_MAIN(tests)                                                                                                                            \
    int main(int argc, char **argv)                                                                                                                  \
    {                                                                                                                                                \
        return check_run(tests, sizeof(tests) / sizeof(tests)[0], argc, argv);                                                                       \
    }

#endif
