// SPDX-License-Identifier: Apache-2.0
// Heads: a disk, the guest's memory and the devices' state of one instant, in one object of the
// pool. The files: docs/protocol/head.md.
//
// Nothing here looks at what a guest wrote: state and memory are bytes with a checksum. Any thread.
#ifndef SPACE_NODED_HEAD_H
#define SPACE_NODED_HEAD_H

#include "base/err.h"
#include "hostd/noded/head_format.h"
#include "hostd/noded/pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An open head, its header checked. */
struct head {
    struct pool_object object;
    int ram, meta, state;
    struct head_meta m;
};

/* Which heads had all of their memory checked already. */
struct heads;
struct heads *heads_create(void);

/* Zero descriptors are -1. */
#define HEAD_INIT                                                                                                                                    \
    {                                                                                                                                                \
        .ram = -1, .meta = -1, .state = -1                                                                                                           \
    }
void head_close(struct head *h);
#define AUTO_HEAD __attribute__((cleanup(head_close)))

/* ENOENT when the object has no memory; EBADMSG when header, page table or sizes do not fit;
 * ENOEXEC for a format that is not known. */
int head_open(const struct pool *p, struct pool_object o, struct head *out, struct err *e);

/* Whether this host can load it: ENOEXEC, the sentence names both sides. `qemu` is this host's
 * version. */
int head_check_host(const struct head *h, uint32_t accel, const char *qemu, struct err *e);

/* All of ram.raw against the page table. Reads the file once in this process's life. EBADMSG. */
int head_check_ram(struct heads *heads, const struct head *h, struct err *e);

/* The devices' state, malloc'ed and checked. EBADMSG. */
int head_read_state(const struct head *h, uint8_t **out, size_t *ret_len, struct err *e);

bool head_id_equal(const struct head_id *a, const struct head_id *b);
int head_id_new(struct head_id *out, struct err *e);
bool head_id_none(const struct head_id *id);

/* The id of the head that a `meta` file says it is; all zero when it does not. */
struct head_id head_id_of(int meta);

/* Writes a page table without flags to `meta`: the entries of `base_meta` (-1: none). */
int head_start_table(int meta, int base_meta, uint64_t memory, struct err *e);

/* Completes `m` with version, sizes and checksums of the table in `meta`, and writes it there. */
int head_finish_meta(int meta, struct head_meta *m, struct err *e);

struct head_sum head_sum_of(const void *bytes, size_t len);

#endif
