// SPDX-License-Identifier: Apache-2.0
// space-volumed: keeps files of heads in an object store, encrypted, each chunk once. Started as root, it opens its socket, makes its folders, and becomes `volume_user`.
#include "base/cleanup.h"
#include "base/config.h"
#include "base/log.h"
#include "base/options.h"
#include "hostd/volumed/isolate.h"
#include "hostd/volumed/server.h"
#include "hostd/volumed/store/ledger.h"
#include "isolate/isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define THREADS_MORE 6    /* than processors: files and stores are waited for in them, too */
#define STOP_MSEC    5000 /* what has not ended by then ends with the process; the next start takes it up */

struct volumed {
    struct config config;
    struct store store;
    struct server *server;
    uv_loop_t *loop;
    uv_signal_t term, interrupt;
    uv_timer_t patience;
    uid_t user;
    bool online;
    int socket, cache;
    struct backend *backend;
    int rc;
    struct err err;
};

/* ---- as root ---- */

static int open_socket(struct volumed *v, struct err *e)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const struct passwd *pw = getpwnam(v->config.user);
    if (!pw)
        return err_set(e, ENOENT, "there is no user '%s' (config `user`)", v->config.user);
    v->user = pw->pw_uid;
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/volumed.sock", v->config.run);
    v->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(addr.sun_path);
    mode_t old = umask(0177); /* never open to anybody else */
    int rc = v->socket < 0 ? -1 : bind(v->socket, (struct sockaddr *)&addr, sizeof addr);
    umask(old);
    if (rc < 0 || lchown(addr.sun_path, v->user, (gid_t)-1) < 0)
        return err_sys(e, "bind %s", addr.sun_path);
    return 0;
}

/* A folder that is not there is made, for `volume_user`. */
static int make_folder(const struct volumed *v, const char *path, struct err *e)
{
    const struct passwd *pw = getpwnam(v->config.volume_user);
    if (!pw)
        return err_set(e, ENOENT, "there is no user '%s' (config `volume_user`)", v->config.volume_user);
    if (mkdir(path, 0700) < 0)
        return errno == EEXIST ? 0 : err_sys(e, "make %s", path);
    return geteuid() == 0 && lchown(path, pw->pw_uid, pw->pw_gid) < 0 ? err_sys(e, "give %s to %s", path, pw->pw_name) : 0;
}

static struct backend *open_s3(struct volumed *v, struct err *e);

/* The credentials may be root's, which are read now and never again, or volume_user's. */
static bool only_root_reads(const char *path)
{
    struct stat st;
    return geteuid() == 0 && stat(path, &st) == 0 && st.st_uid == 0;
}

static int prepare(struct volumed *v, struct err *e)
{
    int rc = open_socket(v, e);
    if (rc == 0)
        rc = make_folder(v, v->config.store_cache, e);
    if (rc == 0 && !v->online)
        rc = make_folder(v, v->config.store, e);
    if (rc == 0 && v->online && only_root_reads(v->config.store_credentials) && !(v->backend = open_s3(v, e)))
        rc = -e->code;
    if (rc == 0 && geteuid() == 0)
        rc = isolate_become(v->config.volume_user, NULL, e);
    if (rc == 0 && listen(v->socket, 16) < 0) /* who listens is who clients see */
        rc = err_sys(e, "listen on the socket");
    return rc;
}

/* store = https://HOST[:PORT]/BUCKET[/PREFIX] */
static struct backend *open_s3(struct volumed *v, struct err *e)
{
    const struct config *c = &v->config;
    char url[CONFIG_PATH_MAX], bucket[CONFIG_PATH_MAX] = "", prefix[CONFIG_PATH_MAX + 1] = "";
    snprintf(url, sizeof url, "%s", c->store);
    char *host = strstr(url, "://"), *slash = host ? strchr(host + 3, '/') : NULL;
    if (slash) {
        *slash = 0;
        snprintf(bucket, sizeof bucket, "%s", slash + 1);
    }
    char *rest = strchr(bucket, '/');
    if (rest) {
        *rest = 0;
        snprintf(prefix, sizeof prefix, "%s%s", rest + 1, rest[1] ? "/" : "");
    }
    if (!*bucket) {
        err_set(e, EINVAL, "store must be a directory, or https://HOST[:PORT]/BUCKET[/PREFIX], not '%s'", c->store);
        return NULL;
    }
    const struct backend_s3_options o = {.endpoint = url,
                                         .bucket = bucket,
                                         .prefix = prefix,
                                         .region = c->store_region,
                                         .style = strcmp(c->store_style, "host") == 0 ? BACKEND_S3_HOST : BACKEND_S3_PATH,
                                         .credentials = c->store_credentials,
                                         .ca = *c->store_ca ? c->store_ca : NULL};
    return backend_s3_create(v->loop, &o, e);
}

/* ---- as volume_user ---- */

static int open_store(struct volumed *v, struct err *e)
{
    v->cache = open(v->config.store_cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (v->cache < 0)
        return err_sys(e, "open %s", v->config.store_cache);
    if (!v->backend)
        v->backend = v->online ? open_s3(v, e) : backend_dir_create(v->loop, &(struct backend_dir_options){.path = v->config.store}, e);
    struct keys *k = v->backend ? keys_create(v->loop, v->config.keys, e) : NULL;
    return k ? store_init(&v->store, v->loop, v->backend, k, v->cache, v->config.store_stale, e) : -e->code;
}

/* ---- the loop ---- */

static void end_loop(void *user)
{
    struct volumed *v = user;
    uv_stop(v->loop);
}

static void on_patience(uv_timer_t *t)
{
    end_loop(t->data);
}

static void on_signal(uv_signal_t *h, int number)
{
    struct volumed *v = h->data;
    (void)number;
    uv_signal_stop(&v->term);
    uv_signal_stop(&v->interrupt);
    uv_timer_start(&v->patience, on_patience, STOP_MSEC, 0);
    if (v->server)
        server_stop(v->server, end_loop, v);
    else
        end_loop(v);
}

/* Nobody is served before the store was seen: that finds out what it can, and says early what is wrong with it. It may come later, too. */
static void look_at_store(void *user)
{
    struct volumed *v = user;
    struct err e = {0};
    int rc = backend_run_co(v->store.co, v->store.backend, &(struct backend_request){.verb = BACKEND_CHECK}, NULL, &e);
    if (rc < 0)
        log_warn("%s; requests will fail until that is mended", e.msg);
    else
        log_info("space-volumed %s keeps %s", SPACE_VERSION, backend_describe(v->store.backend));
    ledger_open(&v->store);
    v->server = server_create(&v->store, v->socket, v->user, &v->err);
    if (!v->server) {
        v->rc = -v->err.code;
        end_loop(v);
    }
}

static void start_loop(struct volumed *v)
{
    uv_timer_init(v->loop, &v->patience);
    uv_signal_init(v->loop, &v->term);
    uv_signal_init(v->loop, &v->interrupt);
    v->patience.data = v->term.data = v->interrupt.data = v;
    uv_signal_start(&v->term, on_signal, SIGTERM);
    uv_signal_start(&v->interrupt, on_signal, SIGINT);
    co_spawn(v->store.co, look_at_store, v);
}

/* What is allocated here lives as long as the process. */
static int run(const char *path, struct err *e)
{
    static struct volumed v;
    char threads[24];
    int rc = config_load(path, &v.config, e);
    if (rc < 0)
        return rc;
    v.online = v.config.store[0] != '/';
    snprintf(threads, sizeof threads, "%ld", sysconf(_SC_NPROCESSORS_ONLN) + THREADS_MORE);
    setenv("UV_THREADPOOL_SIZE", threads, 1);
    umask(0077);
    v.loop = uv_default_loop();
    rc = prepare(&v, e);
    if (rc == 0)
        rc = volumed_isolate(&v.config, v.online, e);
    if (rc == 0)
        rc = open_store(&v, e);
    if (rc < 0)
        return rc;
    start_loop(&v);
    uv_run(v.loop, UV_RUN_DEFAULT);
    if (v.rc < 0)
        *e = v.err;
    return v.rc;
}

int main(int argc, char **argv)
{
    const char *config;
    struct err e = {0};
    int status = options_parse(argc, argv, "space-volumed", "", &config);
    if (status >= 0)
        return status;
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_ARENA_MAX, 2); /* threads that come and go keep no memory each */
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    if (run(config, &e) == 0)
        return 0;
    log_error("%s", e.msg);
    return 1;
}
