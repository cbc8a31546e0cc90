// SPDX-License-Identifier: Apache-2.0
// Confinement of the browser, which parses what a guest wrote, and of the daemon that starts it.
#ifndef SPACE_BROWSE_ISOLATE_H
#define SPACE_BROWSE_ISOLATE_H

#include "base/err.h"

#include <stddef.h>

/* Address space of a browser: its tables have limits far below. */
#define ISOLATE_MEMORY ((size_t)512 << 20)

/*
 * For a browser, before it looks at the first byte of the image; for good. No capabilities, no new
 * privileges, no core dump, no tracing; no file system (Landlock without a rule); memory limited;
 * and of system calls (seccomp) only: pread and lseek on `image`, read and write on `connection`,
 * write on 2, memory that is not executable, time, random numbers, exit. Anything else kills the
 * process. The timer signals of a watchdog go on. 0 or -errno.
 */
int isolate_browser(int image, int connection, struct err *e);

/*
 * For the daemon, after its socket is bound: no capabilities, no new privileges; files (Landlock):
 * nothing is written, and only what a program of `folder` needs to start is read; no sockets but
 * those there are, no tracing, mounting and the like (seccomp). 0 or -errno.
 */
int isolate_daemon(const char *folder, struct err *e);

#endif
