// SPDX-License-Identifier: Apache-2.0
// Operations on the pool's objects. Each says what it lets hostd do at most; arguments were checked
// by ops.c.
#include "hostd/noded/op_impl.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "hostd/noded/channel.h"
#include "hostd/noded/fill.h"
#include "hostd/noded/pool.h"
#include "hostd/noded/slots.h"
#include "hostd/noded/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

static struct pool_object object(const struct noded_request *q)
{
    return (struct pool_object){(enum noded_kind)q->kind, q->id};
}

/* Starts, ends and these operations on one sandbox never run at the same time. */
static bool in_use(const struct node *n, const struct noded_request *q)
{
    return q->kind == NODED_SANDBOX && channels_exist(n->channels, q->id);
}

/* Reads facts that any user of the host can read. */
int op_hello(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)q, (void)ret_fd, (void)e;
    rep->node.memory = n->facts.memory;
    rep->node.cpus = n->facts.cpus;
    rep->node.kvm = n->facts.kvm;
    rep->node.arrives = n->faults >= 0;
    vms_qemu_version(n->vms, rep->node.qemu);
    str_copy(rep->node.host_kernel, sizeof rep->node.host_kernel, n->facts.kernel);
    str_copy(rep->node.cpu_model, sizeof rep->node.cpu_model, n->facts.cpu_model);
    return 0;
}

/* Reads two numbers. */
int op_pool_stat(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)q, (void)ret_fd;
    return pool_stat(n->pool, &rep->pool.size_bytes, &rep->pool.free_bytes, e);
}

/* Makes an empty directory of root's below the pool. */
int op_object_create(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    return pool_create(n->pool, object(q), e);
}

/* Copies an object below the pool, never over another. A sandbox that cannot be written is of no
 * use to anybody. */
int op_object_snapshot(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    struct pool_object from = {(enum noded_kind)q->kind2, q->id2};
    if (q->kind == NODED_SANDBOX && (q->flags & NODED_READ_ONLY))
        return err_set(e, EINVAL, "object-snapshot: a sandbox cannot be read-only");
    int rc = fill_refuse(n->pool, from, "copy", e);
    return rc < 0 ? rc : pool_snapshot(n->pool, from, object(q), q->flags & NODED_READ_ONLY, e);
}

/* Takes a right away. Sandboxes have it as long as they live. */
int op_object_seal(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    if (q->kind == NODED_SANDBOX)
        return err_set(e, EINVAL, "object-seal: a sandbox cannot be read-only");
    return pool_seal(n->pool, object(q), e);
}

/* Removes what is below the pool only; hostd decides what lives. Never under a running QEMU. */
int op_object_delete(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    if (in_use(n, q))
        return err_set(e, EBUSY, "delete sandbox %012llx: its virtual machine is not ended yet", (unsigned long long)q->id);
    int rc = pool_delete(n->pool, object(q), e);
    if (rc == 0 && q->kind == NODED_SANDBOX) {
        char domain[64];
        vms_name(n->vms, q->id, domain);
        host_remove_qemu_log(domain);
        slots_drop(n->slots, q->id);
    }
    return rc;
}

/* Reads names below the pool. */
int op_object_list(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)q, (void)rep;
    return pool_list(n->pool, ret_fd, e);
}

/* Hands out a regular file of an object, one of six names. Its contents are hostd's to protect
 * anyway. The file system refuses to write to what is sealed. */
int op_file_open(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep;
    if ((q->flags & NODED_WRITABLE) && in_use(n, q))
        return err_set(e, EBUSY, "write to a file of sandbox %012llx: its virtual machine is not ended yet", (unsigned long long)q->id);
    return pool_file_open(n->pool, object(q), (enum noded_file)q->file, q->flags & NODED_WRITABLE, ret_fd, e);
}

static int install(struct node *n, uint64_t template_id, const char *name, enum noded_file file, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", n->config.guest, name);
    AUTO_CLOSE int from = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (from < 0 || fstat(from, &st) < 0)
        return err_sys(e, "open %s, the kernel for guests (`guest` in the configuration)", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, EINVAL, "%s is not a file", path);
    return pool_file_install(n->pool, (struct pool_object){NODED_TEMPLATE, template_id}, file, from, e);
}

/* Copies two files that the administrator chose. */
int op_template_kernel(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    int rc = install(n, q->id, "vmlinuz", NODED_KERNEL, e);
    return rc < 0 ? rc : install(n, q->id, "initrd", NODED_INITRD, e);
}

/* Sparse: takes no room until the guest writes. */
int op_disk_grow(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    int rc = fill_refuse(n->pool, (struct pool_object){NODED_SANDBOX, q->id}, "grow", e);
    if (rc == 0)
        rc = pool_disk_grow(n->pool, q->id, q->size, e);
    if (rc < 0 || !channels_exist(n->channels, q->id))
        return rc;
    rc = vms_resize_disk(n->vms, q->id, q->size, e);
    return rc == -ESRCH ? 0 : rc; /* ended meanwhile: the next start finds the new size */
}
