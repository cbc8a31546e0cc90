// SPDX-License-Identifier: Apache-2.0
// Operations on the networks of guests. Each says what it lets hostd do at most; arguments were
// checked by ops.c.
#include "hostd/noded/op_impl.h"

#include "hostd/noded/net.h"
#include "hostd/noded/record.h"

#include <errno.h>

/* Receives what a guest sends, which hostd distrusts, and answers it. The namespace is one that
 * space-noded made for this very QEMU; it has no way out. */
int op_net_socket(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    struct record r;
    (void)rep;
    int rc = record_read(n->channels, q->id, &r, e);
    if (rc == 0 && !r.net)
        rc = err_set(e, ENODEV, "sandbox %012llx has no network", (unsigned long long)q->id);
    return rc < 0 ? rc : net_socket(n->net, r.target.pid, r.net, q->port, ret_fd, e);
}
