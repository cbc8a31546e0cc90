// SPDX-License-Identifier: Apache-2.0
// `cp -r A X` as "make X from A": recognising it, and what it changes about each operation. Theory of operation in gesture.c.
#ifndef SPACEFS_GESTURE_H
#define SPACEFS_GESTURE_H

#include "spacefs/request.h"

#include <stdbool.h>
#include <sys/stat.h>

/* Before a mkdir is sent: who asks (r->maker), if this directory could become the target of a copy. */
void gesture_maker(struct req *r);
/* After it: remembers that r->maker made `dir`. */
void gesture_made(struct req *r, struct node *dir);

/* r->node was opened to be listed. */
void gesture_listed(struct req *r);

/* A lookup of r->name in r->node: true when it was answered here. */
bool gesture_lookup(struct req *r);

/* Adapts the attributes shown of `n` to the asker: to a copying process the images of its source are empty. */
void gesture_shown(struct req *r, const struct node *n, struct stat *st);

/* Before opening r->node: 0, or a negative error to answer. Waits while a copy that this ends commits. */
int gesture_open(struct req *r);
/* After it: remembers sources that a maker has open. */
void gesture_opened(struct req *r, struct handle *h);

/* Each true when answered here: a create of r->name in r->node, an open of a file that exists here only, an unlink. */
bool gesture_create(struct req *r);
bool gesture_open_swallowed(struct req *r);
bool gesture_unlink(struct req *r);

/* True for a file that a copy made and whose attributes are the object's, not the copied file's. */
bool gesture_copied(const struct node *n);

/* A write to a file of a copy succeeded, or was swallowed. */
void gesture_wrote(struct handle *h);
void gesture_swallowed(struct handle *h);

/* True for a read that is to find the end at once: an image that its copier has no use for. */
bool gesture_skips(const struct handle *h);

/* close(2) of a file of a copy: the commit's error when this completes it, else 0. */
int gesture_flush(struct req *r, struct handle *h);
void gesture_released(struct handle *h);

/* space-hostd is gone, and with it every copy that was not committed. */
void gesture_disconnected(struct fs *fs);

#endif
