// SPDX-License-Identifier: Apache-2.0
// What an artifact consists of: a manifest, which lists segments, which list chunks. docs/protocol/store.md, "Manifests". No I/O.
#ifndef SPACE_VOLUMED_MANIFEST_H
#define SPACE_VOLUMED_MANIFEST_H

#include "hostd/volumed/store/pack.h"
#include "ipc/volumed.h"

#define SEGMENT_CHUNKS 1024u /* of a file that one segment covers */
#define SEGMENT_BYTES  ((uint64_t)SEGMENT_CHUNKS * CHUNK_BYTES)
#define ARTIFACT_MAX   ((uint64_t)64 << 40) /* bytes of a file */

enum piece_kind { PIECE_NONE = 0 /* as in the base */, PIECE_DATA = 1, PIECE_ZEROS = 2 };

/* A chunk of a file, and where it lies. */
struct piece {
    struct chunk_id id;
    struct object_id pack;
    uint32_t offset, stored;
    uint32_t kind; /* enum piece_kind; all else is of PIECE_DATA only */
};

/* Chunks number * SEGMENT_CHUNKS and on. */
struct segment {
    uint32_t number, count; /* of pieces that are not PIECE_NONE */
    struct piece pieces[SEGMENT_CHUNKS];
};

/* Bytes of chunk `index` of a file of `size` bytes. */
static inline uint32_t chunk_length(uint64_t size, uint64_t index)
{
    uint64_t left = size - index * CHUNK_BYTES;
    return left < CHUNK_BYTES ? (uint32_t)left : CHUNK_BYTES;
}

/* Plain bytes of a segment's chunk, CHUNK_MAX at most; returns how many. */
size_t segment_encode(const struct segment *s, uint8_t out[CHUNK_MAX]);
/* -EBADMSG unless it is segment `number` of a file of `size` bytes. */
int segment_decode(const uint8_t *p, size_t len, uint32_t number, uint64_t size, struct segment *out);

/* A segment as its manifest has it. */
struct manifest_segment {
    struct chunk_id id;
    uint32_t number, count;
    uint32_t pack; /* where its own chunk lies: of manifest.packs */
    uint32_t offset, stored, plain;
    uint32_t refs, ref_count; /* packs of its chunks: manifest.refs */
};

/* What chunks of one segment take up in one pack. */
struct manifest_ref {
    uint32_t pack, bytes;
};

struct manifest {
    uint32_t file; /* enum volumed_file, or 0 */
    uint64_t size, created;
    struct volumed_ref base;      /* zeros: none */
    uint64_t chunks, zero_chunks; /* listed; of them zeros */
    uint64_t stored_bytes;        /* that its upload added to the store */
    struct object_id *packs;
    struct manifest_segment *segments; /* by number */
    struct manifest_ref *refs;
    uint32_t pack_count, segment_count, ref_count;
    uint32_t pack_room, segment_room, ref_room;
    uint32_t *slots, slot_count; /* hash table of packs, while it is written */
};

/* Bytes of the body; false where it does not fit a sealed object. */
bool manifest_size(const struct manifest *m, size_t *out);
void manifest_encode(const struct manifest *m, uint8_t *out);
/* 0, -EBADMSG, -ENOMEM; `out` is good for manifest_finish in any case. */
int manifest_decode(const uint8_t *p, size_t len, struct manifest *out);
void manifest_finish(struct manifest *m);

/* Place of the pack in m->packs, appended if it was not there. -1: out of memory. */
int64_t manifest_pack(struct manifest *m, const struct object_id *id);
/* With `refs` left for manifest_ref to follow. */
struct manifest_segment *manifest_add(struct manifest *m);
bool manifest_ref(struct manifest *m, uint32_t pack, uint32_t bytes); /* counts them together */

#endif
