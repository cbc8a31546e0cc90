// SPDX-License-Identifier: Apache-2.0
// The store's format: the vectors of docs/protocol/store.md, and what must be refused however well it is encrypted.
#include "hostd/volumed/bytes.h"
#include "hostd/volumed/store/claim.h"
#include "hostd/volumed/store/index.h"
#include "hostd/volumed/store/manifest.h"
#include "hostd/volumed/store/sealed.h"
#include "unit/check.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

static struct crypt *suite;
static struct chunk_codec *codec;
static struct tenant_subkeys subkeys;
static struct chunk_keys keys;
static uint8_t nonce[CRYPT_NONCE], key_id[16], artifact[16];

static void count_up(uint8_t *p, size_t n, unsigned from)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(from + i);
}

static void set_up(void)
{
    suite = crypt_create();
    codec = chunk_codec_create();
    CHECK(suite && codec);
    count_up(subkeys.chunk_id, 32, 0x00);
    count_up(subkeys.chunk, 32, 0x20);
    count_up(subkeys.index, 32, 0x40);
    count_up(subkeys.manifest, 32, 0x60);
    count_up(nonce, sizeof nonce, 0x80);
    count_up(key_id, 16, 0x90);
    count_up(artifact, 16, 0xa0);
    keys = (struct chunk_keys){suite, &subkeys, "alice"};
}

static void tear_down(void)
{
    chunk_codec_destroy(codec);
    crypt_destroy(suite);
}

static const char *text(const void *p, size_t n)
{
    static char out[4][1024];
    static unsigned turn;
    char *to = out[turn++ % 4];
    for (size_t i = 0; i < n && i < 500; i++)
        snprintf(to + 2 * i, 3, "%02x", ((const uint8_t *)p)[i]);
    return to;
}

static const char *sum(const void *p, size_t n)
{
    uint8_t out[32];
    SHA256(p, n, out);
    return text(out, sizeof out);
}

/* ---- vectors ---- */

static void chunk_vectors(void)
{
    struct chunk_id id;
    uint8_t record[CHUNK_RECORD_MAX], plain[16];
    size_t len;
    set_up();
    CHECK(chunk_identify(&keys, CHUNK_DATA, "spacefs", 7, &id));
    CHECK_STR(text(id.b, sizeof id.b), "f434e3d6fc2f0abc7b4232100adad1ad58e8d10b01b6cb406cc4aeb06fd07d9d");
    CHECK(chunk_seal(&keys, codec, CHUNK_DATA, &id, nonce, "spacefs", 7, record, &len));
    CHECK_STR(text(record, len), "00000000808182838485868788898a8bd4007e091db65675796d78dc503c9586b73b4da480eeec");
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, len, plain, 7), 0);
    CHECK_MEM(plain, 7, "spacefs", 7);
    tear_down();
}

static void a_compressed_vector_opens(void)
{
    static const uint8_t record[] = {0x01, 0x00, 0x00, 0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8b, 0xb3, 0x32,
                                     0xc8, 0xef, 0xa1, 0x76, 0x2c, 0xa3, 0x34, 0xcf, 0xa7, 0x84, 0x08, 0x69, 0x4f, 0xa7, 0x9f, 0xd0, 0x1b, 0x21,
                                     0x82, 0x76, 0x94, 0x42, 0x8e, 0x43, 0x50, 0x4b, 0x2a, 0x03, 0x5d, 0x09, 0x76, 0x9a, 0xfa, 0x4a};
    struct chunk_id id;
    uint8_t want[CHUNK_BYTES], got[CHUNK_BYTES];
    set_up();
    memset(want, 'a', sizeof want);
    CHECK(chunk_identify(&keys, CHUNK_DATA, want, sizeof want, &id));
    CHECK_STR(text(id.b, sizeof id.b), "26d8edf7c40402e5f076d0880ee5bc227a49d20b5c00dcba710b1c70dc85b0bb");
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, sizeof record, got, sizeof got), 0);
    CHECK(memcmp(got, want, sizeof want) == 0);
    tear_down();
}

static struct object_id pack_id(void)
{
    struct object_id id = store_id(artifact);
    count_up(id.b + 16, 8, 0xb0);
    return id;
}

static void fill_pack(struct pack_writer *w, struct pack_entry *e)
{
    uint8_t record[CHUNK_RECORD_MAX];
    struct object_id id = pack_id();
    size_t len;
    memset(w, 0, sizeof *w);
    uint8_t *bytes = malloc(PACK_BYTES);
    CHECK(bytes);
    pack_start(w, &id, key_id, bytes);
    CHECK(chunk_identify(&keys, CHUNK_DATA, "spacefs", 7, &e->id));
    CHECK(chunk_seal(&keys, codec, CHUNK_DATA, &e->id, nonce, "spacefs", 7, record, &len));
    e->stored = (uint32_t)len;
    e->plain = 7;
    e->kind = CHUNK_DATA;
    CHECK(pack_add(w, e, record));
    CHECK(pack_close(w, &keys, nonce));
}

static void pack_vector(void)
{
    struct pack_writer w;
    struct pack_entry e, *again = NULL;
    struct object_id id = pack_id();
    uint64_t offset;
    size_t size;
    uint32_t count;
    set_up();
    fill_pack(&w, &e);
    CHECK_EQ(w.size, 64 + 39 + 28 + 48 + 64);
    CHECK_STR(sum(w.bytes, w.size), "bf2afd115f56ef5db3c2234bd1c054e2c43d82b44f5330f2001a18f72ca22194");
    CHECK(pack_header(w.bytes, &id, key_id));
    CHECK_EQ(pack_trailer(w.bytes + w.size - PACK_TRAILER, w.size, &offset, &size, &count), 0);
    CHECK_EQ(offset, 64 + 39);
    CHECK_EQ(count, 1);
    CHECK_EQ(pack_index(&keys, &id, w.bytes + offset, size, count, &again), 0);
    CHECK_MEM((char *)again, sizeof *again, (char *)&e, sizeof e);
    free(again);
    id.b[23]++; /* another pack's index */
    CHECK_EQ(pack_index(&keys, &id, w.bytes + offset, size, count, &again), -EBADMSG);
    CHECK_EQ(pack_trailer(w.bytes + w.size - PACK_TRAILER, w.size + 1, &offset, &size, &count), -EBADMSG);
    free(w.bytes);
    pack_finish(&w);
    tear_down();
}

static void make_segment(struct segment *s)
{
    memset(s, 0, sizeof *s);
    s->number = 3;
    s->count = 3;
    s->pieces[0].kind = PIECE_ZEROS;
    for (unsigned i = 5; i < 7; i++) {
        s->pieces[i] = (struct piece){.pack = pack_id(), .offset = 64 + 100 * i, .stored = 39, .kind = PIECE_DATA};
        count_up(s->pieces[i].id.b, 32, i);
    }
}

static void make_manifest(struct manifest *m)
{
    struct object_id id = pack_id();
    memset(m, 0, sizeof *m);
    m->file = VOLUMED_DISK;
    m->size = 4 * SEGMENT_BYTES + 5;
    m->created = 1795996800;
    memcpy(m->base.tenant, "templates", 9);
    count_up(m->base.id, 16, 0xc0);
    m->chunks = 3;
    m->zero_chunks = 1;
    m->stored_bytes = 1000;
    CHECK_EQ(manifest_pack(m, &id), 0);
    struct manifest_segment *s = manifest_add(m);
    *s = (struct manifest_segment){.number = 3, .count = 3, .offset = 900, .stored = 200, .plain = 168};
    count_up(s->id.b, 32, 0xd0);
    CHECK(manifest_ref(m, 0, 39));
    CHECK(manifest_ref(m, 0, 39));
    CHECK_EQ(m->ref_count, 1);
    CHECK_EQ(m->refs[0].bytes, 78);
}

static void segment_vector(void)
{
    struct segment *s = malloc(sizeof *s), *again = malloc(sizeof *again);
    uint8_t bytes[CHUNK_MAX];
    make_segment(s);
    size_t size = segment_encode(s, bytes);
    CHECK_EQ(size, 16 + 24 + 3 * 48);
    CHECK_STR(sum(bytes, size), "8b1d28279e887953fe51c2dd008e77a1f6e0160836e8b9c49dc696505a51da82");
    CHECK_EQ(segment_decode(bytes, size, 3, 4 * SEGMENT_BYTES, again), 0);
    CHECK(memcmp(s, again, sizeof *s) == 0);
    CHECK_EQ(segment_decode(bytes, size, 2, 4 * SEGMENT_BYTES, again), -EBADMSG);
    CHECK_EQ(segment_decode(bytes, size, 3, 3 * SEGMENT_BYTES + 5 * CHUNK_BYTES, again), -EBADMSG); /* behind the end of the file */
    CHECK_EQ(segment_decode(bytes, size - 1, 3, 4 * SEGMENT_BYTES, again), -EBADMSG);
    free(s);
    free(again);
}

static void manifest_vector(void)
{
    struct manifest m, again;
    struct object_id id = store_id(artifact);
    size_t size;
    set_up();
    make_manifest(&m);
    CHECK(manifest_size(&m, &size));
    CHECK_EQ(size, 192 + 24 + 64 + 8);
    uint8_t *object = malloc(SEALED_HEADER + size);
    manifest_encode(&m, object + SEALED_HEADER);
    CHECK_STR(sum(object + SEALED_HEADER, size), "04ec19b7f9a9ca0d7f08649e221566a3c0b5b77204ce24bbf51dc3123d0e53c6");
    CHECK(sealed_close(&keys, SEALED_MANIFEST, &id, key_id, nonce, object, size));
    CHECK_STR(sum(object, SEALED_HEADER + size), "5f19f0901494eb61ec23b9b26b3d447bbbe039e3213ea3f473d9e904b2a087be");
    CHECK_EQ(sealed_open(&keys, SEALED_CLAIM, &id, object, SEALED_HEADER + size), -EBADMSG);
    CHECK_EQ(sealed_open(&keys, SEALED_MANIFEST, &id, object, SEALED_HEADER + size), 0);
    CHECK_EQ(manifest_decode(object + SEALED_HEADER, size, &again), 0);
    CHECK_MEM((char *)&again.base, sizeof again.base, (char *)&m.base, sizeof m.base);
    CHECK_EQ(again.segments[0].plain, 168);
    manifest_finish(&again);
    manifest_finish(&m);
    free(object);
    tear_down();
}

static void claim_and_condemnation_vectors(void)
{
    uint8_t seen[1][16], bytes[256];
    struct claim c = {.created = 1795996800, .seen = seen, .seen_count = 1};
    struct pack_set packs = {0}, again = {0};
    struct object_id id = pack_id();
    count_up(seen[0], 16, 0xe0);
    CHECK_EQ(claim_size(1), 48);
    claim_encode(&c, CLAIM_SEEN, bytes);
    CHECK_STR(text(bytes, 48), "80bc0c6b00000000020000000100000000000000000000000000000000000000e0e1e2e3e4e5e6e7e8e9eaebecedeeef");
    CHECK_EQ(claim_names(bytes, 48, seen[0]), 1);
    CHECK_EQ(claim_names(bytes, 48, artifact), 0);
    CHECK_EQ(claim_names(bytes, 47, seen[0]), -EBADMSG);
    claim_encode(&c, CLAIM_BEGAN, bytes);
    CHECK_EQ(claim_names(bytes, claim_size(0), seen[0]), 0);
    CHECK(pack_set_add(&packs, &id));
    condemned_encode(&packs, 1795996800, bytes);
    CHECK_STR(text(bytes, condemned_size(1)),
              "80bc0c6b00000000010000000000000000000000000000000000000000000000a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7");
    CHECK_EQ(condemned_decode(bytes, condemned_size(1), &again), 0);
    CHECK(pack_set_has(&again, &id));
    pack_set_finish(&packs);
    pack_set_finish(&again);
}

static void index_vector(void)
{
    struct index_entry entries[2] = {{.e = {.offset = 64, .stored = 39, .plain = 7, .kind = CHUNK_DATA}},
                                     {.e = {.offset = 103, .stored = 200, .plain = 168, .kind = CHUNK_SEGMENT}}};
    struct object_id id = pack_id();
    struct index_body b;
    uint8_t bytes[256];
    count_up(entries[0].e.id.b, 32, 0x80);
    count_up(entries[1].e.id.b, 32, 0x10);
    CHECK_EQ(index_size(1, 2), 32 + 24 + 96);
    index_encode(&id, 1, entries, 2, bytes);
    CHECK_STR(sum(bytes, index_size(1, 2)), "c1753e67f93cf3bda71b51562e2671f4f273569d279e36264fae4d94dbd07a36");
    CHECK_EQ(index_decode(bytes, index_size(1, 2), &b), 0);
    CHECK_EQ(b.entries[0].e.kind, CHUNK_SEGMENT);
    CHECK_EQ(b.entries[1].e.stored, 39);
    index_body_finish(&b);
    uint8_t first[48];
    memcpy(first, bytes + 56, 48); /* not in order */
    memmove(bytes + 56, bytes + 104, 48);
    memcpy(bytes + 104, first, 48);
    CHECK_EQ(index_decode(bytes, index_size(1, 2), &b), -EBADMSG);
    index_body_finish(&b);
}

/* ---- forged by somebody who has the keys ---- */

/* A record as docs/protocol/store.md describes it, of whatever bytes. */
static size_t forge(uint32_t method, uint32_t plain, const struct chunk_id *id, const void *bytes, size_t n, uint8_t *out)
{
    uint8_t aad[120] = "spcchunk", key[32], *p = aad + 8;
    const struct iovec bound = {aad, sizeof aad}, part = {(void *)(uintptr_t)id->b, 32};
    p = put_u32(put_u32(put_u32(put_u32(p, 1), 1), method), plain);
    p = put_zeros(put_bytes(p, "alice", 5), 59);
    put_bytes(p, id->b, 32);
    CHECK(crypt_hmac(suite, subkeys.chunk, &part, 1, key));
    put_bytes(put_u32(out, method), nonce, sizeof nonce);
    CHECK(crypt_seal(suite, key, nonce, &bound, bytes, n, out + 32, out + 16));
    return 32 + n;
}

static void a_decompression_bomb_is_refused(void)
{
    size_t big = 64u << 20;
    char *zeros = calloc(1, big);
    uint8_t packed[CHUNK_BYTES], record[CHUNK_RECORD_MAX], out[CHUNK_BYTES + 64];
    struct chunk_id id;
    set_up();
    size_t n = ZSTD_compress(packed, sizeof packed, zeros, big, 1);
    CHECK(!ZSTD_isError(n));
    CHECK(chunk_identify(&keys, CHUNK_DATA, zeros, CHUNK_BYTES, &id));
    size_t len = forge(CHUNK_ZSTD, CHUNK_BYTES, &id, packed, n, record);
    memset(out, 0x55, sizeof out);
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, len, out, CHUNK_BYTES), -EBADMSG);
    for (size_t i = CHUNK_BYTES; i < sizeof out; i++)
        CHECK_EQ(out[i], 0x55);
    /* the same with what is true */
    n = ZSTD_compress(packed, sizeof packed, zeros, CHUNK_BYTES, 1);
    len = forge(CHUNK_ZSTD, CHUNK_BYTES, &id, packed, n, record);
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, len, out, CHUNK_BYTES), 0);
    free(zeros);
    tear_down();
}

static void other_content_under_an_identity_is_refused(void)
{
    uint8_t record[CHUNK_RECORD_MAX], out[16];
    struct chunk_id id;
    set_up();
    CHECK(chunk_identify(&keys, CHUNK_DATA, "spacefs", 7, &id));
    size_t len = forge(CHUNK_RAW, 7, &id, "spacefz", 7, record);
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, len, out, 7), -EBADMSG);
    len = forge(CHUNK_RAW, 7, &id, "spacefs", 7, record);
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, len, out, 7), 0);
    tear_down();
}

static void everything_is_bound(void)
{
    uint8_t record[CHUNK_RECORD_MAX], out[16];
    struct chunk_id id, other;
    size_t len;
    set_up();
    CHECK(chunk_identify(&keys, CHUNK_DATA, "spacefs", 7, &id));
    CHECK(chunk_seal(&keys, codec, CHUNK_DATA, &id, nonce, "spacefs", 7, record, &len));
    for (size_t i = 0; i < len * 8; i++) {
        record[i / 8] ^= (uint8_t)(1u << i % 8);
        CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, len, out, 7), -EBADMSG);
        record[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    other = id;
    other.b[31] ^= 1;
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &other, record, len, out, 7), -EBADMSG);
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_SEGMENT, &id, record, len, out, 7), -EBADMSG);
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, len, out, 8), -EBADMSG);
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, len - 1, out, 7), -EBADMSG);
    keys.tenant = "mallory"; /* with the same keys even */
    CHECK_EQ(chunk_open(&keys, codec, CHUNK_DATA, &id, record, len, out, 7), -EBADMSG);
    struct object_id object_name = store_id(artifact);
    uint8_t object[SEALED_HEADER + 8] = {0};
    keys.tenant = "alice";
    CHECK(sealed_close(&keys, SEALED_CLAIM, &object_name, key_id, nonce, object, 8));
    for (size_t i = 0; i < sizeof object * 8; i++) {
        uint8_t copy[sizeof object];
        memcpy(copy, object, sizeof copy);
        copy[i / 8] ^= (uint8_t)(1u << i % 8);
        CHECK_EQ(sealed_open(&keys, SEALED_CLAIM, &object_name, copy, sizeof copy), -EBADMSG);
    }
    keys.tenant = "mallory";
    CHECK_EQ(sealed_open(&keys, SEALED_CLAIM, &object_name, object, sizeof object), -EBADMSG);
    tear_down();
}

/* ---- runs ---- */

static void fill_entries(struct index_entry *entries, uint32_t count, uint32_t seed, uint32_t pack)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key[2] = {seed, i};
        SHA256((const uint8_t *)key, sizeof key, entries[i].e.id.b);
        entries[i].e.offset = 64 + i;
        entries[i].e.stored = 100;
        entries[i].e.plain = CHUNK_BYTES;
        entries[i].e.kind = CHUNK_DATA;
        entries[i].pack = pack;
    }
}

static struct index_run *run_of(int dir, const char *name, uint32_t count, uint32_t seed, const struct object_id *pack)
{
    struct index_body b;
    uint32_t packs = count ? 1 : 0;
    struct index_run *r = NULL;
    struct err e = {0};
    uint8_t *bytes = malloc(index_size(packs, count));
    struct index_entry *entries = calloc(count + 1, sizeof *entries);
    fill_entries(entries, count, seed, 0);
    index_encode(pack, packs, entries, count, bytes);
    CHECK_EQ(index_decode(bytes, index_size(packs, count), &b), 0);
    CHECK_EQ(index_run_write(dir, name, pack, &b, &r, &e), 0);
    index_body_finish(&b);
    free(entries);
    free(bytes);
    return r;
}

static void find_all(const struct index_run *r, uint32_t count, uint32_t seed, const struct object_id *pack, const uint8_t *skip, int want)
{
    for (uint32_t i = 0; i < count; i++) {
        struct index_entry x;
        struct pack_entry found;
        struct object_id where;
        memset(&x, 0, sizeof x);
        uint32_t key[2] = {seed, i};
        SHA256((const uint8_t *)key, sizeof key, x.e.id.b);
        CHECK_EQ(index_run_find(r, skip, &x.e.id, &found, &where), want);
        if (want == 1) {
            CHECK_EQ(found.offset, 64 + i);
            CHECK_MEM((char *)&where, sizeof where, (const char *)pack, sizeof *pack);
        }
    }
}

static void runs_find_what_they_hold_and_nothing_else(void)
{
    char folder[] = "/var/tmp/volumed-runs-XXXXXX";
    struct object_id a = pack_id(), b = pack_id();
    struct index_run *merged = NULL, *cut = NULL;
    struct err e = {0};
    const uint8_t skip[] = {1};
    CHECK(mkdtemp(folder));
    int dir = open(folder, O_RDONLY | O_DIRECTORY);
    b.b[23] = 0;
    struct index_run *x = run_of(dir, "1.run", 5000, 1, &a), *y = run_of(dir, "2.run", 300, 2, &b), *none = run_of(dir, "3.run", 0, 3, &b);
    find_all(x, 5000, 1, &a, NULL, 1);
    find_all(x, 500, 2, &a, NULL, 0);
    find_all(none, 10, 2, &a, NULL, 0);
    CHECK_EQ(index_run_merge(dir, "4.run", x, y, &merged, &e), 0);
    CHECK_EQ(index_run_count(merged), 5300);
    find_all(merged, 5000, 1, &a, NULL, 1);
    find_all(merged, 300, 2, &b, NULL, 1);
    find_all(merged, 5000, 1, &a, skip, 0);
    find_all(merged, 300, 2, &b, skip, 1);
    char path[64];
    snprintf(path, sizeof path, "%s/2.run", folder);
    CHECK_EQ(truncate(path, 1000), 0);
    CHECK_EQ(index_run_open(dir, "2.run", &cut, &e), -EBADMSG);
    index_run_remove(x);
    index_run_remove(y);
    index_run_remove(none);
    index_run_remove(merged);
    index_run_unref(x);
    index_run_unref(y);
    index_run_unref(none);
    index_run_unref(merged);
    close(dir);
    CHECK_EQ(rmdir(folder), 0);
}

static const struct check_test tests[] = {
    TEST(chunk_vectors),
    TEST(a_compressed_vector_opens),
    TEST(pack_vector),
    TEST(segment_vector),
    TEST(manifest_vector),
    TEST(claim_and_condemnation_vectors),
    TEST(index_vector),
    TEST(a_decompression_bomb_is_refused),
    TEST(other_content_under_an_identity_is_refused),
    TEST(everything_is_bound),
    TEST(runs_find_what_they_hold_and_nothing_else),
};

CHECK_MAIN(tests)
