// SPDX-License-Identifier: Apache-2.0
// Command lines from a declarative table: each command lists its options once, and parsing and
// --help come from that list.
#ifndef SPACE_CTL_OPTIONS_H
#define SPACE_CTL_OPTIONS_H

#include "base/err.h"

#include <stdbool.h>

#define OPTIONS_GIVEN_MAX 256 /* options on one command line */

struct option_def {
    char letter;       /* 0: there is only the long form */
    const char *name;  /* long form without dashes; NULL ends a table */
    const char *value; /* what --help calls the value; NULL for a flag */
    const char *help;
};

/* What a command line held. Strings are borrowed from argv. */
struct args {
    const char *space; /* --space, or NULL */
    bool help;         /* --help; nothing else was checked then */
    struct {
        int def; /* index into the command's table */
        const char *value;
    } given[OPTIONS_GIVEN_MAX];
    int given_count;
    char **pos; /* positional arguments, NULL-ended; lies in argv, whose order parsing changes */
    int pos_count;
};

/*
 * Parses argv[0..argc) (without program and command name). `defs` may be NULL. `passthrough` > 0:
 * everything behind that many positional arguments is positional too, whatever it looks like, and a
 * "--" right there is dropped. Otherwise "--" ends the options. Options that every command has
 * (--space DIR, --help) are handled here. 0 or -EINVAL with a sentence.
 */
int options_parse(const struct option_def *defs, int passthrough, int argc, char **argv, struct args *out, struct err *e);

/* The value that option `def` was last given (for a flag: ""), or NULL. */
const char *args_value(const struct args *a, int def);

/* Walks the values of a repeatable option: start with *at = 0; NULL at the end. */
const char *args_next(const struct args *a, int def, int *at);

/* Prints the option lines of --help, those that every command has included. */
void options_print(const struct option_def *defs);

#endif
