// SPDX-License-Identifier: Apache-2.0
// Loads the kernel modules that the initramfs carries.
#ifndef SPACE_GUEST_MODULES_H
#define SPACE_GUEST_MODULES_H

/*
 * Loads the modules of the list file `list`, one path a line, in its order, and removes their
 * files. One that fails is logged (a device that is not there may be why) and the rest go on. Needs
 * CAP_SYS_MODULE.
 */
void modules_load(const char *list);

#endif
