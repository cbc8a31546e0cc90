// SPDX-License-Identifier: Apache-2.0
// What a tenant's guests may cause in the audit log: so many lines a minute, and a count of the
// rest. docs/protocol/credd.md says what the lines look like.
#ifndef SPACE_CREDD_AUDIT_TALLY_H
#define SPACE_CREDD_AUDIT_TALLY_H

#include "base/err.h"
#include "hostd/credd/audit.h"

#include <stdint.h>
#include <uv.h>

struct audit_tally;

/* `lines`: of a tenant in a minute. `loop` may be NULL: then counts are written when they are next
 * looked at only. */
int audit_tally_create(uv_loop_t *loop, struct audit *a, uint32_t lines, struct audit_tally **out, struct err *e);
/* Writes what is counted, and frees all. */
void audit_tally_close(struct audit_tally *t);

/* As audit_note, for uses and refusals: beyond the tenant's lines it is counted. */
int audit_tally_note(struct audit_tally *t, const char *kind, uint64_t credential, uint64_t sandbox, uint32_t uid, uint64_t count, const char *text);
/* For changes that a tenant asks for: -EAGAIN when there were as many in this minute. */
int audit_tally_change(struct audit_tally *t, uint32_t uid);

#endif
