// SPDX-License-Identifier: Apache-2.0
// Cuts a byte stream into whole 9P messages. Copies only messages that the input splits, and of a
// large one that is split the rest can be read straight to its place (p9_framer_space).
#ifndef SPACE_9P_FRAMER_H
#define SPACE_9P_FRAMER_H

#include <stddef.h>
#include <stdint.h>

/* Zero-initialised: empty. */
struct p9_framer {
    uint8_t *base; /* what malloc gave, */
    uint8_t *buf;  /* in it: the split message so far, `len` of `cap` bytes */
    size_t len, cap;
};

/*
 * One whole message. `owned` is NULL when `p` lies in the caller's input, else the malloc'ed buffer
 * in which `cap` bytes begin at `p`. A message of P9_FRAMER_LARGE bytes or more that was split lies
 * so that the data of a Twrite begins a page.
 */
#define P9_FRAMER_LARGE (32u * 1024)

struct p9_frame {
    const uint8_t *p;
    size_t len;
    uint8_t *owned;
    size_t cap;
};

/*
 * Takes bytes from *in (*n of them), moving both. Returns 1 with a message in *out (its `owned`
 * buffer is then the caller's: free it or give it back with p9_framer_recycle), 0 when all input
 * was taken and no message is whole, -EBADMSG for a size below P9_HDR, -EMSGSIZE for one above
 * `max`, -ENOMEM. Never holds more than `max` bytes.
 */
int p9_framer_next(struct p9_framer *f, const uint8_t **in, size_t *n, size_t max, struct p9_frame *out);

/*
 * Where the next *len bytes belong when they are the rest of a large message, else NULL. Of what
 * was put there p9_framer_filled tells; p9_framer_next, which may then have no input, gives the
 * message out.
 */
uint8_t *p9_framer_space(const struct p9_framer *f, size_t *len);
void p9_framer_filled(struct p9_framer *f, size_t len);

/* Gives a frame's buffer back for reuse, or frees it. A frame without one is fine. */
void p9_framer_recycle(struct p9_framer *f, struct p9_frame *frame);

/* Forgets everything and frees the buffer. */
void p9_framer_finish(struct p9_framer *f);

#endif
