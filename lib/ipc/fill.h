// SPDX-License-Identifier: Apache-2.0
// Disk and memory that arrive while their virtual machine runs: what space-noded, space-hostd, space-volumed and the library inside QEMU
// (hostd/noded/qemu_fill.c, qemu_lazy.c) share.
//
// The sandbox's object has a file `fill` beside disk.raw, and `fill.ram` beside ram.raw when that arrives, too; root's, which that QEMU can read and map: a header, and
// a bit for each VOLUMED_CHUNK of the other file, the
// lowest bit of a byte first. A bit is set once the chunk is what the guest is to see, and is never taken back: from then on the guest may change the
// chunk (its memory: a private copy), and nobody else does. Only space-volumed sets bits, after it wrote the chunk. So the file says what is there whichever process was killed.
//
// Who needs a chunk whose bit is not set connects to the SOCK_SEQPACKET socket RUN/ram/ID.fill, which space-noded made for the uid of that virtual machine
// and space-hostd listens at, sends one struct fill_want, and gets one struct fill_answer. 0: look at the bits again. Else a request to the disk fails as a disk would,
// which pauses the machine; who needs memory asks again.
#ifndef SPACE_IPC_FILL_H
#define SPACE_IPC_FILL_H

#include <stdint.h>

#define FILL_MAGIC   "spcfill\n"
#define FILL_VERSION 1u
#define FILL_BITS    4096u      /* where they begin in the file */
#define FILL_WANT    (1u << 20) /* bytes of one struct fill_want, at most */

enum fill_state {
    FILL_IDLE = 0,    /* nothing is missing, and no bit counts */
    FILL_RUNS = 1,    /* the bits count */
    FILL_COMPLETE = 2 /* nothing is missing any more */
};

struct fill_header {
    char magic[8];
    uint32_t version;
    uint32_t state; /* enum fill_state */
    uint64_t size;  /* bytes of the file that the bits are about */
};

/* Environment of a QEMU that may be loaded so: the file `fill` of its disk, beside which the other one is, and the socket. */
#define FILL_FILE_ENV   "SPACE_FILL_FILE"
#define FILL_SOCKET_ENV "SPACE_FILL_SOCKET"

enum fill_file { FILL_DISK = 0, FILL_MEMORY = 1, FILL_FILES };

struct fill_want {
    uint32_t version;
    uint32_t file;           /* enum fill_file */
    uint64_t offset, length; /* bytes of that file */
};

struct fill_answer {
    uint32_t version;
    int32_t error; /* 0 or -errno */
};

#endif
