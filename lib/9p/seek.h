// SPDX-License-Identifier: Apache-2.0
// Holes of files over 9P, which has no lseek: an attribute for each question (docs/protocol/9p.md, "Holes").
#ifndef SPACE_9P_SEEK_H
#define SPACE_9P_SEEK_H

#include "9p/codec.h"

#include <stdbool.h>
#include <stdint.h>

#define P9_SEEK_TEXT_MAX 48u /* of a name or an answer, with its NUL */

/* The attribute that answers lseek(offset, whence); whence is SEEK_DATA or SEEK_HOLE. */
void p9_seek_name(char out[P9_SEEK_TEXT_MAX], int whence, uint64_t offset);
/* Is it such a name? Then what it asks for. */
bool p9_seek_parse(struct p9_str name, int *ret_whence, uint64_t *ret_offset);

/* The attribute's value: a decimal offset. False when it is none that a file can have. */
bool p9_seek_value(struct p9_data value, uint64_t *ret_offset);

#endif
