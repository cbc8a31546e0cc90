// SPDX-License-Identifier: Apache-2.0
// space-netd: all that guests send to the network ends here, and goes on if their policy allows it.
//
// Starts as root, binds its socket, becomes `net_user`, gives up the rest, and serves one
// space-hostd. When it ends, guests lose their connections, and nothing of theirs leaves the host
// until it is back: their network has no other way out.
#include "base/cleanup.h"
#include "base/log.h"
#include "base/options.h"
#include "hostd/netd/netd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define TICK_MSEC 1000
#define RULES_MAX (1 << 20) /* bytes of the platform's file */

static volatile sig_atomic_t ended;

static void on_signal(int number)
{
    ended = number;
}

/* ---- the administrator's rules ---- */

struct rules_file {
    struct timespec changed;
    bool known, bad;
};

static int read_rules(int fd, size_t size, struct levels **out, struct err *e)
{
    AUTO_FREE char *text = malloc(size + 1);
    ssize_t n = text ? read(fd, text, size) : -1;
    if (n != (ssize_t)size)
        return err_set(e, EIO, "it cannot be read");
    return levels_parse(text, size, out, e);
}

static void apply_rules(struct netd *n, struct levels *l)
{
    struct levels *old = n->levels;
    struct err e = {0};
    n->levels = l;
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&n->guests, it));) {
        struct guest *g = hmap_entry(it, struct guest, by_key);
        bool broken = g->broken;
        if (guest_set_levels(g, &e) < 0 && !broken) /* such as for a set that is gone */
            log_warn("sandbox %012" PRIx64 " is allowed nothing any more: %s", g->id, e.msg);
    }
    levels_destroy(old); /* nobody points there any more */
}

/* When the file is another than before. Guests stay without a network rather than with one that was
 * not meant. */
static void look_at_rules(struct netd *n, struct rules_file *f)
{
    static const char nothing[] = "deny tcp *:*\n";
    struct stat st = {0};
    struct levels *l = NULL;
    struct err e = {0};
    AUTO_CLOSE int fd = open(n->config.egress, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool there = fd >= 0 && fstat(fd, &st) == 0;
    int rc = there || errno == ENOENT ? 0 : err_sys(&e, "open it");
    if (f->known && !memcmp(&f->changed, &st.st_mtim, sizeof st.st_mtim) && (rc < 0) == f->bad)
        return;
    f->known = true;
    f->changed = st.st_mtim;
    if (rc == 0 && there)
        rc = st.st_size > RULES_MAX ? err_set(&e, E2BIG, "it is too large") : read_rules(fd, (size_t)st.st_size, &l, &e);
    f->bad = rc < 0;
    if (rc < 0) {
        log_error("%s: %s; until it is mended nothing is allowed", n->config.egress, e.msg);
        if (levels_parse(nothing, sizeof nothing - 1, &l, NULL) < 0)
            abort();
    }
    apply_rules(n, l);
}

/* ---- congestion control ---- */

/* As who makes the connections, who may not choose everything. The host's choice is no reason to
 * leave guests without a network. */
static void choose_congestion(struct netd *n)
{
    const char *name = n->config.egress_congestion;
    if (strcmp(name, "system") == 0)
        return;
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0)
        strcpy(n->congestion, name);
    else
        log_warn("egress_congestion = %s: %s: connections to servers are as the host has them; sysctl net.ipv4.tcp_allowed_congestion_control says "
                 "what may be chosen",
                 name, strerror(errno));
}

/* ---- life ---- */

static void tick(struct netd *n, struct rules_file *rules)
{
    look_at_rules(n, rules);
    names_sweep(n);
    inject_tick(n);
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&n->guests, it));)
        guest_tick(hmap_entry(it, struct guest, by_key));
}

static int serve(struct netd *n, struct err *e)
{
    struct rules_file rules = {0};
    uint64_t next = 0;
    while (!ended) {
        int rc = loop_step(n->loop, next ? names_wait(n, TICK_MSEC) : 0);
        if (rc < 0)
            return err_set(e, -rc, "wait for events: %s", strerror(-rc));
        names_tick(n);
        if (loop_now(n->loop) >= next) {
            tick(n, &rules);
            next = loop_now(n->loop) + TICK_MSEC;
        }
    }
    return 0;
}

static int run(const char *config, struct err *e)
{
    struct netd *n = calloc(1, sizeof *n);
    struct sigaction end = {.sa_handler = on_signal};
    int rc = n ? config_load(config, &n->config, e) : err_set(e, ENOMEM, "out of memory");
    if (rc < 0)
        return rc;
    signal(SIGPIPE, SIG_IGN);
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGINT, &end, NULL);
    n->loop = loop_create();
    if (!n->loop)
        return err_set(e, ENOMEM, "out of memory");
    rc = names_open(n, e);
    if (rc == 0)
        rc = control_open(n, e);
    if (rc == 0)
        rc = inject_open(n, e);
    if (rc == 0)
        rc = isolate(&n->config, e);
    if (rc == 0)
        choose_congestion(n);
    if (rc == 0)
        log_info("space-netd " SPACE_VERSION " is ready");
    return rc < 0 ? rc : serve(n, e);
}

int main(int argc, char **argv)
{
    const char *config;
    struct err e = {0};
    int status = options_parse(argc, argv, "space-netd", "", &config);
    if (status >= 0)
        return status;
    if (run(config, &e) == 0)
        return 0;
    log_error("%s", e.msg);
    return 1;
}
