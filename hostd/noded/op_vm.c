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
#include "hostd/noded/memfd.h"
#include "hostd/noded/pool.h"
#include "hostd/noded/slots.h"
#include "hostd/noded/vm.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Gives back what a start took. The domain must be gone. */
static int release(struct node *n, uint64_t id, struct err *e)
{
    struct err why = {0};
    int rc = channels_remove(n->channels, id, e);
    if (rc < 0)
        return rc;
    if (pool_release(n->pool, id, &why) < 0) {
        log_warn("%s; its uid stays taken until that works", why.msg);
        slots_mark_stale(n->slots, id);
        return 0;
    }
    slots_drop(n->slots, id);
    return 0;
}

/* Takes back what belongs to a domain that is gone, and to nothing else. */
int op_vm_reap(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd,
               struct err *e)
{
    (void)rep, (void)ret_fd;
    int active = vms_active(n->vms, q->id, e);
    return active ? (active < 0 ? active : 0) : release(n, q->id, e);
}

static int take_slot(struct node *n, const struct noded_request *q, struct err *e)
{
    uint64_t stale;
    if (slots_take(n->slots, q->slot, q->id, &stale) < 0)
        return err_set(e, EBUSY, "start sandbox %012llx: uid slot %u is held by sandbox %012llx",
                       (unsigned long long)q->id, q->slot,
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

struct paths {
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

static int create_domain(struct node *n, const struct noded_request *q, struct err *e)
{
    char name[64];
    AUTO_FREE struct paths *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ENOMEM, "start sandbox %012llx: out of memory",
                       (unsigned long long)q->id);
    find_paths(n, q, p);
    vms_name(n->vms, q->id, name);
    uid_t uid = n->config.uid_base + q->slot;
    AUTO_FREE char *xml = domain_xml(&(struct domain_spec){
        .name = name,
        .kernel = p->kernel,
        .initrd = p->initrd,
        .disk = q->flags & NODED_PROBE ? NULL : p->disk,
        .socket = {p->socket[0], p->socket[1]},
        .memory = q->memory,
        .vcpus = q->vcpus,
        .accel = (enum noded_accel)q->accel,
        .uid = uid,
        .gid = q->accel == NODED_KVM && n->facts.kvm_gid
                   ? n->facts.kvm_gid
                   : uid, /* for /dev/kvm; files are the uid's alone */
    });
    if (!xml)
        return err_set(e, ENOMEM, "start sandbox %012llx: out of memory",
                       (unsigned long long)q->id);
    return vms_start(n->vms, q->id, xml, memory_limit(n, q), e);
}

/* Runs QEMU under a uid that is nobody else's, with one disk, two sockets and a kernel from fixed
 * places, and no network. */
int op_vm_start(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd,
                struct err *e)
{
    int rc = vms_active(n->vms, q->id, e);
    if (rc > 0)
        return err_set(e, EEXIST, "start sandbox %012llx: its virtual machine runs already",
                       (unsigned long long)q->id);
    if (rc == 0 && slots_find(n->slots, q->id) != UINT32_MAX)
        rc = release(n, q->id, e); /* of one that is gone, and not looked at yet */
    if (rc < 0)
        return rc;
    rc = take(n, q, e);
    if (rc == 0)
        rc = create_domain(n, q, e);
    if (rc < 0 && slots_find(n->slots, q->id) == q->slot) {
        struct err why = {0};
        if (op_vm_reap(n, q, rep, ret_fd, &why) < 0)
            log_warn("after a failed start: %s", why.msg);
    }
    return rc;
}

/* Ends a QEMU that hostd had started. */
int op_vm_kill(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd,
               struct err *e)
{
    (void)rep, (void)ret_fd;
    int rc = vms_destroy(n->vms, q->id, e);
    return rc < 0 ? rc : release(n, q->id, e);
}

int op_vm_interrupt(struct node *n, const struct noded_request *q, struct noded_reply *rep,
                    int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    return vms_destroy(n->vms, q->id, e);
}

/* As hostd likes; only the guest notices. */
int op_vm_pause(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd,
                struct err *e)
{
    (void)rep, (void)ret_fd;
    return vms_pause(n->vms, q->id, e);
}

int op_vm_resume(struct node *n, const struct noded_request *q, struct noded_reply *rep,
                 int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    return vms_resume(n->vms, q->id, e);
}

/* Reads three numbers. */
int op_vm_stats(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd,
                struct err *e)
{
    (void)ret_fd;
    bool running = false;
    int rc = vms_stats(n->vms, q->id, &rep->stats.cpu_nsec, &rep->stats.rss_bytes, &running, e);
    rep->stats.running = running;
    return rc;
}

struct listing {
    struct node *node;
    struct memfd text;
};

static void list_one(void *user, uint64_t id, const char *state)
{
    struct listing *l = user;
    memfd_add(&l->text, "%012llx %s %u\n", (unsigned long long)id, state,
              slots_find(l->node->slots, id));
}

/* Reads names of this instance's domains; others on the host stay unseen. */
int op_vm_list(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd,
               struct err *e)
{
    (void)q, (void)rep;
    struct listing l = {.node = n};
    memfd_start(&l.text);
    int rc = vms_list(n->vms, list_one, &l, e);
    if (rc < 0) {
        memfd_drop(&l.text);
        return rc;
    }
    return memfd_seal(&l.text, ret_fd, e);
}

/* Connects to a guest, which hostd distrusts. The socket is one that root made in a directory that
 * only root can change. */
int op_channel_open(struct node *n, const struct noded_request *q, struct noded_reply *rep,
                    int *ret_fd, struct err *e)
{
    (void)rep;
    return channels_connect(n->channels, q->id, q->port, ret_fd, e);
}
