// SPDX-License-Identifier: Apache-2.0
// Packs: records of chunks behind each other, their index, and a trailer. docs/protocol/store.md, "Packs". No I/O.
#ifndef SPACE_VOLUMED_PACK_H
#define SPACE_VOLUMED_PACK_H

#include "hostd/volumed/store/chunk.h"

#define PACK_BYTES       (16u << 20) /* a pack is closed when the next record might not fit */
#define PACK_HEADER      64u
#define PACK_TRAILER     64u
#define PACK_ENTRY       48u
#define PACK_ENTRIES_MAX 65536u
#define PACK_MAX         (32u << 20) /* what a reader accepts */

/* A pack, or an index object: who made it (an artifact's id), in which try, the how many-th. Never used twice. */
struct object_id {
    uint8_t b[24];
};

/* Where a chunk lies. */
struct pack_entry {
    struct chunk_id id;
    uint32_t offset, stored; /* of its record */
    uint32_t plain;
    uint32_t kind; /* enum chunk_kind */
};

struct pack_writer {
    struct object_id id;
    uint8_t *bytes; /* PACK_BYTES */
    size_t size;    /* used */
    struct pack_entry *entries;
    uint32_t count, room;
};

/* `bytes` is borrowed, PACK_BYTES of it. Writes the header. */
void pack_start(struct pack_writer *w, const struct object_id *id, const uint8_t key_id[16], uint8_t *bytes);
/* False: close this pack first. Else the record is in it, and its offset in e->offset. */
bool pack_add(struct pack_writer *w, struct pack_entry *e, const uint8_t *record);
/* Writes index and trailer; w->size is then the object's. False: out of memory. */
bool pack_close(struct pack_writer *w, const struct chunk_keys *k, const uint8_t nonce[CRYPT_NONCE]);
/* Frees the entries. */
void pack_finish(struct pack_writer *w);

/* Is this the header of that pack? Nobody needs it but a check. */
bool pack_header(const uint8_t header[PACK_HEADER], const struct object_id *id, const uint8_t key_id[16]);
/* From the trailer (the last PACK_TRAILER bytes of an object of `total` bytes): where its index is. 0, -EBADMSG. */
int pack_trailer(const uint8_t trailer[PACK_TRAILER], uint64_t total, uint64_t *ret_offset, size_t *ret_size, uint32_t *ret_count);
/* Opens the index of pack `id`. The array is the caller's. 0, -EBADMSG, -ENOMEM. */
int pack_index(const struct chunk_keys *k, const struct object_id *id, const uint8_t *bytes, size_t size, uint32_t count, struct pack_entry **out);

/* 48 bytes; also in index objects, where the kind's place also has the pack's number (see index.h). */
uint8_t *pack_put_entry(uint8_t *p, const struct pack_entry *e);

#endif
