// SPDX-License-Identifier: Apache-2.0
// Fuzz target: what space-volumed reads from a store, as it is after decryption (whoever has a tenant's key may have forged it), and what it looks at before. The first byte says what it is.
// What is accepted must come out as the same bytes again, or, for a segment, as the same segment.
#include "fuzz/target.h"
#include "hostd/volumed/store/claim.h"
#include "hostd/volumed/store/index.h"
#include "hostd/volumed/store/manifest.h"
#include "hostd/volumed/store/sealed.h"

#include <stdlib.h>
#include <string.h>

static void must_hold(int holds)
{
    if (!holds)
        abort();
}

static void manifest(const uint8_t *data, size_t size)
{
    struct manifest m;
    size_t again = 0;
    if (manifest_decode(data, size, &m) == 0) {
        uint8_t *out = malloc(size + 1);
        must_hold(manifest_size(&m, &again) && again == size);
        manifest_encode(&m, out);
        must_hold(memcmp(out, data, size) == 0);
        for (uint32_t i = 0; i < m.segment_count; i++)
            must_hold(m.segments[i].pack < m.pack_count && m.segments[i].refs + m.segments[i].ref_count <= m.ref_count);
        free(out);
    }
    manifest_finish(&m);
}

static void segment(const uint8_t *data, size_t size)
{
    struct segment *s = malloc(sizeof *s), *again = malloc(sizeof *again);
    uint8_t *out = malloc(CHUNK_MAX);
    const uint64_t file = 5 * SEGMENT_BYTES + 12345;
    if (segment_decode(data, size, 3, file, s) == 0) {
        size_t n = segment_encode(s, out);
        must_hold(n > 0 && n <= size);
        must_hold(segment_decode(out, n, 3, file, again) == 0);
        must_hold(memcmp(s, again, sizeof *s) == 0);
    }
    free(s);
    free(again);
    free(out);
}

static void index_object(const uint8_t *data, size_t size)
{
    struct index_body b;
    if (index_decode(data, size, &b) == 0) {
        uint8_t *out = malloc(size + 1);
        must_hold(index_size(b.pack_count, b.count) == size);
        index_encode(b.packs, b.pack_count, b.entries, b.count, out);
        struct index_body again;
        must_hold(index_decode(out, size, &again) == 0 && again.count == b.count);
        index_body_finish(&again);
        free(out);
    }
    index_body_finish(&b);
}

static void claims(const uint8_t *data, size_t size)
{
    static const uint8_t gc[16] = {1};
    struct pack_set s = {0};
    int names = claim_names(data, size, gc);
    must_hold(names == 0 || names == 1 || names == -74);
    if (condemned_decode(data, size, &s) == 0)
        must_hold(condemned_size(s.count) == size);
    pack_set_sort(&s);
    pack_set_finish(&s);
}

static void sealed(const uint8_t *data, size_t size, const struct chunk_keys *k)
{
    struct object_id id = {{0}};
    uint64_t offset;
    size_t index;
    uint32_t count;
    struct pack_entry *entries = NULL;
    uint8_t *copy = malloc(size + 1);
    memcpy(copy, data, size);
    must_hold(sealed_open(k, SEALED_MANIFEST, &id, copy, size) < 0); /* nobody can guess the tag */
    if (size >= PACK_TRAILER && pack_trailer(data + size - PACK_TRAILER, size, &offset, &index, &count) == 0) {
        must_hold(offset + index + PACK_TRAILER == size);
        must_hold(pack_index(k, &id, data + offset, index, count, &entries) < 0);
    }
    free(copy);
}

static void record(const uint8_t *data, size_t size, const struct chunk_keys *k)
{
    static struct chunk_codec *codec;
    struct chunk_id id = {{0}};
    uint8_t out[512];
    if (!codec)
        codec = chunk_codec_create();
    must_hold(chunk_open(k, codec, CHUNK_DATA, &id, data, size, out, sizeof out) < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct crypt *suite;
    static struct tenant_subkeys subkeys;
    if (!suite)
        suite = crypt_create();
    const struct chunk_keys k = {suite, &subkeys, "alice"};
    if (size == 0)
        return 0;
    switch (data[0] % 6) {
    case 0: manifest(data + 1, size - 1); break;
    case 1: segment(data + 1, size - 1); break;
    case 2: index_object(data + 1, size - 1); break;
    case 3: claims(data + 1, size - 1); break;
    case 4: sealed(data + 1, size - 1, &k); break;
    default: record(data + 1, size - 1, &k);
    }
    return 0;
}
