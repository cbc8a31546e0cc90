// SPDX-License-Identifier: Apache-2.0
// Sealing and opening of chunks: see chunk.h.
#include "hostd/volumed/store/chunk.h"

#include "hostd/volumed/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define LEVEL    1
#define AAD_SIZE 120u

struct chunk_codec {
    ZSTD_CCtx *compress;
    ZSTD_DCtx *decompress;
    uint8_t packed[CHUNK_MAX];
};

struct chunk_codec *chunk_codec_create(void)
{
    struct chunk_codec *c = malloc(sizeof *c);
    if (!c)
        return NULL;
    c->compress = ZSTD_createCCtx();
    c->decompress = ZSTD_createDCtx();
    if (c->compress && c->decompress)
        return c;
    chunk_codec_destroy(c);
    return NULL;
}

void chunk_codec_destroy(struct chunk_codec *c)
{
    if (!c)
        return;
    ZSTD_freeCCtx(c->compress);
    ZSTD_freeDCtx(c->decompress);
    free(c);
}

bool chunk_identify(const struct chunk_keys *k, enum chunk_kind kind, const void *plain, size_t size, struct chunk_id *out)
{
    uint8_t head[8];
    put_u32(put_u32(head, kind), (uint32_t)size);
    const struct iovec parts[] = {{head, sizeof head}, {(void *)(uintptr_t)plain, size}};
    return crypt_hmac(k->crypt, k->subkeys->chunk_id, parts, 2, out->b);
}

static bool derive(const struct chunk_keys *k, const struct chunk_id *id, uint8_t out[CRYPT_KEY])
{
    const struct iovec part = {(void *)(uintptr_t)id->b, sizeof id->b};
    return crypt_hmac(k->crypt, k->subkeys->chunk, &part, 1, out);
}

/* What is bound to a record besides its bytes. */
static void additional(const struct chunk_keys *k, enum chunk_kind kind, const struct chunk_id *id, uint32_t method, size_t size,
                       uint8_t aad[AAD_SIZE])
{
    uint8_t *p = put_bytes(aad, "spcchunk", 8);
    size_t name = strnlen(k->tenant, KEYS_TENANT_MAX);
    p = put_u32(put_u32(put_u32(put_u32(p, STORE_VERSION), kind), method), (uint32_t)size);
    p = put_bytes(p, k->tenant, name);
    p = put_zeros(p, KEYS_TENANT_MAX - name);
    put_bytes(p, id->b, sizeof id->b);
}

bool chunk_seal(const struct chunk_keys *k, struct chunk_codec *codec, enum chunk_kind kind, const struct chunk_id *id,
                const uint8_t nonce[CRYPT_NONCE], const void *plain, size_t size, uint8_t *out, size_t *ret_len)
{
    uint8_t key[CRYPT_KEY], aad[AAD_SIZE];
    const struct iovec bound = {aad, sizeof aad};
    /* Not worth it below a sixteenth. */
    size_t packed = ZSTD_compressCCtx(codec->compress, codec->packed, size - size / 16, plain, size, LEVEL);
    bool raw = ZSTD_isError(packed) != 0;
    const void *from = raw ? plain : codec->packed;
    size_t n = raw ? size : packed;
    additional(k, kind, id, raw ? CHUNK_RAW : CHUNK_ZSTD, size, aad);
    uint8_t *p = put_u32(out, raw ? CHUNK_RAW : CHUNK_ZSTD);
    p = put_bytes(p, nonce, CRYPT_NONCE);
    bool good = derive(k, id, key) && crypt_seal(k->crypt, key, nonce, &bound, from, n, p + CRYPT_TAG, p);
    crypt_wipe(key, sizeof key);
    *ret_len = CHUNK_OVERHEAD + n;
    return good;
}

/* `from` was authenticated, and yet may say anything: who has the tenant's key may have forged it. Never writes more than `size` bytes. */
static int unpack(struct chunk_codec *codec, const uint8_t *from, size_t n, void *out, size_t size)
{
    size_t got = ZSTD_decompressDCtx(codec->decompress, out, size, from, n);
    return !ZSTD_isError(got) && got == size ? 0 : -EBADMSG;
}

int chunk_open(const struct chunk_keys *k, struct chunk_codec *codec, enum chunk_kind kind, const struct chunk_id *id, const uint8_t *record,
               size_t len, void *out, size_t size)
{
    struct cursor c = cursor_of(record, len);
    uint32_t method = cursor_u32(&c);
    const uint8_t *nonce = cursor_take(&c, CRYPT_NONCE), *tag = cursor_take(&c, CRYPT_TAG);
    uint8_t key[CRYPT_KEY], aad[AAD_SIZE];
    const struct iovec bound = {aad, sizeof aad};
    struct chunk_id again;
    if (c.bad || method > CHUNK_ZSTD || size == 0 || size > CHUNK_MAX || c.left > size || (method == CHUNK_RAW && c.left != size))
        return -EBADMSG;
    additional(k, kind, id, method, size, aad);
    void *to = method == CHUNK_RAW ? out : codec->packed;
    if (!derive(k, id, key))
        return -ENOMEM;
    bool good = crypt_open(k->crypt, key, nonce, &bound, c.p, c.left, to, tag);
    crypt_wipe(key, sizeof key);
    if (!good)
        return -EBADMSG;
    int rc = method == CHUNK_RAW ? 0 : unpack(codec, codec->packed, c.left, out, size);
    if (rc == 0 && !chunk_identify(k, kind, out, size, &again))
        rc = -ENOMEM;
    return rc < 0 ? rc : memcmp(again.b, id->b, sizeof again.b) == 0 ? 0 : -EBADMSG;
}
