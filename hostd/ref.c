// SPDX-License-Identifier: Apache-2.0
// Refs as text: see ref.h.
#include "hostd/ref.h"

#include "base/str.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {[REF_TEMPLATE] = "template", [REF_SNAPSHOT] = "snapshot", [REF_SANDBOX] = "sandbox"};

int ref_parse(const char *text, struct ref *out)
{
    const char *slash = strchr(text, '/');
    *out = (struct ref){0};
    for (int k = REF_TEMPLATE; slash && k <= REF_SANDBOX; k++)
        if (strlen(kinds[k]) == (size_t)(slash - text) && !memcmp(text, kinds[k], (size_t)(slash - text)))
            out->kind = (enum ref_kind)k;
    if (out->kind == REF_NONE || strnlen(slash + 1, 12) < 12 || str_parse_id(slash + 1, 12, &out->id) < 0)
        return -EINVAL;
    const char *rest = slash + 13;
    if (out->kind != REF_SANDBOX)
        return *rest ? -EINVAL : 0;
    return *rest == '@' && str_parse_u64(rest + 1, INT64_MAX, &out->generation) == 0 ? 0 : -EINVAL;
}

char *ref_format(const struct ref *r, char out[REF_TEXT_MAX])
{
    if (r->kind == REF_NONE)
        out[0] = 0;
    else if (r->kind == REF_SANDBOX)
        snprintf(out, REF_TEXT_MAX, "sandbox/%012" PRIx64 "@%" PRIu64, r->id, r->generation);
    else
        snprintf(out, REF_TEXT_MAX, "%s/%012" PRIx64, kinds[r->kind], r->id);
    return out;
}
