// SPDX-License-Identifier: Apache-2.0
// A 9P server session: bytes in and out, limits, version, life and death. Requests are in
// request.c.
//
// Limits. Handlers are started only while the session is below all of its limits; input that comes
// beyond that (the rest of a chunk) is stashed, and taken up when a reply or p9_server_sent makes
// room. Owners stop reading when wants_input says so, which bounds the stash to about a chunk.
#include "9p/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define DEFAULT_FIDS     65536u
#define DEFAULT_REQUESTS 16384u
#define DEFAULT_OUTPUT   ((size_t)8 << 20)
#define DEFAULT_HELD     ((size_t)256 << 20)
#define MAX_STASH        ((size_t)16 << 20) /* an owner that ignores wants_input ends here */

static uint64_t random_odd(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) {
        struct timespec now; /* a guest that has just booted has no entropy, and only its host as a client */
        clock_gettime(CLOCK_MONOTONIC, &now);
        seed = ((uint64_t)now.tv_nsec << 32 | (uint64_t)now.tv_sec) * 0x9e3779b97f4a7c15u;
    }
    return seed | 1;
}

struct p9_server *p9_server_create(const struct p9_backend *backend, const struct p9_transport *transport, const struct p9_server_config *config,
                                   void *user)
{
    struct p9_server *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->backend = backend;
    s->transport = *transport;
    s->user = user;
    if (config)
        s->config = *config;
    if (!s->config.msize || s->config.msize > P9_MSIZE_MAX)
        s->config.msize = P9_MSIZE_MAX;
    if (s->config.msize < P9_MSIZE_MIN)
        s->config.msize = P9_MSIZE_MIN;
    if (!s->config.max_fids)
        s->config.max_fids = DEFAULT_FIDS;
    if (!s->config.max_requests)
        s->config.max_requests = DEFAULT_REQUESTS;
    if (!s->config.max_held)
        s->config.max_held = DEFAULT_HELD;
    if (!s->config.max_output)
        s->config.max_output = DEFAULT_OUTPUT;
    s->hash_seed = random_odd();
    p9_link_init(&s->active);
    p9_link_init(&s->orphans);
    p9_link_init(&s->ready);
    return s;
}

/* ---- life ---- */

static void drop_buffers(struct p9_server *s)
{
    p9_framer_finish(&s->framer);
    free(s->stash);
    s->stash = NULL;
    s->stash_len = s->stash_cap = 0;
}

void p9_server_enter(struct p9_server *s)
{
    s->depth++;
}

void p9_server_leave(struct p9_server *s)
{
    if (--s->depth || !s->destroyed || s->requests)
        return;
    drop_buffers(s);
    hmap_finish(&s->tags);
    free(s);
}

void p9_server_destroy(struct p9_server *s)
{
    if (!s || s->destroyed)
        return;
    p9_server_enter(s);
    s->destroyed = true;
    p9_request_orphan_all(s);
    p9_fids_drop_all(s);
    p9_server_leave(s);
}

/* The peer broke the protocol: nothing more is taken from it. */
static void die(struct p9_server *s, int error)
{
    s->error = error;
    p9_request_orphan_all(s);
    p9_fids_drop_all(s);
    drop_buffers(s);
}

/* ---- output ---- */

/* The data stays where it is, the header is put before it. */
static void send_in_place(struct p9_server *s, const struct p9_msg *m, void *owner)
{
    struct p9_msg head = {.type = m->type, .tag = m->tag};
    uint8_t *data = (uint8_t *)(uintptr_t)m->Rread.data.p;
    size_t size = p9_encoded_size(&head), len = m->Rread.data.len;
    uint8_t *at = data - size;
    p9_encode(&head, at, size);
    for (unsigned i = 0; i < 4; i++) {
        at[i] = (uint8_t)((size + len) >> (8 * i));
        at[size - 4 + i] = (uint8_t)(len >> (8 * i)); /* the last field of the header */
    }
    s->output += size + len;
    p9_server_enter(s);
    s->send_part(s->transport.user, owner, at, size + len);
    s->depth--;
}

void p9_server_send(struct p9_server *s, const struct p9_msg *m, void *data_owner)
{
    size_t size = p9_encoded_size(m);
    if (data_owner && s->send_part && !s->destroyed && !s->error) {
        send_in_place(s, m, data_owner);
        return;
    }
    if (s->destroyed || s->error || !size) {
        free(data_owner);
        return;
    }
    void *buf = malloc(size);
    if (!buf) {
        s->error = -ENOMEM; /* a reply that never comes would hang the client: the session must end */
        free(data_owner);
        return;
    }
    p9_encode(m, buf, size);
    free(data_owner);
    s->output += size;
    p9_server_enter(s); /* the transport may report the bytes as sent at once */
    s->transport.send(s->transport.user, buf, size);
    s->depth--;
}

void p9_server_version(struct p9_server *s, const struct p9_msg *t)
{
    uint32_t msize = t->Tversion.msize < s->config.msize ? t->Tversion.msize : s->config.msize;
    struct p9_msg m = {.type = P9_Rversion, .tag = t->tag};
    p9_request_orphan_all(s);
    p9_fids_drop_all(s);
    s->msize = 0;
    if (msize < P9_MSIZE_MIN) {
        m.type = P9_Rlerror;
        m.Rlerror.ecode = EMSGSIZE;
    } else if (!p9_str_eq(t->Tversion.version, P9_VERSION)) {
        m.Rversion = (struct p9_Rversion){.msize = msize, .version = p9_str_of("unknown")};
    } else {
        m.Rversion = (struct p9_Rversion){.msize = msize, .version = p9_str_of(P9_VERSION)};
        s->msize = msize;
    }
    p9_server_send(s, &m, NULL);
}

/* ---- input ---- */

bool p9_server_wants_input(const struct p9_server *s)
{
    /* A dead session wants input so that its owner learns of the death. */
    return s->error || (s->requests < s->config.max_requests && s->output <= s->config.max_output && s->held <= s->config.max_held);
}

/* Takes messages from the bytes until they or the limits end; moves both arguments. */
static void take_messages(struct p9_server *s, const uint8_t **p, size_t *n)
{
    while (!s->error && !s->destroyed && p9_server_wants_input(s)) {
        struct p9_frame frame;
        int rc = p9_framer_next(&s->framer, p, n, s->msize ? s->msize : P9_MSIZE_MIN, &frame);
        if (rc == 0)
            return;
        if (rc > 0)
            rc = p9_request_take(s, &frame);
        if (rc < 0)
            die(s, rc);
        p9_request_run_ready(s);
    }
}

static void take_stash(struct p9_server *s)
{
    if (!s->stash_len || !p9_server_wants_input(s))
        return;
    uint8_t *bytes = s->stash;
    size_t left = s->stash_len, cap = s->stash_cap;
    const uint8_t *p = bytes;
    s->stash = NULL; /* a session that dies inside drops its stash */
    s->stash_len = s->stash_cap = 0;
    take_messages(s, &p, &left);
    if (left && !s->error && !s->destroyed) {
        memmove(bytes, p, left);
        s->stash = bytes;
        s->stash_len = left;
        s->stash_cap = cap;
    } else {
        free(bytes);
    }
}

static int add_to_stash(struct p9_server *s, const uint8_t *p, size_t n)
{
    if (n > MAX_STASH - s->stash_len)
        return -ENOBUFS;
    if (s->stash_len + n > s->stash_cap) {
        size_t cap = s->stash_len + n;
        uint8_t *bigger = realloc(s->stash, cap);
        if (!bigger)
            return -ENOMEM;
        s->stash = bigger;
        s->stash_cap = cap;
    }
    memcpy(s->stash + s->stash_len, p, n);
    s->stash_len += n;
    return 0;
}

int p9_server_input(struct p9_server *s, const void *buf, size_t len)
{
    const uint8_t *p = buf;
    if (s->error)
        return s->error;
    p9_server_enter(s);
    take_stash(s);
    if (!s->stash_len)
        take_messages(s, &p, &len);
    if (len && !s->error && !s->destroyed) {
        int rc = add_to_stash(s, p, len);
        if (rc < 0)
            die(s, rc);
    }
    int rc = s->destroyed ? 0 : s->error;
    p9_server_leave(s);
    return rc;
}

void *p9_server_space(const struct p9_server *s, size_t *len)
{
    if (s->error || s->destroyed || s->stash_len || !p9_server_wants_input(s))
        return NULL;
    return p9_framer_space(&s->framer, len);
}

int p9_server_filled(struct p9_server *s, size_t len)
{
    p9_framer_filled(&s->framer, len);
    return p9_server_input(s, "", 0);
}

/* Work that waited for room or for a gate. Only the outermost caller does it. */
static void catch_up(struct p9_server *s)
{
    if (s->depth != 1 || s->destroyed || s->error)
        return;
    p9_request_run_ready(s);
    take_stash(s);
}

void p9_server_leave_reply(struct p9_server *s, bool wanted)
{
    catch_up(s);
    bool tell = s->depth == 1 && !s->destroyed && !wanted && p9_server_wants_input(s) && s->resume;
    if (tell)
        s->resume(s->resume_user);
    p9_server_leave(s);
}

void p9_server_sent(struct p9_server *s, size_t len)
{
    s->output -= len < s->output ? len : s->output;
    p9_server_enter(s);
    catch_up(s);
    p9_server_leave(s);
}

void p9_server_set_resume(struct p9_server *s, void (*resume)(void *user), void *user)
{
    s->resume = resume;
    s->resume_user = user;
}

void p9_server_set_send_part(struct p9_server *s, void (*send_part)(void *user, void *buf, const void *at, size_t len))
{
    s->send_part = send_part;
}

uint32_t p9_server_fids(const struct p9_server *s)
{
    return (uint32_t)s->fids.count;
}

uint32_t p9_server_requests(const struct p9_server *s)
{
    return s->requests;
}
