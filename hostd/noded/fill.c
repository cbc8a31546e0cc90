// SPDX-License-Identifier: Apache-2.0
// The files `fill` and `fill.ram` of a sandbox: see fill.h.
#include "hostd/noded/fill.h"

#include "base/cleanup.h"
#include "ipc/volumed.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct file {
    const char *name;
    enum noded_file bits, of;
};

static const struct file files[FILL_FILES] = {
    [FILL_DISK] = {"disk", NODED_FILL, NODED_DISK},
    [FILL_MEMORY] = {"memory", NODED_FILL_RAM, NODED_RAM},
};

static struct pool_object object(uint64_t sandbox)
{
    return (struct pool_object){NODED_SANDBOX, sandbox};
}

static int put(int fd, const void *bytes, size_t n, off_t at, struct err *e)
{
    ssize_t done = pwrite(fd, bytes, n, at);
    if (done >= 0 && done != (ssize_t)n)
        errno = ENOSPC;
    return done == (ssize_t)n ? 0 : err_sys(e, "write the file fill");
}

int fill_prepare(const struct pool *p, uint64_t sandbox, struct err *e)
{
    static const uint8_t empty[FILL_BITS];
    AUTO_CLOSE int fd = -1;
    int rc = pool_file_remove(p, object(sandbox), NODED_FILL, e); /* a QEMU may have the old one */
    if (rc == 0)
        rc = pool_file_remove(p, object(sandbox), NODED_FILL_RAM, e);
    if (rc == 0)
        rc = pool_file_open(p, object(sandbox), NODED_FILL, true, &fd, e);
    return rc < 0 ? rc : put(fd, empty, sizeof empty, 0, e); /* all of its page, which is mapped */
}

int fill_begin(const struct pool *p, uint64_t sandbox, enum fill_file what, struct err *e)
{
    const struct file *f = &files[what];
    struct fill_header h = {.version = FILL_VERSION};
    struct stat st;
    AUTO_CLOSE int of = -1;
    AUTO_CLOSE int fd = -1;
    int rc = pool_file_open(p, object(sandbox), f->of, false, &of, e);
    if (rc == 0)
        rc = pool_file_open(p, object(sandbox), f->bits, true, &fd, e);
    if (rc < 0)
        return rc;
    memcpy(h.magic, FILL_MAGIC, sizeof h.magic);
    if (fstat(of, &st) < 0)
        return err_sys(e, "look at the %s of sandbox %012llx", f->name, (unsigned long long)sandbox);
    h.size = (uint64_t)st.st_size;
    uint64_t chunks = (h.size + VOLUMED_CHUNK - 1) / VOLUMED_CHUNK;
    if (ftruncate(fd, (off_t)(FILL_BITS + chunks / 8 + 1)) < 0)
        return err_sys(e, "make room for the bits of sandbox %012llx", (unsigned long long)sandbox);
    rc = put(fd, &h, sizeof h, 0, e); /* with the state still idle: QEMU reads that last */
    h.state = FILL_RUNS;
    return rc < 0 ? rc : put(fd, &h.state, sizeof h.state, offsetof(struct fill_header, state), e);
}

static bool read_header(int fd, struct fill_header *out)
{
    return pread(fd, out, sizeof *out, 0) == (ssize_t)sizeof *out && memcmp(out->magic, FILL_MAGIC, sizeof out->magic) == 0 &&
           out->version == FILL_VERSION;
}

enum fill_state fill_state_of(const struct pool *p, struct pool_object o, enum fill_file what)
{
    struct fill_header h;
    AUTO_CLOSE int fd = -1;
    if (o.kind != NODED_SANDBOX || pool_file_open(p, o, files[what].bits, false, &fd, NULL) < 0 || !read_header(fd, &h))
        return FILL_IDLE;
    return (enum fill_state)h.state;
}

int fill_refuse(const struct pool *p, struct pool_object o, const char *what, struct err *e)
{
    for (enum fill_file f = FILL_DISK; f < FILL_FILES; f++)
        if (fill_state_of(p, o, f) == FILL_RUNS)
            return err_set(e, EBUSY, "%s sandbox %012llx: its %s has not arrived yet", what, (unsigned long long)o.id, files[f].name);
    return 0;
}

/* What QEMU has in its memory is lost with the host's power in any case. */
static int write_out(const struct pool *p, uint64_t sandbox, struct err *e)
{
    AUTO_CLOSE int disk = -1;
    int rc = pool_file_open(p, object(sandbox), NODED_DISK, true, &disk, e);
    if (rc == 0 && fdatasync(disk) < 0)
        rc = err_sys(e, "write out the disk of sandbox %012llx", (unsigned long long)sandbox);
    return rc;
}

int fill_complete(const struct pool *p, uint64_t sandbox, enum fill_file what, struct err *e)
{
    static const uint32_t complete = FILL_COMPLETE;
    AUTO_CLOSE int fd = -1;
    enum fill_state state = fill_state_of(p, object(sandbox), what);
    if (state == FILL_COMPLETE)
        return 0;
    if (state != FILL_RUNS)
        return err_set(e, EINVAL, "sandbox %012llx: its %s does not arrive from anywhere", (unsigned long long)sandbox, files[what].name);
    int rc = what == FILL_DISK ? write_out(p, sandbox, e) : 0;
    if (rc == 0)
        rc = pool_file_open(p, object(sandbox), files[what].bits, true, &fd, e);
    return rc < 0 ? rc : put(fd, &complete, sizeof complete, offsetof(struct fill_header, state), e);
}
