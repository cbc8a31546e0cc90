// SPDX-License-Identifier: Apache-2.0
// Values in the records themselves: XChaCha20-Poly1305, a nonce of 24 bytes before what is encrypted, bound to the credential's id.
#include "hostd/credd/backend.h"
#include "hostd/credd/master.h"
#include "hostd/volumed/secret_file.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define NONCE crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
#define TAG   crypto_aead_xchacha20poly1305_ietf_ABYTES

_Static_assert(CREDD_VALUE_MAX + NONCE + TAG <= BACKEND_BOX_MAX, "a box");

struct local {
    struct backend b;
    const struct master_keys *keys;
    uint8_t *plain; /* CREDD_VALUE_MAX, locked */
};

static void put(struct backend *b, const struct credd_record *rec, const void *value, size_t len, backend_done *done, void *user)
{
    const struct local *l = (struct local *)(void *)b;
    uint8_t box[BACKEND_BOX_MAX];
    unsigned long long size = 0;
    struct backend_result r = {.bytes = box};
    randombytes_buf(box, NONCE);
    crypto_aead_xchacha20poly1305_ietf_encrypt(box + NONCE, &size, value, len, (const uint8_t *)&rec->id, sizeof rec->id, NULL, box, l->keys->value);
    r.len = NONCE + (size_t)size;
    done(user, &r);
}

static void get(struct backend *b, const struct credd_record *rec, const void *box, size_t len, backend_done *done, void *user)
{
    const struct local *l = (struct local *)(void *)b;
    const uint8_t *bytes = box;
    unsigned long long size = 0;
    struct backend_result r = {.bytes = l->plain};
    if (len <= NONCE + TAG || len > CREDD_VALUE_MAX + NONCE + TAG ||
        crypto_aead_xchacha20poly1305_ietf_decrypt(l->plain, &size, NULL, bytes + NONCE, len - NONCE, (const uint8_t *)&rec->id, sizeof rec->id,
                                                   bytes, l->keys->value) < 0)
        r.rc = err_set(&r.e, EBADMSG, "the value of credential %s cannot be decrypted", rec->name);
    r.len = (size_t)size;
    done(user, &r);
    sodium_memzero(l->plain, r.len); /* none, when it is not authentic: libsodium sees to it */
}

static void remove_(struct backend *b, const struct credd_record *rec, backend_done *done, void *user)
{
    const struct backend_result r = {0}; /* it went with its record */
    (void)b, (void)rec;
    done(user, &r);
}

struct backend *backend_local_create(const struct master_keys *keys, struct err *e)
{
    static const struct backend_ops ops = {"local", put, get, remove_};
    struct local *l = calloc(1, sizeof *l);
    if (!l || !(l->plain = secret_alloc(CREDD_VALUE_MAX))) {
        free(l);
        err_set(e, ENOMEM, "no memory that can be locked for values (see RLIMIT_MEMLOCK)");
        return NULL;
    }
    l->b.ops = &ops;
    l->keys = keys;
    return &l->b;
}
