// SPDX-License-Identifier: Apache-2.0
// One error convention for every program: a negative errno plus the sentence that explains it.
#ifndef SPACE_BASE_ERR_H
#define SPACE_BASE_ERR_H

/* Longest sentence kept, with its NUL. Longer ones are cut. */
#define ERR_MAX 480

/* What was tried, on what, why it failed, what to do. Lives on the caller's stack; zero-initialise it. */
struct err {
    int code; /* positive errno, 0 when nothing failed */
    char msg[ERR_MAX];
};

/* Sets code (a positive errno) and sentence. `e` may be NULL. Returns -code, for `return err_set(...)`. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Like err_set with errno's value, and appends ": " and strerror(errno) to the sentence. */
int err_sys(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " before the sentence already in `e` (which must be set). Returns -e->code. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
