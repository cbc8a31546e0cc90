// SPDX-License-Identifier: Apache-2.0
// Chunks: their identity, and how they lie in a pack. docs/protocol/store.md, "Chunks". Thread-safe, no I/O.
#ifndef SPACE_VOLUMED_CHUNK_H
#define SPACE_VOLUMED_CHUNK_H

#include "hostd/volumed/keys/keys.h"
#include "hostd/volumed/store/crypt.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORE_VERSION 1u

#define CHUNK_BYTES      65536u /* of a file */
#define CHUNK_MAX        98304u /* plain bytes of any kind */
#define CHUNK_OVERHEAD   32u    /* of a record: method, nonce, tag */
#define CHUNK_RECORD_MAX (CHUNK_MAX + CHUNK_OVERHEAD)

enum chunk_kind { CHUNK_DATA = 1, CHUNK_SEGMENT = 2 };
enum chunk_method { CHUNK_RAW = 0, CHUNK_ZSTD = 1 };

struct chunk_id {
    uint8_t b[32];
};

/* What a chunk is sealed under; borrowed. */
struct chunk_keys {
    const struct crypt *crypt;
    const struct tenant_subkeys *subkeys;
    const char *tenant;
};

struct chunk_codec; /* a thread's compressor and decompressor */

struct chunk_codec *chunk_codec_create(void);
void chunk_codec_destroy(struct chunk_codec *c);

/* False when memory is out, as below. */
bool chunk_identify(const struct chunk_keys *k, enum chunk_kind kind, const void *plain, size_t size, struct chunk_id *out);

/* Writes the record of `size` (1 to CHUNK_MAX) plain bytes to `out`, which has CHUNK_RECORD_MAX, and its length. `nonce` must be random. */
bool chunk_seal(const struct chunk_keys *k, struct chunk_codec *codec, enum chunk_kind kind, const struct chunk_id *id,
                const uint8_t nonce[CRYPT_NONCE], const void *plain, size_t size, uint8_t *out, size_t *ret_len);

/* Reads a record back: exactly `size` bytes to `out`, which has as many. 0; -EBADMSG it is not the chunk `id` of this tenant, kind and length (nothing of use is in `out`); -ENOMEM. */
int chunk_open(const struct chunk_keys *k, struct chunk_codec *codec, enum chunk_kind kind, const struct chunk_id *id, const uint8_t *record,
               size_t len, void *out, size_t size);

#endif
