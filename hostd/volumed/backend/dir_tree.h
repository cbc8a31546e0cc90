// SPDX-License-Identifier: Apache-2.0
// What the directory backend does with files, blocking, in a thread: write one so that a crash leaves all of it or nothing, list, sweep.
#ifndef SPACE_VOLUMED_DIR_TREE_H
#define SPACE_VOLUMED_DIR_TREE_H

#include "hostd/volumed/backend/backend_impl.h"

/*
 * All of them work below the directory `root` for the operation's own name, put the outcome into its result, and look at its `cancelled` while
 * they are at it. Names were checked. Symlinks are not followed. Files that begin with '.' are temporary, or not ours.
 */
void dir_put(int root, struct backend_op *op);
void dir_get(int root, struct backend_op *op);
void dir_stat(int root, struct backend_op *op);
void dir_delete(int root, struct backend_op *op);
void dir_list(int root, struct backend_op *op);
void dir_sweep(int root, struct backend_op *op);
void dir_check(int root, struct backend_op *op);

#endif
