// SPDX-License-Identifier: Apache-2.0
// ports/NAME/PORT: each open is a connection to that TCP port in the guest, through its channel (docs/tree.md).
#ifndef SPACE_HOSTD_PORTS_H
#define SPACE_HOSTD_PORTS_H

#include "hostd/tree/tree.h"

#define PORTS_SANDBOX_MAX 256  /* connections of one sandbox; further ones get EMFILE */
#define PORTS_OWNER_MAX   1024 /* of all sandboxes of an owner */

struct port;

/* 1 to 65535, written as people do. 0: it is none. */
uint16_t ports_parse(const char *name);

/* The fid stands for NODE_PORT, and f->open is there. Connects, and answers the Tlopen. */
void ports_open(struct p9_request *r, struct tree_fid *f);
/* Answers the Tread with what came, whatever offset it names; 0 bytes at the end. ECONNRESET once the connection is gone. */
void ports_read(struct p9_request *r, struct tree_fid *f);
/* Answers the Twrite with what there is room for; without any it waits. A Twrite of 0 bytes waits for room. */
void ports_write(struct p9_request *r, struct tree_fid *f);
/* A Tsetattr with size 0: nothing more will be written. */
void ports_shut(struct p9_request *r, struct tree_fid *f);
/* The fid goes. What was written is still brought to the guest, for 30 s at most. NULL is fine. */
void ports_close(struct port *p);

#endif
