// SPDX-License-Identifier: Apache-2.0
// The operation that compares files of objects; extents.c does the work.
#include "hostd/noded/op_impl.h"

#include "base/cleanup.h"
#include "hostd/noded/extents.h"
#include "hostd/noded/memfd.h"
#include "hostd/noded/pool.h"

#include <string.h>
#include <sys/stat.h>

#define ITEMS_MAX (256u << 10) /* for one request: tens of milliseconds, and at most 12 MiB of ranges */

static void add_range(void *user, const struct noded_range *r)
{
    memfd_put(user, r, sizeof *r);
}

/* Says which bytes of one file hostd may read anyway lie elsewhere than those of another; never
 * where. A request costs a bounded time and amount of memory. */
int op_file_compare(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    AUTO_CLOSE int a = -1;
    AUTO_CLOSE int b = -1;
    struct memfd list = {0};
    struct stat st;
    struct pool_object of = {(enum noded_kind)q->kind, q->id}, other = {(enum noded_kind)q->kind2, q->id2};
    bool wanted = q->flags & NODED_RANGES;
    struct extents_diff d = {.from = q->size, .most = ITEMS_MAX, .user = &list};
    int rc = pool_file_open(n->pool, of, (enum noded_file)q->file, false, &a, e);
    if (rc == 0 && q->id2)
        rc = pool_file_open(n->pool, other, (enum noded_file)q->file, false, &b, e);
    if (rc == 0 && fstat(a, &st) < 0)
        rc = err_sys(e, "look at a file of %012llx", (unsigned long long)q->id);
    if (rc < 0)
        return rc;
    if (wanted) {
        memfd_start(&list);
        d.range = add_range;
    }
    rc = extents_compare(a, b, &d, e);
    if (rc == 0 && wanted)
        rc = memfd_seal(&list, ret_fd, e);
    else if (wanted)
        memfd_drop(&list);
    rep->extents.size_bytes = (uint64_t)st.st_size;
    rep->extents.held_bytes = d.held;
    rep->extents.changed_bytes = d.changed;
    rep->extents.emptied_bytes = d.emptied;
    rep->extents.next = d.next;
    return rc;
}
