// SPDX-License-Identifier: Apache-2.0
// The server of the guest's root file system (space.1): a process of its own, which may block (docs/protocol/guest.md).
#ifndef SPACE_GUEST_FILES_H
#define SPACE_GUEST_FILES_H

#include "9p/server.h"

/*
 * Serves the mount whose root `tree` is (an O_PATH descriptor, as from open_tree) on the port space.1; sessions come and go. Never returns: exits with 1
 * when the port cannot be served. For a fresh child process, as root, with the initial user namespace's rights.
 */
_Noreturn void files_main(int tree);

/* The backend's table, for tests: its sessions' user pointer is a struct files. */
extern const struct p9_backend files_backend;

#endif
