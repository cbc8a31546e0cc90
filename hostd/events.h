// SPDX-License-Identifier: Apache-2.0
// The event log (/space/events) and every caller's own last failures (/space/error).
#ifndef SPACE_HOSTD_EVENTS_H
#define SPACE_HOSTD_EVENTS_H

#include "hostd/caller.h"
#include "hostd/space.h"
#include "hostd/wait.h"

#include <stddef.h>

/* Events kept for `since N`, in memory and in the database. */
#define EVENTS_KEPT 4096

/* Whose event it is: the rights of the object it tells of. */
struct event_scope {
    int64_t owner, gid, mode;
};

int events_open(struct space *s, struct err *e);
void events_close(struct events *ev);

/* Appends {"seq":N,"time":"…Z","kind":KIND,"id":ID,"name":NAME,…}. `extra` is "" or more members, starting with a comma; strings inside must be
 * quoted by event_quote. Written to the database (inside the caller's transaction, if any), then to every waiting reader. */
void event_emit(struct space *s, const struct event_scope *scope, const char *kind, uint64_t id, const char *name, const char *extra_fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* Takes in what other nodes wrote since. */
void events_sync(struct space *s);

/* JSON string with quotes around; cut to fit. Returns out. */
char *event_quote(const char *text, char *out, size_t size);

/* Sequence number of the newest event; a reader that starts now uses it as its cursor. */
uint64_t events_last(const struct events *ev);

/* Copies whole lines after *cursor that `c` may see, up to `size` bytes; moves *cursor. Returns the bytes, 0 when there is nothing yet. */
size_t events_read(struct events *ev, const struct caller *c, uint64_t *cursor, char *out, size_t size);

/* `w` is done (rc 0) at the next event of anyone's. */
void events_wait(struct events *ev, struct waiter *w);

/* Remembers a failure of `uid`: its last 16 make up its /space/error. */
void failure_record(struct space *s, uint32_t uid, const char *path, int code, const char *sentence);
/* The caller's failures, oldest first, one a line: TIME PATH ERRNO SENTENCE. malloc'ed, yours; NULL when out of memory. */
char *failure_text(struct space *s, uint32_t uid);
void failures_close(struct failures *f);

#endif
