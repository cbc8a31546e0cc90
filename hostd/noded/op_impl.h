// SPDX-License-Identifier: Apache-2.0
// The functions behind the table of ops.c: objects in op_object.c, virtual machines in op_vm.c.
#ifndef SPACE_NODED_OP_IMPL_H
#define SPACE_NODED_OP_IMPL_H

#include "hostd/noded/ops.h"

op_run op_hello, op_pool_stat;
op_run op_object_create, op_object_snapshot, op_object_seal, op_object_delete, op_object_list;
op_run op_file_open, op_template_kernel, op_disk_grow;
op_run op_vm_start, op_vm_kill, op_vm_pause, op_vm_resume, op_vm_stats, op_vm_list, op_channel_open;
op_run op_vm_interrupt, op_vm_reap;
op_run op_vm_capture, op_vm_load; /* op_head.c */
op_run op_file_compare;           /* op_extents.c */
op_run op_net_socket;             /* op_net.c */
op_run op_vm_fill, op_vm_filled;  /* op_fill.c */

struct head;

/* For a start with NODED_INCOMING: opens the base (kind2, id2), whole and fit for this request. */
int op_head_open(const struct node *n, const struct noded_request *q, struct head *out, struct err *e);
/* Makes the QEMU of sandbox `id` ready to save or load its devices' state. */
int op_head_prepare(const struct node *n, uint64_t id, struct err *e);
/* After a capture of sandbox `id` that its space-noded did not live to end: QEMU's migration is
 * cancelled, and the guest runs if it ran before. No such capture is success. */
int op_head_mend(const struct node *n, uint64_t id, struct err *e);

#endif
