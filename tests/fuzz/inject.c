// SPDX-License-Identifier: Apache-2.0
// Fuzz target: what HAProxy says, which speaks with guests and servers: frames for space-credd, headers for space-netd. The first byte chooses.
#include "fuzz/target.h"
#include "hostd/credd/spoe.h"
#include "hostd/netd/proxy.h"

#include <stdlib.h>
#include <string.h>

static void must_hold(int holds)
{
    if (!holds)
        abort();
}

static void must_be_inside(struct spoe_text t, const uint8_t *data, size_t size)
{
    must_hold(t.len == 0 || ((const uint8_t *)t.s >= data && (const uint8_t *)t.s + t.len <= data + size));
}

static void try_frame(const uint8_t *data, size_t size)
{
    struct spoe_frame f;
    if (spoe_read(data, size, &f) < 0)
        return;
    must_be_inside(f.id, data, size);
    must_be_inside(f.name, data, size);
    must_be_inside(f.method, data, size);
    uint8_t buf[512];
    struct spoe_writer w = {.buf = buf, .size = sizeof buf};
    spoe_ack_begin(&w, f.stream, f.frame);
    spoe_ack_text(&w, "value", f.name.s, f.name.len);
    spoe_ack_end(&w);
    must_hold(w.bad || w.len <= sizeof buf);
}

static void try_header(const uint8_t *data, size_t size)
{
    char id[INJECT_ID_LEN + 1];
    size_t n = size < PROXY_HEAD ? 0 : proxy_size(data);
    must_hold(n <= PROXY_MAX);
    if (n && n <= size && proxy_read_id(data, n, id) == 0)
        must_hold(strlen(id) == INJECT_ID_LEN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (data[0] % 2 == 0)
        try_frame(data + 1, size - 1);
    else
        try_header(data + 1, size - 1);
    return 0;
}
