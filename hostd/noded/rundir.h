// SPDX-License-Identifier: Apache-2.0
// The run-time directory RUN, which root and the daemons' user share without trusting each other.
#ifndef SPACE_NODED_RUNDIR_H
#define SPACE_NODED_RUNDIR_H

#include "base/err.h"

#include <sys/types.h>

/*
 * Makes RUN if it is missing, root's, mode 1755, with an ACL entry that lets `user` make sockets in
 * it: sticky, so that `user` can neither remove nor replace what is root's. Takes a lock that keeps
 * a second space-noded away (EBUSY), held to the end of the process. Returns a descriptor of the
 * directory, or -errno. EOPNOTSUPP: no ACLs there.
 */
int rundir_open(const char *path, uid_t user, struct err *e);

#endif
