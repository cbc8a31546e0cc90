// SPDX-License-Identifier: Apache-2.0
// poll(2) on control files: streams are ready when data is, connections also when there is room, `state` when it changed; everything else always.
#ifndef SPACEFS_POLL_H
#define SPACEFS_POLL_H

#include "spacefs/handle.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The handle was released: ends what runs for its pollers. */
void poll_release(struct handle *h);
/* Frees what is left, with the handle's last reference. */
void poll_free(struct handle *h);

/* True when a read at `off` must first fetch the new text: a poller was told of a change. */
bool poll_wants_refresh(const struct handle *h, off_t off);

/* A write to a stream may move it (`since N` of events): what was read ahead is void. */
void poll_written(struct handle *h);

/* A write to a connection that must not wait found no room: it is not ready for writing until there is some. */
void poll_no_room(struct handle *h);

/*
 * Before a read at `off`: how many bytes that were read ahead for a poller answer it (then poll_data, poll_consume), 0 to read normally, or a
 * negative error. Waits for a read ahead at this very offset; with `nonblock` -EAGAIN instead. Refreshes a changed text. A
 * non-blocking read of `events` that was opened to block always goes this way: its position belongs to its one fid.
 */
int poll_before_read(struct task *t, struct handle *h, uint64_t off, size_t size, bool nonblock);
const char *poll_data(const struct handle *h);
void poll_consume(struct handle *h, size_t len);

#endif
