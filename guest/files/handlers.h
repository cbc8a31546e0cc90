// SPDX-License-Identifier: Apache-2.0
// The handlers of the root file system's 9P backend, one per message (lib/9p/server.h says what the library does around them). Session user: struct files.
#ifndef SPACE_GUEST_FILES_HANDLERS_H
#define SPACE_GUEST_FILES_HANDLERS_H

#include "9p/server.h"

/* walk.c */
p9_handler files_attach, files_walk, files_clunk;
void files_fid_free(void *user, struct p9_fid *fid);

/* open.c: opened files */
p9_handler files_lopen, files_lcreate, files_read, files_write, files_fsync;

/* attr.c */
p9_handler files_getattr, files_setattr, files_statfs;

/* names.c: what changes directories */
p9_handler files_mkdir, files_mknod, files_symlink, files_readlink, files_link, files_rename, files_renameat, files_unlinkat, files_remove;

/* lock.c */
p9_handler files_lock, files_getlock;

#endif
