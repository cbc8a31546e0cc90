// SPDX-License-Identifier: Apache-2.0
// The audit log: see audit.h.
#include "hostd/noded/audit.h"

#include "base/log.h"
#include "base/str.h"

#include <uv.h>

static const char *kind_name(uint32_t kind)
{
    static const char *const names[] = {"-", [NODED_TEMPLATE] = "template", [NODED_SANDBOX] = "sandbox", [NODED_SNAPSHOT] = "snapshot"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : "?";
}

void audit(const char *op, const struct noded_request *q, int rc, uint64_t started, const char *sentence)
{
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {
        {"file", q->file},   {"flags", q->flags}, {"size", q->size}, {"memory", q->memory},
        {"vcpus", q->vcpus}, {"accel", q->accel}, {"slot", q->slot}, {"port", q->port},
    };
    char text[512] = "";
    size_t len = 0;
    if (q->kind2 || q->id2)
        str_append(text, sizeof text, &len, " from=%s/%012llx", kind_name(q->kind2), (unsigned long long)q->id2);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value)
            str_append(text, sizeof text, &len, " %s=%llu", fields[i].name, (unsigned long long)fields[i].value);
    log_info("audit: %s %s/%012llx%s result=%d usec=%llu%s%s", op, kind_name(q->kind), (unsigned long long)q->id, text, rc,
             (unsigned long long)((uv_hrtime() - started) / 1000), rc < 0 ? " " : "", rc < 0 ? sentence : "");
}
