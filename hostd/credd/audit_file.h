// SPDX-License-Identifier: Apache-2.0
// The files of the audit log, for who writes them and who checks them.
#ifndef SPACE_CREDD_AUDIT_FILE_H
#define SPACE_CREDD_AUDIT_FILE_H

#include "hostd/credd/audit.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>

/* Of the line that tells of lines that are removed: the number of the last, and its hash. */
#define AUDIT_DROP_TEXT "lines up to %" PRIu64 ", the last with hash %s"

#define AUDIT_PATH_MAX 300

/* The file whose first line has that number. */
void audit_file_path(char out[AUDIT_PATH_MAX], const char *folder, uint64_t number);
/* The numbers in the files' names, ascending; malloc'ed. */
int audit_file_list(const char *folder, uint64_t **out, size_t *ret_count, struct err *e);
/* The number in the newest file's name; 0: there is none. */
int audit_file_last(const char *folder, uint64_t *out, struct err *e);
/* Where a file ends: its last line's number and hash, whatever is to be said of it; zeros: it has none. */
int audit_file_end(const char *folder, uint64_t number, struct audit_end *out, struct err *e);

#endif
