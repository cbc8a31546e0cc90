// SPDX-License-Identifier: Apache-2.0
// What HAProxy logs: see haproxy.h.
//
// HAProxy can reach no log of its own from its root directory, so it sends its lines here, a datagram each, and they go to space-credd's. What there is to say is in
// haproxy_conf.c: failures, by name, sandbox and reason; nothing of a request. Guests can cause as many as they like: so many a second are written, the rest is counted.
#include "base/log.h"
#include "hostd/credd/credd.h"
#include "hostd/credd/haproxy.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>

#define LINE_MAX_BYTES 512
#define LINES_AT_ONCE  64 /* read, then others get their turn */
#define LINES_BURST    50u
#define LINES_PER_SEC  5u

struct haproxy_log {
    uv_poll_t poll;
    uv_loop_t *loop;
    int fd;
    unsigned may;   /* be written now */
    uint64_t since; /* when that was last raised: uv_now */
    uint64_t kept;  /* lines that were not written since the last one that was */
};

static bool may_write(struct haproxy_log *l)
{
    uint64_t more = (uv_now(l->loop) - l->since) * LINES_PER_SEC / 1000;
    if (more) {
        l->may = l->may + more > LINES_BURST ? LINES_BURST : l->may + (unsigned)more;
        l->since = uv_now(l->loop);
    }
    return l->may > 0;
}

static void write_line(struct haproxy_log *l, char *line, size_t len)
{
    while (len && (line[len - 1] == '\n' || line[len - 1] == ' '))
        len--;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)line[i] < 0x20 || (unsigned char)line[i] >= 0x7f)
            line[i] = '?';
    if (!may_write(l)) {
        l->kept++;
        return;
    }
    if (l->kept)
        log_warn("HAProxy: %llu more lines were not written", (unsigned long long)l->kept);
    l->kept = 0;
    l->may--;
    log_warn("HAProxy: %.*s", (int)len, line);
}

static void readable(uv_poll_t *p, int status, int events)
{
    struct haproxy_log *l = p->data;
    char line[LINE_MAX_BYTES];
    ssize_t n;
    (void)events;
    for (int i = 0; status >= 0 && i < LINES_AT_ONCE && (n = recv(l->fd, line, sizeof line, MSG_DONTWAIT)) >= 0; i++)
        write_line(l, line, (size_t)n);
}

int haproxy_log_open(struct credd *c, int fd)
{
    struct haproxy_log *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    *l = (struct haproxy_log){.loop = c->loop, .fd = fd, .may = LINES_BURST, .since = uv_now(c->loop)};
    l->poll.data = l;
    int rc = uv_poll_init(c->loop, &l->poll, fd);
    return rc < 0 ? rc : uv_poll_start(&l->poll, UV_READABLE, readable);
}
