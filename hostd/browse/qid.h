// SPDX-License-Identifier: Apache-2.0
// What space-browse says in a qid's path besides the inode number.
#ifndef SPACE_BROWSE_QID_H
#define SPACE_BROWSE_QID_H

/* A directory, or a file with several names: what is to have another number in each snapshot. */
#define BROWSE_QID_OWN (1ULL << 32)

#endif
