// SPDX-License-Identifier: Apache-2.0
// Small files that are there whole or not at all, whatever happens meanwhile.
#ifndef SPACE_CREDD_FILE_H
#define SPACE_CREDD_FILE_H

#include "base/err.h"

#include <stddef.h>
#include <sys/types.h>

/* Writes PATH.new, syncs, renames it to PATH, syncs the folder. After an error PATH is as it was, or as it should be. */
int file_replace(const char *path, const void *bytes, size_t len, mode_t mode, struct err *e);
/* Missing is success; gone for good when this returns 0. */
int file_remove(const char *path, struct err *e);

#endif
