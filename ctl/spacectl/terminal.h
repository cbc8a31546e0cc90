// SPDX-License-Identifier: Apache-2.0
// The caller's terminal in raw mode, given back in every case: normal end, error, signal, crash.
#ifndef SPACE_CTL_TERMINAL_H
#define SPACE_CTL_TERMINAL_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Puts standard input into raw mode. 0 or -errno (-ENOTTY: it is no terminal). May be called again
 * after terminal_restore. */
int terminal_raw(struct err *e);

/* Undoes it. Any number of times, from any thread or signal handler. */
void terminal_restore(void);

/* Size in characters; 80x24 when the terminal does not know. */
void terminal_size(unsigned *columns, unsigned *rows);

/* What the user typed on a fresh line: `~.` ends the session, `~~` is a tilde. Zero-initialise with
 * fresh_line = true. */
struct escape {
    bool fresh_line, held; /* held: a tilde that was not passed on yet */
};

/* Copies `in` to `out` (room for len + 1 bytes) without the escape. *ret_len is what was copied.
 * True for `~.`. */
bool escape_filter(struct escape *x, const char *in, size_t len, char *out, size_t *ret_len);

#endif
