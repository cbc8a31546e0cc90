// SPDX-License-Identifier: Apache-2.0
// Network namespaces of guests, made by a helper process.
//
// Each QEMU has a namespace with one interface, its tap, and no way out: what the guest sends by
// TCP, and its DNS, is redirected to two sockets in the namespace; everything else is dropped. The
// sockets are space-netd's. While nobody has them, connections are refused: that is how it fails.
//
// The namespace belongs to nobody but the processes that hold it: QEMU (its tap, and a descriptor
// of the namespace), and who has the sockets. It ends with them, so nothing is ever to be cleaned
// up; and it outlives this process.
//
// The helper (net_helper.c) is forked before space-noded isolates itself, since that gives up what
// making namespaces needs. Any thread; calls wait for their turn. When the helper is gone, calls
// fail with EPIPE and space-noded ends, to be started anew.
#ifndef SPACE_NODED_NET_H
#define SPACE_NODED_NET_H

#include "base/err.h"
#include "hostd/noded/net_wire.h"

struct net;

/* Forks the helper. As root, before any thread and any descriptor that it must not have. */
int net_open(struct net **out, struct err *e);

/* A new namespace. Its tap and itself, which are the caller's; *ret_number tells it from others. */
int net_create(struct net *n, int *ret_tap, int *ret_ns, uint64_t *ret_number, struct err *e);

/*
 * A new socket in the namespace that the QEMU `pid` was given, if that still is the one of that
 * number (the process is not trusted to say so). Port 0: for TCP, listening; 1: for DNS over UDP.
 * EADDRINUSE while somebody holds the one of before. ESRCH when the process is gone, or holds
 * another namespace.
 */
int net_socket(struct net *n, pid_t pid, uint64_t number, uint32_t port, int *ret_fd, struct err *e);

/* The main function of the helper; net.c forks it. */
_Noreturn void net_helper(int sock);

#endif
