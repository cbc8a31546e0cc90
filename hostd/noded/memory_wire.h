// SPDX-License-Identifier: Apache-2.0
// What space-noded and its memory helper say to each other: one struct each way, on a
// SOCK_SEQPACKET pair, descriptors with SCM_RIGHTS. The helper answers each request before it reads
// the next one; MEMORY_SAVE, when nothing failed so far, twice.
#ifndef SPACE_NODED_MEMORY_WIRE_H
#define SPACE_NODED_MEMORY_WIRE_H

#include <stdint.h>
#include <sys/types.h>

enum memory_op {
    MEMORY_IDENTIFY = 1, /* answers start_time of the process */
    MEMORY_SAVE,         /* copies changed pages: descriptors RAM, TABLE. The first answer comes when
                    the process's memory is not needed any more */
    MEMORY_LOAD,         /* copies flagged pages back: descriptors RAM, TABLE */
    MEMORY_PSS,          /* answers pss, pss_anon */
    MEMORY_KILL,         /* SIGKILL */
};

/* Descriptors of SAVE and LOAD, in this order. */
enum { MEMORY_FD_RAM, MEMORY_FD_TABLE, MEMORY_FDS };

struct memory_request {
    uint32_t op;
    int32_t pid;
    uid_t uid; /* all of the process's uids must be this one */
    uint32_t unused;
    uint64_t start_time; /* of the process, as in /proc/PID/stat; not of IDENTIFY */
    uint64_t address, length;
    uint64_t table; /* offset of the page table in TABLE (head_format.h) */
};

struct memory_reply {
    int32_t error; /* 0 or -errno */
    uint32_t unused;
    uint64_t start_time;
    uint64_t pages;         /* changed (SAVE) or copied (LOAD) */
    uint64_t written;       /* of those, written to RAM: the others are what the base has */
    uint64_t pss, pss_anon; /* bytes */
};

#endif
