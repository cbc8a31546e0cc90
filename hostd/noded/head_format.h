// SPDX-License-Identifier: Apache-2.0
// The file `meta` of a head, byte by byte: docs/protocol/head.md. Little endian, as all that runs
// here.
#ifndef SPACE_NODED_HEAD_FORMAT_H
#define SPACE_NODED_HEAD_FORMAT_H

#include <stdint.h>

#define HEAD_MAGIC   "spchead\n"
#define HEAD_VERSION 1u
#define HEAD_PAGE    4096u

/* XXH3-128, in its canonical form. */
struct head_sum {
    uint8_t bytes[16];
};

/* A head's own id, made anew for each capture. All zero: none. */
struct head_id {
    uint8_t bytes[16];
};

/*
 * The header is HEAD_PAGE bytes; the page table follows: a uint64_t for each page of the guest's
 * memory, in order.
 */
struct head_meta {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes; /* HEAD_PAGE */
    struct head_id id, base;
    uint64_t created; /* Unix seconds */
    uint64_t memory;  /* bytes */
    uint32_t vcpus, accel;
    uint64_t table_bytes, state_bytes, disk_bytes;
    struct head_sum table, state;
    char machine[32], cpu[32], devices[64], qemu[32]; /* end with NUL */
    uint8_t zero[HEAD_PAGE - 288 - 16];
    struct head_sum self; /* of all bytes before it */
};
_Static_assert(sizeof(struct head_meta) == HEAD_PAGE, "the format is fixed");

/*
 * An entry of the page table: 0 for a page of zeros that the head never wrote; else the page's
 * XXH3-64 with its lowest bit replaced by HEAD_CHANGED, which says that the page is not the base's.
 */
#define HEAD_CHANGED 1ull

static inline uint64_t head_entry(uint64_t hash)
{
    hash &= ~HEAD_CHANGED;
    return hash ? hash : 2; /* 0 is taken */
}

#endif
