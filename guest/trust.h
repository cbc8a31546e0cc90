// SPDX-License-Identifier: Apache-2.0
// The CA that the host ends TLS with for hosts that have a credential: where programs of the guest look for CAs.
#ifndef SPACE_GUEST_TRUST_H
#define SPACE_GUEST_TRUST_H

#include "guest/agent.h"

#define TRUST_MAX 16384u /* bytes of certificates */

/*
 * A Twrite of PEM certificates: the guest trusts these in place of what it was told before. Answered when all files have them; at once when they are the same as
 * before. Each certificate may have a line `# hash XXXXXXXX` before it: OpenSSL's hash of its name, for folders of certificates.
 */
void trust_write(struct agent *a, struct p9_request *r);

/* In the child that becomes a job: variables for programs with a bundle of their own, unless they are set. Reads the guest's files. */
void trust_set_environment(void);

#endif
