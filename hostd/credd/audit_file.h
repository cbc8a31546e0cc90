// SPDX-License-Identifier: Apache-2.0
// The files of the audit log, for who writes them and who checks them.
#ifndef SPACE_CREDD_AUDIT_FILE_H
#define SPACE_CREDD_AUDIT_FILE_H

#include "base/err.h"

#include <stdint.h>

/* The number in the newest file's name; 0: there is none. */
int audit_file_last(const char *folder, uint64_t *out, struct err *e);

#endif
