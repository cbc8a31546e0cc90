// SPDX-License-Identifier: Apache-2.0
// The certificate authority of a tenant: guests trust it, and certificates for hosts with a credential are of it.
//
// Its key is derived from space-credd's own and the tenant's number, so it is the same on every node that can read the same credentials, and lies nowhere.
// Time is cut into epochs, each with a key of its own. A guest is given the certificates of the current and the next epoch, so that a new one is known long
// before it is used; ECDSA with P-256.
#ifndef SPACE_CREDD_CA_H
#define SPACE_CREDD_CA_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define CA_SECRET_BYTES 32u
#define CA_EPOCH_SEC    (180u * 86400u)
/* Of certificates for hosts. */
#define CA_LEAF_SEC  (14u * 86400u)
#define CA_RENEW_SEC (7u * 86400u) /* before their end */

struct ca;

uint64_t ca_epoch(int64_t now_sec);

/* 0 or -errno with a sentence. */
int ca_create(const uint8_t secret[CA_SECRET_BYTES], uint32_t tenant, uint64_t epoch, struct ca **out, struct err *e);
void ca_destroy(struct ca *ca);

/* What OpenSSL names it in a folder of certificates. */
uint32_t ca_name_hash(const struct ca *ca);
/* Its certificate, PEM; borrowed. */
const char *ca_certificate(const struct ca *ca);

/*
 * A certificate for `name` (a host's, lower case) that is good from a day before `now_sec` on, and its key: PEM, malloc'ed, NUL-ended; to be wiped. 0 or -errno.
 */
int ca_issue(const struct ca *ca, const char *name, int64_t now_sec, char **out, struct err *e);

#endif
