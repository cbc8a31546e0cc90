// SPDX-License-Identifier: Apache-2.0
// Extended attributes of the root file system.
#ifndef SPACE_GUEST_FILES_XATTR_H
#define SPACE_GUEST_FILES_XATTR_H

#include "9p/server.h"

struct node;
struct xattr;

void xattr_walk(struct p9_request *r);
void xattr_create(struct p9_request *r);

/* Tread and Twrite on a fid of Txattrwalk or Txattrcreate. */
void xattr_read(struct p9_request *r);
void xattr_write(struct p9_request *r);

/* At the clunk of `n`: what Txattrcreate began takes effect. 0 or -errno. */
struct files;
int xattr_apply(struct files *fs, struct node *n);

void xattr_destroy(struct xattr *x);

#endif
