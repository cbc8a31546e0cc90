// SPDX-License-Identifier: Apache-2.0
// Values in Vault: see backend_vault.c, and docs/credentials.md for the file.
#ifndef SPACE_CREDD_BACKEND_VAULT_H
#define SPACE_CREDD_BACKEND_VAULT_H

#include "hostd/credd/backend.h"

/* `file` says where it is; `keys` encrypt what is kept for a while, and outlive it. NULL with a sentence. */
struct backend *backend_vault_create(uv_loop_t *loop, const char *file, const struct master_keys *keys, struct err *e);

#endif
