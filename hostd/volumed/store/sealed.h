// SPDX-License-Identifier: Apache-2.0
// Small objects, encrypted as a whole: manifests, indexes, claims, condemnations. docs/protocol/store.md, "Sealed objects". No I/O.
#ifndef SPACE_VOLUMED_SEALED_H
#define SPACE_VOLUMED_SEALED_H

#include "hostd/volumed/store/chunk.h"
#include "hostd/volumed/store/pack.h"

#define SEALED_HEADER 96u
#define SEALED_MAX    (64u << 20)

enum sealed_kind { SEALED_MANIFEST = 1, SEALED_INDEX = 2, SEALED_CLAIM = 3, SEALED_CONDEMNED = 4 };

/* Seals `size` bytes that lie at object + SEALED_HEADER, in place, and writes the header before them. `id` is of the object's name. False: out of memory. */
bool sealed_close(const struct chunk_keys *k, enum sealed_kind kind, const struct object_id *id, const uint8_t key_id[16],
                  const uint8_t nonce[CRYPT_NONCE], uint8_t *object, size_t size);
/* Opens an object of `total` bytes in place: the body is at object + SEALED_HEADER, total - SEALED_HEADER bytes. 0; -EBADMSG not that object; -ENOMEM. */
int sealed_open(const struct chunk_keys *k, enum sealed_kind kind, const struct object_id *id, uint8_t *object, size_t total);

#endif
