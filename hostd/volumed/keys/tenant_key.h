// SPDX-License-Identifier: Apache-2.0
// Unwrapped keys in memory: derived, protected, ended. What keys.h says of struct tenant_key, and what keys.c needs beside it.
#ifndef SPACE_VOLUMED_TENANT_KEY_H
#define SPACE_VOLUMED_TENANT_KEY_H

#include "hostd/volumed/keys/keys_blob.h"

#include <stdbool.h>

/* CLOCK_BOOTTIME in seconds: goes on while the host sleeps. */
uint64_t tenant_key_clock(void);

/* Derives the keys from `data_key`; one reference. They end at `expires` (tenant_key_clock). NULL when no memory can be locked. */
struct tenant_key *tenant_key_create(const uint8_t data_key[KEYS_BYTES], const uint8_t id[BLOB_ID_SIZE], uint64_t expires);

/* Nobody enters any more; wiped now, or when the last one leaves. */
void tenant_key_end(struct tenant_key *key);

uint64_t tenant_key_expires(struct tenant_key *key);
/* The service gave it again: it ends then, unless it has ended already. */
void tenant_key_prolong(struct tenant_key *key, uint64_t expires);

/* The derivation itself, for its test vectors. */
void tenant_key_derive(const uint8_t data_key[KEYS_BYTES], const uint8_t id[BLOB_ID_SIZE], struct tenant_subkeys *out);

#endif
