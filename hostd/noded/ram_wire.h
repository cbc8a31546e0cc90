// SPDX-License-Identifier: Apache-2.0
// What space-noded and the library inside QEMU (qemu_ram.c) say to each other while a QEMU starts.
//
// The library connects to a SOCK_SEQPACKET socket; noded, once it knows the peer's uid, sends one
// struct ram_offer with the descriptors (SCM_RIGHTS): the memory; but for a QEMU without a
// network, its tap and its network namespace; and /dev/userfaultfd when the memory arrives while it
// runs (ipc/fill.h). The library maps the memory and sends one struct
// ram_mapped; the connection ends. Both come from one build.
#ifndef SPACE_NODED_RAM_WIRE_H
#define SPACE_NODED_RAM_WIRE_H

#include <stdint.h>

#define RAM_WIRE_VERSION 3u
#define RAM_WIRE_FDS     4

/* The environment of QEMU: the path of the socket. */
#define RAM_SOCKET_ENV "SPACE_RAM_SOCKET"

/* mem-path of QEMU's memory backend: nothing can ever be there, so that a QEMU without the library
 * fails. */
#define RAM_PLACEHOLDER "/proc/space/ram"

enum ram_gifts { RAM_HAS_NETWORK = 1, RAM_ARRIVES = 2 };

struct ram_offer {
    uint32_t version;
    uint32_t gifts;  /* enum ram_gifts: which descriptors follow the first one */
    uint64_t length; /* bytes of the guest's memory */
};

struct ram_mapped {
    uint32_t version, unused;
    uint64_t address, length; /* of the mapping, in QEMU */
};

#endif
