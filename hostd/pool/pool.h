// SPDX-License-Identifier: Apache-2.0
// Machines before they belong to a sandbox.
//
// A *head* is what a sandbox can be at: a disk, and with it often the memory and device state of the same instant. A *machine* is a QEMU that
// either waits for a head (a slot) or runs one that nobody has used yet (a ready machine). Its memory is a private mapping of its *base*, a head
// that is never written to, so that all machines of one base share its pages. Loading a head into a machine is the one way by which create, fork,
// roll back and wake bring a sandbox to life without a boot; a sandbox takes a machine over by one row of the database.
//
// Nothing here is in the database but the prepared heads: machines of a space-hostd that ended are orphans, which reconciliation removes.
#ifndef SPACE_HOSTD_POOL_H
#define SPACE_HOSTD_POOL_H

#include "hostd/object.h"

/* An object of space-noded (lib/ipc/noded.h) that holds memory. */
struct head {
    uint32_t kind; /* enum noded_kind */
    uint64_t id;
    uint32_t base_kind; /* what its memory was captured against; id 0: against nothing, or itself */
    uint64_t base;
    uint64_t changed; /* bytes of memory in which it differs from its base */
    uint64_t memory, disk;
    uint32_t vcpus;
    bool filling; /* a stored snapshot of which all but the disk was fetched, which arrives while it runs, */
    bool arrives; /* and so does its memory */
};

static inline bool head_same(const struct head *a, const struct head *b)
{
    return a->kind == b->kind && a->id == b->id;
}

enum machine_state {
    MACHINE_STARTING, /* and what a sandbox's operation is loading */
    MACHINE_WAITING,  /* a slot */
    MACHINE_READY,    /* runs its base itself, its agent has answered */
    MACHINE_ENDING
};

struct machine {
    struct machine *next; /* in space.machines */
    struct space *space;
    enum machine_state state;
    struct head base;
    uint64_t object;                /* its subvolume and domain, a NODED_SANDBOX */
    uint32_t slot;                  /* uid slot */
    struct guest *guest;            /* once loaded */
    struct fill *fill;              /* of its disk and memory, if they arrive */
    uint64_t disk;                  /* bytes, of what is loaded */
    bool started;                   /* its QEMU runs: it has a network */
    bool lost;                      /* its QEMU or channel ended */
    const char *from;               /* "ready", "slot" or "new": where it came from, */
    uint64_t load_nsec, hello_nsec; /* and how long its load took, and its agent's first answer */
};

/* From a coroutine, all of these. */

/* A slot of `base`, started now. */
int machine_take_new(struct space *s, const struct head *base, struct machine **out, struct err *e);
/* The same from the pool, if there is one. */
int machine_take_slot(struct space *s, const struct head *base, struct machine **out, struct err *e);
/* Loads `h`, whose base is the machine's or which is the machine's base, runs it and waits for its agent. After a failure only machine_discard is left. */
int machine_load(struct machine *m, const struct head *h, struct err *e);
/* Runs a command in it, as its first user will: it works, and what an emulator has to translate, and a kernel to read, is there. */
int machine_warm(struct machine *m, struct err *e);
/* A running machine at `h`: a ready one, or a slot loaded now. */
int machine_take(struct space *s, const struct head *h, struct machine **out, struct err *e);
/* Ends it and removes its disk, in the background. NULL is fine. */
void machine_discard(struct machine *m);
/* The sandbox is the machine's from now on: object, uid, memory, guest. Frees `m`; the caller saves the row. What the sandbox had before is returned, to
 * be discarded once that is saved; NULL when it had no object. */
struct machine *machine_give(struct machine *m, struct sandbox *sb);

/* Charges for the uid and the memory of the machine on `object`: of a sandbox (`pooled` false; refused beyond the overcommit), or of the pool, which makes room. */
int machine_charge(struct space *s, uint64_t object, uint64_t memory, bool pooled, uint32_t *ret_slot, struct err *e);
void machine_discharge(struct space *s, uint64_t memory, bool pooled, uint32_t slot);

/* What a machine must map to load `h`: its base while that is there and `h` differs little from it, else `h` itself. */
struct head head_base(const struct space *s, const struct head *h);
/* Is so much of the memory of that stored snapshot missing here that it should arrive while it runs? Then it maps itself. */
bool head_arrives(const struct space *s, const struct head *h);

/* ---- how many (pool.c) ---- */

/* Somebody took a machine of that kind, and found one or not: the pool follows demand. */
void pool_demand(struct space *s, const struct head *base, enum machine_state kind, bool found);
/* Look whether something is missing, soon. */
void pool_kick(struct space *s);
/* The last sandbox that somebody waited for runs, and is about to be used: look in a moment. */
void pool_rest(struct space *s);
/* Is the object a machine's? */
bool pool_has_object(const struct space *s, uint64_t object);
/* The domain of `object` ended, says space-noded. False when no machine has it. */
bool pool_vm_gone(struct space *s, uint64_t object);
/* Its timer: refilling begins once the acceleration is known. */
void pool_open(struct space *s);
/* Machines of this head go. */
void pool_drain(struct space *s, uint64_t head);
/* Machines of the pool by state, for metrics and tests. */
uint32_t pool_count(const struct space *s, enum machine_state state);

/* ---- prepared templates (prepare.c) ---- */

/* The head that the template was prepared as for this size; false when there is none (yet), and asks for one. */
bool template_head(struct template *t, uint64_t memory, uint32_t vcpus, struct head *out);
/* It is ready: it will be prepared for the default size. */
void template_wish(struct template *t);
/* Calls back for each size it was prepared for. */
void template_heads_text(const struct template *t, void (*add)(void *user, uint64_t memory, uint32_t vcpus), void *user);
/* The template goes: its heads with it. */
void template_heads_remove(struct template *t);
/* Begins to prepare what was asked for first, if nothing is being prepared. */
void prepare_next(struct space *s);
bool prepared_has_object(const struct space *s, uint64_t id);
/* A load of this head ended with `rc`. If it cannot be loaded here at all (-ENOEXEC: an older machine, another acceleration; -EBADMSG: damaged), it is
 * removed, and made anew. */
void prepared_failed(struct space *s, uint64_t id, int rc, const char *why);

int heads_load(struct space *s, struct err *e);

#endif
