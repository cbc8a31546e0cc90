// SPDX-License-Identifier: Apache-2.0
// spacefs: mounts the tree that space-hostd serves.
#include "base/log.h"
#include "base/options.h"
#include "isolate/isolate.h"
#include "spacefs/conn.h"
#include "spacefs/gesture.h"
#include "spacefs/isolate.h"
#include "spacefs/node.h"
#include "spacefs/seal.h"
#include "spacefs/session.h"
#include "spacefs/task.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char about[] = "Mounts the tree of space-hostd where FILE says, in the foreground. Must be started as root; runs as\n"
                            "the configured user. SIGTERM ends it; then detach the mount with umount -l.\n";

static void on_unmounted(struct fs *fs)
{
    log_info("unmounted");
    uv_stop(fs->loop);
}

static void on_signal(uv_signal_t *h, int number)
{
    log_info("signal %d: ending", number);
    uv_stop(h->loop);
}

static void on_connection(struct fs *fs, bool up)
{
    if (!up)
        gesture_disconnected(fs);
}

static int open_loop(struct fs *fs, struct err *e)
{
    fs->loop = uv_default_loop();
    fs->co = fs->loop ? co_sched_create(fs->loop) : NULL;
    if (!fs->co)
        return err_set(e, ENOMEM, "cannot create an event loop");
    uv_timer_init(fs->loop, &fs->interrupt_timer);
    fs->interrupt_timer.data = fs;
    return 0;
}

static void close_handle(uv_handle_t *h, void *user)
{
    (void)user;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static bool is_in_use(const struct fs *fs)
{
    return fs->tasks || fs->handles;
}

/* Frees everything. With requests waiting or files open the process just goes, and what they hold with it. */
static void finish(struct fs *fs)
{
    session_close(fs);
    gesture_disconnected(fs);
    if (is_in_use(fs))
        _exit(0);
    task_end_workers(fs);
    node_finish(fs);
    hmap_finish(&fs->fids);
    hmap_finish(&fs->users);
    conn_destroy(fs->conn);
    uv_run(fs->loop, UV_RUN_NOWAIT);
    co_sched_destroy(fs->co);
    uv_walk(fs->loop, close_handle, NULL);
    uv_run(fs->loop, UV_RUN_DEFAULT);
    uv_loop_close(fs->loop);
}

static int serve(struct fs *fs, struct err *e)
{
    char socket[sizeof fs->config.run + sizeof "/hostd.sock"];
    uv_signal_t terminate, interrupt;
    int rc = session_start(fs, on_unmounted, e);
    if (rc < 0)
        return rc;
    snprintf(socket, sizeof socket, "%s/hostd.sock", fs->config.run);
    fs->conn = conn_create(fs, socket, on_connection);
    uv_signal_init(fs->loop, &terminate);
    uv_signal_init(fs->loop, &interrupt);
    uv_signal_start(&terminate, on_signal, SIGTERM);
    uv_signal_start(&interrupt, on_signal, SIGINT);
    rc = seal_init(e);
    if (rc == 0)
        rc = isolate_confine(&fs->config, e);
    if (rc < 0)
        return rc;
    uv_run(fs->loop, UV_RUN_DEFAULT);
    finish(fs);
    return 0;
}

int main(int argc, char **argv)
{
    struct fs fs = {0};
    struct err e = {0};
    const char *config;
    int status = options_parse(argc, argv, "spacefs", about, &config);
    if (status >= 0)
        return status;
    signal(SIGPIPE, SIG_IGN);
    if (config_load(config, &fs.config, &e) < 0 || open_loop(&fs, &e) < 0)
        goto failed;
    node_init(&fs);
    if (session_open(&fs, &e) < 0 || isolate_become(fs.config.user, fs.config.group, &e) < 0)
        goto failed;
    log_info("spacefs %s mounted at %s", SPACE_VERSION, fs.config.mount);
    if (serve(&fs, &e) < 0)
        goto failed;
    return 0;
failed:
    log_error("%s", e.msg);
    session_undo(&fs);
    return 1;
}
