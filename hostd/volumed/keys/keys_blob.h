// SPDX-License-Identifier: Apache-2.0
// The wrapped form of a tenant's data key, byte by byte: docs/protocol/keys.md.
#ifndef SPACE_VOLUMED_KEYS_BLOB_H
#define SPACE_VOLUMED_KEYS_BLOB_H

#include "base/err.h"
#include "hostd/volumed/keys/keys.h"

#define BLOB_SIZE           264u
#define BLOB_AAD_SIZE       192u /* what the seal covers beside the key: all before the nonce */
#define BLOB_NONCE_SIZE     24u
#define BLOB_GCM_NONCE_SIZE 12u /* of the nonce; zeros follow */
#define BLOB_SEALED_SIZE    (KEYS_BYTES + 16u)
#define BLOB_ID_SIZE        16u

enum blob_kind { BLOB_REVOKED, BLOB_WRAPPED };

/* Who wraps, and how. The numbers are the format's. */
enum key_service_kind { SERVICE_FILE = 1 /* XChaCha20-Poly1305 */, SERVICE_PKCS11 = 2 /* AES-256-GCM */ };

struct blob {
    enum blob_kind kind;
    enum key_service_kind service;
    uint8_t id[BLOB_ID_SIZE];
    uint64_t created, wrapped; /* Unix seconds */
    char tenant[KEYS_TENANT_MAX + 1];
    char wrapping_key[KEYS_TENANT_MAX + 1]; /* its name at the service; "" when revoked */
    uint8_t nonce[BLOB_NONCE_SIZE];
    uint8_t sealed[BLOB_SEALED_SIZE];
};

/* The first BLOB_AAD_SIZE bytes, or all. */
void blob_write_head(const struct blob *b, uint8_t out[BLOB_AAD_SIZE]);
void blob_write(const struct blob *b, uint8_t out[BLOB_SIZE]);

/* -EBADMSG with a sentence when it is no blob of this version, or another tenant's; -EKEYREVOKED for one that says so. */
int blob_read(const uint8_t *bytes, size_t len, const char *tenant, struct blob *out, struct err *e);

#endif
