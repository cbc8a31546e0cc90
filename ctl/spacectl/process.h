// SPDX-License-Identifier: Apache-2.0
// Child processes that are ended and reaped when the user interrupts.
#ifndef SPACE_CTL_PROCESS_H
#define SPACE_CTL_PROCESS_H

#include "base/err.h"

enum process_flags {
    PROCESS_MAP_ROOT = 1, /* in a user namespace where the caller is root, if the system allows it (argv only) */
};

struct process {
    const char *const *argv;     /* a program on PATH, run with LC_ALL=C; or */
    int (*function)(void *user); /* this, whose result is the exit status */
    void *user;
    int out, err; /* its standard output and error; -1: the caller's */
    unsigned flags;
};

/*
 * From here on SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked in the caller, and process_run and
 * process_interrupted see them. Call it once, before there are threads.
 */
void process_block_signals(void);

/* The signal that wants the program to end, or 0. It stays pending. */
int process_interrupted(void);

/* Runs it to its end. Its exit status (128 + n for a signal), -EINTR when interrupted (it was ended
 * and reaped), or -errno. */
int process_run(const struct process *p, struct err *e);

#endif
