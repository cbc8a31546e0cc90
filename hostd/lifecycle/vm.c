// SPDX-License-Identifier: Apache-2.0
// Booting, connecting, stopping and killing the virtual machine of a sandbox; and which acceleration this host really has.
#include "base/log.h"
#include "base/str.h"
#include "hostd/credential/trust.h"
#include "hostd/guest/guest.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/lifecycle/net.h"
#include "hostd/noded_client.h"
#include "hostd/volume/fill.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define BOOT_MSEC      120000u /* to the agent's hello: seconds on an idle host, more when a hundred boot at once */
#define RECONNECT_MSEC 10000u  /* of a guest that runs already */
#define POWEROFF_MSEC  20000u
#define PROBE_MSEC     1500u /* a kernel under KVM is up in less; then the next look whether it runs at all */
#define PROBE_TRIES    10u

static struct noded_request vm_request(const struct sandbox *sb, enum noded_op op)
{
    return (struct noded_request){.op = op, .kind = NODED_SANDBOX, .id = (uint64_t)sb->row.object};
}

/* The channel broke: the guest is hostile, its agent died, or QEMU ended. */
static void guest_lost(void *user, int code, const char *why)
{
    struct sandbox *sb = user;
    guest_close(sb->guest);
    sb->guest = NULL;
    net_kick(sb->space);
    jobs_detach(sb);
    wait_done_all(&sb->vm_gone, 0, NULL);
    struct op *op = op_new(OP_VM_LOST);
    op->object = sb->row.object;
    op->vm_exists = true;
    op->closed = code == ECONNREFUSED;
    str_copy(op->why, sizeof op->why, why);
    op_submit(sb, op, false, NULL);
}

/* Names allow more than host names do. */
static void host_name(const char *name, char out[NAME_LEN_MAX + 1])
{
    size_t i = 0;
    for (; name[i] && i < NAME_LEN_MAX; i++)
        out[i] = name[i] == '_' ? '-' : name[i];
    out[i] = 0;
}

static void hex_of(const unsigned char *raw, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
}

int vm_introduce(struct guest *g, const char *name, struct err *e)
{
    char host[NAME_LEN_MAX + 1], generation[33], seed[65];
    unsigned char raw[16 + 32]; /* the generation is told to every program of the guest, the seed to none */
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        return err_sys(e, "read random bytes");
    hex_of(raw, 16, generation);
    hex_of(raw + 16, 32, seed);
    host_name(name, host);
    int rc = guest_ctl(g, 10000, "load %" PRId64 " %s %s %s", space_now(), generation, seed, host);
    explicit_bzero(raw, sizeof raw);
    explicit_bzero(seed, sizeof seed);
    return rc < 0 ? err_set(e, -rc, "give the guest of '%s' its clock and identity: %s", name, strerror(-rc)) : 0;
}

static struct guest_hooks hooks_of(struct sandbox *sb)
{
    return (struct guest_hooks){.lost = guest_lost, .user = sb};
}

void vm_watch(struct sandbox *sb)
{
    struct guest_hooks hooks = hooks_of(sb);
    guest_set_hooks(sb->guest, &hooks);
}

int vm_connect(struct sandbox *sb, enum vm_is is, struct err *e)
{
    struct guest_hooks hooks = hooks_of(sb);
    hooks.stands_still = is == VM_STANDING;
    int rc = guest_connect(sb->space, (uint64_t)sb->row.object, &hooks, is == VM_BOOTING ? BOOT_MSEC : RECONNECT_MSEC, &sb->guest, e);
    if (rc < 0)
        return rc;
    net_settle(sb);
    if (is == VM_BOOTING) {
        rc = vm_introduce(sb->guest, sb->row.name, e);
        if (rc == 0)
            trust_settle(sb, sb->guest);
        return rc;
    }
    rc = guest_ctl(sb->guest, 10000, "clock %" PRId64, space_now());
    if (rc < 0)
        return err_set(e, -rc, "set the clock of '%s': %s", sb->row.name, strerror(-rc));
    trust_settle(sb, sb->guest);
    jobs_attach(sb);
    return 0;
}

int vm_find_guest(struct sandbox *sb, bool paused, struct err *e)
{
    struct noded_request pause = vm_request(sb, NODED_VM_PAUSE);
    struct err ignored = {0};
    int rc = 0;
    if (sb->guest)
        return 0;
    for (int left = 2; !sb->guest && rc != -ECANCELED && left > 0; left--) { /* what hangs on it is all of its memory */
        rc = vm_connect(sb, VM_STANDING, e);
        if (rc < 0) {
            log_warn("sandbox %012" PRIx64 ", which is %s, does not answer: %s", (uint64_t)sb->row.id, paused ? "paused" : "running", e->msg);
            guest_close(sb->guest);
            sb->guest = NULL;
        }
    }
    if (paused) /* found or not, it stands still again */
        noded_call(sb->space, &pause, NULL, NULL, &ignored);
    return rc;
}

int vm_grow(struct sandbox *sb, bool running, struct err *e)
{
    struct noded_request req = vm_request(sb, NODED_DISK_GROW);
    req.size = (uint64_t)sb->row.disk;
    int rc = noded_call(sb->space, &req, NULL, NULL, e);
    if (rc < 0 || !running || !sb->guest)
        return rc;
    rc = guest_ctl(sb->guest, 30000, "grow");
    return rc < 0 ? err_set(e, -rc, "the disk of '%s' is larger now, but its file system could not be grown: %s", sb->row.name, strerror(-rc)) : 0;
}

int vm_boot(struct sandbox *sb, struct err *e)
{
    int rc = survey_wait(sb->space, e);
    if (rc == 0)
        rc = vm_charge(sb, e);
    if (rc == 0)
        rc = vm_grow(sb, false, e);
    if (rc < 0)
        return rc;
    sb->row.base_kind = sb->row.base = 0;
    sb->vm_event = 0;
    struct noded_request req = vm_request(sb, NODED_VM_START);
    req.memory = (uint64_t)sb->row.memory;
    req.vcpus = (uint32_t)sb->row.vcpus;
    req.accel = sb->space->accel;
    req.slot = (uint32_t)sb->row.slot;
    sb->row.running_since = space_now();
    rc = sandbox_save(sb, e); /* the slot, before QEMU has it */
    if (rc == 0)
        rc = noded_call(sb->space, &req, NULL, NULL, e);
    if (rc == 0)
        rc = vm_connect(sb, VM_BOOTING, e);
    return rc == 0 ? vm_grow(sb, true, e) : rc;
}

int vm_kill(struct sandbox *sb, struct err *e)
{
    fill_stop(&sb->fill);
    guest_close(sb->guest);
    sb->guest = NULL;
    net_kick(sb->space);
    jobs_lost(sb);
    int rc = 0;
    if (sb->row.object) {
        struct noded_request req = vm_request(sb, NODED_VM_KILL);
        rc = noded_call(sb->space, &req, NULL, NULL, e);
    }
    if (rc == 0)
        vm_release(sb);
    return rc;
}

struct gone_waiter {
    struct waiter w;
    struct co *co;
    bool fired, waiting;
};

static void gone_fired(struct waiter *w, int rc, const struct err *e)
{
    struct gone_waiter *g = (struct gone_waiter *)(void *)w;
    (void)rc;
    (void)e;
    g->fired = true;
    if (g->waiting)
        co_wake(g->co, 0);
}

int vm_stop(struct sandbox *sb, struct err *e)
{
    struct gone_waiter g = {.w.done = gone_fired, .co = co_self(sb->space->co)};
    int rc = 0;
    if (sb->guest) {
        wait_add(&sb->vm_gone, &g.w);
        rc = guest_ctl(sb->guest, POWEROFF_MSEC, "poweroff"); /* usually ends by the channel's end */
        g.waiting = true;
        if (rc == 0 && !g.fired)
            rc = co_wait_msec(sb->space->co, POWEROFF_MSEC);
        wait_remove(&g.w);
    }
    if (rc == -ETIMEDOUT)
        log_warn("sandbox %012" PRIx64 " did not power off in time and is killed", (uint64_t)sb->row.id);
    if (rc == -ECANCELED)
        return rc;
    return vm_kill(sb, e);
}

/* ---- acceleration ---- */

static void probe_lost(void *user, int code, const char *why)
{
    (void)code;
    (void)user;
    log_debug("probe: %s", why);
}

/* Boots the bare guest under KVM up to the agent's echo. */
static bool probe_kvm(struct space *s)
{
    struct err e = {0};
    struct guest *g = NULL;
    struct guest_hooks hooks = {.lost = probe_lost, .user = s};
    struct noded_request req = {.op = NODED_VM_START,
                                .kind = NODED_SANDBOX,
                                .id = space_new_id(),
                                .flags = NODED_PROBE,
                                .memory = 128u << 20,
                                .vcpus = 1,
                                .accel = NODED_KVM,
                                .slot = s->config.uid_count - 1};
    struct noded_request look = {.op = NODED_VM_STATS, .kind = NODED_SANDBOX, .id = req.id};
    struct noded_reply seen = {.stats.running = 1};
    int rc = noded_call(s, &req, NULL, NULL, &e);
    bool started = rc == 0;
    for (unsigned i = 0; started && i < PROBE_TRIES && seen.stats.running; i++) {
        rc = guest_connect(s, req.id, &hooks, PROBE_MSEC, &g, &e);
        if (rc != -ETIMEDOUT || noded_call(s, &look, &seen, NULL, &e) < 0)
            break;
    }
    if (rc < 0 && !seen.stats.running)
        err_set(&e, EIO, "QEMU stopped it, as after an internal error of KVM");
    if (rc < 0)
        log_info("KVM does not run a guest here: %s", e.msg);
    guest_close(g);
    struct noded_request end = {.op = NODED_VM_KILL, .kind = NODED_SANDBOX, .id = req.id};
    noded_call(s, &end, NULL, NULL, &e);
    return rc == 0;
}

static void choose(struct space *s, const struct noded_reply *host, struct err *e)
{
    char key[192], value[8];
    s->memory_arrives = host->node.arrives;
    snprintf(key, sizeof key, "accel %s %s %s", host->node.qemu, host->node.host_kernel, host->node.cpu_model);
    if (strcmp(s->config.accel, "auto") != 0) {
        s->accel = !strcmp(s->config.accel, "kvm") ? NODED_KVM : NODED_TCG;
    } else if (!host->node.kvm) {
        s->accel = NODED_TCG;
    } else {
        db_meta(s->db, key, "", value, sizeof value, e);
        if (!value[0]) {
            str_copy(value, sizeof value, probe_kvm(s) ? "kvm" : "tcg");
            db_meta_set(s->db, key, value, e);
        }
        s->accel = !strcmp(value, "kvm") ? NODED_KVM : NODED_TCG;
    }
    db_meta_set(s->db, "acceleration", s->accel == NODED_KVM ? "kvm" : "tcg", e);
    log_info("guests run under %s", s->accel == NODED_KVM ? "KVM" : "TCG, which emulates: no usable KVM on this host");
}

int accel_wait(struct space *s, struct err *e)
{
    if (s->accel)
        return 0;
    if (s->accel_probing) {
        int rc = wait_in_list(s->co, &s->accel_waiters, 0);
        return rc < 0 ? err_set(e, -rc, "choosing the acceleration: %s", strerror(-rc)) : 0;
    }
    s->accel_probing = true;
    struct noded_request req = {.op = NODED_HELLO};
    struct noded_reply host;
    int rc = noded_call(s, &req, &host, NULL, e);
    if (rc == 0)
        choose(s, &host, e);
    s->accel_probing = false;
    wait_done_all(&s->accel_waiters, rc, e);
    return rc;
}
