// SPDX-License-Identifier: Apache-2.0
// The audit log: lines of JSON, each with the hash of the one before. docs/protocol/credd.md says what is in them.
//
// FOLDER/NNNNNNNNNNNNNNNN.jsonl, named by the number of their first line; a new one begins each day (UTC), and when one is large. `hash` is the SHA-256 of the line up to `,"hash"`, and `prev` that of the line before: who
// changes, removes or inserts a line changes all hashes from there on, and the last one is told by space-credd (CREDD_AUDIT).
#ifndef SPACE_CREDD_AUDIT_H
#define SPACE_CREDD_AUDIT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define AUDIT_HASH     32u
#define AUDIT_TEXT_MAX 480u /* bytes of `text` that are kept */
#define AUDIT_LINE_MAX 4096u

struct audit;

struct audit_end {
    uint64_t lines;           /* the number of the last one */
    uint64_t first;           /* audit_verify: of the oldest that is there; those before were archived, or taken away, */
    bool dropped;             /* and a line says that they were as old as the administrator wanted, with the hash of the last */
    uint8_t hash[AUDIT_HASH]; /* of the last one; zeros: there is none */
};

/* Makes the folder's first file when there is none, cuts an incomplete last line off. `loop` (may be NULL: never) writes lines to the disk soon after; audit_sync at once.
 * `days` (0: for ever): files that were last written so long ago are removed whenever a new one begins; a line of kind `drop` says so. */
int audit_open(uv_loop_t *loop, const char *folder, unsigned days, struct audit **out, struct err *e);
void audit_close(struct audit *a);

/* credd.h */
int audit_note(struct audit *a, const char *kind, uint64_t credential, uint64_t sandbox, uint32_t uid, uint64_t count, const char *text);
/* What was noted is on the disk. 0 or -errno. */
int audit_sync(struct audit *a);
struct audit_end audit_end(const struct audit *a);

/* Calls back for the last lines (at most `bytes`), oldest first, without their newlines. */
int audit_tail(const char *folder, size_t bytes, void (*each)(void *user, const char *line), void *user, struct err *e);
/* The value of a member of a line of ours: text unquoted (escapes stay), or a number's digits. False: not there. */
bool audit_member(const char *line, const char *name, char *out, size_t size);

/* Reads all files. 0; -EBADMSG with a sentence that names the first broken line; another error. `out` is where the good part ends. */
int audit_verify(const char *folder, struct audit_end *out, struct err *e);

#endif
