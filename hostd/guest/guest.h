// SPDX-License-Identifier: Apache-2.0
// space-hostd's end of the guest channel (docs/protocol/guest.md): two 9P sessions with a hostile peer.
#ifndef SPACE_HOSTD_GUEST_H
#define SPACE_HOSTD_GUEST_H

#include "9p/client.h"
#include "hostd/space.h"
#include "hostd/wait.h"

struct guest;

enum guest_port { GUEST_CONTROL = 0, GUEST_FILES = 1 };

/* A guest that answers nothing for this long while something is asked of its files gets EIO for it. */
#define GUEST_MUTE_SEC 30

struct guest_hooks {
    /* The channel closed (`code` ECONNREFUSED: QEMU has ended), or the guest broke the protocol (EPROTO). Called once, from the loop; then call
     * guest_close. */
    void (*lost)(void *user, int code, const char *why);
    void *user;
    /*
     * The machine stands still, and nobody was connected when it was last seen: it is to go on once both ports are open. QEMU does not hear of a peer that
     * leaves meanwhile, and when the guest then answers that one before the next has come, it keeps that back, and all that follows, until somebody leaves.
     */
    bool stands_still;
};

/*
 * From a coroutine: connects both ports of the domain `object`, exchanges preambles and attaches, within `msec` milliseconds from now
 * (the guest may still be booting). -ETIMEDOUT, -ECANCELED (co_abort), -ECONNREFUSED when QEMU is gone, -EPROTO.
 */
int guest_connect(struct space *s, uint64_t object, const struct guest_hooks *hooks, uint64_t msec, struct guest **out, struct err *e);

/* Somebody else is told from now on. */
void guest_set_hooks(struct guest *g, const struct guest_hooks *hooks);

/* Ends both sessions: calls in flight fail with -ECONNRESET. NULL is fine. The memory goes by itself. */
void guest_close(struct guest *g);

/* The session of a port, and its attached root fid. */
struct p9_client *guest_client(struct guest *g, enum guest_port port);
uint32_t guest_root(struct guest *g, enum guest_port port);
/* A number that no other connection of this run has: fids belong to one (serial, generation of the client). */
uint64_t guest_serial(const struct guest *g);
/* False while the session is being renewed. */
bool guest_ready(struct guest *g, enum guest_port port);
/*
 * Has `w` told when the files session is ready again, or with -EIO that it will not be soon. False, and `w` is not used, when that is known now:
 * fail with EIO then.
 */
bool guest_await_files(struct guest *g, struct waiter *w);

/* From a coroutine: one line to /ctl of the guest, waiting at most `msec`. 0, the guest's errno, -ETIMEDOUT, -ECANCELED. */
int guest_ctl(struct guest *g, uint64_t msec, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* From a coroutine: what /activity says now. 0 or as guest_ctl. */
int guest_activity(struct guest *g, uint64_t msec, char *text, size_t size);

/*
 * Opens a file of the control tree by path (`n` names), writes `data` in one message and closes it, in one round trip. `cb` gets the first error of the
 * three, or 0 and the Rwrite. `len` at most 64 KiB.
 */
void guest_put(struct guest *g, const char *const *path, uint16_t n, const void *data, uint32_t len, p9_callback *cb, void *user);

/* Opens a file of the control tree in one round trip; `cb` gets the first error or 0. Returns its fid, which the caller clunks in either case. */
uint32_t guest_open_file(struct guest *g, const char *const *path, uint16_t n, uint32_t flags, p9_callback *cb, void *user);

/* KILLs what is left of the job and forgets it, in the guest. Nobody waits for it. */
void guest_job_remove(struct guest *g, uint64_t id);

/* From a coroutine: writes a file of the control tree at once. 0, or as guest_ctl; -ENOENT: an agent of before, which has no such file. */
int guest_write(struct guest *g, const char *name, const void *data, uint32_t len, uint64_t msec);

/* From a coroutine: starts the job of a spawn record (docs/protocol/guest.md) whose id is `id`, waits for its end, and removes it. 0, or as guest_ctl. */
int guest_run(struct guest *g, uint64_t msec, uint64_t id, const void *record, uint32_t len);

/* The first lines of /info as read at connect; borrowed. */
const char *guest_info(struct guest *g);

#endif
