// SPDX-License-Identifier: Apache-2.0
// Sealed objects: see sealed.h.
#include "hostd/volumed/store/sealed.h"

#include "hostd/volumed/bytes.h"

#include <errno.h>
#include <string.h>

#define BOUND    (SEALED_HEADER - CRYPT_TAG) /* bytes of the header before the tag */
#define AAD_SIZE (BOUND + KEYS_TENANT_MAX)

static const char magic[8] = "spcseal\n";

static bool derive(const struct chunk_keys *k, enum sealed_kind kind, const struct object_id *id, uint8_t key[CRYPT_KEY])
{
    uint8_t head[4];
    put_u32(head, kind);
    const struct iovec parts[] = {{head, sizeof head}, {(void *)(uintptr_t)id->b, sizeof id->b}};
    return crypt_hmac(k->crypt, kind == SEALED_MANIFEST ? k->subkeys->manifest : k->subkeys->index, parts, 2, key);
}

static void additional(const struct chunk_keys *k, const uint8_t *header, uint8_t aad[AAD_SIZE])
{
    size_t name = strnlen(k->tenant, KEYS_TENANT_MAX);
    uint8_t *p = put_bytes(put_bytes(aad, header, BOUND), k->tenant, name);
    put_zeros(p, KEYS_TENANT_MAX - name);
}

bool sealed_close(const struct chunk_keys *k, enum sealed_kind kind, const struct object_id *id, const uint8_t key_id[16],
                  const uint8_t nonce[CRYPT_NONCE], uint8_t *object, size_t size)
{
    uint8_t key[CRYPT_KEY], aad[AAD_SIZE];
    const struct iovec bound = {aad, sizeof aad};
    uint8_t *p = put_bytes(object, magic, sizeof magic);
    p = put_u32(put_u32(p, STORE_VERSION), kind);
    p = put_bytes(put_bytes(p, key_id, 16), id->b, sizeof id->b);
    p = put_u64(put_bytes(p, nonce, CRYPT_NONCE), size);
    p = put_zeros(p, 4);
    additional(k, object, aad);
    bool good = derive(k, kind, id, key) && crypt_seal(k->crypt, key, nonce, &bound, object + SEALED_HEADER, size, object + SEALED_HEADER, p);
    crypt_wipe(key, sizeof key);
    return good;
}

int sealed_open(const struct chunk_keys *k, enum sealed_kind kind, const struct object_id *id, uint8_t *object, size_t total)
{
    struct cursor c = cursor_of(object, total);
    uint8_t key[CRYPT_KEY], aad[AAD_SIZE];
    const struct iovec bound = {aad, sizeof aad};
    const uint8_t *m = cursor_take(&c, sizeof magic);
    uint32_t version = cursor_u32(&c), what = cursor_u32(&c);
    cursor_take(&c, 16);
    const uint8_t *name = cursor_take(&c, sizeof id->b), *nonce = cursor_take(&c, CRYPT_NONCE);
    uint64_t size = cursor_u64(&c);
    cursor_zeros(&c, 4);
    const uint8_t *tag = cursor_take(&c, CRYPT_TAG);
    if (c.bad || total > SEALED_MAX || memcmp(m, magic, sizeof magic) != 0 || version != STORE_VERSION || what != (uint32_t)kind ||
        memcmp(name, id->b, sizeof id->b) != 0 || size != c.left)
        return -EBADMSG;
    additional(k, object, aad);
    if (!derive(k, kind, id, key))
        return -ENOMEM;
    bool good = crypt_open(k->crypt, key, nonce, &bound, c.p, c.left, object + SEALED_HEADER, tag);
    crypt_wipe(key, sizeof key);
    return good ? 0 : -EBADMSG;
}
