// SPDX-License-Identifier: Apache-2.0
// The networks of machines: which guest may reach what is told to space-netd (lib/ipc/netd.h), and what it decided is kept.
//
// One coroutine makes what space-netd has equal to what there is: each machine that runs or waits has its sockets there (space-noded opens them), and
// each sandbox's its policy. It runs when something changed (net_kick) and when space-netd came back. Machines of the pool have their sockets there
// before anybody takes them; what is left for a mkdir is nothing, for one with a policy one message. While space-netd is away no guest reaches anything.
#ifndef SPACE_HOSTD_NET_H
#define SPACE_HOSTD_NET_H

#include "hostd/object.h"

#define NET_LINES 64 /* decisions that are remembered of a sandbox */

int net_open(struct space *s, struct err *e);

/* Something changed: look soon. */
void net_kick(struct space *s);
/* The same; `w` is done (rc 0) when that is in effect, or space-netd is away, and nothing of it can be wrong. */
void net_apply(struct space *s, struct waiter *w);
/* From a coroutine: waits for it, for a moment at most. */
void net_settle(struct sandbox *sb);

/* Checks a policy; -EINVAL with line, column and what was expected. */
int net_check(const struct sandbox *sb, const char *text, struct err *e);
/* The same of one that a user writes for all its sandboxes. */
int net_check_tenant(const struct space *s, uint32_t uid, const char *text, struct err *e);
/* What would be decided on HOST:PORT: a sentence, in `out`. */
int net_explain(const struct sandbox *sb, const char *where, char *out, size_t size, struct err *e);

/* Sum over all its machines so far. */
struct net_sums {
    uint64_t sent, received, allowed, denied, names, names_denied, open;
};
struct net_sums net_sums(const struct sandbox *sb);
/* Recent decisions, oldest first; calls back for each line. */
void net_lines(const struct sandbox *sb, void (*each)(void *user, const char *line), void *user);
/* The sandbox goes. */
void net_forget(struct sandbox *sb);

#endif
