// SPDX-License-Identifier: Apache-2.0
// Wrapped keys: see keys_blob.h.
#include "hostd/volumed/keys/keys_blob.h"

#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define VERSION 1u

static const char magic[8] = {'s', 'p', 'a', 'c', 'k', 'e', 'y', '\n'};

static void put_le(uint8_t *p, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_le(const uint8_t *p, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

void blob_write_head(const struct blob *b, uint8_t out[BLOB_AAD_SIZE])
{
    memset(out, 0, BLOB_AAD_SIZE);
    memcpy(out, magic, sizeof magic);
    put_le(out + 8, VERSION, 4);
    put_le(out + 12, b->kind, 4);
    memcpy(out + 16, b->id, BLOB_ID_SIZE);
    put_le(out + 32, b->created, 8);
    put_le(out + 40, b->wrapped, 8);
    put_le(out + 48, b->service, 4);
    put_le(out + 52, strlen(b->tenant), 4);
    put_le(out + 56, strlen(b->wrapping_key), 4);
    memcpy(out + 64, b->tenant, strlen(b->tenant));
    memcpy(out + 128, b->wrapping_key, strlen(b->wrapping_key));
}

void blob_write(const struct blob *b, uint8_t out[BLOB_SIZE])
{
    blob_write_head(b, out);
    memcpy(out + BLOB_AAD_SIZE, b->nonce, BLOB_NONCE_SIZE);
    memcpy(out + BLOB_AAD_SIZE + BLOB_NONCE_SIZE, b->sealed, BLOB_SEALED_SIZE);
}

/* A name with its length; zeros behind it. */
static bool read_name(const uint8_t *field, uint64_t len, char out[KEYS_TENANT_MAX + 1])
{
    if (len > KEYS_TENANT_MAX || !str_name_valid((const char *)field, (size_t)len))
        return false;
    for (size_t i = (size_t)len; i < KEYS_TENANT_MAX; i++)
        if (field[i])
            return false;
    memcpy(out, field, (size_t)len);
    out[len] = 0;
    return true;
}

void keys_wrapped_by(const char *tenant, const uint8_t *blob, size_t len, char out[KEYS_TENANT_MAX + 16])
{
    struct blob b;
    struct err e = {0};
    out[0] = 0;
    if (blob_read(blob, len, tenant, &b, &e) == 0)
        snprintf(out, KEYS_TENANT_MAX + 16, "%s %s", b.service == SERVICE_FILE ? "file" : "pkcs11", b.wrapping_key);
}

int blob_read(const uint8_t *p, size_t len, const char *tenant, struct blob *out, struct err *e)
{
    *out = (struct blob){0};
    if (len != BLOB_SIZE || memcmp(p, magic, sizeof magic) != 0)
        return err_set(e, EBADMSG, "the wrapped key of tenant %s is damaged: it is no wrapped key", tenant);
    uint8_t again[BLOB_SIZE];
    uint64_t version = get_le(p + 8, 4), kind = get_le(p + 12, 4), service = get_le(p + 48, 4);
    if (version != VERSION)
        return err_set(e, EBADMSG, "the wrapped key of tenant %s has version %llu; this program reads version %u", tenant,
                       (unsigned long long)version, VERSION);
    if (!read_name(p + 64, get_le(p + 52, 4), out->tenant) || strcmp(out->tenant, tenant) != 0)
        return err_set(e, EBADMSG, "the wrapped key that is stored for tenant %s is not its own", tenant);
    if (kind == BLOB_REVOKED)
        return err_set(e, EKEYREVOKED, "the key of tenant %s was revoked", tenant);
    if (kind != BLOB_WRAPPED || (service != SERVICE_FILE && service != SERVICE_PKCS11) || !read_name(p + 128, get_le(p + 56, 4), out->wrapping_key))
        return err_set(e, EBADMSG, "the wrapped key of tenant %s is damaged", tenant);
    out->kind = BLOB_WRAPPED;
    out->service = (enum key_service_kind)service;
    out->created = get_le(p + 32, 8);
    out->wrapped = get_le(p + 40, 8);
    memcpy(out->id, p + 16, BLOB_ID_SIZE);
    memcpy(out->nonce, p + BLOB_AAD_SIZE, BLOB_NONCE_SIZE);
    memcpy(out->sealed, p + BLOB_AAD_SIZE + BLOB_NONCE_SIZE, BLOB_SEALED_SIZE);
    if (service == SERVICE_PKCS11)
        memset(out->nonce + BLOB_GCM_NONCE_SIZE, 0, BLOB_NONCE_SIZE - BLOB_GCM_NONCE_SIZE);
    blob_write(out, again);
    if (memcmp(again, p, BLOB_SIZE) != 0) /* what has no meaning is zero */
        return err_set(e, EBADMSG, "the wrapped key of tenant %s is damaged", tenant);
    return 0;
}
