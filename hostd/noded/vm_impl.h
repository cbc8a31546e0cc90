// SPDX-License-Identifier: Apache-2.0
// Shared by vm.c and vm_conn.c only.
#ifndef SPACE_NODED_VM_IMPL_H
#define SPACE_NODED_VM_IMPL_H

#include "hostd/noded/vm.h"

#include <libvirt/libvirt.h>

/* A connection that nobody else uses now. Zero-initialise. */
struct vms_use {
    struct vms *v;
    virConnectPtr conn;
    uint32_t generation;
};

/* 0, or -ENOTCONN with the sentence "WHAT sandbox ID: why" (nothing to give back then). */
int vms_take(struct vms *v, const char *what, uint64_t id, struct vms_use *u, struct err *e);
/* A zero one is fine. */
void vms_give(struct vms_use *u);

/* Turns this thread's libvirt error into a sentence about domain `id`. */
int vms_fail(const struct vms_use *u, const char *what, uint64_t id, struct err *e);

/* The id in a domain's name, or 0 when the domain is not of this instance. */
uint64_t vms_id(const struct vms *v, virDomainPtr dom);

#endif
