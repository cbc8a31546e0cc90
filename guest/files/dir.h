// SPDX-License-Identifier: Apache-2.0
// Listing of directories of the root file system.
#ifndef SPACE_GUEST_FILES_DIR_H
#define SPACE_GUEST_FILES_DIR_H

#include "9p/server.h"

struct dir_buffer;

void dir_readdir(struct p9_request *r);
void dir_destroy(struct dir_buffer *d);

#endif
