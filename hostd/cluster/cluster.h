// SPDX-License-Identifier: Apache-2.0
// Several nodes over one database: who they are, what the others did, and how a sandbox goes from one to another.
//
// Theory of operation. The space-hostd of each node keeps all rows in memory. A sandbox, snapshot or template belongs to one node (`node` in its row), which
// alone changes it; the others show what they were told (feed.c, five times a second, and inside each transaction that must know). What is in a node's pool, its
// machines, job output and prepared templates are its own and nobody else's; what is in the object store is everybody's. So a sandbox can change nodes when it is
// suspended and durable, and only then: a transaction makes its row the other's (move.c). Of two nodes that try at once, the second finds it taken. The owner
// locks the row while it has an operation on a suspended one (`locked`), so that nobody takes what is being restored.
//
// A node says that it is there every two seconds. One that was not heard of for a while is `away`: its suspended sandboxes can be taken as ever, the others may
// still run, and stay. When an administrator has said that it is `dead`, they can be taken, as the object store has them. A node that comes back gives up what
// was taken: machines of sandboxes that are not its own any more are ended.
#ifndef SPACE_HOSTD_CLUSTER_H
#define SPACE_HOSTD_CLUSTER_H

#include "hostd/object.h"

struct node_entry {
    struct node_entry *next; /* in space.nodes */
    struct node_row row;
    uint64_t heard; /* uv_now when `seen` last changed; 0: not since we started */
    bool gone;      /* was forgotten; the memory stays */
};

enum node_state { NODE_IS_UP, NODE_IS_AWAY, NODE_IS_DEAD };

/* Who we are: the id in STATE/node, made at the first start. Before db_open. */
int cluster_identify(struct space *s, struct err *e);
/* The clock of the newest change that was missed is over: see db_feed. After objects_load; -EEXIST when another node that is up has our name. */
int cluster_open(struct space *s, struct err *e);

/* Brings memory up to what other nodes did. Inside db_begin and db_commit it stays so. */
void cluster_sync(struct space *s);

/* Opens a transaction in which the sandbox is ours, for the caller to commit; -EREMOTE, and none, when it is another node's. */
int cluster_hold(struct sandbox *sb, struct err *e);

/* The others are told what we are now, not only with the next beat. Nothing before cluster_open. */
void cluster_say(struct space *s);

struct node_entry *cluster_node(const struct space *s, int64_t id);
struct node_entry *cluster_node_named(const struct space *s, const char *name);
/* Its name; "an unknown node". Borrowed. */
const char *cluster_name(const struct space *s, int64_t id);
enum node_state cluster_state(const struct space *s, const struct node_entry *n);
const char *cluster_state_name(enum node_state state);
/* Other nodes, up or not. */
bool cluster_has_others(const struct space *s);
/* An administrator says that the node does not run any more. -EBUSY when it is up. */
int cluster_declare_dead(struct space *s, struct node_entry *n, struct err *e);
/* Its row goes. -EBUSY when it is up, -ENOTEMPTY when something belongs to it. */
int cluster_forget(struct space *s, struct node_entry *n, struct err *e);

/* The sentence for who wants something of a sandbox that another node has, -EREMOTE. */
int cluster_refuse(const struct sandbox *sb, struct err *e);

/*
 * A write of `node`: moves the sandbox to the node `name`, where it goes on; with `boot` it gives its memory up and boots there from its disk. Of ours: suspends
 * it first if need be, and waits until the other has restored it. Of another node's: takes it, if it is suspended and durable, to this node only. `w` ends when it
 * runs, or failed; -EINVAL, -EREMOTE, -EBUSY, -ENOEXEC come through it, too.
 */
void cluster_move(struct sandbox *sb, const char *name, bool boot, struct waiter *w);
/* OP_MOVE, from its coroutine. */
int cluster_move_run(struct sandbox *sb, int64_t to, bool boot, struct err *e);

/* A sandbox that came here: its jobs, and what it is suspended to. */
void cluster_arrived(struct sandbox *sb);
/* One that went, before its row is the new one: what is in memory and in the pool. */
void cluster_left(struct sandbox *sb);

#endif
