// SPDX-License-Identifier: Apache-2.0
// space-credd: keeps secrets, and gives each to whom it is meant for. Started as root, it opens its socket, reads what only root may, and becomes `cred_user`.
#include "base/cleanup.h"
#include "base/log.h"
#include "base/options.h"
#include "base/str.h"
#include "hostd/credd/audit.h"
#include "hostd/credd/audit_tally.h"
#include "hostd/credd/backend_vault.h"
#include "hostd/credd/credd.h"
#include "hostd/credd/find.h"
#include "hostd/credd/haproxy.h"
#include "hostd/credd/isolate.h"
#include "hostd/credd/master.h"
#include "hostd/credd/server.h"
#include "hostd/credd/store.h"
#include "isolate/isolate.h"

#include <errno.h>
#include <malloc.h>
#include <pwd.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define REMEMBERED ((size_t)2 << 20) /* bytes of the audit log that uses are taken from, at the start */

/* ---- as root ---- */

static int open_socket(struct credd *c, int *out, struct err *e)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const struct passwd *pw = getpwnam(c->config.user);
    if (!pw)
        return err_set(e, ENOENT, "there is no user '%s' (config `user`)", c->config.user);
    c->user = pw->pw_uid;
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/credd.sock", c->config.run);
    *out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(addr.sun_path);
    mode_t old = umask(0177); /* never open to anybody else */
    int rc = *out < 0 ? -1 : bind(*out, (struct sockaddr *)&addr, sizeof addr);
    umask(old);
    return rc < 0 || lchown(addr.sun_path, c->user, (gid_t)-1) < 0 ? err_sys(e, "bind %s", addr.sun_path) : 0;
}

/* Of others spacefs alone looks into it, for the public key: they know its name. */
static int make_folder(const struct credd *c, struct err *e)
{
    const char *path = c->config.credentials;
    const struct passwd *pw = getpwnam(c->config.cred_user);
    if (!pw)
        return err_set(e, ENOENT, "there is no user '%s' (config `cred_user`)", c->config.cred_user);
    if (mkdir(path, 0711) < 0)
        return errno == EEXIST ? 0 : err_sys(e, "make %s", path);
    bool good = chmod(path, 0711) == 0 && (geteuid() != 0 || lchown(path, pw->pw_uid, pw->pw_gid) == 0);
    return good ? 0 : err_sys(e, "give %s to %s", path, pw->pw_name);
}

static int prepare(struct credd *c, struct master *m, int *fd, struct err *e)
{
    int rc = credd_allow_locking(e);
    if (rc == 0)
        rc = open_socket(c, fd, e);
    if (rc == 0)
        rc = haproxy_bind(c, &c->haproxy, e);
    if (rc == 0)
        rc = make_folder(c, e);
    if (rc == 0)
        rc = master_start(m, c->config.credential_keys, c->config.credentials, e);
    if (rc == 0 && geteuid() == 0)
        rc = isolate_become(c->config.cred_user, NULL, e);
    if (rc == 0 && listen(*fd, 16) < 0) /* who listens is who clients see */
        rc = err_sys(e, "listen on the socket");
    return rc;
}

/* ---- as cred_user ---- */

/* SoftHSM's configuration, as space-volumed has it. */
static void configure_softhsm(const char *folder)
{
    char path[CONFIG_PATH_MAX + 20];
    snprintf(path, sizeof path, "%s/softhsm2.conf", folder);
    if (access(path, R_OK) == 0)
        setenv("SOFTHSM2_CONF", path, 0);
}

static void remember(void *user, const char *line)
{
    finder_remember(user, line);
}

/* Else values lie here. */
static bool is_online(const struct credd *c)
{
    return c->config.credential_store[0] == '/';
}

static int open_parts(struct credd *c, struct master *m, int fd, struct err *e)
{
    char audit[CONFIG_PATH_MAX + 8];
    snprintf(audit, sizeof audit, "%s/audit", c->config.credentials);
    configure_softhsm(c->config.credential_keys);
    int rc = master_open(m, c->config.credential_keys, c->config.credentials, e);
    if (rc == 0)
        rc = audit_open(c->loop, audit, c->config.audit_days, &c->audit, e);
    if (rc == 0)
        rc = audit_tally_create(c->loop, c->audit, c->config.audit_lines, &c->tally, e);
    if (rc == 0)
        rc = store_open(c->config.credentials, m->keys, &c->store, e);
    const char *where = c->config.credential_store;
    struct backend *b = rc < 0 ? NULL : is_online(c) ? backend_vault_create(c->loop, where, m->keys, e) : backend_local_create(m->keys, e);
    if (rc == 0 && !b)
        rc = -e->code;
    if (rc == 0)
        rc = finder_create(c, b, &c->finder, e);
    if (rc == 0)
        rc = audit_tail(audit, REMEMBERED, remember, c->finder, e);
    if (rc == 0)
        rc = haproxy_serve(c->haproxy, m->keys->record, e);
    return rc == 0 ? server_create(c, m->keys, fd, &c->server, e) : rc;
}

static void on_signal(uv_signal_t *h, int number)
{
    (void)number;
    uv_stop(h->loop);
}

/* Once every line is on the disk there is nothing to wind up. */
static void serve(struct credd *c)
{
    static uv_signal_t term, interrupt;
    uv_signal_init(c->loop, &term);
    uv_signal_init(c->loop, &interrupt);
    uv_signal_start(&term, on_signal, SIGTERM);
    uv_signal_start(&interrupt, on_signal, SIGINT);
    log_info("space-credd %s keeps %u credentials (values: %s)", SPACE_VERSION, store_count(c->store), finder_backend(c->finder)->ops->name);
    uv_run(c->loop, UV_RUN_DEFAULT);
    audit_tally_close(c->tally);
    audit_sync(c->audit);
}

static int run(const char *path, struct err *e)
{
    static struct credd c;
    static struct master m;
    int fd = -1, rc = config_load(path, &c.config, e);
    if (rc < 0)
        return rc;
    if (!is_online(&c) && strcmp(c.config.credential_store, "local") != 0)
        return err_set(e, EINVAL, "credential_store is `local`, or the path of a file that says where Vault is");
    if (sodium_init() < 0)
        return err_set(e, ENOMEM, "libsodium does not start");
    umask(0077);
    c.loop = uv_default_loop();
    rc = prepare(&c, &m, &fd, e);
    if (rc == 0)
        rc = credd_isolate(&c.config, is_online(&c), e);
    if (rc == 0)
        rc = open_parts(&c, &m, fd, e);
    if (rc == 0)
        serve(&c);
    if (m.keys)
        sodium_free(m.keys); /* wiped */
    return rc;
}

int main(int argc, char **argv)
{
    const char *config;
    struct err e = {0};
    int status = options_parse(argc, argv, "space-credd", "", &config);
    if (status >= 0)
        return status;
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_ARENA_MAX, 1);
    if (run(config, &e) == 0)
        return 0;
    log_error("%s", e.msg);
    return 1;
}
