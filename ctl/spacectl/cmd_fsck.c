// SPDX-License-Identifier: Apache-2.0
// spacectl fsck: checks what is in the store, through space-volumed; and removes its garbage.
#include "spacectl/command.h"

#include "base/cleanup.h"
#include "base/config.h"
#include "base/str.h"
#include "ipc/volumed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { OPT_READ_ALL, OPT_TENANT, OPT_COLLECT, OPT_CONFIG };

static const struct option_def options[] = {
    [OPT_READ_ALL] = {'r', "read-all", NULL, "read and verify every chunk, not only what refers to it"},
    [OPT_TENANT] = {'t', "tenant", "NAME", "only what this tenant has"},
    [OPT_COLLECT] = {'g', "collect", NULL, "remove first what nobody needs any more"},
    [OPT_CONFIG] = {'c', "config", "FILE",
                    "the instance's configuration (default $SPACE_CONFIG, else " CONFIG_PATH_DEFAULT
                    ")"},
    {0, NULL, NULL, NULL},
};

/* ---- the connection: one request at a time ---- */

static int open_connection(const struct config *c, struct err *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/volumed.sock", c->run);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return err_sys(e, "connect to space-volumed on %s (spacectl doctor says more)",
                       address.sun_path);
    return steal_fd(&fd);
}

static ssize_t receive(int fd, struct volumed_reply *rep, int *file)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {rep, sizeof *rep};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *h = got > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
        memcpy(file, CMSG_DATA(h), sizeof *file);
    return got;
}

/* The answer's own error is in rep->error. `file` is the caller's. */
static int ask(int fd, uint32_t op, const char *tenant, uint32_t flags, struct volumed_reply *rep,
               int *file, struct err *e)
{
    struct volumed_request q = {.version = VOLUMED_VERSION, .op = op, .tag = op, .flags = flags};
    int ignored = -1;
    if (tenant)
        str_copy(q.object.tenant, sizeof q.object.tenant, tenant);
    if (send(fd, &q, sizeof q, MSG_NOSIGNAL) != (ssize_t)sizeof q)
        return err_sys(e, "ask space-volumed");
    do {
        ssize_t got = receive(fd, rep, file ? file : &ignored);
        if (got != (ssize_t)sizeof *rep)
            return got < 0 ? err_sys(e, "wait for space-volumed")
                           : err_set(e, ECONNRESET, "space-volumed hung up (spacectl doctor says more)");
    } while (rep->event != VOLUMED_REPLY);
    if (ignored >= 0)
        close(ignored);
    rep->sentence[sizeof rep->sentence - 1] = 0;
    return 0;
}

/* ---- what is printed ---- */

static void print_file(int fd)
{
    char buf[65536];
    off_t at = 0;
    for (ssize_t n; (n = pread(fd, buf, sizeof buf, at)) > 0; at += n)
        fwrite(buf, 1, (size_t)n, stdout);
}

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 1;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void print_stat(const struct volumed_reply *r)
{
    printf("%llu artifacts of %.1f MiB; %.1f MiB of chunks, %.1f MiB different ones (%.2f to 1), stored as %.1f MiB in "
           "%llu packs (%.2f to 1)\n",
           (unsigned long long)r->stat.artifacts, mib(r->stat.file_bytes), mib(r->stat.chunk_bytes),
           mib(r->stat.unique_bytes), ratio(r->stat.chunk_bytes, r->stat.unique_bytes),
           mib(r->stat.stored_bytes), (unsigned long long)r->stat.packs,
           ratio(r->stat.unique_bytes, r->stat.stored_bytes));
}

static int collect(int fd, const char *tenant, struct err *e)
{
    struct volumed_reply rep;
    int rc = ask(fd, VOLUMED_GC, tenant, 0, &rep, NULL, e);
    if (rc == 0 && rep.error < 0)
        rc = err_set(e, -rep.error, "remove garbage: %s", rep.sentence);
    if (rc == 0)
        printf("removed %llu packs, %.1f MiB; %llu uploads in progress keep the rest\n",
               (unsigned long long)rep.gc.deleted_packs, mib(rep.gc.deleted_bytes),
               (unsigned long long)rep.gc.waiting);
    return rc;
}

/* 1: something is wrong. */
static int check(int fd, const char *tenant, uint32_t flags, struct err *e)
{
    struct volumed_reply rep;
    AUTO_CLOSE int lines = -1;
    int rc = ask(fd, VOLUMED_FSCK, tenant, flags, &rep, &lines, e);
    if (rc < 0)
        return rc;
    if (lines >= 0)
        print_file(lines);
    if (rep.error < 0 && rep.error != -EBADMSG)
        return err_set(e, -rep.error, "%s", rep.sentence);
    if (rep.error < 0 && rep.fsck.wrong == 0) /* a tenant whose key is damaged */
        printf("%s\n", rep.sentence);
    printf("%llu artifacts, %llu packs, %llu chunks read: %llu things are wrong, %llu artifacts are "
           "affected\n",
           (unsigned long long)rep.fsck.artifacts, (unsigned long long)rep.fsck.packs,
           (unsigned long long)rep.fsck.chunks, (unsigned long long)rep.fsck.wrong,
           (unsigned long long)rep.fsck.affected);
    return rep.error < 0;
}

static int run(const struct command *self, const struct tree *t, const struct args *a,
               struct err *e)
{
    struct config config;
    struct volumed_reply rep;
    const char *path = args_value(a, OPT_CONFIG), *env = getenv("SPACE_CONFIG"),
               *tenant = args_value(a, OPT_TENANT);
    (void)self, (void)t;
    if (tenant && !str_name_valid(tenant, strlen(tenant)))
        return err_set(e, EINVAL, "'%s' is no tenant's name", tenant);
    int rc = config_load(path ? path : env && *env ? env : CONFIG_PATH_DEFAULT, &config, e);
    AUTO_CLOSE int fd = rc < 0 ? -1 : open_connection(&config, e);
    if (fd < 0)
        return -e->code;
    rc = ask(fd, VOLUMED_HELLO, NULL, 0, &rep, NULL, e);
    if (rc == 0 && rep.error < 0)
        rc = err_set(e, -rep.error, "%s", rep.sentence);
    if (rc == 0)
        printf("%.*s\n", (int)sizeof rep.hello.store, rep.hello.store);
    if (rc == 0 && args_value(a, OPT_COLLECT))
        rc = collect(fd, tenant, e);
    int wrong = rc == 0 ? check(fd, tenant, args_value(a, OPT_READ_ALL) ? VOLUMED_READ_ALL : 0, e) : rc;
    if (wrong == 0 && ask(fd, VOLUMED_STAT, tenant, 0, &rep, NULL, e) == 0 && rep.error == 0)
        print_stat(&rep);
    return wrong > 0 ? EXIT_FAILED : wrong;
}

const struct command command_fsck = {
    .name = "fsck",
    .usage = "[--read-all] [--tenant NAME] [--collect] [--config FILE]",
    .summary = "check what is in the store of suspended sandboxes, and say what is lost if something is",
    .help = "Exits with 1 when something is wrong. May run at any time. For root.\n",
    .options = options,
    .flags = COMMAND_NO_MOUNT,
    .run = run,
};
