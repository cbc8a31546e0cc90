// SPDX-License-Identifier: Apache-2.0
// The file of a tenant, and the key service that is a local file: lines `NAME = 64 hex digits`, each a wrapping key.
#include "base/str.h"
#include "hostd/volumed/keys/keys_service.h"
#include "hostd/volumed/secret_file.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

_Static_assert(crypto_aead_xchacha20poly1305_ietf_NPUBBYTES == BLOB_NONCE_SIZE, "the format's nonce");
_Static_assert(crypto_aead_xchacha20poly1305_ietf_ABYTES + KEYS_BYTES == BLOB_SEALED_SIZE, "the format's seal");

/* ---- the tenant's file ---- */

static int set_path(char out[PATH_MAX], const char *folder, const char *value)
{
    int n = value[0] == '/' ? snprintf(out, PATH_MAX, "%s", value) : snprintf(out, PATH_MAX, "%s/%s", folder, value);
    return value[0] && n < PATH_MAX ? 0 : -EINVAL;
}

static int set_choice(const char *value, const char *const names[], int first, int *out)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(value, names[i]) == 0) {
            *out = first + i;
            return 0;
        }
    return -EINVAL;
}

static int set_seconds(const char *value, unsigned *out)
{
    uint64_t seconds;
    if (str_parse_duration(value, &seconds) < 0 || !seconds || seconds > KEYS_CACHE_S)
        return -EINVAL;
    *out = (unsigned)seconds;
    return 0;
}

static int set_line(struct key_config *c, const char *folder, const char *key, const char *value)
{
    static const char *const services[] = {"file", "pkcs11", NULL}, *const policies[] = {"pause", "continue", "kill", NULL},
                             *const unpacked[] = {"keep", "destroy", NULL};
    int n, rc;
    if (strcmp(key, "service") == 0) {
        if ((rc = set_choice(value, services, SERVICE_FILE, &n)) == 0)
            c->service = (enum key_service_kind)n;
        return rc;
    }
    if (strcmp(key, "revoked") == 0) {
        if ((rc = set_choice(value, policies, KEYS_PAUSE, &n)) == 0)
            c->revoked = (enum keys_policy)n;
        return rc;
    }
    if (strcmp(key, "unpacked") == 0) {
        if ((rc = set_choice(value, unpacked, KEYS_KEEP, &n)) == 0)
            c->unpacked = (enum keys_unpacked)n;
        return rc;
    }
    if (strcmp(key, "cache") == 0)
        return set_seconds(value, &c->cache_s);
    if (strcmp(key, "patience") == 0)
        return set_seconds(value, &c->patience_s);
    if (strcmp(key, "file") == 0)
        return set_path(c->file, folder, value);
    if (strcmp(key, "module") == 0)
        return set_path(c->module, folder, value);
    if (strcmp(key, "pin") == 0)
        return set_path(c->pin, folder, value);
    if (strcmp(key, "key") == 0 && str_name_valid(value, strlen(value))) {
        str_copy(c->key, sizeof c->key, value);
        return 0;
    }
    if (strcmp(key, "token") == 0 && value[0] && strlen(value) < sizeof c->token) {
        str_copy(c->token, sizeof c->token, value);
        return 0;
    }
    return -EINVAL;
}

static int parse(char *text, const char *folder, const char *path, struct key_config *c, struct err *e)
{
    char *key = text, *value = text;
    int rc;
    while ((rc = secret_file_next(&text, &key, &value)) == 1)
        if (set_line(c, folder, key, value) < 0)
            return err_set(e, EINVAL, "%s: '%.64s' is no key of such a file, or has no such value", path, key);
    if (rc < 0)
        return err_set(e, EINVAL, "%s: lines are `key = value`", path);
    bool file = c->file[0], hsm = c->module[0] && c->token[0] && c->pin[0];
    if (!c->key[0] || (c->service == SERVICE_FILE ? !file : c->service == SERVICE_PKCS11 ? !hsm : true))
        return err_set(e, EINVAL, "%s needs service = file, key and file, or service = pkcs11, key, module, token and pin", path);
    return 0;
}

int key_config_load(const char *folder, const char *tenant, struct key_config *out, struct err *e)
{
    char path[PATH_MAX], *text;
    *out = (struct key_config){0};
    if (snprintf(path, sizeof path, "%s/%s.key", folder, tenant) >= (int)sizeof path)
        return err_set(e, EINVAL, "%s is too long", folder);
    int rc = secret_file_read(path, &text, e);
    if (rc == -ENOENT) {
        snprintf(path, sizeof path, "%s/default.key", folder);
        rc = secret_file_read(path, &text, e);
    }
    if (rc == -ENOENT)
        return err_set(e, ENOKEY, "tenant %s has no key service: there is neither %s/%s.key nor %s", tenant, folder, tenant, path);
    if (rc < 0)
        return rc;
    rc = parse(text, folder, path, out, e);
    sodium_free(text);
    return rc;
}

/* ---- the service ---- */

/* The key `name` in the text of the file. */
static int find_key(char *text, const char *name, uint8_t out[KEYS_BYTES])
{
    char *key, *value;
    int rc;
    size_t n = 0;
    while ((rc = secret_file_next(&text, &key, &value)) == 1)
        if (strcmp(key, name) == 0)
            return sodium_hex2bin(out, KEYS_BYTES, value, strlen(value), NULL, &n, NULL) == 0 && n == KEYS_BYTES &&
                           strlen(value) == 2 * (size_t)KEYS_BYTES
                       ? 0
                       : -EINVAL;
    return rc < 0 ? rc : -EKEYREVOKED;
}

/* Into memory of sodium_malloc, to be freed. */
static int load_key(const struct key_config *c, const struct blob *b, uint8_t **out, struct err *e)
{
    char *text;
    if (!c->file[0])
        return err_set(e, EKEYREVOKED, "the key of tenant %s was wrapped by a file, but its configuration names none any more", b->tenant);
    int rc = secret_file_read(c->file, &text, e);
    if (rc == -ENOENT)
        return err_set(e, EKEYREVOKED, "the file with the wrapping keys of tenant %s is gone: %s", b->tenant, c->file);
    if (rc < 0)
        return rc;
    uint8_t *key = secret_alloc(KEYS_BYTES);
    rc = key ? find_key(text, b->wrapping_key, key) : -ENOMEM;
    sodium_free(text);
    if (rc == 0) {
        *out = key;
        return 0;
    }
    sodium_free(key);
    if (rc == -EKEYREVOKED)
        return err_set(e, EKEYREVOKED, "the wrapping key '%s' of tenant %s is not in %s any more", b->wrapping_key, b->tenant, c->file);
    if (rc == -EINVAL)
        return err_set(e, EINVAL, "%s: lines are `NAME = ` and 64 hexadecimal digits", c->file);
    return err_set(e, ENOMEM, "no memory that can be locked (see RLIMIT_MEMLOCK)");
}

int key_file_wrap(const struct key_config *c, struct blob *b, const uint8_t *key, struct err *e)
{
    uint8_t aad[BLOB_AAD_SIZE], *wrapping = NULL;
    int rc = load_key(c, b, &wrapping, e);
    if (rc < 0)
        return rc;
    blob_write_head(b, aad);
    randombytes_buf(b->nonce, sizeof b->nonce);
    crypto_aead_xchacha20poly1305_ietf_encrypt(b->sealed, NULL, key, KEYS_BYTES, aad, sizeof aad, NULL, b->nonce, wrapping);
    sodium_free(wrapping);
    return 0;
}

int key_file_unwrap(const struct key_config *c, const struct blob *b, uint8_t *key, struct err *e)
{
    uint8_t aad[BLOB_AAD_SIZE], *wrapping = NULL;
    int rc = load_key(c, b, &wrapping, e);
    if (rc < 0)
        return rc;
    blob_write_head(b, aad);
    rc = crypto_aead_xchacha20poly1305_ietf_decrypt(key, NULL, NULL, b->sealed, sizeof b->sealed, aad, sizeof aad, b->nonce, wrapping);
    sodium_free(wrapping);
    if (rc != 0)
        return err_set(e, EBADMSG, "the wrapped key of tenant %s is damaged, or '%s' in %s is not the key that it was wrapped by", b->tenant,
                       b->wrapping_key, c->file);
    return 0;
}

/* ---- either service ---- */

int key_wrap(const struct key_config *c, struct blob *b, const uint8_t *key, struct err *e)
{
    return b->service == SERVICE_FILE ? key_file_wrap(c, b, key, e) : key_pkcs11_wrap(c, b, key, e);
}

int key_unwrap(const struct key_config *c, const struct blob *b, uint8_t *key, struct err *e)
{
    return b->service == SERVICE_FILE ? key_file_unwrap(c, b, key, e) : key_pkcs11_unwrap(c, b, key, e);
}
