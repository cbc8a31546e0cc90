// SPDX-License-Identifier: Apache-2.0
// Operations on virtual machines. Each says what it lets hostd do at most; arguments were checked
// by ops.c.
//
// Theory of operation. A start takes, in this order, the uid slot, the channel directory and the
// disk. A release gives back the channel directory (from then on the sandbox is not in use), the
// disk and the slot, and only when libvirt says that the domain is not active. So as long as a QEMU
// may run, its uid is nobody else's, and no file of another sandbox belongs to that uid. What
// cannot be known now (libvirt is away) stays taken, and is looked at again when libvirt is back. A
// disk that cannot be taken back now (a full pool refuses even that) leaves the slot stale: who
// gets it next tries again first.
#include "hostd/noded/op_impl.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "hostd/noded/channel.h"
#include "hostd/noded/domain_xml.h"
#include "hostd/noded/fill.h"
#include "hostd/noded/head.h"
#include "hostd/noded/memfd.h"
#include "hostd/noded/memory.h"
#include "hostd/noded/net.h"
#include "hostd/noded/pool.h"
#include "hostd/noded/ramfd.h"
#include "hostd/noded/record.h"
#include "hostd/noded/slots.h"
#include "hostd/noded/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* Gives back what a start took. The domain must be gone. */
static int release(struct node *n, uint64_t id, struct err *e)
{
    struct err why = {0};
    int rc = channels_remove(n->channels, id, e);
    if (rc < 0)
        return rc;
    ramfd_fill_remove(n->ramfds, id);
    if (pool_release(n->pool, id, &why) < 0) {
        log_warn("%s; its uid stays taken until that works", why.msg);
        slots_mark_stale(n->slots, id);
        return 0;
    }
    slots_drop(n->slots, id);
    return 0;
}

/* Takes back what belongs to a domain that is gone, and to nothing else. One that is not gone is
 * mended. */
int op_vm_reap(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    int active = vms_active(n->vms, q->id, e);
    return active < 0 ? active : active ? op_head_mend(n, q->id, e) : release(n, q->id, e);
}

static int take_slot(struct node *n, const struct noded_request *q, struct err *e)
{
    uint64_t stale;
    if (slots_take(n->slots, q->slot, q->id, &stale) < 0)
        return err_set(e, EBUSY, "start sandbox %012llx: uid slot %u is held by sandbox %012llx", (unsigned long long)q->id, q->slot,
                       (unsigned long long)slots_holder(n->slots, q->slot));
    int rc = stale ? pool_release(n->pool, stale, e) : 0;
    if (rc < 0)
        slots_restore(n->slots, q->slot, stale);
    return rc;
}

static int take(struct node *n, const struct noded_request *q, struct err *e)
{
    uid_t uid = n->config.uid_base + q->slot;
    int rc = take_slot(n, q, e);
    if (rc == 0)
        rc = channels_prepare(n->channels, q->id, uid, e);
    if (rc == 0 && !(q->flags & NODED_PROBE))
        rc = pool_claim(n->pool, q->id, uid, e);
    return rc;
}

/* ---- memory ---- */

/* Memory for a boot: a sparse file that nobody else has; what a head left in the object is gone. */
static int fresh_ram(struct node *n, const struct noded_request *q, int *ret_fd, struct err *e)
{
    struct pool_object o = {NODED_SANDBOX, q->id};
    static const enum noded_file old[] = {NODED_STATE, NODED_META, NODED_RAM, NODED_FILL, NODED_FILL_RAM};
    int rc = 0;
    for (size_t i = 0; i < sizeof old / sizeof old[0] && rc == 0; i++)
        rc = pool_file_remove(n->pool, o, old[i], e);
    AUTO_CLOSE int fd = -1;
    if (rc == 0)
        rc = pool_file_open(n->pool, o, NODED_RAM, true, &fd, e);
    if (rc == 0 && ftruncate(fd, (off_t)q->memory) < 0)
        rc = err_sys(e, "start sandbox %012llx: make its memory", (unsigned long long)q->id);
    return rc < 0 ? rc : pool_file_open(n->pool, o, NODED_RAM, false, ret_fd, e);
}

/* A probe has no object. */
static int probe_ram(const struct noded_request *q, int *ret_fd, struct err *e)
{
    AUTO_CLOSE int fd = memfd_create("probe", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)q->memory) < 0)
        return err_sys(e, "probe: make its memory");
    *ret_fd = steal_fd(&fd);
    return 0;
}

/*
 * The base's own inode, so that all that map it share its pages. The sandbox's object keeps a
 * reflink of it and of its page table, which captures start from, also when the base is deleted;
 * but never a state: that of a head would not fit the disk for long.
 */
static int base_ram(struct node *n, const struct noded_request *q, const struct head *h, int *ret_fd, struct err *e)
{
    struct pool_object o = {NODED_SANDBOX, q->id};
    struct head_id has = {0};
    AUTO_CLOSE int meta = -1;
    int rc = pool_file_remove(n->pool, o, NODED_STATE, e);
    if (rc == 0 && pool_file_open(n->pool, o, NODED_META, false, &meta, NULL) == 0)
        has = head_id_of(meta);
    if (rc == 0 && !head_id_equal(&has, &h->m.id)) {
        rc = pool_file_clone(n->pool, h->object, o, NODED_RAM, e);
        if (rc == 0)
            rc = pool_file_clone(n->pool, h->object, o, NODED_META, e);
    }
    if (rc == 0)
        *ret_fd = fcntl(h->ram, F_DUPFD_CLOEXEC, 0);
    return rc;
}

/* The sandbox's own copy of it, which becomes what the head's was while the guest runs. */
static int arriving_ram(struct node *n, const struct noded_request *q, const struct head *h, int *ret_fd, struct err *e)
{
    struct pool_object o = {NODED_SANDBOX, q->id};
    AUTO_CLOSE int meta = -1;
    int rc = pool_file_remove(n->pool, o, NODED_STATE, e);
    if (rc == 0)
        rc = pool_file_open(n->pool, o, NODED_META, false, &meta, e);
    if (rc < 0)
        return rc;
    struct head_id has = head_id_of(meta);
    if (!head_id_equal(&has, &h->m.id))
        return err_set(e, EINVAL, "start sandbox %012llx: its object is no copy of the head", (unsigned long long)q->id);
    return pool_file_open(n->pool, o, NODED_RAM, false, ret_fd, e);
}

static int find_ram(struct node *n, const struct noded_request *q, const struct head *h, int *ret_fd, struct err *e)
{
    return q->flags & NODED_PROBE      ? probe_ram(q, ret_fd, e)
           : q->flags & NODED_FILLING  ? arriving_ram(n, q, h, ret_fd, e)
           : q->flags & NODED_INCOMING ? base_ram(n, q, h, ret_fd, e)
                                       : fresh_ram(n, q, ret_fd, e);
}

/* ---- the domain ---- */

struct paths {
    char ram[PATH_MAX];
    char fill_file[PATH_MAX], fill_socket[PATH_MAX];
    char kernel[PATH_MAX], initrd[PATH_MAX], disk[PATH_MAX], socket[CHANNEL_PORTS][PATH_MAX];
};

/* A sandbox boots the kernel that its template came with, a probe the one that new templates get.
 */
static void find_paths(const struct node *n, const struct noded_request *q, struct paths *p)
{
    struct pool_object o = {NODED_SANDBOX, q->id};
    pool_file_path(n->pool, o, NODED_KERNEL, p->kernel);
    pool_file_path(n->pool, o, NODED_INITRD, p->initrd);
    pool_file_path(n->pool, o, NODED_DISK, p->disk);
    pool_file_path(n->pool, o, NODED_FILL, p->fill_file);
    ramfd_fill_path(n->ramfds, q->id, p->fill_socket);
    if (q->flags & NODED_PROBE) {
        snprintf(p->kernel, sizeof p->kernel, "%s/vmlinuz", n->config.guest);
        snprintf(p->initrd, sizeof p->initrd, "%s/initrd", n->config.guest);
    }
    for (uint32_t port = 0; port < CHANNEL_PORTS; port++)
        channels_path(n->channels, q->id, port, p->socket[port]);
}

/*
 * What QEMU needs besides the guest's memory: the emulator's code cache, its own heap and libraries
 * (about 100 MiB in all, seen), a copy of the kernel, page tables. The rest is room for the page
 * cache of its disk, which the kernel takes back when it is full; so a guest that writes without
 * end does not push everything else out of the host's memory.
 */
static uint64_t memory_limit(const struct node *n, const struct noded_request *q)
{
    return n->facts.memory_limits ? q->memory + q->memory / 32 + (512ull << 20) : 0;
}

static int create_domain(struct node *n, const struct noded_request *q, const struct ramfd *ram, struct err *e)
{
    bool waits = q->flags & NODED_INCOMING;
    char name[64];
    AUTO_FREE struct paths *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ENOMEM, "start sandbox %012llx: out of memory", (unsigned long long)q->id);
    find_paths(n, q, p);
    ramfd_path(ram, p->ram);
    vms_name(n->vms, q->id, name);
    uid_t uid = n->config.uid_base + q->slot;
    AUTO_FREE char *xml = domain_xml(&(struct domain_spec){
        .name = name,
        .kernel = waits ? NULL : p->kernel,
        .initrd = waits ? NULL : p->initrd,
        .library = n->library,
        .ram_socket = p->ram,
        .fill_file = waits ? p->fill_file : NULL,
        .fill_socket = p->fill_socket,
        .disk = q->flags & NODED_PROBE ? NULL : p->disk,
        .socket = {p->socket[0], p->socket[1]},
        .memory = q->memory,
        .vcpus = q->vcpus,
        .accel = (enum noded_accel)q->accel,
        .uid = uid,
        .gid = q->accel == NODED_KVM && n->facts.kvm_gid ? n->facts.kvm_gid : uid, /* for /dev/kvm; files are the uid's alone */
    });
    if (!xml)
        return err_set(e, ENOMEM, "start sandbox %012llx: out of memory", (unsigned long long)q->id);
    return vms_start(n->vms, q->id, xml, memory_limit(n, q), waits, e);
}

/* Starts QEMU with what it is given; *ret is where its memory is. */
static int start_domain(struct node *n, const struct noded_request *q, const struct ramfd_gifts *gifts, struct memory_target *ret, struct err *e)
{
    struct ramfd *ram = NULL;
    *ret = (struct memory_target){.uid = n->config.uid_base + q->slot, .length = q->memory};
    int rc = ramfd_start(n->ramfds, q->id, ret->uid, gifts, q->memory, &ram, e);
    if (rc < 0)
        return rc;
    rc = create_domain(n, q, ram, e);
    int mapped = ramfd_finish(ram, &ret->address, &ret->pid);
    if (rc == 0 && mapped < 0)
        rc = err_set(e, EIO,
                     "start sandbox %012llx: its QEMU did not ask for its memory: see its log in "
                     "/var/log/libvirt/qemu, and whether %s can be read by every user",
                     (unsigned long long)q->id, n->library);
    return rc < 0 ? rc : memory_identify(n->memory, ret, e);
}

static int start(struct node *n, const struct noded_request *q, const struct head *h, struct err *e)
{
    AUTO_CLOSE int ram = -1;
    AUTO_CLOSE int tap = -1;
    AUTO_CLOSE int net = -1;
    bool waits = q->flags & NODED_INCOMING, arrives = q->flags & NODED_FILLING;
    struct record r = {.version = RECORD_VERSION, .phase = waits ? RECORD_WAITS : RECORD_RUNS, .vcpus = q->vcpus, .accel = q->accel};
    if (waits) {
        r.base = h->m.id;
        vms_expect(n->vms, q->id, 1, 0);
    }
    int rc = find_ram(n, q, h, &ram, e);
    if (rc == 0 && waits)
        rc = fill_prepare(n->pool, q->id, e);
    if (rc == 0 && arrives)
        rc = fill_begin(n->pool, q->id, FILL_MEMORY, e);
    if (rc == 0 && !(q->flags & NODED_PROBE))
        rc = net_create(n->net, &tap, &net, &r.net, e);
    if (rc == 0)
        rc = start_domain(n, q, &(struct ramfd_gifts){ram, tap, net, arrives ? n->faults : -1}, &r.target, e);
    if (rc == 0 && waits)
        rc = op_head_prepare(n, q->id, e);
    if (rc == 0)
        rc = record_write(n->channels, q->id, &r, e);
    if (rc < 0 && waits)
        vms_expect(n->vms, q->id, -1, 0); /* it may never have come to that */
    return rc;
}

/* Runs QEMU under a uid that is nobody else's, with one disk, two sockets and a kernel from fixed
 places, memory that is nobody else's to write, and a network without a way out. */
int op_vm_start(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    AUTO_HEAD struct head h = HEAD_INIT;
    if ((q->flags & NODED_FILLING) && n->faults < 0)
        return err_set(e, ENOTSUP, "start sandbox %012llx: this host has no " NODE_FAULTS, (unsigned long long)q->id);
    int rc = vms_started(n->vms, q->id, e);
    if (rc > 0)
        return err_set(e, EEXIST, "start sandbox %012llx: its virtual machine runs already", (unsigned long long)q->id);
    if (rc == 0 && slots_find(n->slots, q->id) != UINT32_MAX)
        rc = release(n, q->id, e);            /* of one that is gone, and not looked at yet */
    if (rc == 0 && !(q->flags & NODED_PROBE)) /* what boots, and what waits: it would never have all of its disk */
        rc = fill_refuse(n->pool, (struct pool_object){NODED_SANDBOX, q->id}, "start", e);
    if (rc == 0 && (q->flags & NODED_INCOMING))
        rc = op_head_open(n, q, &h, e);
    if (rc < 0)
        return rc;
    rc = take(n, q, e);
    if (rc == 0)
        rc = start(n, q, &h, e);
    if (rc < 0 && slots_find(n->slots, q->id) == q->slot) {
        struct err why = {0};
        if (op_vm_kill(n, q, rep, ret_fd, &why) < 0)
            log_warn("after a failed start: %s", why.msg);
    }
    return rc;
}

/* ---- the end ---- */

/* libvirt lets a QEMU 10 s after SIGTERM, in which it writes its disk out; one that hangs is not
 * waited for so long. */
#define END_MSEC 3000

struct end {
    struct node *node;
    struct memory_target target;
    uint64_t id;
    int wake[2];
};

static void *end_in_time(void *arg)
{
    struct end *x = arg;
    struct pollfd p = {.fd = x->wake[0], .events = POLLIN};
    struct err why = {0};
    int rc;
    do
        rc = poll(&p, 1, END_MSEC);
    while (rc < 0 && errno == EINTR);
    if (rc != 0)
        return NULL;
    rc = memory_kill(x->node->memory, &x->target, &why);
    if (rc == 0)
        log_warn("QEMU of sandbox %012llx did not end within %d ms and was killed", (unsigned long long)x->id, END_MSEC);
    else if (rc != -ESRCH)
        log_warn("%s", why.msg);
    return NULL;
}

/* One that hangs in its own start has no record yet: libvirt alone ends it. */
static int end_domain(struct node *n, uint64_t id, struct err *e)
{
    struct record r;
    struct end x = {.node = n, .id = id, .wake = {-1, -1}};
    pthread_t thread;
    bool watched = record_read(n->channels, id, &r, NULL) == 0 && pipe2(x.wake, O_CLOEXEC) == 0;
    x.target = watched ? r.target : (struct memory_target){0};
    bool threaded = watched && pthread_create(&thread, NULL, end_in_time, &x) == 0;
    int rc = vms_destroy(n->vms, id, e);
    cleanup_close(&x.wake[1]); /* ends the thread's waiting */
    if (threaded)
        pthread_join(thread, NULL);
    cleanup_close(&x.wake[0]);
    return rc;
}

/* Ends a QEMU that hostd had started. */
int op_vm_kill(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    int rc = end_domain(n, q->id, e);
    return rc < 0 ? rc : release(n, q->id, e);
}

int op_vm_interrupt(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    return end_domain(n, q->id, e);
}

/* As hostd likes; only the guest notices. */
int op_vm_pause(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    return vms_pause(n->vms, q->id, e);
}

int op_vm_resume(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    return vms_resume(n->vms, q->id, e);
}

/* Reads three numbers. */
int op_vm_stats(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)ret_fd;
    struct record r;
    uint64_t anon;
    bool running = false;
    int rc = vms_stats(n->vms, q->id, &rep->stats.cpu_nsec, &rep->stats.rss_bytes, &running, e);
    rep->stats.running = running;
    if (rc == 0 && record_read(n->channels, q->id, &r, NULL) == 0)
        memory_pss(n->memory, &r.target, &rep->stats.rss_bytes, &anon, NULL); /* else its RSS */
    return rc;
}

struct listing {
    struct node *node;
    struct memfd text;
};

/* What libvirt takes for paused may be waiting for its first state. */
static const char *refine_state(const struct node *n, uint64_t id, const char *state)
{
    struct record r;
    if (strcmp(state, "paused") != 0 || record_read(n->channels, id, &r, NULL) < 0)
        return state;
    return r.phase == RECORD_WAITS ? "waiting" : r.phase == RECORD_LOADS ? "other" : state;
}

static void list_one(void *user, uint64_t id, const char *state)
{
    struct listing *l = user;
    state = refine_state(l->node, id, state);
    memfd_add(&l->text, "%012llx %s %u\n", (unsigned long long)id, state, slots_find(l->node->slots, id));
}

static void list_held(void *user, uint64_t id)
{
    struct listing *l = user;
    memfd_add(&l->text, "%012llx held %u\n", (unsigned long long)id, slots_find(l->node->slots, id));
}

/* Reads names of this instance's domains; others on the host stay unseen. Before them come all that
 * hold a uid: one of which no other line follows has no domain. */
int op_vm_list(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)q, (void)rep;
    struct listing l = {.node = n};
    memfd_start(&l.text);
    slots_each(n->slots, list_held, &l);
    int rc = vms_list(n->vms, list_one, &l, e);
    if (rc < 0) {
        memfd_drop(&l.text);
        return rc;
    }
    return memfd_seal(&l.text, ret_fd, e);
}

/* Connects to a guest, which hostd distrusts. The socket is one that root made in a directory that
 * only root can change. */
int op_channel_open(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep;
    return channels_connect(n->channels, q->id, q->port, ret_fd, e);
}
