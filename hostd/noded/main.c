// SPDX-License-Identifier: Apache-2.0
// space-noded: the only process of the platform that is root. Does a closed list of operations for
// space-hostd (lib/ipc/noded.h).
//
// Theory of operation. At start, with all rights: the host is mended where virtual machines need
// it, the directories are opened, the socket is bound, and the uids in use are read from the
// directories. Then rights are given up (isolate.h), threads start, the first attempt to reach
// libvirt is waited for (so that hello can say which QEMU there is), and clients are let in.
// Virtual machines belong to libvirt: this process may end at any moment, and another one goes on
// from the directories.
#include "base/cleanup.h"
#include "base/log.h"
#include "base/options.h"
#include "hostd/noded/channel.h"
#include "hostd/noded/head.h"
#include "hostd/noded/isolate.h"
#include "hostd/noded/memory.h"
#include "hostd/noded/net.h"
#include "hostd/noded/node.h"
#include "hostd/noded/pool.h"
#include "hostd/noded/queue.h"
#include "hostd/noded/ramfd.h"
#include "hostd/noded/rundir.h"
#include "hostd/noded/server.h"
#include "hostd/noded/slots.h"
#include "hostd/noded/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define STRING(x)  #x
#define TO_TEXT(x) STRING(x)

#define FIRST_TRY_MSEC 10000u /* how long a libvirtd that hangs keeps clients out */
#define STOP_MSEC      5000u  /* how long operations in progress may take at the end */

#ifdef __SANITIZE_ADDRESS__
/* Looking for leaks needs ptrace, which isolate() takes away. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}
#endif

struct noded {
    struct node node;
    uv_loop_t loop;
    uv_signal_t term, interrupt;
    uv_timer_t patience;
    struct server *server;
};

/* ---- the uids that are in use ---- */

static void seed(struct node *n, uint64_t id, uid_t uid)
{
    uint64_t stale;
    if (uid < n->config.uid_base || slots_take(n->slots, uid - n->config.uid_base, id, &stale) < 0)
        log_warn("sandbox %012llx has uid %u, which is not free or not one of ours", (unsigned long long)id, uid);
}

static void seed_channel(void *user, uint64_t id, uid_t uid)
{
    seed(user, id, uid);
}

static void seed_sandbox(void *user, uint64_t id)
{
    struct node *n = user;
    uid_t uid = pool_holder(n->pool, id);
    if (uid)
        seed(n, id, uid);
}

static int open_slots(struct node *n, struct err *e)
{
    n->slots = slots_create(n->config.uid_count);
    if (!n->slots)
        return err_set(e, ENOMEM, "make the table of uids: out of memory");
    int rc = channels_each(n->channels, seed_channel, n, e);
    return rc < 0 ? rc : pool_each_sandbox(n->pool, seed_sandbox, n, e);
}

/* ---- start ---- */

static int find_user(const char *name, uid_t *out, struct err *e)
{
    errno = 0;
    const struct passwd *p = getpwnam(name);
    if (!p)
        return err_set(e, ENOENT, "there is no user `%s` (`user` in the configuration): useradd --system %s", name, name);
    *out = p->pw_uid;
    return 0;
}

static void raise_file_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static int open_parts(struct noded *d, struct err *e)
{
    struct node *n = &d->node;
    uid_t user = (uid_t)-1;
    int rc = find_user(n->config.user, &user, e);
    if (rc < 0)
        return rc;
    host_prepare();
    host_read_facts(&n->facts);
    AUTO_CLOSE int run = rundir_open(n->config.run, user, e);
    host_find_library(n->library);
    n->faults = open(NODE_FAULTS, O_RDWR | O_CLOEXEC);
    if (n->faults < 0)
        log_info("open " NODE_FAULTS ": %s; memory is fetched before its guest runs", strerror(errno));
    rc = run < 0 ? run : channels_open(run, n->config.run, &n->channels, e);
    if (rc == 0)
        rc = ramfds_open(run, n->config.run, &n->ramfds, e);
    if (rc == 0)
        rc = pool_open(n->config.pool, &n->pool, e);
    if (rc == 0)
        rc = open_slots(n, e);
    if (rc == 0)
        rc = server_open(&d->loop, n, run, n->config.run, user, &d->server, e);
    return rc;
}

static void let_in(struct noded *d)
{
    struct err e = {0};
    uv_timer_stop(&d->patience);
    if (server_listen(d->server, &e) < 0) {
        log_error("%s", e.msg);
        uv_stop(&d->loop);
    }
}

static void on_event(void *user, uint64_t id, enum noded_vm_event what)
{
    server_vm_event(((struct noded *)user)->server, id, what);
}

static void on_connected(void *user)
{
    server_vm_connected(((struct noded *)user)->server);
}

static void on_tried(void *user)
{
    let_in(user);
}

static void on_patience(uv_timer_t *t)
{
    log_warn("libvirt does not answer; going on without it");
    let_in(t->data);
}

/* ---- end ---- */

static void stop_loop(void *user)
{
    uv_stop(user);
}

static void stop_anyway(uv_timer_t *t)
{
    (void)t;
    log_warn("operations in progress take too long; ending without them");
    _exit(0); /* libuv would wait for its threads */
}

static void on_signal(uv_signal_t *s, int number)
{
    struct noded *d = s->data;
    log_info("ending: signal %d", number);
    uv_signal_stop(&d->term);
    uv_signal_stop(&d->interrupt);
    uv_timer_start(&d->patience, stop_anyway, STOP_MSEC, 0);
    server_stop(d->server, stop_loop, &d->loop);
}

static int start_loop(struct noded *d, struct err *e)
{
    const struct vms_hooks hooks = {on_event, on_connected, on_tried, d};
    uv_signal_init(&d->loop, &d->term);
    uv_signal_init(&d->loop, &d->interrupt);
    uv_timer_init(&d->loop, &d->patience);
    d->term.data = d->interrupt.data = d->patience.data = d;
    uv_signal_start(&d->term, on_signal, SIGTERM);
    uv_signal_start(&d->interrupt, on_signal, SIGINT);
    uv_timer_start(&d->patience, on_patience, FIRST_TRY_MSEC, 0);
    return vms_open(&d->loop, d->node.config.libvirt, d->node.config.vm_prefix, &hooks, &d->node.vms, e);
}

/* What is allocated here lives as long as the process. */
static int run(const char *config, struct err *e)
{
    struct noded *d = calloc(1, sizeof *d);
    int rc = d ? config_load(config, &d->node.config, e) : err_set(e, ENOMEM, "start: out of memory");
    if (rc < 0)
        return rc;
    if (geteuid() != 0)
        return err_set(e, EPERM, "space-noded must be started as root");
    umask(0077);
    signal(SIGPIPE, SIG_IGN);
    setenv("UV_THREADPOOL_SIZE", TO_TEXT(QUEUE_THREADS), 1);
    raise_file_limit();
    d->node.heads = heads_create();
    if (!d->node.heads)
        return err_set(e, ENOMEM, "start: out of memory");
    rc = memory_open(d->node.config.uid_base, d->node.config.uid_count, &d->node.memory, e);
    if (rc == 0)
        rc = net_open(&d->node.net, e);
    if (rc < 0)
        return rc;
    uv_loop_init(&d->loop);
    rc = open_parts(d, e);
    const char *const writable[] = {d->node.config.pool, d->node.config.run, HOST_LIBVIRT_LOGS, NULL};
    if (rc == 0)
        rc = isolate(writable, e);
    if (rc == 0)
        rc = start_loop(d, e);
    if (rc == 0)
        uv_run(&d->loop, UV_RUN_DEFAULT);
    return rc;
}

int main(int argc, char **argv)
{
    const char *config;
    struct err e = {0};
    int status = options_parse(argc, argv, "space-noded", "", &config);
    if (status >= 0)
        return status;
    if (run(config, &e) == 0)
        return 0;
    log_error("%s", e.msg);
    return 1;
}
