// SPDX-License-Identifier: Apache-2.0
// Locks on files of the root file system: open file description locks, so that each opened fid is an owner and its clunk lets go.
//
// A lock that another one stands against is answered P9_LOCK_BLOCKED, never waited for; clients ask again (v9fs every 30 s).
#include "guest/files/handlers.h"
#include "guest/files/node.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static bool lock_range(uint8_t type, uint64_t start, uint64_t length, struct flock *out)
{
    static const short types[] = {[P9_LOCK_RDLCK] = F_RDLCK, [P9_LOCK_WRLCK] = F_WRLCK, [P9_LOCK_UNLCK] = F_UNLCK};
    if (type > P9_LOCK_UNLCK || start > INT64_MAX || length > INT64_MAX - start)
        return false;
    *out = (struct flock){.l_type = types[type], .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)length};
    return true;
}

void files_lock(struct p9_request *r)
{
    const struct p9_Tlock *t = &r->t->Tlock;
    const struct node *n = r->fid->aux;
    struct flock range;
    struct p9_msg m = {0};
    if (n->io < 0 || !lock_range(t->type, t->start, t->length, &range)) {
        p9_fail(r, n->io < 0 ? EBADF : EINVAL);
        return;
    }
    m.Rlock.status = P9_LOCK_SUCCESS;
    if (fcntl(n->io, F_OFD_SETLK, &range) < 0) {
        if (errno != EAGAIN && errno != EACCES) {
            p9_fail(r, errno);
            return;
        }
        m.Rlock.status = P9_LOCK_BLOCKED;
    }
    p9_reply(r, &m);
}

void files_getlock(struct p9_request *r)
{
    const struct p9_Tgetlock *t = &r->t->Tgetlock;
    const struct node *n = r->fid->aux;
    struct flock range;
    struct p9_msg m = {0};
    if (n->io < 0 || !lock_range(t->type, t->start, t->length, &range)) {
        p9_fail(r, n->io < 0 ? EBADF : EINVAL);
        return;
    }
    if (fcntl(n->io, F_OFD_GETLK, &range) < 0) {
        p9_fail(r, errno);
        return;
    }
    m.Rgetlock = (struct p9_Rgetlock){.type = t->type, .start = t->start, .length = t->length, .proc_id = t->proc_id, .client_id = t->client_id};
    if (range.l_type == F_UNLCK) {
        m.Rgetlock.type = P9_LOCK_UNLCK;
    } else {
        m.Rgetlock.type = range.l_type == F_RDLCK ? P9_LOCK_RDLCK : P9_LOCK_WRLCK;
        m.Rgetlock.start = (uint64_t)range.l_start;
        m.Rgetlock.length = (uint64_t)range.l_len;
        m.Rgetlock.proc_id = range.l_pid > 0 ? (uint32_t)range.l_pid : 0; /* another fid's lock has no process */
    }
    p9_reply(r, &m);
}
