// SPDX-License-Identifier: Apache-2.0
// Ends connections after a load: see net.h. sock_diag(7); the kernel's SOCK_DESTROY needs
// CONFIG_INET_DIAG_DESTROY, and the modules inet_diag and tcp_diag.
#include "guest/net.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FOUND_MAX 256 /* in one round */
#define ROUNDS    64

/* Not those that listen, nor those that are over. */
#define STATES (0xfffu & ~(1u << TCP_LISTEN | 1u << TCP_CLOSE | 1u << TCP_TIME_WAIT))

struct found {
    struct inet_diag_sockid id[FOUND_MAX];
    size_t count;
};

static bool send_request(int fd, uint16_t type, uint16_t flags, uint8_t family, const struct inet_diag_sockid *id)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } q = {
        .head = {.nlmsg_len = sizeof q, .nlmsg_type = type, .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags)},
        .body = {.sdiag_family = family, .sdiag_protocol = IPPROTO_TCP, .idiag_states = STATES},
    };
    if (id)
        q.body.id = *id;
    return send(fd, &q, sizeof q, 0) == (ssize_t)sizeof q;
}

/* Both ends are in this machine: it was loaded with both. */
static bool is_inside(const struct inet_diag_msg *m)
{
    const uint8_t *to = (const uint8_t *)m->id.idiag_dst;
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}, one[16] = {[15] = 1};
    if (m->idiag_family == AF_INET)
        return to[0] == 127;
    return memcmp(to, one, sizeof one) == 0 || (memcmp(to, mapped, sizeof mapped) == 0 && to[12] == 127);
}

/* False at the end of the list. */
static bool take_messages(const char *p, size_t left, struct found *out)
{
    const struct nlmsghdr *h = (const struct nlmsghdr *)(const void *)p;
    for (; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
        if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY)
            return false; /* done, or an error */
        const struct inet_diag_msg *m = NLMSG_DATA(h);
        if (!is_inside(m) && out->count < FOUND_MAX)
            out->id[out->count++] = m->id;
    }
    return true;
}

static void find(int fd, uint8_t family, struct found *out)
{
    static _Alignas(struct nlmsghdr) char in[16384];
    out->count = 0;
    if (!send_request(fd, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, NULL))
        return;
    for (;;) {
        ssize_t n = recv(fd, in, sizeof in, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || !take_messages(in, (size_t)n, out))
            return;
    }
}

static void end_all(int fd, uint8_t family)
{
    static struct found found;
    for (int round = 0; round < ROUNDS; round++) {
        find(fd, family, &found);
        for (size_t i = 0; i < found.count; i++)
            if (!send_request(fd, SOCK_DESTROY, 0, family, &found.id[i]))
                return;
        if (found.count < FOUND_MAX)
            return;
    }
    log_warn("connections of before the load are left");
}

void net_end_connections(void)
{
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0)
        return;
    end_all(fd, AF_INET);
    end_all(fd, AF_INET6);
}
