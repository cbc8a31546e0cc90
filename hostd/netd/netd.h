// SPDX-License-Identifier: Apache-2.0
// space-netd: the egress gateway. What its parts share.
//
//   control.c   space-hostd's side: guests come, get a policy, go
//   guest.c     a guest: its sockets, policy, limits, counts, and which names have which addresses
//   names.c     its questions about names
//   relay.c     its connections: checked, connected, moved
//   inject.c    those to hosts with a credential: through HAProxy
//   policy.c dns.c sniff.c proxy.c   pure: rules, DNS messages, first bytes, PROXY headers
#ifndef SPACE_NETD_NETD_H
#define SPACE_NETD_NETD_H

#include "base/config.h"
#include "base/hmap.h"
#include "hostd/netd/inject.h"
#include "hostd/netd/levels.h"
#include "hostd/netd/loop.h"
#include "hostd/netd/policy.h"
#include "ipc/netd.h"

#include <stdbool.h>
#include <sys/types.h>

struct control;
struct names;
struct relay;
struct dns_stream;
struct injector;

#define GUEST_PINS_MAX  1024    /* addresses a guest knows names of; the oldest go */
#define PIN_NAMES_MAX   8       /* names of one address, likewise */
#define PIN_GRACE_MSEC  300000u /* programs keep what they were told beyond its time to live */
#define GUEST_QUESTIONS 64      /* in flight */

struct pin {
    struct hmap_node by_address;
    uint64_t until; /* of the longest; loop_now */
    struct {
        char *name;
        uint64_t until;
    } names[PIN_NAMES_MAX];
};

/* So many a second; up to `burst` at once. */
struct bucket {
    double tokens;
    uint64_t at;
};

struct guest {
    struct hmap_node by_key;
    struct netd *netd;
    uint64_t key, id;
    struct watch tcp, udp;
    /* What it belongs to (levels.h), its tenant's policy and its own, as they were told. */
    char *belongs, *tenant_text, *text;
    struct policy *policy, *tenant; /* the tenant's may be NULL */
    struct policy_above above;      /* in netd->levels, and the tenant's */
    bool broken;                    /* its policy does not parse: nothing is allowed */
    struct hmap pins;
    struct relay *relays; /* its connections */
    unsigned big_pipes;   /* that they have borrowed */
    struct dns_stream *streams;
    unsigned questions;
    struct netd_counts counts;
    bool counts_changed;
    struct bucket rate, log;
    bool starved;   /* connections wait that there was no descriptor for */
    uint64_t quiet; /* decisions that were not logged */
};

struct netd {
    struct loop *loop;
    struct config config;
    char congestion[16]; /* of connections to servers, where it is not the host's choice */
    uid_t user;          /* who may be our client */
    struct control *control;
    struct names *names;
    struct injector *injector; /* NULL: nothing is injected */
    struct hmap guests;
    struct levels *levels; /* policies above those of guests; NULL: none yet */
    unsigned relays;       /* of all guests */
    struct {
        uint32_t *addresses; /* this host's own */
        size_t count;
        uint64_t read; /* loop_now */
    } own;
};

/* ---- guest.c ---- */

struct guest *guest_find(const struct netd *n, uint64_t key);
/* Takes both descriptors in every case. 0 or -errno. */
int guest_add(struct netd *n, uint64_t key, int tcp, int udp);
void guest_remove(struct guest *g);
/* The sandbox that it is now, what that belongs to, its tenant's policy and its own; the texts are
 * copied. 0, or -errno with a sentence: nothing is allowed then. */
int guest_set_policy(struct guest *g, uint64_t id, const char *belongs, const char *tenant, const char *text, struct err *e);
/* n->levels are others. The same. */
int guest_set_levels(struct guest *g, struct err *e);

/* Those of the policy and the platform's, or what everybody has. */
struct policy_limits guest_limits(const struct guest *g);
/* It moved as many bytes as it may. */
bool guest_is_spent(const struct guest *g);

/* False: too many in too short a time. */
bool guest_may_begin(struct guest *g);

/* From now on `address` is a place that `name` is at. */
void guest_pin(struct guest *g, const char *name, uint32_t address, uint32_t ttl);
/* Calls back for each name that the guest knows to be there; stops at true. */
bool guest_names(struct guest *g, uint32_t address, bool (*each)(void *user, const char *name), void *user);

/*
 * May it connect there? By a name it was told, or by address. `name` gets the one that allowed it
 * (or empty), and *out the decision. With `only` not NULL, that name alone counts, and only when
 * the guest was told that it is there.
 */
bool guest_decide(struct guest *g, uint32_t address, uint16_t port, const char *only, char name[POLICY_NAME_MAX + 1], struct decision *out);

/* A line for the log and for hostd: what was decided on `what`, and why. */
void guest_log(struct guest *g, bool allowed, const char *what, const char *why);

/* Once a second. */
void guest_tick(struct guest *g);

/* ---- names.c ---- */

int names_open(struct netd *n, struct err *e);
/* Milliseconds until names_tick wants to be called; at most `msec`. */
int names_wait(const struct netd *n, int msec);
/* After each batch: what took too long is asked again, or failed. */
void names_tick(struct netd *n);
/* Once a second: connections that ask nothing go. */
void names_sweep(struct netd *n);
/* The guest's UDP socket has questions. */
void names_ready(struct guest *g);
/* A TCP connection to port 53; takes `fd`. */
void names_stream(struct guest *g, int fd);
/* The guest goes. */
void names_forget(struct guest *g);

/* ---- relay.c ---- */

/* The guest's listening socket has connections. */
void relay_ready(struct guest *g);
/* Resets those that `g` is not allowed any more; all when `g` goes. */
void relay_review(struct guest *g, bool all);
/* Time-outs, once a second. */
void relay_tick(struct guest *g);
/* HAProxy's way out for the guest's connection `r`, to where that one goes. Takes `fd`. */
void relay_join(struct relay *r, int fd);

/* ---- control.c ---- */

/* Binds RUN/netd.sock, for the configuration's user; as root. */
int control_open(struct netd *n, struct err *e);
void control_decision(struct netd *n, const struct guest *g, bool allowed, const char *text);
void control_counts(struct netd *n, const struct guest *g);

/* ---- isolate.c ---- */

/* Becomes the configuration's `net_user`, and gives up the rest. */
int isolate(const struct config *c, struct err *e);

#endif
