// SPDX-License-Identifier: Apache-2.0
// Shared by vm.c and vm_conn.c only.
#ifndef SPACE_NODED_VM_IMPL_H
#define SPACE_NODED_VM_IMPL_H

#include "hostd/noded/vm.h"

#include <libvirt/libvirt.h>

/* A reference to the connection, to be given back with virConnectClose; NULL with ENOTCONN's sentence when there is none. */
virConnectPtr vms_connection(struct vms *v, const char *what, uint64_t id, struct err *e);

/* Turns this thread's libvirt error into a sentence about domain `id`. `conn` tells a lost connection from a failure. */
int vms_fail(struct vms *v, virConnectPtr conn, const char *what, uint64_t id, struct err *e);

/* The id in a domain's name, or 0 when the domain is not of this instance. */
uint64_t vms_id(const struct vms *v, virDomainPtr dom);

#endif
