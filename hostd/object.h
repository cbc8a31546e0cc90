// SPDX-License-Identifier: Apache-2.0
// The objects of an instance in memory: templates, sandboxes, snapshots. Rows are what the database holds; the rest is of this run.
// Reference counted: a 9P fid may outlive its object; `gone` says so.
#ifndef SPACE_HOSTD_OBJECT_H
#define SPACE_HOSTD_OBJECT_H

#include "hostd/caller.h"
#include "hostd/db/db.h"
#include "hostd/events.h"
#include "hostd/lifecycle/state.h"
#include "hostd/ref.h"
#include "hostd/snapshot/keep.h"
#include "hostd/space.h"
#include "hostd/wait.h"

#include <stdbool.h>

struct guest;
struct op;
struct job;
struct browser;
struct volume_task;
struct fill;
struct settling;

/* Of templates and snapshots. Stored: never renumber. */
enum artifact_state {
    ARTIFACT_EMPTY = 1,
    ARTIFACT_CREATING = 2,
    ARTIFACT_READY = 3,
    ARTIFACT_FAILED = 4,
    ARTIFACT_STORED = 5,   /* a snapshot of which nothing but artifacts in the object store is there */
    ARTIFACT_ELSEWHERE = 6 /* in memory only: one in the pool of another node, and not in the store */
};
const char *artifact_state_name(int64_t state);

/* Of what is measured in the background: snapshot/account.h. */
struct accounting {
    bool queued;
    uint64_t at; /* uv_now of the last time */
};

struct template
{
    struct hmap_node by_id, by_name;
    unsigned refs;
    struct space *space;
    struct template_row row;
    bool named;       /* listed under its name */
    bool busy;        /* being sealed */
    bool copied_here; /* another node's, of which this pool has a copy */
    struct accounting account;
    uint64_t unfit;           /* until then (uv_now) it is not prepared again: that failed */
    bool copying;             /* its #copy is open and not committed, */
    struct ref copied;        /* and brought this head */
    struct wait_list ready;   /* waiting for it to leave `creating` */
    struct wait_list sealing; /* waiting for the seal in progress */
};

struct snapshot {
    struct hmap_node by_id;
    unsigned refs;
    struct space *space;
    struct snapshot_row row;
    bool gone;
    bool copied;             /* another node's, of which this pool has a copy: until nobody has used it for a while, or space-hostd ends */
    uint64_t copy_used;      /* uv_now when it was in use last */
    unsigned readers;        /* open images, and the browser */
    struct browser *browser; /* of its files, snapshot/browser.c; */
    uint64_t browser_ended;  /* uv_now when one last ended by itself */
    struct accounting account;
    uint64_t held_disk, held_memory; /* bytes of its images that take up room, as account.c measured; 0: not yet */
    unsigned loads;                  /* operations that load or store it: not thinned meanwhile */
    struct volume_task *task;        /* it is being stored, or fetched: hostd/volume */
    int64_t until;                   /* on the schedule's clock, 0: not judged yet; and the tier that keeps it (every 0: none) */
    struct keep_tier tier;
    bool store; /* a tier wants it in the object store; after a failure not before (uv_now) */
    uint64_t store_again;
    bool again;             /* its sandbox was removed before it was taken: reconciliation takes it */
    bool fresh;             /* its mkdir was a moment ago: it may become a checkpoint */
    struct wait_list ready; /* waiting for it to leave `creating` */
};

/* An open `#copy` (docs/protocol/9p.md). */
enum copy_state { COPY_NONE, COPY_HELD, COPY_COMMITTED };

/* What libvirt last said of it. */
struct sandbox_stats {
    uint64_t cpu_nsec, rss_bytes;
};

struct sandbox {
    struct hmap_node by_id, by_name;
    unsigned refs;
    struct space *space;
    struct sandbox_row row;
    bool named, gone;
    bool found;   /* as the database had it at the start: reconciliation has not looked at it yet, and its operations and whoever uses it wait */
    bool unknown; /* nor has anything that was done since said in which state it is */
    struct wait_list known; /* opens that wait for that */
    enum copy_state copy;
    struct op *ops;                 /* queue; the first one runs */
    struct co *runner;              /* of the first */
    bool aborted;                   /* the first, before it had begun */
    unsigned sources;               /* who is to get its state, and has not yet: it ends after them */
    int64_t removed_as;             /* its state when it was removed */
    bool ending;                    /* OP_DESTROY is in its queue */
    struct sandbox *capturing_from; /* our operation waits for that one's queue */
    struct wait_list ready;         /* touches that wait for an operation to end */
    struct wait_list hurry;         /* a load that waits whether a copy follows: ended by the first use */
    struct wait_list told;          /* coroutines that wait for what another node does with it */
    struct wait_list vm_gone;       /* coroutines that wait for QEMU's end */
    struct fill *fill;              /* of its disk and memory, from the store it was suspended to: hostd/volume/fill.h */
    struct guest *guest;            /* connected while running or paused */
    struct job *jobs;
    struct job *jobs_away; /* of one that went to another node: who has them open finds them again when it comes back */
    unsigned job_count;
    bool jobs_held;   /* a capture is under way: nothing more is read from them */
    uint64_t charged; /* memory counted in space.guest_memory */
    bool slot_taken;
    unsigned ports; /* connections of tree/ports.c */
    struct {
        uint64_t used;                /* CLOCK_BOOTTIME in milliseconds of the last use, */
        uint64_t asked_msec;          /* and of the agent's last answer, */
        uint64_t cpu_usec, net_bytes; /* which said this */
        unsigned done;                /* lines of the policy that were carried out since */
        bool looking;
    } idle; /* lifecycle/idle.c */
    struct {
        struct keep_policy policy;
        bool parsed, busy;
        enum keep_due due;       /* what `busy` is about */
        int64_t last, last_full; /* on the schedule's clock */
        int64_t disk_time;       /* of the disk's image after the last one */
        uint64_t work;           /* of jobs, at the last checkpoint */
    } keep;                      /* snapshot/schedule.c */
    struct accounting account;
    struct net_memory *net;    /* what space-netd told of it: lifecycle/net.c */
    uint64_t trust_told;       /* which CA its guest knows: hostd/credential/trust.c */
    bool trust_late;           /* its guest did not answer when it was told */
    uint64_t credentials_told; /* what space-credd knows of it: hostd/credential; */
    struct settling *settling; /* its own credentials are being brought together; */
    bool credentials_refused;  /* and cannot be: it is not told of */
    struct {
        uint64_t told, at; /* and of its denied connections */
    } denied;
    uint32_t vm_event;  /* how its machine ended, enum noded_vm_event; 0 while it runs */
    int64_t revived[3]; /* when it was brought back after a crash, the last times */
    struct sandbox_stats stats;
    struct wait_list stats_waiters; /* opens of `stats` that wait for libvirt */
    uint32_t rename_epoch;          /* of directories moved to another depth through root/ */
};

struct sandbox *sandbox_ref(struct sandbox *sb);
void sandbox_unref(struct sandbox *sb);
struct sandbox *sandbox_by_id(const struct space *s, uint64_t id);
/* Whose disk and domain the object is. */
struct sandbox *sandbox_by_object(const struct space *s, uint64_t object);
struct sandbox *sandbox_by_name(const struct space *s, uint32_t owner, const char *name);
static inline enum sandbox_state sandbox_state(const struct sandbox *sb)
{
    return (enum sandbox_state)sb->row.state;
}
static inline struct event_scope sandbox_scope(const struct sandbox *sb)
{
    return (struct event_scope){sb->row.owner, sb->row.gid, sb->row.mode};
}
/* Is it this node's, which alone changes it? Of a template: is it in this pool? (hostd/cluster) */
static inline bool sandbox_is_here(const struct sandbox *sb)
{
    return sb->row.node == sb->space->node_id;
}
static inline bool snapshot_is_here(const struct snapshot *sn)
{
    return sn->row.node == sn->space->node_id;
}
static inline bool template_is_here(const struct template *t)
{
    return t->row.node == t->space->node_id || t->copied_here;
}
/* Suspended to that one: it must stay. */
bool snapshot_is_pinned(const struct snapshot *sn);

/* Saves the row; a failure is logged (the memory is ahead of the database then, and the next save repeats it). */
int sandbox_save(struct sandbox *sb, struct err *e);
/* Its state is what it says: ends the waiters of `known`. */
void sandbox_known(struct sandbox *sb);
/* Checks the table, sets, saves, and emits the event; all in one transaction. `reason` may be NULL. */
void sandbox_set_state(struct sandbox *sb, enum sandbox_state state, const char *reason);
/* The sentence that `error` shows; saved with the next save. */
void sandbox_set_error(struct sandbox *sb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

struct snapshot *snapshot_ref(struct snapshot *sn);
void snapshot_unref(struct snapshot *sn);
struct snapshot *snapshot_by_id(const struct space *s, uint64_t id);
struct snapshot *snapshot_by_name(const struct space *s, uint64_t sandbox, const char *name);
void snapshot_set_state(struct snapshot *sn, enum artifact_state state, const char *error);

struct template *template_ref(struct template *t);
void template_unref(struct template *t);
struct template *template_by_id(const struct space *s, uint64_t id);
struct template *template_by_name(const struct space *s, uint32_t owner, const char *name);
/* Owner, root, or what `share` says: `all`, or a group's name. */
bool template_may_use(const struct template *t, const struct caller *c);
/* The template that `name` means for this caller: its own, `OWNER:NAME`, or one of root's that is shared. */
struct template *template_resolve(const struct space *s, const struct caller *c, const char *name);
void template_set_state(struct template *t, enum artifact_state state, const char *error);

/* Makes new ones, in memory and in the database. */
int sandbox_insert(struct space *s, const struct sandbox_row *row, struct sandbox **out, struct err *e);
int snapshot_insert(struct space *s, const struct snapshot_row *row, struct snapshot **out, struct err *e);
int template_insert(struct space *s, const struct template_row *row, struct template **out, struct err *e);
/* Frees the name at once. */
void sandbox_unname(struct sandbox *sb);
void template_unname(struct template *t);
/* Out of the tables and the database; the memory goes with the last reference. */
void sandbox_forget(struct sandbox *sb);
void snapshot_forget(struct snapshot *sn);
void template_forget(struct template *t);

/* The same in memory alone, for what another node did. A foreign snapshot's `state` is what this node sees of it. */
struct sandbox *sandbox_learn(struct space *s, const struct sandbox_row *row);
void sandbox_replace(struct sandbox *sb, const struct sandbox_row *row);
void sandbox_drop(struct sandbox *sb);
struct snapshot *snapshot_learn(struct space *s, const struct snapshot_row *row);
void snapshot_replace(struct snapshot *sn, const struct snapshot_row *row);
void snapshot_drop(struct snapshot *sn);
struct template *template_learn(struct space *s, const struct template_row *row);
void template_replace(struct template *t, const struct template_row *row);
void template_drop(struct template *t);

/* Loads all of them from the database. */
int objects_load(struct space *s, struct err *e);

#endif
