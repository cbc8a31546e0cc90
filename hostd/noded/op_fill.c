// SPDX-License-Identifier: Apache-2.0
// Operations on disks that arrive while their virtual machine runs. Each says what it lets hostd do
// at most; arguments were checked by ops.c.
#include "hostd/noded/op_impl.h"

#include "base/cleanup.h"
#include "hostd/noded/channel.h"
#include "hostd/noded/fill.h"
#include "hostd/noded/ramfd.h"
#include "hostd/noded/slots.h"

#include <errno.h>

/* Writes to the disk of a guest that runs, of which hostd said itself that it comes from there, and
 * listens to that guest's QEMU. No other disk is handed out. */
int op_vm_fill(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd,
               struct err *e)
{
    struct pool_object o = {NODED_SANDBOX, q->id};
    (void)rep;
    if (fill_state_of(n->pool, o) != FILL_RUNS)
        return err_set(e, EINVAL, "sandbox %012llx: its disk does not arrive from anywhere",
                       (unsigned long long)q->id);
    if (q->port < 2)
        return pool_file_open(n->pool, o, q->port == 0 ? NODED_DISK : NODED_FILL, true, ret_fd, e);
    uint32_t slot = slots_find(n->slots, q->id);
    if (slot == UINT32_MAX)
        return err_set(e, ESRCH, "sandbox %012llx has no virtual machine",
                       (unsigned long long)q->id);
    return ramfd_fill_listen(n->ramfds, q->id, n->config.uid_base + slot, ret_fd, e);
}

/* Says what hostd knows. */
int op_vm_filled(struct node *n, const struct noded_request *q, struct noded_reply *rep,
                 int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    int rc = fill_complete(n->pool, q->id, e);
    if (rc == 0)
        ramfd_fill_remove(n->ramfds, q->id);
    return rc;
}
