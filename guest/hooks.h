// SPDX-License-Identifier: Apache-2.0
// The guest's own programs that are run after a load, for what only the guest can make its own
// again: generators of random numbers in user space, caches of the machine's name.
#ifndef SPACE_GUEST_HOOKS_H
#define SPACE_GUEST_HOOKS_H

#include <stdbool.h>

#define HOOKS_DIR        "/etc/space/fork-hooks.d"
#define HOOKS_ONE_MSEC   3000 /* one hook; what runs longer is killed */
#define HOOKS_TOTAL_MSEC 5000 /* all of them; those that have not run by then are left out */

struct hooks {
    const char *generation, *hostname; /* for their environment */
};

/*
 * False when the kernel remembers that there is no directory of hooks: costs no waiting, so PID 1
 * may ask. True when there is one, or when only the disk knows.
 */
bool hooks_maybe(void);

/* Runs every executable of the directory, in the order of their names, as root, one after the
 * other. How they end is nobody's error, but a line in the kernel's log. For helpers. */
void hooks_run(const struct hooks *h);

#endif
