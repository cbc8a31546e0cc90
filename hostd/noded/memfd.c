// SPDX-License-Identifier: Apache-2.0
// Sealed texts: see memfd.h.
#include "hostd/noded/memfd.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>

void memfd_start(struct memfd *m)
{
    int fd = memfd_create("list", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    m->f = fd < 0 ? NULL : fdopen(fd, "w");
    m->error = m->f ? 0 : errno;
    if (!m->f && fd >= 0)
        close(fd);
}

void memfd_add(struct memfd *m, const char *fmt, ...)
{
    if (!m->f || m->error)
        return;
    va_list ap;
    va_start(ap, fmt);
    if (vfprintf(m->f, fmt, ap) < 0)
        m->error = errno;
    va_end(ap);
}

void memfd_put(struct memfd *m, const void *bytes, size_t len)
{
    if (m->f && !m->error && fwrite(bytes, 1, len, m->f) != len)
        m->error = errno;
}

int memfd_seal(struct memfd *m, int *ret_fd, struct err *e)
{
    AUTO_CLOSE int fd = -1;
    if (m->f && !m->error && fflush(m->f) == 0)
        fd = fcntl(fileno(m->f), F_DUPFD_CLOEXEC, 0);
    if (!m->error && fd < 0)
        m->error = errno;
    memfd_drop(m);
    if (!m->error && (lseek(fd, 0, SEEK_SET) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0))
        m->error = errno;
    if (m->error) {
        errno = m->error;
        return err_sys(e, "write a list into memory");
    }
    *ret_fd = steal_fd(&fd);
    return 0;
}

void memfd_drop(struct memfd *m)
{
    if (m->f)
        fclose(m->f);
    m->f = NULL;
}
