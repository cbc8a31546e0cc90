// SPDX-License-Identifier: Apache-2.0
// spacectl fsck: checks what is in the store, through space-volumed; and removes its garbage.
#include "spacectl/command.h"
#include "spacectl/volumed.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OPT_READ_ALL, OPT_TENANT, OPT_COLLECT, OPT_CONFIG };

static const struct option_def options[] = {
    [OPT_READ_ALL] = {'r', "read-all", NULL, "read and verify every chunk, not only what refers to it"},
    [OPT_TENANT] = {'t', "tenant", "NAME", "only what this tenant has"},
    [OPT_COLLECT] = {'g', "collect", NULL, "remove first what nobody needs any more"},
    [OPT_CONFIG] = {'c', "config", "FILE", VOLUMED_CONFIG_HELP},
    {0, NULL, NULL, NULL},
};

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
    int rc = volumed_ask(fd, VOLUMED_GC, tenant, 0, &rep, NULL, e);
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
    int rc = volumed_ask(fd, VOLUMED_FSCK, tenant, flags, &rep, &lines, e);
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
    struct volumed_reply rep;
    const char *tenant = args_value(a, OPT_TENANT);
    (void)self, (void)t;
    if (tenant && !str_name_valid(tenant, strlen(tenant)))
        return err_set(e, EINVAL, "'%s' is no tenant's name", tenant);
    AUTO_CLOSE int fd = volumed_open(args_value(a, OPT_CONFIG), &rep, e);
    int rc = fd < 0 ? -e->code : 0;
    if (rc == 0)
        printf("%.*s\n", (int)sizeof rep.hello.store, rep.hello.store);
    if (rc == 0 && args_value(a, OPT_COLLECT))
        rc = collect(fd, tenant, e);
    int wrong = rc == 0 ? check(fd, tenant, args_value(a, OPT_READ_ALL) ? VOLUMED_READ_ALL : 0, e) : rc;
    if (wrong == 0 && volumed_ask(fd, VOLUMED_STAT, tenant, 0, &rep, NULL, e) == 0 && rep.error == 0)
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
