// SPDX-License-Identifier: Apache-2.0
// The master key: see master.h.
#include "hostd/credd/master.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "hostd/credd/file.h"
#include "hostd/volumed/keys/keys_service.h"
#include "hostd/volumed/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TENANT  "credentials" /* whose key it is, for the service */
#define CONTEXT "spccred1"    /* of crypto_kdf */

_Static_assert(sizeof((struct master *)0)->blob >= BLOB_SIZE, "the wrapped key");
_Static_assert(MASTER_BYTES == KEYS_BYTES && MASTER_BYTES == crypto_kdf_KEYBYTES && MASTER_BYTES == crypto_box_SECRETKEYBYTES &&
                   MASTER_BYTES == crypto_box_PUBLICKEYBYTES && MASTER_BYTES == crypto_box_SEEDBYTES && sizeof CONTEXT - 1 == crypto_kdf_CONTEXTBYTES,
               "sizes of keys");

/* ---- derived keys ---- */

static int derive(struct master *m, const uint8_t *key, struct err *e)
{
    struct master_keys *k = secret_alloc(sizeof *k);
    uint8_t *seed = secret_alloc(MASTER_BYTES);
    if (!k || !seed) {
        if (k)
            sodium_free(k);
        return err_set(e, ENOMEM, "no memory that can be locked for the master key (see RLIMIT_MEMLOCK)");
    }
    crypto_kdf_derive_from_key(k->record, MASTER_BYTES, 1, CONTEXT, key);
    crypto_kdf_derive_from_key(k->value, MASTER_BYTES, 2, CONTEXT, key);
    crypto_kdf_derive_from_key(seed, MASTER_BYTES, 3, CONTEXT, key);
    crypto_box_seed_keypair(k->box_public, k->box_secret, seed);
    sodium_free(seed);
    m->keys = k;
    return 0;
}

/* ---- the wrapped key ---- */

/* By the service and the wrapping key that the file names now. */
static int wrap(struct master *m, const struct key_config *c, struct blob *b, const uint8_t *key, struct err *e)
{
    b->service = c->service;
    b->wrapped = (uint64_t)time(NULL);
    str_copy(b->wrapping_key, sizeof b->wrapping_key, c->key);
    int rc = key_wrap(c, b, key, e);
    if (rc < 0)
        return rc;
    blob_write(b, m->blob);
    m->blob_len = BLOB_SIZE;
    return 0;
}

/* Whoever wrapped it is asked; then it is wrapped anew, when that is not who should. */
static int unwrap(struct master *m, const struct key_config *c, const uint8_t *bytes, size_t len, uint8_t *key, struct err *e)
{
    struct blob b;
    int rc = blob_read(bytes, len, TENANT, &b, e);
    if (rc == 0)
        rc = key_unwrap(c, &b, key, e);
    if (rc < 0 || (b.service == c->service && !strcmp(b.wrapping_key, c->key)))
        return rc;
    return wrap(m, c, &b, key, e);
}

static int make(struct master *m, const struct key_config *c, uint8_t *key, struct err *e)
{
    struct blob b = {.kind = BLOB_WRAPPED, .created = (uint64_t)time(NULL)};
    randombytes_buf(b.id, sizeof b.id);
    randombytes_buf(key, MASTER_BYTES);
    str_copy(b.tenant, sizeof b.tenant, TENANT);
    return wrap(m, c, &b, key, e);
}

/* 0 with *ret_len 0: there is none yet. */
static int read_blob(const char *state, uint8_t out[KEYS_BLOB_MAX], size_t *ret_len, struct err *e)
{
    char path[300];
    snprintf(path, sizeof path, "%s/master", state);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t n = fd < 0 ? -1 : read(fd, out, KEYS_BLOB_MAX);
    if (n < 0 && errno != ENOENT)
        return err_sys(e, "read %s", path);
    *ret_len = n < 0 ? 0 : (size_t)n;
    return n == 0 ? err_set(e, EBADMSG, "%s is empty: without it no credential can be read", path) : 0;
}

static int obtain(struct master *m, const struct key_config *c, const char *state, struct err *e)
{
    uint8_t blob[KEYS_BLOB_MAX], *key = secret_alloc(MASTER_BYTES);
    size_t len = 0;
    int rc = key ? read_blob(state, blob, &len, e) : err_set(e, ENOMEM, "no memory that can be locked for the master key (see RLIMIT_MEMLOCK)");
    if (rc == 0)
        rc = len ? unwrap(m, c, blob, len, key, e) : make(m, c, key, e);
    if (rc == 0)
        rc = derive(m, key, e);
    if (key)
        sodium_free(key);
    return rc;
}

/* Nobody else's code runs as root: a token's module waits. */
static bool is_by_file(const struct key_config *c, const char *state)
{
    uint8_t bytes[KEYS_BLOB_MAX];
    struct blob b;
    size_t len = 0;
    if (c->service != SERVICE_FILE || read_blob(state, bytes, &len, NULL) < 0)
        return false;
    return len == 0 || (blob_read(bytes, len, TENANT, &b, NULL) == 0 && b.service == SERVICE_FILE);
}

int master_start(struct master *m, const char *folder, const char *state, struct err *e)
{
    struct key_config c;
    struct err mine = {0};
    int rc = key_config_load(folder, TENANT, &c, &mine);
    if (rc == 0 && is_by_file(&c, state))
        rc = obtain(m, &c, state, &mine);
    if (rc == -EACCES) /* the daemon's own user's: it reads them itself, and says what is wrong */
        return 0;
    if (rc < 0 && e)
        *e = mine;
    return rc;
}

/* spacefs reads it there: space-hostd could not put another one in its place. */
static int publish(const struct master *m, const char *state, struct err *e)
{
    char path[300], text[64];
    snprintf(path, sizeof path, "%s/public", state);
    sodium_bin2base64(text, sizeof text - 1, m->keys->box_public, MASTER_BYTES, sodium_base64_VARIANT_ORIGINAL);
    strcat(text, "\n");
    return file_replace(path, text, strlen(text), 0444, e);
}

int master_open(struct master *m, const char *folder, const char *state, struct err *e)
{
    struct key_config c;
    char path[300];
    int rc = m->keys ? 0 : key_config_load(folder, TENANT, &c, e);
    if (rc == 0 && !m->keys)
        rc = obtain(m, &c, state, e);
    snprintf(path, sizeof path, "%s/master", state);
    if (rc == 0 && m->blob_len)
        rc = file_replace(path, m->blob, m->blob_len, 0600, e);
    m->blob_len = 0;
    return rc < 0 ? rc : publish(m, state, e);
}
