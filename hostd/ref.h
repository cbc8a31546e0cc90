// SPDX-License-Identifier: Apache-2.0
// Refs: the one line that a `head` reads and takes (docs/tree.md): template/ID, snapshot/ID, sandbox/ID@N.
#ifndef SPACE_HOSTD_REF_H
#define SPACE_HOSTD_REF_H

#include <stddef.h>
#include <stdint.h>

enum ref_kind { REF_NONE, REF_TEMPLATE, REF_SNAPSHOT, REF_SANDBOX };

struct ref {
    enum ref_kind kind;
    uint64_t id;
    uint64_t generation; /* of a sandbox: valid while it is the current one */
};

#define REF_TEXT_MAX 64

/* `text` without a newline. 0 or -EINVAL. */
int ref_parse(const char *text, struct ref *out);
/* `out` holds REF_TEXT_MAX bytes; "" for REF_NONE. Returns out. */
char *ref_format(const struct ref *r, char out[REF_TEXT_MAX]);

#endif
