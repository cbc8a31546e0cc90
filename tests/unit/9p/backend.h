// SPDX-License-Identifier: Apache-2.0
// A 9P backend for tests: answers at once or when told, counts what it holds, records what it was
// called for; and a raw peer that feeds messages to a session on that backend and takes its replies
// apart.
#ifndef SPACE_TESTS_BACKEND_H
#define SPACE_TESTS_BACKEND_H

#include "9p/server.h"

#define BACKEND_MAX 20000

enum backend_cancel {
    CANCEL_NOW,   /* cancel answers EINTR at once */
    CANCEL_LATER, /* cancel is counted; the test answers */
    CANCEL_NONE,  /* no cancel function */
};

struct backend {
    bool defer[P9_TYPE_MAX]; /* requests of this type wait for backend_answer */
    enum backend_cancel cancel;
    struct p9_request *waiting[BACKEND_MAX];
    unsigned n_waiting;
    unsigned cancels;            /* calls of cancel */
    int live;                    /* aux objects of fids */
    uint8_t called[BACKEND_MAX]; /* types of the requests that reached a handler, in order */
    unsigned n_called;
    uint32_t last_count;    /* of the last read or readdir */
    unsigned walk_stops_at; /* qids that a walk returns at most; default all */
    uint32_t read_extra;    /* bytes that Rread brings beyond what was asked */
    struct p9_server *destroy_in_handler;
};

/* Fills in defaults. */
void backend_init(struct backend *b);

/* The backend's table of handlers: all but auth. p9_server_create's `user` is the struct backend.
 */
const struct p9_backend *backend_table(void);

/* Answers the i-th waiting request: code 0 = success, else Rlerror. */
void backend_answer(struct backend *b, unsigned i, int code);

struct peer {
    struct backend backend;
    struct p9_server *server;
    uint8_t *out; /* what the session sent and the test has not read yet */
    size_t out_len, out_cap;
    size_t sent_total;   /* bytes that the session ever sent */
    bool report_in_send; /* call p9_server_sent inside send */
    bool hold_output;    /* do not report bytes as sent */
    unsigned resumed;
    struct p9_msg reply; /* the last one read */
    uint8_t *reply_bytes;
};

/* A session on the test backend, without Tversion. `config` may be NULL; `table` NULL =
 * backend_table(). */
struct peer *peer_create(const struct p9_server_config *config, const struct p9_backend *table);
/* Ends the session (unless it is gone) and checks that nothing of the backend's is left. */
void peer_destroy(struct peer *p);

/* Version 64 KiB and attach of fid 0, replies read. */
struct peer *peer_attached(const struct p9_server_config *config);

int peer_send(struct peer *p, const struct p9_msg *m);
int peer_send_bytes(struct peer *p, const void *bytes, size_t len);

/* The next reply must be of this type and tag; it is then in p->reply. */
#define peer_expect(p, type, tag) peer_expect_at(__FILE__, __LINE__, p, type, tag)
void peer_expect_at(const char *file, int line, struct peer *p, uint8_t type, uint16_t tag);
/* ... an Rlerror with this code. */
#define peer_expect_error(p, tag, code)                                                                                                              \
    do {                                                                                                                                             \
        peer_expect(p, P9_Rlerror, tag);                                                                                                             \
        CHECK_EQ((p)->reply.Rlerror.ecode, code);                                                                                                    \
    } while (0)
/* There is no reply to read. */
#define peer_expect_silence(p) CHECK_EQ((p)->out_len, 0)

/* Shorthands that send and check that the session took it. */
void peer_walk(struct peer *p, uint16_t tag, uint32_t fid, uint32_t newfid, const char *name); /* NULL: clone */
void peer_getattr(struct peer *p, uint16_t tag, uint32_t fid);
void peer_lopen(struct peer *p, uint16_t tag, uint32_t fid);
void peer_read(struct peer *p, uint16_t tag, uint32_t fid, uint32_t count);
void peer_clunk(struct peer *p, uint16_t tag, uint32_t fid);
void peer_flush(struct peer *p, uint16_t tag, uint16_t oldtag);

#endif
