// SPDX-License-Identifier: Apache-2.0
// RUN/vm/ID: a directory for each virtual machine with the sockets of its two channels.
//
// libvirt makes the sockets and hands QEMU the listening descriptors, so QEMU needs no access here:
// the directories are root's, mode 0700. A directory is there from before a QEMU starts until after
// it is known to be gone: the record that a sandbox is in use, which needs no libvirt. Its gid is
// the virtual machine's uid. Any thread. Nothing changes after channels_open.
#ifndef SPACE_NODED_CHANNEL_H
#define SPACE_NODED_CHANNEL_H

#include "base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CHANNEL_PORTS 2u

/* A file beside the sockets: record.h. */
#define CHANNEL_RECORD "machine"

struct channels;

/* Makes RUN/vm in the directory `run_fd`, whose path is `run`. EPERM when somebody else could
 * change it. */
int channels_open(int run_fd, const char *run, struct channels **out, struct err *e);
void channels_close(struct channels *c);

/* Makes the directory for a start, or empties what an earlier one left. */
int channels_prepare(const struct channels *c, uint64_t id, uid_t uid, struct err *e);
/* Missing is success. */
int channels_remove(const struct channels *c, uint64_t id, struct err *e);
/* There is a directory: something was started, and is not known to be gone. */
bool channels_exist(const struct channels *c, uint64_t id);
/* The directory of a virtual machine, or -errno with errno set. The caller's. */
int channels_dir(const struct channels *c, uint64_t id);
/* Path of a socket. */
void channels_path(const struct channels *c, uint64_t id, uint32_t port, char out[PATH_MAX]);
/* A connected, non-blocking descriptor. ECONNREFUSED when nobody listens, EAGAIN when another
 * client is being waited for. */
int channels_connect(const struct channels *c, uint64_t id, uint32_t port, int *ret_fd, struct err *e);
/* Calls back for each directory that there is. */
int channels_each(const struct channels *c, void (*cb)(void *user, uint64_t id, uid_t uid), void *user, struct err *e);

#endif
