// SPDX-License-Identifier: Apache-2.0
// A connection to a TCP port of the guest, made for the host: what an opened /tcp/PORT is
// (docs/protocol/guest.md).
#ifndef SPACE_GUEST_DIAL_H
#define SPACE_GUEST_DIAL_H

#include "9p/server.h"
#include "guest/poll.h"

struct dial;

/*
 * Connects to `port` at 127.0.0.1, or where nothing listens there, at ::1. Answers the Tlopen `r`
 * with `opened` now or later: ECONNREFUSED, ETIMEDOUT after 10 s, or what socket(2) says, else with
 * Rlopen
 * (`qid`). NULL only when out of memory; `r` was answered then. Freed with dial_close once no
 * request uses it any more, also when the opening failed.
 */
struct dial *dial_open(struct poll_loop *l, uint16_t port, struct p9_qid qid, struct p9_request *r);

/* NULL is fine. */
void dial_close(struct dial *d);

/* Answers the Tread with what came, at least a byte; 0 bytes at the end. One at a time: EBUSY. */
void dial_read(struct dial *d, struct p9_request *r);

/* Answers the Twrite with what the socket took, at least a byte. One at a time: EBUSY. */
void dial_write(struct dial *d, struct p9_request *r);

/* Nothing more will be written. */
void dial_shut(struct dial *d);

#endif
