// SPDX-License-Identifier: Apache-2.0
// What the whole of space-hostd shares: one instance, its configuration, stores and tables of objects.
#ifndef SPACE_HOSTD_SPACE_H
#define SPACE_HOSTD_SPACE_H

#include "base/config.h"
#include "base/err.h"
#include "base/hmap.h"
#include "hostd/wait.h"
#include "loop/co.h"

#include <stdbool.h>
#include <stdint.h>

struct db;
struct noded;
struct events;
struct failures;
struct pool;
struct machine;
struct net;
struct prepared;
struct wish;
struct frozen_job;
struct doomed;
struct browser;
struct measure;
struct volume;
struct credentials;
struct trust;
struct node_entry;

struct space {
    uv_loop_t *loop;
    struct co_sched *co;
    struct config config;
    struct db *db;
    struct noded *noded; /* connection to space-noded */
    struct events *events;
    struct failures *failures; /* /space/error */

    int64_t node_id; /* ours: hostd/cluster, with the following */
    struct node_entry *nodes;
    char host_qemu[33], host_kernel[65], host_cpu[65]; /* from space-noded, as host_memory */
    uint32_t host_cpus;
    bool restart; /* the loop ends, so that the next start reads everything anew */

    struct hmap sandboxes;     /* struct sandbox.by_id */
    struct hmap sandbox_names; /* struct sandbox.by_name, key space_name_key */
    struct hmap templates;
    struct hmap template_names;
    struct hmap snapshots; /* struct snapshot.by_id */

    struct frozen_job *frozen_jobs; /* rows of jobs that live in heads */
    uint64_t guest_serial;          /* of the newest guest connection */
    uint64_t qid_seed;              /* persistent: qid paths survive restarts */
    uint64_t host_memory;           /* bytes, from space-noded; 0 until it answered */
    uint64_t pool_size, pool_free;
    bool going_down;       /* the host is: no machine is started any more */
    uint64_t guest_memory; /* sum over live sandboxes */
    uint64_t pool_memory;  /* of machines that are no sandbox's */
    uint32_t operations;   /* of sandboxes, under way */
    uint32_t urgent;       /* of those, such as somebody waits for */
    struct net *net;       /* connection to space-netd: lifecycle/net.c */
    struct hmap tenants;   /* by uid: lifecycle/tenant.c */
    struct pool *pool;     /* hostd/pool, with the following */
    struct machine *machines;
    struct prepared *prepared; /* templates' heads with memory */
    struct wish *wishes;
    int64_t schedule_base; /* of the snapshot scheduler's clock, with the number of its captures under way */
    uint32_t scheduled;
    struct browser *browsers; /* snapshots whose files are being read: snapshot/browser.c */
    unsigned browser_count;
    uint64_t changes_bytes; /* of lists of changed files: snapshot/changes.c */
    struct doomed *doomed;  /* objects to be deleted, and those whose deletion failed: lifecycle/delete.c */
    struct doomed *undeleted;
    uint32_t doomed_count; /* of both */
    bool deleting;
    struct measure *measures, *measures_end; /* objects whose size is to be found out (snapshot/account.c) */
    bool measuring;
    struct {
        uint64_t ready, slot, new_, boot; /* loads by where their machine came from */
        uint64_t captures, pause_usec, deleted, store_deleted, store_replaced;
    } counts;                        /* since the start, for metrics */
    struct trust *trust;             /* what guests are told to trust: hostd/credential/trust.c */
    struct credentials *credentials; /* what space-credd keeps: hostd/credential */
    struct volume *volume;           /* snapshots in the object store: hostd/volume */
    uint64_t preparing;              /* object that boots to become one */
    uint64_t preparing_head;         /* the one that it becomes, until a row says so */
    bool prepare_running;
    uint64_t *slots;     /* whose object holds each, 0: nobody's; config.uid_count entries */
    uint32_t accel;      /* enum noded_accel once known, else 0; */
    bool memory_arrives; /* known then, too: it can, while a machine runs */
    bool accel_probing;
    struct wait_list accel_waiters;
    bool surveyed; /* the domains of the host were seen once: slots[] is right; */
    bool blind;    /* or nobody says which there are, and operations are to be told so */
    struct wait_list survey_waiters;
};

/* Key of an owner's name in a name map; compare owner and name after. */
uint64_t space_name_key(uint32_t owner, const char *name);

/* A new random 48-bit id, never 0. */
uint64_t space_new_id(void);

/* CLOCK_REALTIME in nanoseconds. */
int64_t space_now(void);

/* A qid path: tree and ids hashed with the instance's seed into the upper 56 bits, `index` below. Never reused, since ids never are. */
uint64_t space_qid(const struct space *s, uint32_t tree, uint64_t id1, uint64_t id2, uint8_t index);

#endif
