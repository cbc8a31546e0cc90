// SPDX-License-Identifier: Apache-2.0
// /metrics: counts in Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats/). A user gets those of its own sandboxes, root
// those of all and of the node.
#include "hostd/pool/pool.h"
#include "hostd/tree/tree.h"

#include <inttypes.h>

static void heading(struct text *t, const char *name, const char *type, const char *help)
{
    text_add(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct text *t, const char *name, const char *help, uint64_t value)
{
    heading(t, name, "gauge", help);
    text_add(t, "%s %" PRIu64 "\n", name, value);
}

static void counter(struct text *t, const char *name, const char *help, uint64_t value)
{
    heading(t, name, "counter", help);
    text_add(t, "%s %" PRIu64 "\n", name, value);
}

static void add_sandboxes(const struct tree_fid *f, struct text *t)
{
    const struct space *s = f->session->space;
    uint64_t states[SANDBOX_STATE_COUNT] = {0}, memory = 0, jobs = 0, snapshots = 0, held = 0;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        const struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        if (!caller_owns(f->caller, sb->row.owner))
            continue;
        states[sandbox_state(sb)]++;
        memory += sb->charged;
        jobs += sb->job_count;
        held += sb->row.delta > 0 ? (uint64_t)sb->row.delta : 0;
    }
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        const struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (!caller_owns(f->caller, sn->row.owner))
            continue;
        snapshots++;
        held += sn->row.delta > 0 ? (uint64_t)sn->row.delta : 0;
    }
    heading(t, "space_sandboxes", "gauge", "Sandboxes by state.");
    for (int state = 1; state < SANDBOX_STATE_COUNT; state++)
        text_add(t, "space_sandboxes{state=\"%s\"} %" PRIu64 "\n", state_name((enum sandbox_state)state), states[state]);
    gauge(t, "space_guest_memory_bytes", "Memory that live sandboxes may use.", memory);
    gauge(t, "space_jobs", "Jobs, ended ones included.", jobs);
    gauge(t, "space_snapshots", "Snapshots.", snapshots);
    gauge(t, "space_held_bytes", "Bytes that sandboxes and snapshots hold of their own, as measured last.", held);
}

static void add_node(const struct space *s, struct text *t)
{
    heading(t, "space_pool_machines", "gauge", "Machines that are nobody's yet.");
    text_add(t, "space_pool_machines{state=\"ready\"} %u\nspace_pool_machines{state=\"waiting\"} %u\nspace_pool_machines{state=\"starting\"} %u\n",
             pool_count(s, MACHINE_READY), pool_count(s, MACHINE_WAITING), pool_count(s, MACHINE_STARTING));
    gauge(t, "space_pool_memory_bytes", "Memory that they may use.", s->pool_memory);
    heading(t, "space_loads_total", "counter", "Heads loaded, by what the pool had for them.");
    text_add(t,
             "space_loads_total{machine=\"ready\"} %" PRIu64 "\nspace_loads_total{machine=\"slot\"} %" PRIu64
             "\nspace_loads_total{machine=\"new\"} %" PRIu64 "\nspace_loads_total{machine=\"boot\"} %" PRIu64 "\n",
             s->counts.ready, s->counts.slot, s->counts.new_, s->counts.boot);
    counter(t, "space_captures_total", "Checkpoints and live forks.", s->counts.captures);
    counter(t, "space_capture_pause_usec_total", "How long their sources stood still, in microseconds.", s->counts.pause_usec);
    gauge(t, "space_deletes_queued", "Disks that wait for their removal.", s->doomed_count);
    counter(t, "space_deletes_total", "Disks removed.", s->counts.deleted);
    counter(t, "space_store_deleted_bytes_total", "Garbage that this node removed from the object store.", s->counts.store_deleted);
    counter(t, "space_store_condemnations_replaced_total", "Damaged lists of garbage in the object store that were replaced.",
            s->counts.store_replaced);
    gauge(t, "space_operations", "Operations on sandboxes under way.", s->operations);
    gauge(t, "space_storage_bytes", "Size of the pool's file system.", s->pool_size);
    gauge(t, "space_storage_free_bytes", "Free bytes of it.", s->pool_free);
}

void read_metrics(struct tree_fid *f, struct text *t)
{
    add_sandboxes(f, t);
    if (f->caller->uid == 0)
        add_node(f->session->space, t);
}
