// SPDX-License-Identifier: Apache-2.0
// A virtio-serial port that carries 9P sessions: see port.h.
//
// Theory of operation. Two states: without a session, input is thrown away until a preamble, which
// is echoed and starts a session; with one, input is the session's. A hang-up (nobody connected on
// the host) ends it. Between a hang-up and the next connection the guest may not have run at all
// (the VM was paused): both changes then arrive as one and no POLLHUP is ever seen. The new
// preamble gives it away: at a message's start its first four bytes are no valid size, so the
// session dies, and the preamble is looked for in what was just read; in the middle of a message,
// the peer falls silent after it (it waits for the echo), so a message that stops in its middle
// with a preamble at the end is one after STALE_MSEC.
//
// A connection and its first bytes arrive on different queues: a preamble may be read while
// EPOLLHUP still is on, or even before the hang-up that came before it is seen. So a hang-up counts
// only after somebody was seen connected since the session began, and ends a session only when it
// is still there after HANG_UP_MSEC; if it is not, the preamble that must come is looked for as if
// it had been missed, but need not be waited for in a message's middle.
//
// Events are edge-triggered, as EPOLLHUP stays on while nobody is connected. The kernel hands out
// input by the page and takes 32 KiB a write. Input is gathered here, except the rest of a large
// message, which is read to where the session wants it.
#include "guest/port.h"

#include "9p/framer.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STALE_MSEC   200
#define HANG_UP_MSEC 10
#define INPUT_SIZE   (128u * 1024)
/* The smallest guest has 128 MiB, which are its programs'. Two of the largest messages each way
 * keep the port busy. */
#define OUTPUT_MAX ((size_t)1 << 20)
#define HELD_MAX   ((size_t)4 << 20)
#define TURN_MAX   (1u << 20) /* bytes read before others get their turn */

struct port_buffer {
    struct port_buffer *next;
    void *owner; /* malloc'ed, holds what is at `data` */
    const char *data;
    size_t len, at;
};

static const char port_word[] = "SPACE1 ";

/* ---- output ---- */

static void drop_output(struct port *p)
{
    while (p->out) {
        struct port_buffer *b = p->out;
        p->out = b->next;
        free(b->owner);
        free(b);
    }
    p->out_end = &p->out;
}

static void want_output(struct port *p, bool blocked)
{
    if (p->out_blocked == blocked)
        return;
    p->out_blocked = blocked;
    poll_watch_set(p->loop, &p->watch, EPOLLIN | EPOLLHUP | EPOLLET | (blocked ? (uint32_t)EPOLLOUT : 0));
}

static void write_output(struct port *p)
{
    while (p->out) {
        struct port_buffer *b = p->out;
        ssize_t n = write(p->watch.fd, b->data + b->at, b->len - b->at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break; /* full, or nobody there: the hang-up comes by itself */
        p->connected = true;
        b->at += (size_t)n;
        if (b->at == b->len) {
            p->out = b->next;
            if (!p->out)
                p->out_end = &p->out;
            free(b->owner);
            free(b);
        }
        if (p->server)
            p9_server_sent(p->server, (size_t)n);
    }
    want_output(p, p->out != NULL);
}

static void send_part(void *user, void *owner, const void *data, size_t len)
{
    struct port *p = user;
    struct port_buffer *b = malloc(sizeof *b);
    if (!b)
        abort();
    *b = (struct port_buffer){NULL, owner, data, len, 0};
    *p->out_end = b;
    p->out_end = &b->next;
    if (!p->out_blocked)
        poll_timer_start(p->loop, &p->more, 0);
}

static void send_buffer(void *user, void *data, size_t len)
{
    send_part(user, data, data, len);
}

/* ---- sessions ---- */

static void end_session(struct port *p)
{
    struct p9_server *s = p->server;
    p->server = NULL;
    p->matched = 0;
    p->hung_up = false;
    poll_timer_stop(&p->stale);
    poll_timer_stop(&p->hang_up);
    if (s)
        p9_server_destroy(s);
    drop_output(p);
    want_output(p, false);
}

static void resume_input(void *user)
{
    struct port *p = user;
    poll_timer_start(p->loop, &p->more, 0);
}

static void start_session(struct port *p)
{
    struct p9_transport t = {p, send_buffer};
    char *echo = malloc(PORT_PREAMBLE_LEN);
    if (!echo)
        abort();
    memcpy(echo, p->preamble, PORT_PREAMBLE_LEN);
    drop_output(p);
    send_buffer(p, echo, PORT_PREAMBLE_LEN);
    p->matched = 0;
    p->connected = false; /* by this peer: the hang-up of the one before may still be on */
    p->have = p->left = 0;
    memset(p->tail, 0, sizeof p->tail);
    p->server = p9_server_create(p->backend, &t, &p->config, p->user);
    if (!p->server)
        abort();
    p9_server_set_resume(p->server, resume_input, p);
    p9_server_set_send_part(p->server, send_part);
}

static bool preamble_byte_valid(size_t at, char c)
{
    if (at < sizeof port_word - 1)
        return c == port_word[at];
    if (at == PORT_PREAMBLE_LEN - 1)
        return c == '\n';
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* Looks for a preamble; true when its last byte is at buf[*used - 1]. 'S' occurs only at its start,
 * so one position is all there is to remember. */
static bool find_preamble(struct port *p, const char *buf, size_t len, size_t *used)
{
    for (size_t i = 0; i < len; i++) {
        if (!preamble_byte_valid(p->matched, buf[i]))
            p->matched = 0;
        if (!preamble_byte_valid(p->matched, buf[i]))
            continue;
        p->preamble[p->matched++] = buf[i];
        if (p->matched == PORT_PREAMBLE_LEN) {
            *used = i + 1;
            return true;
        }
    }
    return false;
}

/* ---- input ---- */

/* Follows where in a message the input is. */
static void track(struct port *p, const char *buf, size_t len)
{
    while (len) {
        if (p->have < 4) {
            p->size_field[p->have++] = (uint8_t)*buf++;
            len--;
            if (p->have == 4) {
                uint32_t size = p9_peek_size(p->size_field);
                p->left = size > 4 ? size - 4 : 0;
            }
        } else {
            uint32_t n = len < p->left ? (uint32_t)len : p->left;
            buf += n;
            len -= n;
            p->left -= n;
        }
        if (p->have == 4 && p->left == 0)
            p->have = 0;
    }
}

static void keep_tail(struct port *p, const char *buf, size_t len)
{
    if (len >= sizeof p->tail) {
        memcpy(p->tail, buf + len - sizeof p->tail, sizeof p->tail);
    } else {
        memmove(p->tail, p->tail + len, sizeof p->tail - len);
        memcpy(p->tail + sizeof p->tail - len, buf, len);
    }
}

static void check_stale(struct port *p)
{
    bool whole = true;
    for (size_t i = 0; i < sizeof p->tail && whole; i++)
        whole = preamble_byte_valid(i, p->tail[i]);
    if (whole && p->have)
        poll_timer_start(p->loop, &p->stale, p->hung_up ? 0 : STALE_MSEC);
    else
        poll_timer_stop(&p->stale);
}

/* True when the session took it. */
static bool feed_session(struct port *p, const char *buf, size_t len)
{
    int rc = p9_server_input(p->server, buf, len);
    if (rc < 0) {
        log_warn("session on a port ended: %s", strerror(-rc));
        return false;
    }
    track(p, buf, len);
    keep_tail(p, buf, len);
    check_stale(p);
    return true;
}

/* The session is over; a preamble that is the very last of its input is answered. */
static void end_in_tail(struct port *p)
{
    char tail[PORT_PREAMBLE_LEN];
    size_t used;
    memcpy(tail, p->tail, sizeof tail);
    end_session(p);
    if (find_preamble(p, tail, sizeof tail, &used))
        start_session(p);
}

static void feed(struct port *p, const char *buf, size_t len)
{
    size_t used = 0;
    if (p->server) {
        if (feed_session(p, buf, len))
            return;
        char tail[PORT_PREAMBLE_LEN];
        memcpy(tail, p->tail, sizeof tail);
        end_session(p);
        (void)find_preamble(p, tail, sizeof tail, &used); /* whole in what came before: answered then */
        if (p->matched == PORT_PREAMBLE_LEN)
            p->matched = 0;
    }
    while (!p->server && len) {
        if (!find_preamble(p, buf, len, &used))
            return;
        start_session(p);
        buf += used;
        len -= used;
        if (len)
            feed(p, buf, len);
        return;
    }
}

static void stale_fired(struct poll_timer *t)
{
    end_in_tail((struct port *)(void *)((char *)t - offsetof(struct port, stale)));
}

/* Fills `buf`, unless a large message turns out to begin there: the rest of it has a better place.
 * True when there is no more to be had. */
static bool gather(struct port *p, char *buf, size_t size, size_t *len)
{
    ssize_t n = 1;
    bool large = false;
    for (*len = 0; n > 0 && *len < size && !large;) {
        n = read(p->watch.fd, buf + *len, size - *len);
        *len += n > 0 ? (size_t)n : 0;
        large = buf == p->in && p->server && !p->have && *len >= 4 && p9_peek_size((const uint8_t *)buf) >= P9_FRAMER_LARGE;
    }
    return n <= 0;
}

/* The session has the bytes already. The message's buffer may be gone once the session knows. */
static void filled(struct port *p, const char *buf, size_t len)
{
    track(p, buf, len);
    keep_tail(p, buf, len);
    int rc = p9_server_filled(p->server, len);
    if (rc < 0) {
        log_warn("session on a port ended: %s", strerror(-rc));
        end_in_tail(p);
    } else {
        check_stale(p);
    }
}

/* Reads what there is, a turn's worth at most. The kernel says 0 when nobody is connected. */
static void read_input(struct port *p)
{
    for (size_t total = 0, len; total < TURN_MAX; total += len) {
        size_t space;
        if (p->server && !p9_server_wants_input(p->server))
            return; /* resume_input, or room in the output, comes back here */
        char *place = p->server ? p9_server_space(p->server, &space) : NULL;
        bool end = place ? gather(p, place, space, &len) : gather(p, p->in, INPUT_SIZE, &len);
        if (len && place)
            filled(p, place, len);
        else if (len)
            feed(p, p->in, len);
        if (end)
            return;
    }
    poll_timer_start(p->loop, &p->more, 0);
}

static void port_turn(struct port *p)
{
    if (p->server && p9_server_input(p->server, "", 0) < 0) /* it may have died over what it had put aside */
        end_session(p);
    write_output(p);
    read_input(p);
    write_output(p);
}

static void more_fired(struct poll_timer *t)
{
    port_turn((struct port *)(void *)((char *)t - offsetof(struct port, more)));
}

static void hang_up_fired(struct poll_timer *t)
{
    struct port *p = (struct port *)(void *)((char *)t - offsetof(struct port, hang_up));
    struct pollfd state = {.fd = p->watch.fd};
    if (poll(&state, 1, 0) != 1 || !(state.revents & POLLHUP))
        return;
    p->connected = false;
    end_session(p);
}

static void port_ready(struct poll_watch *w, uint32_t events)
{
    struct port *p = (struct port *)(void *)((char *)w - offsetof(struct port, watch));
    if (!(events & EPOLLHUP)) {
        p->connected = true;
    } else if (p->connected && p->server && !poll_timer_started(&p->hang_up)) {
        p->hung_up = true;
        check_stale(p);
        poll_timer_start(p->loop, &p->hang_up, HANG_UP_MSEC);
    }
    port_turn(p);
}

/* ---- opening ---- */

static int find_port(const char *name, char *path, size_t size)
{
    DIR *d = opendir("/sys/class/virtio-ports");
    int rc = -ENOENT;
    for (struct dirent *e; d && rc < 0 && (e = readdir(d));) {
        char file[300], value[64] = "";
        snprintf(file, sizeof file, "/sys/class/virtio-ports/%s/name", e->d_name);
        FILE *f = fopen(file, "re");
        if (!f)
            continue;
        if (fgets(value, sizeof value, f) && !strcmp(strtok(value, "\n"), name)) {
            snprintf(path, size, "/dev/%s", e->d_name);
            rc = 0;
        }
        fclose(f);
    }
    if (d)
        closedir(d);
    return rc;
}

/* Message buffers are reused rather than given back to the kernel, which would have to clear the
 * pages of the next one: under emulation that costs as much as filling them. */
static void keep_buffers(void)
{
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

int port_open(struct port *p, struct poll_loop *l, const char *name, const struct p9_backend *backend, const struct p9_server_config *config,
              void *user)
{
    char path[300];
    int rc = find_port(name, path, sizeof path);
    if (rc < 0)
        return rc;
    keep_buffers();
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *p = (struct port){.loop = l,
                       .watch = {fd, port_ready},
                       .backend = backend,
                       .config = config ? *config : (struct p9_server_config){0},
                       .user = user,
                       .stale.fire = stale_fired,
                       .hang_up.fire = hang_up_fired,
                       .more.fire = more_fired};
    p->config.max_held = HELD_MAX;
    p->config.max_output = OUTPUT_MAX;
    p->out_end = &p->out;
    p->in = malloc(INPUT_SIZE);
    if (!p->in)
        abort();
    return poll_watch_start(l, &p->watch, EPOLLIN | EPOLLHUP | EPOLLET);
}
