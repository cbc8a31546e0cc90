// SPDX-License-Identifier: Apache-2.0
// What is remembered of each QEMU: see record.h.
#include "hostd/noded/record.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>

#define NEW_NAME CHANNEL_RECORD ".new"

int record_write(const struct channels *c, uint64_t id, const struct record *r, struct err *e)
{
    AUTO_CLOSE int dir = channels_dir(c, id);
    AUTO_CLOSE int fd = dir < 0 ? -1 : openat(dir, NEW_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, r, sizeof *r) != (ssize_t)sizeof *r || renameat(dir, NEW_NAME, dir, CHANNEL_RECORD) < 0)
        return err_sys(e, "remember the virtual machine of sandbox %012llx", (unsigned long long)id);
    return 0;
}

int record_read(const struct channels *c, uint64_t id, struct record *out, struct err *e)
{
    AUTO_CLOSE int dir = channels_dir(c, id);
    AUTO_CLOSE int fd = dir < 0 ? -1 : openat(dir, CHANNEL_RECORD, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    *out = (struct record){0};
    ssize_t size = fd < 0 ? -1 : read(fd, out, sizeof *out);
    if (size == (ssize_t)sizeof *out && out->version == RECORD_VERSION)
        return 0;
    if (size == (ssize_t)offsetof(struct record, net) && out->version == RECORD_WITHOUT_NET) {
        out->version = RECORD_VERSION; /* it started before there were networks */
        return 0;
    }
    return err_set(e, ENOENT,
                   "sandbox %012llx has no virtual machine that this space-noded started: stop it "
                   "and start it again",
                   (unsigned long long)id);
}
