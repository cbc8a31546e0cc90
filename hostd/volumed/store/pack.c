// SPDX-License-Identifier: Apache-2.0
// Packs: see pack.h.
#include "hostd/volumed/store/pack.h"

#include "hostd/volumed/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_OVERHEAD (CRYPT_NONCE + CRYPT_TAG)
#define AAD_SIZE       104u

static const char head_magic[8] = "spcpack\n", tail_magic[8] = "spctail\n";

/* ---- writing ---- */

static void put_header(uint8_t *out, const struct object_id *id, const uint8_t key_id[16])
{
    uint8_t *p = put_bytes(out, head_magic, sizeof head_magic);
    p = put_u32(put_u32(p, STORE_VERSION), PACK_HEADER);
    p = put_bytes(p, key_id, 16);
    p = put_bytes(p, id->b, sizeof id->b);
    put_zeros(p, 8);
}

void pack_start(struct pack_writer *w, const struct object_id *id, const uint8_t key_id[16], uint8_t *bytes)
{
    w->id = *id;
    w->bytes = bytes;
    w->size = PACK_HEADER;
    w->count = 0;
    put_header(bytes, id, key_id);
}

bool pack_header(const uint8_t header[PACK_HEADER], const struct object_id *id, const uint8_t key_id[16])
{
    uint8_t want[PACK_HEADER];
    put_header(want, id, key_id);
    return memcmp(header, want, sizeof want) == 0;
}

static bool grow(struct pack_writer *w)
{
    uint32_t room = w->room ? w->room * 2 : 512;
    struct pack_entry *entries = realloc(w->entries, room * sizeof *entries);
    if (!entries)
        return false;
    w->entries = entries;
    w->room = room;
    return true;
}

bool pack_add(struct pack_writer *w, struct pack_entry *e, const uint8_t *record)
{
    size_t tail = ((size_t)w->count + 1) * PACK_ENTRY + INDEX_OVERHEAD + PACK_TRAILER;
    if (w->size + e->stored + tail > PACK_BYTES || w->count >= PACK_ENTRIES_MAX || (w->count == w->room && !grow(w)))
        return false;
    e->offset = (uint32_t)w->size;
    memcpy(w->bytes + w->size, record, e->stored);
    w->size += e->stored;
    w->entries[w->count++] = *e;
    return true;
}

uint8_t *pack_put_entry(uint8_t *p, const struct pack_entry *e)
{
    p = put_bytes(p, e->id.b, sizeof e->id.b);
    return put_u32(put_u32(put_u32(put_u32(p, e->offset), e->stored), e->plain), e->kind);
}

static void additional(const struct chunk_keys *k, const struct object_id *id, uint32_t count, uint8_t aad[AAD_SIZE])
{
    size_t name = strnlen(k->tenant, KEYS_TENANT_MAX);
    uint8_t *p = put_bytes(aad, "spcindex", 8);
    p = put_u32(put_u32(p, STORE_VERSION), count);
    p = put_bytes(p, k->tenant, name);
    p = put_zeros(p, KEYS_TENANT_MAX - name);
    put_bytes(p, id->b, sizeof id->b);
}

static bool derive(const struct chunk_keys *k, const struct object_id *id, uint8_t key[CRYPT_KEY])
{
    const struct iovec part = {(void *)(uintptr_t)id->b, sizeof id->b};
    return crypt_hmac(k->crypt, k->subkeys->index, &part, 1, key);
}

bool pack_close(struct pack_writer *w, const struct chunk_keys *k, const uint8_t nonce[CRYPT_NONCE])
{
    uint8_t key[CRYPT_KEY], aad[AAD_SIZE], *start = w->bytes + w->size, *table = start + INDEX_OVERHEAD, *p = table;
    const struct iovec bound = {aad, sizeof aad};
    size_t size = (size_t)w->count * PACK_ENTRY;
    for (uint32_t i = 0; i < w->count; i++)
        p = pack_put_entry(p, &w->entries[i]);
    additional(k, &w->id, w->count, aad);
    put_bytes(start, nonce, CRYPT_NONCE);
    bool good = derive(k, &w->id, key) && crypt_seal(k->crypt, key, nonce, &bound, table, size, table, start + CRYPT_NONCE);
    crypt_wipe(key, sizeof key);
    p = put_bytes(p, tail_magic, sizeof tail_magic);
    p = put_u32(put_u32(p, STORE_VERSION), w->count);
    p = put_u64(put_u64(p, w->size), INDEX_OVERHEAD + size);
    p = put_zeros(p, PACK_TRAILER - 32);
    w->size = (size_t)(p - w->bytes);
    return good;
}

void pack_finish(struct pack_writer *w)
{
    free(w->entries);
    w->entries = NULL;
    w->room = w->count = 0;
}

/* ---- reading ---- */

int pack_trailer(const uint8_t trailer[PACK_TRAILER], uint64_t total, uint64_t *ret_offset, size_t *ret_size, uint32_t *ret_count)
{
    struct cursor c = cursor_of(trailer, PACK_TRAILER);
    bool magic = memcmp(cursor_take(&c, sizeof tail_magic), tail_magic, sizeof tail_magic) == 0;
    uint32_t version = cursor_u32(&c), count = cursor_u32(&c);
    uint64_t offset = cursor_u64(&c), size = cursor_u64(&c);
    cursor_zeros(&c, c.left);
    if (c.bad || !magic || version != STORE_VERSION || count > PACK_ENTRIES_MAX || total > PACK_MAX || offset < PACK_HEADER || offset > total ||
        size != INDEX_OVERHEAD + (uint64_t)count * PACK_ENTRY || offset + size + PACK_TRAILER != total)
        return -EBADMSG;
    *ret_offset = offset;
    *ret_size = (size_t)size;
    *ret_count = count;
    return 0;
}

static int read_entries(const uint8_t *plain, uint32_t count, struct pack_entry *out)
{
    struct cursor c = cursor_of(plain, (size_t)count * PACK_ENTRY);
    uint64_t next = PACK_HEADER;
    for (uint32_t i = 0; i < count; i++) {
        cursor_copy(&c, out[i].id.b, sizeof out[i].id.b);
        out[i].offset = cursor_u32(&c);
        out[i].stored = cursor_u32(&c);
        out[i].plain = cursor_u32(&c);
        out[i].kind = cursor_u32(&c);
        if (out[i].offset != next || out[i].stored <= CHUNK_OVERHEAD || out[i].stored > CHUNK_RECORD_MAX || out[i].plain == 0 ||
            out[i].plain > CHUNK_MAX || (out[i].kind != CHUNK_DATA && out[i].kind != CHUNK_SEGMENT))
            return -EBADMSG;
        next += out[i].stored;
    }
    return c.bad ? -EBADMSG : 0;
}

int pack_index(const struct chunk_keys *k, const struct object_id *id, const uint8_t *bytes, size_t size, uint32_t count, struct pack_entry **out)
{
    uint8_t key[CRYPT_KEY], aad[AAD_SIZE];
    const struct iovec bound = {aad, sizeof aad};
    size_t table = (size_t)count * PACK_ENTRY;
    if (count > PACK_ENTRIES_MAX || size != INDEX_OVERHEAD + table)
        return -EBADMSG;
    uint8_t *plain = malloc(table + 1);
    struct pack_entry *entries = calloc((size_t)count + 1, sizeof *entries);
    int rc = plain && entries && derive(k, id, key) ? 0 : -ENOMEM;
    additional(k, id, count, aad);
    if (rc == 0 && !crypt_open(k->crypt, key, bytes, &bound, bytes + INDEX_OVERHEAD, table, plain, bytes + CRYPT_NONCE))
        rc = -EBADMSG;
    crypt_wipe(key, sizeof key);
    if (rc == 0)
        rc = read_entries(plain, count, entries);
    free(plain);
    if (rc < 0)
        free(entries);
    else
        *out = entries;
    return rc;
}
