// SPDX-License-Identifier: Apache-2.0
// Services that wrap data keys, blocking, for a thread; and the file that says which one a tenant has.
#ifndef SPACE_VOLUMED_KEYS_SERVICE_H
#define SPACE_VOLUMED_KEYS_SERVICE_H

#include "hostd/volumed/keys/keys_blob.h"

#include <limits.h>

/* A tenant's file. Empty texts: not given. */
struct key_config {
    enum key_service_kind service;        /* that wraps from now on; the other one is still asked for what it wrapped */
    char key[KEYS_TENANT_MAX + 1];        /* name of the wrapping key that is used from now on */
    char file[PATH_MAX];                  /* of the service `file` */
    char module[PATH_MAX], pin[PATH_MAX]; /* of the service `pkcs11` */
    char token[33];
    unsigned patience_s; /* how long a token may take; 0: the default of keys.c */
    unsigned cache_s;    /* seconds that an unwrapped key is kept; 0: KEYS_CACHE_S, which is the most */
    enum keys_policy revoked;
    enum keys_unpacked unpacked;
};

/* FOLDER/TENANT.key, else FOLDER/default.key. Paths in it that are not absolute are below FOLDER. -ENOKEY, -EACCES, -EINVAL with a sentence. */
int key_config_load(const char *folder, const char *tenant, struct key_config *out, struct err *e);

/*
 * Wraps `key` (KEYS_BYTES) with the wrapping key `b->wrapping_key` of the service `b->service`: fills in nonce and sealed; all else of `b` is set and
 * sealed with it. Or unwraps into `key`, which the caller gave locked memory. Errors: those of struct keys_result.
 */
int key_wrap(const struct key_config *c, struct blob *b, const uint8_t *key, struct err *e);
int key_unwrap(const struct key_config *c, const struct blob *b, uint8_t *key, struct err *e);

int key_file_wrap(const struct key_config *c, struct blob *b, const uint8_t *key, struct err *e);
int key_file_unwrap(const struct key_config *c, const struct blob *b, uint8_t *key, struct err *e);

/* One at a time. Modules stay loaded. */
int key_pkcs11_wrap(const struct key_config *c, struct blob *b, const uint8_t *key, struct err *e);
int key_pkcs11_unwrap(const struct key_config *c, const struct blob *b, uint8_t *key, struct err *e);

#endif
