// SPDX-License-Identifier: Apache-2.0
// A job's standard input: writes in order of arrival, each answered when the pipe took it all.
#ifndef SPACE_GUEST_INPUT_H
#define SPACE_GUEST_INPUT_H

#include "9p/server.h"
#include "guest/poll.h"

struct input {
    struct poll_loop *loop;
    struct poll_watch watch; /* fd -1: closed */
    bool watching, terminal, eof;
    struct p9_link writes;
};

/* Takes over `fd` (non-blocking, writable). For a terminal the end of input is ^D, and the
 * descriptor stays open. */
void input_init(struct input *in, struct poll_loop *l, int fd, bool terminal);

/* Answers the Twrite now or later: its whole count, or EPIPE. One that is flushed halfway is
 * answered with what the pipe took. */
void input_write(struct input *in, struct p9_request *r);

/* Closes after everything written before. */
void input_eof(struct input *in);

/* Closes at once; waiting writes get EPIPE. */
void input_finish(struct input *in);

#endif
