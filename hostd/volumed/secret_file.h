// SPDX-License-Identifier: Apache-2.0
// Memory for secrets; and small files that hold some: read only when nobody else may, into such memory.
#ifndef SPACE_VOLUMED_SECRET_FILE_H
#define SPACE_VOLUMED_SECRET_FILE_H

#include "base/err.h"

#include <stddef.h>

#define SECRET_FILE_MAX 4096u

/* Zeroed, between guard pages, left out of core dumps, and locked: NULL when it cannot be (sodium_malloc alone goes on without). It is wiped and
 * given back by sodium_free. sodium_init was called. */
void *secret_alloc(size_t size);

/*
 * The text of a regular file, with a NUL, in memory of secret_alloc. The file must belong to this process's user or
 * root, and nobody else may read or write it. -ENOENT, -EACCES, -EINVAL (over SECRET_FILE_MAX, or NUL in it), -ENOMEM, with a sentence that does
 * not quote it. sodium_init was called.
 */
int secret_file_read(const char *path, char **out, struct err *e);

/* Cuts the next `key = value` line off *text, in place; comments and empty lines are skipped. 1, 0 at the end, -EINVAL. */
int secret_file_next(char **text, char **ret_key, char **ret_value);

#endif
