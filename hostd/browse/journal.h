// SPDX-License-Identifier: Apache-2.0
// Replays an ext4 journal into an image, in memory: blocks that committed transactions hold take
// the place of the file system's own. Nothing is written.
#ifndef SPACE_BROWSE_JOURNAL_H
#define SPACE_BROWSE_JOURNAL_H

#include "hostd/browse/image.h"

#define JOURNAL_MAGIC 0xc03b3998u

/*
 * `fs` was opened from `img`, which has no replaced blocks yet; open it anew afterwards. 0 also
 * when there is nothing to replay. -EIO for a journal that the kernel would not replay either: it
 * is damaged, of an unknown kind, or on another device. -ENOMEM.
 */
int journal_replay(ext2_filsys fs, struct image *img);

#endif
