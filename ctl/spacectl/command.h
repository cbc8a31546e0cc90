// SPDX-License-Identifier: Apache-2.0
// What a command of spacectl is. Each lives in a file cmd_NAME.c that exports nothing but its
// `struct command`.
#ifndef SPACE_CTL_COMMAND_H
#define SPACE_CTL_COMMAND_H

#include "spacectl/options.h"
#include "spacectl/tree.h"

/* Exit statuses that are spacectl's own (a job's status is passed through unchanged). */
enum {
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_SELF = 125, /* exec and shell: spacectl itself failed */
    EXIT_CANNOT_RUN = 126,
    EXIT_NOT_FOUND = 127,
    EXIT_LOST = 255, /* exec and shell: nobody knows how the job ended */
};

enum command_flags { COMMAND_NO_MOUNT = 1 /* works without an open tree (t->fd is -1) */ };

struct command {
    const char *name;    /* one word, or two: "template build" */
    const char *usage;   /* the arguments, for people */
    const char *summary; /* one line, lower case */
    const char *help;    /* more lines, or NULL */
    const struct option_def *options;
    int pos_min, pos_max; /* number of positional arguments; pos_max -1: any */
    int passthrough;      /* see options_parse */
    int fail_status;      /* exit status when `run` returns an error; 0: EXIT_FAILED */
    unsigned flags;
    /* The exit status, or a negative errno with a sentence in `e`. */
    int (*run)(const struct command *self, const struct tree *t, const struct args *a, struct err *e);
};

/* Every command of the program, and a NULL. */
extern const struct command *const commands[];

// clang-format off
#define COMMANDS(X)                                                                                \
    X(create) X(ls) X(exec) X(shell) X(cp)                                                         \
    X(start) X(pause) X(resume) X(suspend) X(stop) X(kill)                                                    \
    X(fork) X(snapshot_create) X(snapshot_ls) X(snapshot_rm) X(snapshots) X(diff) X(rollback) X(export) X(import) X(mv) X(rm)               \
    X(template_ls) X(template_build) X(template_rm)                                                \
    X(net) X(forward) X(events) X(doctor) X(fsck) X(key_show) X(key_rotate) X(key_revoke) \
    X(credential_set) X(credential_ls) X(credential_rm) X(credential_login) X(audit_verify)
// clang-format on

#define DECLARE(name) extern const struct command command_##name;
COMMANDS(DECLARE)
#undef DECLARE

#endif
