// SPDX-License-Identifier: Apache-2.0
// The table of operations and the check of requests: see ops.h.
//
// The other side is taken for an attacker: hostd parses what guests write. Objects are numbers, so
// that no path can be spelled; sizes have limits; an unused field that is not 0 is refused, so that
// nothing is ever silently ignored.
#include "hostd/noded/ops.h"

#include "hostd/noded/op_impl.h"

#include <errno.h>

#define ID_MAX      0xffffffffffffull /* 48 bit */
#define DISK_MAX    (1ull << 46)      /* 64 TiB, as the configuration's `disk` */
#define DISK_STEP   4096u
#define MEMORY_MIN  (32ull << 20)
#define MEMORY_MAX  (1ull << 40)
#define MEMORY_STEP (1ull << 20)
#define VCPUS_MAX   64u

#define SECONDS(n) ((n)*1000u)

/* Why each is safe to offer: the comment at its function. */
static const struct op ops[] = {
    [NODED_HELLO] = {.name = "hello", .run = op_hello, .lane = LANE_POOL},
    [NODED_OBJECT_CREATE] = {.name = "object-create", .run = op_object_create, .fields = OP_OBJECT, .lane = LANE_POOL, .ordered = true},
    [NODED_OBJECT_SNAPSHOT] = {.name = "object-snapshot",
                               .run = op_object_snapshot,
                               .fields = OP_OBJECT | OP_SOURCE,
                               .flags = NODED_READ_ONLY,
                               .lane = LANE_POOL,
                               .ordered = true},
    [NODED_OBJECT_SEAL] = {.name = "object-seal", .run = op_object_seal, .fields = OP_OBJECT, .lane = LANE_POOL, .ordered = true},
    [NODED_OBJECT_DELETE] = {.name = "object-delete", .run = op_object_delete, .fields = OP_OBJECT, .lane = LANE_POOL, .ordered = true},
    [NODED_OBJECT_LIST] = {.name = "object-list", .run = op_object_list, .lane = LANE_POOL},
    [NODED_FILE_OPEN] =
        {.name = "file-open", .run = op_file_open, .fields = OP_OBJECT | OP_FILE, .flags = NODED_WRITABLE, .lane = LANE_POOL, .ordered = true},
    [NODED_TEMPLATE_KERNEL] = {.name = "template-kernel", .run = op_template_kernel, .fields = OP_TEMPLATE, .lane = LANE_POOL, .ordered = true},
    [NODED_DISK_GROW] =
        {.name = "disk-grow", .run = op_disk_grow, .fields = OP_SANDBOX | OP_SIZE, .lane = LANE_VM, .limit_msec = SECONDS(30), .ordered = true},
    [NODED_VM_START] = {.name = "vm-start",
                        .run = op_vm_start,
                        .fields = OP_SANDBOX | OP_MACHINE | OP_BASE,
                        .flags = NODED_PROBE | NODED_INCOMING | NODED_FILLING,
                        .lane = LANE_VM,
                        .limit_msec = SECONDS(90),
                        .ordered = true,
                        .needs_libvirt = true,
                        .undo = &op_kill},
    [NODED_VM_CAPTURE] = {.name = "vm-capture",
                          .run = op_vm_capture,
                          .fields = OP_CAPTURE,
                          .lane = LANE_VM,
                          .limit_msec = SECONDS(90),
                          .ordered = true,
                          .needs_libvirt = true,
                          .undo = &op_remove},
    [NODED_VM_LOAD] = {.name = "vm-load",
                       .run = op_vm_load,
                       .fields = OP_SANDBOX | OP_HEAD,
                       .flags = NODED_OWN_DISK | NODED_FILLING,
                       .lane = LANE_VM,
                       .limit_msec = SECONDS(90),
                       .ordered = true,
                       .needs_libvirt = true},
    [NODED_VM_KILL] = {.name = "vm-kill",
                       .run = op_vm_kill,
                       .fields = OP_SANDBOX,
                       .lane = LANE_END,
                       .limit_msec = SECONDS(90),
                       .ordered = true,
                       .ends = true,
                       .needs_libvirt = true},
    [NODED_VM_PAUSE] = {.name = "vm-pause",
                        .run = op_vm_pause,
                        .fields = OP_SANDBOX,
                        .lane = LANE_VM,
                        .limit_msec = SECONDS(30),
                        .ordered = true,
                        .needs_libvirt = true},
    [NODED_VM_RESUME] = {.name = "vm-resume",
                         .run = op_vm_resume,
                         .fields = OP_SANDBOX,
                         .lane = LANE_VM,
                         .limit_msec = SECONDS(30),
                         .ordered = true,
                         .needs_libvirt = true},
    [NODED_VM_STATS] = {.name = "vm-stats",
                        .run = op_vm_stats,
                        .fields = OP_SANDBOX,
                        .lane = LANE_VM,
                        .limit_msec = SECONDS(10),
                        .ordered = true,
                        .needs_libvirt = true},
    [NODED_VM_LIST] = {.name = "vm-list", .run = op_vm_list, .lane = LANE_VM, .limit_msec = SECONDS(30), .needs_libvirt = true},
    [NODED_CHANNEL_OPEN] = {.name = "channel-open", .run = op_channel_open, .fields = OP_SANDBOX | OP_PORT, .lane = LANE_POOL},
    [NODED_NET_SOCKET] = {.name = "net-socket", .run = op_net_socket, .fields = OP_SANDBOX | OP_PORT, .lane = LANE_POOL},
    [NODED_VM_FILL] = {.name = "vm-fill", .run = op_vm_fill, .fields = OP_SANDBOX | OP_PORT, .lane = LANE_POOL},
    [NODED_VM_FILLED] = {.name = "vm-filled", .run = op_vm_filled, .fields = OP_SANDBOX | OP_PORT, .lane = LANE_POOL},
    [NODED_POOL_STAT] = {.name = "pool-stat", .run = op_pool_stat, .lane = LANE_POOL},
    [NODED_FILE_COMPARE] = {.name = "file-compare",
                            .run = op_file_compare,
                            .fields = OP_OBJECT | OP_OTHER | OP_FILE | OP_FROM,
                            .flags = NODED_RANGES,
                            .lane = LANE_POOL},
};

const struct op op_kill = {.name = "kill", .run = op_vm_kill, .fields = OP_SANDBOX, .lane = LANE_END, .ordered = true, .ends = true};
const struct op op_remove = {.name = "remove", .run = op_object_delete, .fields = OP_OBJECT, .lane = LANE_POOL, .ordered = true};
const struct op op_interrupt = {.name = "interrupt", .run = op_vm_interrupt, .fields = OP_SANDBOX, .lane = LANE_END};
const struct op op_reap = {.name = "reap", .run = op_vm_reap, .fields = OP_SANDBOX, .lane = LANE_END, .ordered = true};

const struct op *op_find(uint32_t number)
{
    return number < sizeof ops / sizeof ops[0] && ops[number].run ? &ops[number] : NULL;
}

static int bad(struct err *e, int code, const struct op *op, const char *field, uint64_t value)
{
    return err_set(e, code, "%s: %s cannot be %llu", op->name, field, (unsigned long long)value);
}

static bool is_id(uint64_t id)
{
    return id && id <= ID_MAX;
}

/* A template or snapshot: what a head can be. */
static bool is_head(uint32_t kind)
{
    return kind == NODED_TEMPLATE || kind == NODED_SNAPSHOT;
}

/* kind2, id2 */
static int check_source(const struct op *op, const struct noded_request *q, struct err *e)
{
    bool head = (op->fields & OP_HEAD) || ((op->fields & OP_BASE) && (q->flags & NODED_INCOMING));
    bool capture = op->fields & OP_CAPTURE, other = (op->fields & OP_OTHER) && (q->kind2 || q->id2);
    if (!head && !capture && !other && !(op->fields & OP_SOURCE))
        return q->kind2 || q->id2 ? bad(e, EINVAL, op, "kind2 or id2", q->id2) : 0;
    if (head ? !is_head(q->kind2) : capture ? q->kind2 && q->kind2 != NODED_SANDBOX : q->kind2 < NODED_TEMPLATE || q->kind2 > NODED_SNAPSHOT)
        return bad(e, EINVAL, op, "kind2", q->kind2);
    return is_id(q->id2) ? 0 : bad(e, EINVAL, op, "id2", q->id2);
}

static int check_object(const struct op *op, const struct noded_request *q, struct err *e)
{
    bool any = op->fields & OP_OBJECT, head = op->fields & OP_CAPTURE;
    uint32_t only = op->fields & OP_SANDBOX ? NODED_SANDBOX : op->fields & OP_TEMPLATE ? NODED_TEMPLATE : 0;
    if (any ? q->kind < NODED_TEMPLATE || q->kind > NODED_SNAPSHOT : head ? !is_head(q->kind) : q->kind && q->kind != only)
        return bad(e, EINVAL, op, "kind", q->kind);
    if (any || head || only ? !is_id(q->id) : q->id != 0)
        return bad(e, EINVAL, op, "id", q->id);
    return check_source(op, q, e);
}

static int check_values(const struct op *op, const struct noded_request *q, struct err *e)
{
    if ((q->flags & ~op->flags) || (q->flags & (NODED_PROBE | NODED_INCOMING)) == (NODED_PROBE | NODED_INCOMING))
        return bad(e, EINVAL, op, "flags", q->flags);
    if ((op->flags & NODED_INCOMING) && (q->flags & (NODED_INCOMING | NODED_FILLING)) == NODED_FILLING)
        return bad(e, EINVAL, op, "flags", q->flags);
    if (op->fields & OP_FILE ? q->file < NODED_DISK || q->file > NODED_META : q->file != 0)
        return bad(e, EINVAL, op, "file", q->file);
    bool given = op->fields & OP_SIZE, from = op->fields & OP_FROM;
    if (given || from ? (given && !q->size) || q->size % DISK_STEP : q->size != 0)
        return bad(e, EINVAL, op, "size", q->size);
    if (q->size > DISK_MAX)
        return bad(e, ERANGE, op, "size", q->size);
    if (op->fields & OP_PORT ? q->port > (q->op == NODED_VM_FILL ? NODED_FILL_SOCKET : 1) : q->port != 0)
        return bad(e, EINVAL, op, "port", q->port);
    return 0;
}

static int check_machine(const struct op *op, const struct node *n, const struct noded_request *q, struct err *e)
{
    if (!(op->fields & OP_MACHINE))
        return q->memory || q->vcpus || q->accel || q->slot ? bad(e, EINVAL, op, "memory, vcpus, accel or slot", q->memory) : 0;
    if (q->memory < MEMORY_MIN || q->memory > MEMORY_MAX || q->memory % MEMORY_STEP)
        return bad(e, ERANGE, op, "memory", q->memory);
    if (!q->vcpus || q->vcpus > VCPUS_MAX)
        return bad(e, ERANGE, op, "vcpus", q->vcpus);
    if (q->accel != NODED_TCG && q->accel != NODED_KVM)
        return bad(e, EINVAL, op, "accel", q->accel);
    return q->slot >= n->config.uid_count ? bad(e, ERANGE, op, "slot", q->slot) : 0;
}

int op_check(const struct op *op, const struct node *n, const struct noded_request *q, struct err *e)
{
    int rc = check_object(op, q, e);
    if (rc == 0)
        rc = check_values(op, q, e);
    return rc < 0 ? rc : check_machine(op, n, q, e);
}

uint64_t op_key(const struct op *op, const struct noded_request *q)
{
    uint64_t kind = op->fields & (OP_SANDBOX | OP_CAPTURE) ? NODED_SANDBOX : op->fields & OP_TEMPLATE ? NODED_TEMPLATE : q->kind;
    return kind << 48 | (op->fields & OP_CAPTURE ? q->id2 : q->id);
}
