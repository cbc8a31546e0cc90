// SPDX-License-Identifier: Apache-2.0
// Unwrapped keys: see tenant_key.h and keys.h.
//
// The memory comes from sodium_malloc: locked, between guard pages, left out of core dumps, wiped when it is freed. It is inaccessible but while
// somebody is inside, and freed by whoever comes last: the end of the key, or the last to leave.
#include "hostd/volumed/keys/tenant_key.h"

#include "hostd/volumed/secret_file.h"

#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct tenant_key {
    atomic_uint refs;
    uint8_t id[BLOB_ID_SIZE];
    pthread_mutex_t lock;
    uint64_t expires;               /* under the lock */
    struct tenant_subkeys *subkeys; /* under the lock; NULL when wiped */
    unsigned inside;
    bool ended;
};

uint64_t tenant_key_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec;
}

/* ---- derivation: HKDF-SHA256 (RFC 5869), salt = the key's id, info = "spacefs " and the purpose, one block of output ---- */

static void mac(const uint8_t *key, size_t key_len, const void *a, size_t a_len, const void *b, size_t b_len, uint8_t out[KEYS_BYTES])
{
    crypto_auth_hmacsha256_state s;
    crypto_auth_hmacsha256_init(&s, key, key_len);
    crypto_auth_hmacsha256_update(&s, a, a_len);
    crypto_auth_hmacsha256_update(&s, b, b_len);
    crypto_auth_hmacsha256_final(&s, out);
    sodium_memzero(&s, sizeof s);
}

void tenant_key_derive(const uint8_t data_key[KEYS_BYTES], const uint8_t id[BLOB_ID_SIZE], struct tenant_subkeys *out)
{
    static const uint8_t first = 1;
    const struct {
        const char *info;
        uint8_t *to;
    } purposes[] = {
        {"spacefs chunk id", out->chunk_id}, {"spacefs chunk", out->chunk}, {"spacefs index", out->index}, {"spacefs manifest", out->manifest}};
    uint8_t prk[KEYS_BYTES];
    mac(id, BLOB_ID_SIZE, data_key, KEYS_BYTES, NULL, 0, prk);
    for (size_t i = 0; i < sizeof purposes / sizeof purposes[0]; i++)
        mac(prk, sizeof prk, purposes[i].info, strlen(purposes[i].info), &first, 1, purposes[i].to);
    sodium_memzero(prk, sizeof prk);
}

/* ---- life ---- */

struct tenant_key *tenant_key_create(const uint8_t data_key[KEYS_BYTES], const uint8_t id[BLOB_ID_SIZE], uint64_t expires)
{
    struct tenant_key *key = calloc(1, sizeof *key);
    if (!key || !(key->subkeys = secret_alloc(sizeof *key->subkeys))) {
        free(key);
        return NULL;
    }
    atomic_init(&key->refs, 1);
    pthread_mutex_init(&key->lock, NULL);
    memcpy(key->id, id, sizeof key->id);
    key->expires = expires;
    tenant_key_derive(data_key, id, key->subkeys);
    sodium_mprotect_noaccess(key->subkeys);
    return key;
}

/* Under the lock. */
static void wipe(struct tenant_key *key)
{
    sodium_free(key->subkeys);
    key->subkeys = NULL;
}

void tenant_key_end(struct tenant_key *key)
{
    pthread_mutex_lock(&key->lock);
    key->ended = true;
    if (!key->inside)
        wipe(key);
    pthread_mutex_unlock(&key->lock);
}

const struct tenant_subkeys *tenant_key_enter(struct tenant_key *key)
{
    const struct tenant_subkeys *subkeys = NULL;
    pthread_mutex_lock(&key->lock);
    if (!key->ended && tenant_key_clock() < key->expires) {
        if (key->inside++ == 0)
            sodium_mprotect_readonly(key->subkeys);
        subkeys = key->subkeys;
    }
    pthread_mutex_unlock(&key->lock);
    return subkeys;
}

void tenant_key_leave(struct tenant_key *key)
{
    pthread_mutex_lock(&key->lock);
    if (--key->inside == 0) {
        if (key->ended)
            wipe(key);
        else
            sodium_mprotect_noaccess(key->subkeys);
    }
    pthread_mutex_unlock(&key->lock);
}

const uint8_t *tenant_key_id(const struct tenant_key *key)
{
    return key->id;
}

uint64_t tenant_key_expires(struct tenant_key *key)
{
    pthread_mutex_lock(&key->lock);
    uint64_t expires = key->expires;
    pthread_mutex_unlock(&key->lock);
    return expires;
}

void tenant_key_prolong(struct tenant_key *key, uint64_t expires)
{
    pthread_mutex_lock(&key->lock);
    key->expires = expires;
    pthread_mutex_unlock(&key->lock);
}

struct tenant_key *tenant_key_ref(struct tenant_key *key)
{
    atomic_fetch_add(&key->refs, 1);
    return key;
}

void tenant_key_unref(struct tenant_key *key)
{
    if (!key || atomic_fetch_sub(&key->refs, 1) != 1)
        return;
    if (key->subkeys)
        wipe(key);
    pthread_mutex_destroy(&key->lock);
    free(key);
}
