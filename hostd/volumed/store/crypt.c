// SPDX-License-Identifier: Apache-2.0
// HMAC and AEAD: see crypt.h.
#include "hostd/volumed/store/crypt.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK   64u        /* of SHA-256 */
#define AT_MOST (1u << 30) /* bytes for one call of libcrypto, which counts in int */

struct crypt {
    EVP_MD *sha256;
    EVP_CIPHER *gcm;
};

struct crypt *crypt_create(void)
{
    struct crypt *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    c->gcm = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    if (c->sha256 && c->gcm)
        return c;
    crypt_destroy(c);
    return NULL;
}

void crypt_destroy(struct crypt *c)
{
    if (!c)
        return;
    EVP_MD_free(c->sha256);
    EVP_CIPHER_free(c->gcm);
    free(c);
}

/* ---- HMAC (RFC 2104): libcrypto's own looks its algorithm up at each use ---- */

static bool digest(const struct crypt *c, EVP_MD_CTX *ctx, const uint8_t key[CRYPT_KEY], uint8_t pad, const struct iovec *parts, size_t count,
                   uint8_t out[CRYPT_KEY])
{
    uint8_t block[BLOCK];
    memset(block, pad, sizeof block);
    for (size_t i = 0; i < CRYPT_KEY; i++)
        block[i] ^= key[i];
    bool good = EVP_DigestInit_ex2(ctx, c->sha256, NULL) && EVP_DigestUpdate(ctx, block, sizeof block);
    for (size_t i = 0; good && i < count; i++)
        good = EVP_DigestUpdate(ctx, parts[i].iov_base, parts[i].iov_len);
    good = good && EVP_DigestFinal_ex(ctx, out, NULL);
    OPENSSL_cleanse(block, sizeof block);
    return good;
}

bool crypt_hmac(const struct crypt *c, const uint8_t key[CRYPT_KEY], const struct iovec *parts, size_t count, uint8_t out[CRYPT_KEY])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    uint8_t inner[CRYPT_KEY];
    struct iovec part = {inner, sizeof inner};
    bool good = ctx && digest(c, ctx, key, 0x36, parts, count, inner) && digest(c, ctx, key, 0x5c, &part, 1, out);
    EVP_MD_CTX_free(ctx); /* which wipes it */
    return good;
}

/* ---- AEAD ---- */

static bool pass(EVP_CIPHER_CTX *ctx, const uint8_t *in, size_t size, uint8_t *out)
{
    bool good = true;
    for (size_t at = 0; good && at < size;) {
        int done = 0, n = (int)(size - at < AT_MOST ? size - at : AT_MOST);
        good = EVP_CipherUpdate(ctx, out + at, &done, in + at, n) && done == n;
        at += (size_t)n;
    }
    return good;
}

static EVP_CIPHER_CTX *start(const struct crypt *c, const uint8_t *key, const uint8_t *nonce, const struct iovec *aad, int seal)
{
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    int done;
    if (ctx && EVP_CipherInit_ex2(ctx, c->gcm, key, nonce, seal, NULL) && EVP_CipherUpdate(ctx, NULL, &done, aad->iov_base, (int)aad->iov_len))
        return ctx;
    EVP_CIPHER_CTX_free(ctx);
    return NULL;
}

bool crypt_seal(const struct crypt *c, const uint8_t key[CRYPT_KEY], const uint8_t nonce[CRYPT_NONCE], const struct iovec *aad, const void *in,
                size_t size, void *out, uint8_t tag[CRYPT_TAG])
{
    int done;
    uint8_t none[16];
    EVP_CIPHER_CTX *ctx = start(c, key, nonce, aad, 1);
    bool good =
        ctx && pass(ctx, in, size, out) && EVP_CipherFinal_ex(ctx, none, &done) && EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, CRYPT_TAG, tag);
    EVP_CIPHER_CTX_free(ctx);
    return good;
}

bool crypt_open(const struct crypt *c, const uint8_t key[CRYPT_KEY], const uint8_t nonce[CRYPT_NONCE], const struct iovec *aad, const void *in,
                size_t size, void *out, const uint8_t tag[CRYPT_TAG])
{
    int done;
    uint8_t want[CRYPT_TAG], none[16];
    memcpy(want, tag, sizeof want);
    EVP_CIPHER_CTX *ctx = start(c, key, nonce, aad, 0);
    bool good =
        ctx && pass(ctx, in, size, out) && EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, CRYPT_TAG, want) && EVP_CipherFinal_ex(ctx, none, &done);
    EVP_CIPHER_CTX_free(ctx);
    if (!good)
        memset(out, 0, size);
    return good;
}

void crypt_random(void *out, size_t size)
{
    if (RAND_bytes(out, (int)size) != 1)
        abort();
}

void crypt_wipe(void *p, size_t size)
{
    OPENSSL_cleanse(p, size);
}
