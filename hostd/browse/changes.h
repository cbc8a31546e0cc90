// SPDX-License-Identifier: Apache-2.0
// Which files lie in given ranges of the image: for those in which it differs from an earlier one.
#ifndef SPACE_BROWSE_CHANGES_H
#define SPACE_BROWSE_CHANGES_H

#include "hostd/browse/volume.h"

#define CHANGES_RANGES_MAX (1u << 20)
#define CHANGES_FILES_MAX  (4u << 20)

struct changes;

/* NULL when out of memory. The volume must outlive it. */
struct changes *changes_create(struct volume *v);
void changes_destroy(struct changes *c);

/* Takes ranges of the image: pairs of 64-bit numbers (offset, length; of this machine's byte
 * order), the offsets ascending. 0, -EINVAL, -EFBIG, -ENOMEM; -EBUSY once reading began. */
int changes_add(struct changes *c, const void *buf, size_t len);

/*
 * The next lines "BYTES PATH": every name of every file of which content (that many bytes), inode
 * or directory blocks lie in the ranges or came from the journal. Newlines and backslashes in names
 * are written \n and \\. Each call does a bounded amount of work and gives an empty line when it
 * found nothing yet. Returns the length, 0 at the end, or -errno.
 */
ssize_t changes_read(struct changes *c, char *buf, size_t size);

#endif
