// SPDX-License-Identifier: Apache-2.0
// Gives up what space-noded does not need, for good.
#ifndef SPACE_NODED_ISOLATE_H
#define SPACE_NODED_ISOLATE_H

#include "base/err.h"

/*
 * Before any thread is started. Keeps four capabilities: CAP_SYS_ADMIN (deletes subvolumes),
 * CAP_CHOWN and CAP_FOWNER (a disk's owner and mode), CAP_DAC_OVERRIDE (files of other uids,
 * libvirt's socket). Nothing outside the directories `writable` (ends with NULL; missing ones are
 * skipped) can be made, written or removed afterwards, where the kernel has Landlock. Nothing can
 * be executed, traced, mounted or loaded into the kernel, no namespace entered; no core is dumped.
 */
int isolate(const char *const writable[], struct err *e);

#endif
