// SPDX-License-Identifier: Apache-2.0
// The audit log: a line on standard error for each request.
#ifndef SPACE_NODED_AUDIT_H
#define SPACE_NODED_AUDIT_H

#include "ipc/noded.h"

/*
 * "audit: OP KIND/ID [FIELD=VALUE ...] result=N usec=N [SENTENCE]": what was asked, on what, with
 * the fields that are not 0, how it ended, how long it took since `started` (uv_hrtime).
 */
void audit(const char *op, const struct noded_request *q, int rc, uint64_t started, const char *sentence);

#endif
