// SPDX-License-Identifier: Apache-2.0
// What an answer of an S3 server, or the lack of one, means: done, failed, or try again, and how.
#ifndef SPACE_VOLUMED_S3_POLICY_H
#define SPACE_VOLUMED_S3_POLICY_H

#include "hostd/volumed/backend/http.h"
#include "hostd/volumed/backend/s3_xml.h"

#include <stdint.h>

enum s3_action {
    S3_DONE,  /* a 2xx status */
    S3_FAIL,  /* for good, with `code` */
    S3_RETRY, /* after a pause; `code` when patience is at its end */
    S3_SLOW,  /* the same, and fewer at the same time */
    S3_CLOCK, /* at once, with the server's clock; `code` when that does not help */
    S3_BAD,   /* what came is not what was put: again, but only a few times */
};

struct s3_verdict {
    enum s3_action action;
    int code;           /* positive errno */
    const char *advice; /* what it means, what to do; "" */
};

/* `error` is what the body of the answer says; all "" when it has none. */
struct s3_verdict s3_judge(const struct http_exchange *x, const struct s3_error *error);

/* Milliseconds to wait before try number `tries` + 1: at random up to a bound that doubles (full jitter), at least what the server asked for. */
uint64_t s3_backoff_msec(unsigned tries, uint32_t retry_after_s);

/* Additive increase, multiplicative decrease of the number of tries at the same time, between 1 and `most`. */
struct s3_window {
    double limit;
    unsigned most;
    uint64_t cut; /* when it was last halved, loop time in ms: answers to what was sent before do not halve it again */
};
void s3_window_ok(struct s3_window *w);
void s3_window_slow(struct s3_window *w, uint64_t now, uint64_t sent);

#endif
