// SPDX-License-Identifier: Apache-2.0
// Small files that hold secrets: read only when nobody else may, into locked memory.
#ifndef SPACE_VOLUMED_SECRET_FILE_H
#define SPACE_VOLUMED_SECRET_FILE_H

#include "base/err.h"

#include <stddef.h>

#define SECRET_FILE_MAX 4096u

/*
 * The text of a regular file, with a NUL, in memory of sodium_malloc (to be freed with sodium_free). The file must belong to this process's user or
 * root, and nobody else may read or write it. -ENOENT, -EACCES, -EINVAL (over SECRET_FILE_MAX, or NUL in it), -ENOMEM, with a sentence that does
 * not quote it. sodium_init was called.
 */
int secret_file_read(const char *path, char **out, struct err *e);

/* Cuts the next `key = value` line off *text, in place; comments and empty lines are skipped. 1, 0 at the end, -EINVAL. */
int secret_file_next(char **text, char **ret_key, char **ret_value);

#endif
