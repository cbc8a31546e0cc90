// SPDX-License-Identifier: Apache-2.0
// Checking and unpacking a root file system's tar file, which may come from anywhere.
//
// GNU tar reads it; its listing (`--verbose --block-number`, one line a member, names escaped) is
// judged here before anything is unpacked: it ends with an end-of-archive mark, no member is
// absolute or climbs with `..`, nor does a hard link's target, and device nodes are refused or left
// out. tar itself then checks names once more.
#ifndef SPACE_CTL_TARBALL_H
#define SPACE_CTL_TARBALL_H

#include "spacectl/scratch.h"

#include <stdbool.h>
#include <stddef.h>

enum tarball_flags { TARBALL_SKIP_DEVICES = 1 };

/* Unpacks `path` into the new directory scratch/root, owners kept when the caller is root. 0 or
 * -errno. */
int tarball_unpack(const char *path, const struct scratch *s, unsigned flags, struct err *e);

/* What a line of the listing says. */
enum tarball_line { TARBALL_MEMBER, TARBALL_DEVICE, TARBALL_END_MARK, TARBALL_NO_END_MARK, TARBALL_UNKNOWN };

/*
 * Judges one line (without its newline; it is changed). For members and devices *name is the
 * unescaped name in the line. The kind, or -EINVAL with a sentence for a member that may not be
 * unpacked.
 */
int tarball_judge(char *line, char **name, struct err *e);

#endif
