// SPDX-License-Identifier: Apache-2.0
// As much JSON as a secret's transport needs: one text out of nested objects, without copies on the way, which would have to be wiped.
#ifndef SPACE_CREDD_JSON_H
#define SPACE_CREDD_JSON_H

#include <stdbool.h>
#include <stddef.h>

/*
 * The text at path[0].path[1]... (NULL-ended) of a JSON object, unescaped (UTF-8), at most `size` bytes, without a NUL at its end. False when the document is none, is nested deeper
 * than 32, has no such text, or it does not fit. `text` ends in a NUL.
 */
bool json_text_at(const char *text, const char *const *path, char *out, size_t size, size_t *ret_len);

/* `len` bytes as a JSON text with its quotes; the bytes written. `out` holds 6 * len + 2. Bytes above 0x7f pass as they are. */
size_t json_quote(const char *bytes, size_t len, char *out);

#endif
