// SPDX-License-Identifier: Apache-2.0
// Operations on disks and memory that arrive while their virtual machine runs. Each says what it
// lets hostd do at most; arguments were checked by ops.c.
#include "hostd/noded/op_impl.h"

#include "base/cleanup.h"
#include "hostd/noded/channel.h"
#include "hostd/noded/fill.h"
#include "hostd/noded/ramfd.h"
#include "hostd/noded/slots.h"

#include <errno.h>

/* Writes to the disk and the memory of a guest that runs, of which hostd said itself that they come
 * from there, and listens to that guest's QEMU. No others are handed out. */
int op_vm_fill(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    struct pool_object o = {NODED_SANDBOX, q->id};
    (void)rep;
    static const enum noded_file files[] = {
        [NODED_FILL_DISK] = NODED_DISK,
        [NODED_FILL_DISK_BITS] = NODED_FILL,
        [NODED_FILL_MEMORY] = NODED_RAM,
        [NODED_FILL_MEMORY_BITS] = NODED_FILL_RAM,
    };
    bool disk = fill_state_of(n->pool, o, FILL_DISK) == FILL_RUNS, memory = fill_state_of(n->pool, o, FILL_MEMORY) == FILL_RUNS;
    if (q->port <= NODED_FILL_DISK_BITS ? !disk : q->port <= NODED_FILL_MEMORY_BITS ? !memory : !disk && !memory)
        return err_set(e, EINVAL, "sandbox %012llx: its %s does not arrive from anywhere", (unsigned long long)q->id,
                       q->port <= NODED_FILL_DISK_BITS ? "disk" : "memory");
    if (q->port < NODED_FILL_SOCKET)
        return pool_file_open(n->pool, o, files[q->port], true, ret_fd, e);
    uint32_t slot = slots_find(n->slots, q->id);
    if (slot == UINT32_MAX)
        return err_set(e, ESRCH, "sandbox %012llx has no virtual machine", (unsigned long long)q->id);
    return ramfd_fill_listen(n->ramfds, q->id, n->config.uid_base + slot, ret_fd, e);
}

/* Says what hostd knows. */
int op_vm_filled(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    struct pool_object o = {NODED_SANDBOX, q->id};
    int rc = fill_complete(n->pool, q->id, q->port ? FILL_MEMORY : FILL_DISK, e);
    if (rc == 0 && fill_refuse(n->pool, o, "leave", NULL) == 0)
        ramfd_fill_remove(n->ramfds, q->id);
    return rc;
}
