// SPDX-License-Identifier: Apache-2.0
// Operations on libvirt domains: see vm.h.
#include "hostd/noded/vm_impl.h"

#include "base/log.h"

#include <errno.h>
#include <libvirt/virterror.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How a start of an earlier space-noded is waited for: there is no call that does it. Less than the
 * limit of an operation. */
#define START_POLL_MSEC 50
#define START_POLLS     1600

struct vm {
    struct vms_use use;
    virDomainPtr dom;
};

static void vm_finish(struct vm *m)
{
    if (m->dom)
        virDomainFree(m->dom);
    vms_give(&m->use);
}

#define AUTO_VM __attribute__((cleanup(vm_finish)))

/* A connection and the domain. -ESRCH when there is none; the connection is then still there. */
static int vm_find(struct vms *v, const char *what, uint64_t id, struct vm *m, struct err *e)
{
    char name[64];
    int rc = vms_take(v, what, id, &m->use, e);
    if (rc < 0)
        return rc;
    vms_name(v, id, name);
    m->dom = virDomainLookupByName(m->use.conn, name);
    return m->dom ? 0 : vms_fail(&m->use, what, id, e);
}

int vms_active(struct vms *v, uint64_t id, struct err *e)
{
    AUTO_VM struct vm m = {0};
    int rc = vm_find(v, "look for", id, &m, e);
    if (rc < 0)
        return rc == -ESRCH ? 0 : rc;
    int active = virDomainIsActive(m.dom);
    return active < 0 ? vms_fail(&m.use, "look for", id, e) : active;
}

/* libvirt goes on with a start whose client was killed. */
static bool starting(virDomainPtr dom)
{
    int state, reason;
    return virDomainGetState(dom, &state, &reason, 0) == 0 &&
           (state == VIR_DOMAIN_SHUTOFF || state == VIR_DOMAIN_NOSTATE || (state == VIR_DOMAIN_PAUSED && reason == VIR_DOMAIN_PAUSED_STARTING_UP));
}

int vms_started(struct vms *v, uint64_t id, struct err *e)
{
    AUTO_VM struct vm m = {0};
    int rc = vm_find(v, "look for", id, &m, e);
    if (rc < 0)
        return rc == -ESRCH ? 0 : rc;
    for (int i = 0; i < START_POLLS && starting(m.dom); i++)
        nanosleep(&(struct timespec){0, START_POLL_MSEC * 1000000L}, NULL);
    return virDomainIsActive(m.dom) == 1;
}

/* Not by <memtune>: libvirt would raise the limit of locked memory, too, which a host in a
 * container may not allow. */
static void limit_memory(const struct vm *m, uint64_t bytes, uint64_t id)
{
    virTypedParameter limit = {.field = VIR_DOMAIN_MEMORY_HARD_LIMIT, .type = VIR_TYPED_PARAM_ULLONG, .value.ul = bytes / 1024};
    struct err why = {0};
    if (!bytes || virDomainSetMemoryParameters(m->dom, &limit, 1, VIR_DOMAIN_AFFECT_LIVE) == 0)
        return;
    vms_fail(&m->use, "limit the memory of", id, &why);
    log_warn("%s", why.msg); /* the guest's own memory is limited in any case */
}

int vms_start(struct vms *v, uint64_t id, const char *xml, uint64_t memory_limit, bool paused, struct err *e)
{
    AUTO_VM struct vm m = {0};
    int rc = vm_find(v, "start", id, &m, e);
    if (rc == 0)
        return err_set(e, EEXIST, "start sandbox %012llx: its virtual machine runs already", (unsigned long long)id);
    if (rc != -ESRCH)
        return rc;
    m.dom = virDomainCreateXML(m.use.conn, xml, paused ? VIR_DOMAIN_START_PAUSED : 0);
    if (!m.dom)
        return vms_fail(&m.use, "start", id, e);
    limit_memory(&m, memory_limit, id);
    return 0;
}

int vms_destroy(struct vms *v, uint64_t id, struct err *e)
{
    AUTO_VM struct vm m = {0};
    int rc = vm_find(v, "end", id, &m, e);
    if (rc < 0)
        return rc == -ESRCH ? 0 : rc;
    if (virDomainDestroy(m.dom) == 0)
        return 0;
    rc = vms_fail(&m.use, "end", id, e);
    return vms_active(v, id, NULL) == 0 ? 0 : rc; /* it may have ended by itself meanwhile */
}

/* Moves a domain to `want`, unless it is there. */
static int set_state(struct vms *v, uint64_t id, const char *what, int want, int (*move)(virDomainPtr), struct err *e)
{
    AUTO_VM struct vm m = {0};
    int state = 0, rc = vm_find(v, what, id, &m, e);
    if (rc < 0)
        return rc;
    if (virDomainGetState(m.dom, &state, NULL, 0) == 0 && state == want)
        return 0;
    return move(m.dom) == 0 ? 0 : vms_fail(&m.use, what, id, e);
}

int vms_pause(struct vms *v, uint64_t id, struct err *e)
{
    return set_state(v, id, "pause", VIR_DOMAIN_PAUSED, virDomainSuspend, e);
}

int vms_resume(struct vms *v, uint64_t id, struct err *e)
{
    return set_state(v, id, "resume", VIR_DOMAIN_RUNNING, virDomainResume, e);
}

int vms_resize_disk(struct vms *v, uint64_t id, uint64_t bytes, struct err *e)
{
    AUTO_VM struct vm m = {0};
    int rc = vm_find(v, "grow the disk of", id, &m, e);
    if (rc < 0)
        return rc;
    if (virDomainBlockResize(m.dom, "vda", bytes, VIR_DOMAIN_BLOCK_RESIZE_BYTES) == 0)
        return 0;
    return vms_fail(&m.use, "grow the disk of", id, e);
}

int vms_stats(struct vms *v, uint64_t id, uint64_t *ret_cpu_nsec, uint64_t *ret_rss, bool *ret_running, struct err *e)
{
    AUTO_VM struct vm m = {0};
    virDomainMemoryStatStruct mem[VIR_DOMAIN_MEMORY_STAT_NR];
    virDomainInfo info;
    int rc = vm_find(v, "measure", id, &m, e);
    if (rc < 0)
        return rc;
    if (virDomainGetInfo(m.dom, &info) < 0)
        return vms_fail(&m.use, "measure", id, e);
    *ret_cpu_nsec = info.cpuTime;
    *ret_running = info.state == VIR_DOMAIN_RUNNING;
    *ret_rss = 0;
    int n = virDomainMemoryStats(m.dom, mem, VIR_DOMAIN_MEMORY_STAT_NR, 0);
    if (n < 0)
        return vms_fail(&m.use, "measure", id, e);
    for (int i = 0; i < n; i++)
        if (mem[i].tag == VIR_DOMAIN_MEMORY_STAT_RSS)
            *ret_rss = mem[i].val * 1024;
    return 0;
}

static const char *state_name(const virDomainStatsRecord *r)
{
    int state = 0;
    for (int i = 0; i < r->nparams; i++)
        if (r->params[i].type == VIR_TYPED_PARAM_INT && strcmp(r->params[i].field, "state.state") == 0)
            state = r->params[i].value.i;
    return state == VIR_DOMAIN_RUNNING ? "running" : state == VIR_DOMAIN_PAUSED ? "paused" : "other";
}

int vms_list(struct vms *v, void (*cb)(void *user, uint64_t id, const char *state), void *user, struct err *e)
{
    AUTO_VM struct vm m = {0};
    virDomainStatsRecordPtr *records = NULL;
    int rc = vms_take(v, "list", 0, &m.use, e);
    if (rc < 0)
        return rc;
    int n = virConnectGetAllDomainStats(m.use.conn, VIR_DOMAIN_STATS_STATE, &records,
                                        VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE | VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT);
    if (n < 0)
        return vms_fail(&m.use, "list", 0, e);
    for (int i = 0; i < n; i++) {
        uint64_t id = vms_id(v, records[i]->dom);
        if (id)
            cb(user, id, state_name(records[i]));
    }
    virDomainStatsRecordListFree(records);
    return 0;
}
