// SPDX-License-Identifier: Apache-2.0
// An asynchronous 9P2000.L client: calls with callbacks, flush as cancel, fid numbers, reconnect. No transport, no loop,
// one thread. Everything that the server sends is treated as hostile (hostd speaks to guests with this).
#ifndef SPACE_9P_CLIENT_H
#define SPACE_9P_CLIENT_H

#include "9p/codec.h"
#include "9p/server.h" /* struct p9_transport */

struct p9_client;
struct p9_call;

/*
 * err == 0: `r` is the reply of the right type. err < 0: -errno from Rlerror, -EINTR after a cancel that came through,
 * -ECONNRESET when the connection went while the call was in flight, -EPROTO. `r` is NULL then; with err == 0 it is
 * valid during the callback only. An Rwalk may be short: then newfid was not made. It never holds more qids, data or count than was
 * asked for (else -EPROTO for the connection). New calls may be made inside. Called exactly once per call, never inside p9_client_call.
 */
typedef void p9_callback(void *user, int err, const struct p9_msg *r);

/* NULL only when out of memory. The client starts disconnected. */
struct p9_client *p9_client_create(void);

/*
 * Fails all calls in flight with -ECONNRESET, frees everything. NULL is fine. Not from inside a callback of this client. A callback
 * that answers failure with a new call gets that one failed too, before this returns: it must not do so for ever.
 */
void p9_client_destroy(struct p9_client *c);

/*
 * A fresh connection: sends Tversion with `msize` (P9_MSIZE_MIN to P9_MSIZE_MAX) and calls `ready` (err, Rversion) once.
 * Any earlier connection is dropped first as p9_client_disconnected does, also one that a callback makes meanwhile. All fid numbers are forgotten: generation + 1.
 */
void p9_client_connect(struct p9_client *c, const struct p9_transport *transport, uint32_t msize, p9_callback *ready, void *user);

/* The transport is gone: every call in flight ends with -ECONNRESET (inside this call). */
void p9_client_disconnected(struct p9_client *c);

/* Bytes from the server. Negative errno: protocol broken, treat the transport as dead. */
int p9_client_input(struct p9_client *c, const void *buf, size_t len);

/* 1 after version negotiation, until disconnected. */
int p9_client_is_connected(const struct p9_client *c);

/* Counts connections, starting at 1 with the first; 0 before. Fids of an older generation are void. */
uint32_t p9_client_generation(const struct p9_client *c);

/* Largest data in one read or write on this connection: msize - P9_IOHDR. */
uint32_t p9_client_iounit(const struct p9_client *c);

/* A fid number not in use (P9_NOFID when out of memory); free it after the clunk's reply, or when the connection is gone (then it is a no-op). */
uint32_t p9_client_fid_alloc(struct p9_client *c);
void p9_client_fid_free(struct p9_client *c, uint32_t fid);

/*
 * Sends a T-message (its tag is set by the library; data is copied out before return). Calls go out in order, without
 * waiting for each other's replies: dependent calls may be pipelined. Never NULL; when not connected or out of tags
 * (65,280 in flight) the callback reports -ENOTCONN or -EAGAIN at the next p9_client_run_pending or input.
 */
struct p9_call *p9_client_call(struct p9_client *c, struct p9_msg *t, p9_callback *cb, void *user);

/* Callbacks that could not be made inside p9_client_call. The transport's owner calls this from its loop when asked. */
void p9_client_run_pending(struct p9_client *c);

/* `wake` is called when p9_client_run_pending has something to do. */
void p9_client_set_wake(struct p9_client *c, void (*wake)(void *user), void *user);

/*
 * Sends Tflush. The callback still comes exactly once: with the result when the reply was already on its way, else
 * -EINTR when Rflush arrives. A second cancel is a no-op.
 */
void p9_call_cancel(struct p9_call *call);

/* Calls in flight, flushed ones included. */
uint32_t p9_client_calls(const struct p9_client *c);

/* Clunks and frees the number; nobody waits for the answer. A fid of an older generation is just forgotten. */
void p9_client_clunk(struct p9_client *c, uint32_t generation, uint32_t fid);

#endif
