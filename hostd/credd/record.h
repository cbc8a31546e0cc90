// SPDX-License-Identifier: Apache-2.0
// A credential as bytes, encrypted and authenticated: what a file of the store holds, and what goes to another node. docs/protocol/credd.md has the format.
#ifndef SPACE_CREDD_RECORD_H
#define SPACE_CREDD_RECORD_H

#include "hostd/credd/backend.h"

#include <sodium.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_HEAD  32u
#define RECORD_NONCE crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
#define RECORD_TAG   crypto_aead_xchacha20poly1305_ietf_ABYTES
#define RECORD_MAX   (RECORD_HEAD + RECORD_NONCE + BACKEND_BOX_MAX + sizeof(struct credd_record) + RECORD_TAG)

/* `out` has RECORD_MAX bytes; how many of them it is. `len`: of the box, at most BACKEND_BOX_MAX; 0: none. */
size_t record_encode(const struct master_keys *keys, const struct credd_record *rec, const void *box, size_t len, uint8_t *out);

/* The box is inside of `bytes`. -ENOKEY: it is of another master key; -EBADMSG: it is damaged, or none. */
int record_decode(const struct master_keys *keys, const uint8_t *bytes, size_t size, struct credd_record *out, const uint8_t **ret_box,
                  size_t *ret_len);

#endif
