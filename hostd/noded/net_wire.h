// SPDX-License-Identifier: Apache-2.0
// What space-noded says to its network helper (net_helper.c), and what a guest's network looks
// like. One request, one reply, SOCK_SEQPACKET; both ends are one process image.
#ifndef SPACE_NODED_NET_WIRE_H
#define SPACE_NODED_NET_WIRE_H

#include <stdint.h>
#include <sys/types.h>

/* The same in every namespace, and for every guest (guest/net.c): addresses that belong to nobody
 * (RFC 7335: the stub of a translator). */
#define NET_GATEWAY     "192.0.0.1"
#define NET_GUEST       "192.0.0.2"
#define NET_MASK        "255.255.255.248"
#define NET_GATEWAY_MAC "52:54:00:00:00:01"
#define NET_GUEST_MAC   "52:54:00:00:00:02"
#define NET_INTERFACE   "guest"

/* Where the guest's TCP and its DNS over UDP are redirected to. */
#define NET_TCP_PORT 10080
#define NET_DNS_PORT 10053

/* Descriptors in each QEMU: its tap, and its network namespace, which lives as long as QEMU holds
 * it. qemu_ram.c puts them there, out of the way of those that libvirt hands over. */
#define NET_QEMU_TAP 510
#define NET_QEMU_NS  511

enum net_op {
    NET_CREATE = 1, /* replies with two descriptors: the tap and the namespace */
    NET_SOCKET      /* replies with one: a socket in a namespace */
};

struct net_request {
    uint32_t op;
    /* NET_SOCKET: */
    uint32_t port; /* 0: listening, for TCP; 1: UDP, for DNS */
    pid_t pid;     /* of the QEMU */
    uint32_t unused;
    uint64_t number; /* the namespace's inode, as NET_CREATE replied */
};

struct net_reply {
    int32_t error; /* 0 or a negative errno */
    uint32_t fds;  /* descriptors that come along */
    uint64_t number;
    char what[64]; /* what failed */
};

#define NET_FDS 2

#endif
