// SPDX-License-Identifier: Apache-2.0
// spacectl fsck: checks what is in the store, through space-volumed; and removes its garbage.
#include "spacectl/command.h"
#include "spacectl/fsck_snapshots.h"
#include "spacectl/volumed.h"

#include "base/cleanup.h"
#include "base/config.h"
#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_READ_ALL, OPT_TENANT, OPT_COLLECT, OPT_REPAIR, OPT_CONFIG };

static const struct option_def options[] = {
    [OPT_READ_ALL] = {'r', "read-all", NULL, "read and verify every chunk, not only what refers to it"},
    [OPT_TENANT] = {'t', "tenant", "NAME", "only what this tenant has"},
    [OPT_COLLECT] = {'g', "collect", NULL, "remove first what nobody needs any more"},
    [OPT_REPAIR] = {'R', "repair", NULL, "mend what can be mended: from snapshots in this node's pool, or from what else is in the store"},
    [OPT_CONFIG] = {'c', "config", "FILE", VOLUMED_CONFIG_HELP},
    {0, NULL, NULL, NULL},
};

/* ---- what is printed ---- */

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
           (unsigned long long)r->stat.artifacts, mib(r->stat.file_bytes), mib(r->stat.chunk_bytes), mib(r->stat.unique_bytes),
           ratio(r->stat.chunk_bytes, r->stat.unique_bytes), mib(r->stat.stored_bytes), (unsigned long long)r->stat.packs,
           ratio(r->stat.unique_bytes, r->stat.stored_bytes));
}

static int collect(int fd, const char *tenant, struct err *e)
{
    struct volumed_reply rep;
    int rc = volumed_ask(fd, VOLUMED_GC, tenant, 0, &rep, NULL, e);
    if (rc == 0 && rep.error < 0)
        rc = err_set(e, -rep.error, "remove garbage: %s", rep.sentence);
    if (rc == 0)
        printf("removed %llu packs, %.1f MiB; %llu uploads in progress keep the rest\n", (unsigned long long)rep.gc.deleted_packs,
               mib(rep.gc.deleted_bytes), (unsigned long long)rep.gc.waiting);
    return rc;
}

/* What is wrong: lines, and counts of them. */
struct findings {
    char *said; /* malloc'ed */
    bool wrong;
};

static int check(int fd, const char *tenant, uint32_t flags, const struct config *c, struct findings *out, struct err *e)
{
    struct volumed_reply rep;
    AUTO_CLOSE int lines = -1;
    size_t size;
    *out = (struct findings){0};
    int rc = volumed_ask(fd, VOLUMED_FSCK, tenant, flags, &rep, &lines, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *text = lines >= 0 ? volumed_text(lines) : NULL;
    FILE *f = open_memstream(&out->said, &size);
    if (!f)
        return err_set(e, ENOMEM, "check: out of memory");
    fputs(text ? text : "", f);
    int missing = rep.error < 0 && rep.error != -EBADMSG ? 0 : snapshots_missing(fd, c, tenant, f, e);
    if (fclose(f) != 0 || missing < 0)
        return missing < 0 ? missing : err_set(e, ENOMEM, "check: out of memory");
    fputs(out->said, stdout);
    if (rep.error < 0 && rep.error != -EBADMSG)
        return err_set(e, -rep.error, "%s", rep.sentence);
    if (rep.error < 0 && rep.fsck.wrong == 0) /* a tenant whose key is damaged */
        printf("%s\n", rep.sentence);
    printf("%llu artifacts, %llu packs, %llu chunks read: %llu things are wrong, %llu artifacts are affected\n",
           (unsigned long long)rep.fsck.artifacts + (unsigned)missing, (unsigned long long)rep.fsck.packs, (unsigned long long)rep.fsck.chunks,
           (unsigned long long)rep.fsck.wrong + (unsigned)missing, (unsigned long long)rep.fsck.affected + (unsigned)missing);
    out->wrong = rep.error < 0 || missing > 0;
    return 0;
}

static int check_and_repair(int fd, const char *tenant, uint32_t flags, const struct config *c, struct findings *f, struct err *e)
{
    int rc = check(fd, tenant, flags, c, f, e);
    if (rc < 0 || !f->wrong)
        return rc;
    rc = snapshots_repair(c, f->said, e);
    free(f->said);
    f->said = NULL;
    if (rc == 0)
        rc = check(fd, tenant, flags | VOLUMED_MEND, c, f, e);
    if (rc < 0 || !f->wrong)
        return rc;
    free(f->said);
    return check(fd, tenant, flags, c, f, e);
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
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
    struct config config;
    struct findings f = {0};
    uint32_t flags = args_value(a, OPT_READ_ALL) ? VOLUMED_READ_ALL : 0;
    if (rc == 0)
        rc = volumed_config(args_value(a, OPT_CONFIG), &config, e);
    if (rc == 0)
        rc = args_value(a, OPT_REPAIR) ? check_and_repair(fd, tenant, flags, &config, &f, e) : check(fd, tenant, flags, &config, &f, e);
    free(f.said);
    if (rc < 0)
        return rc;
    if (!f.wrong && volumed_ask(fd, VOLUMED_STAT, tenant, 0, &rep, NULL, e) == 0 && rep.error == 0)
        print_stat(&rep);
    return f.wrong ? EXIT_FAILED : 0;
}

const struct command command_fsck = {
    .name = "fsck",
    .usage = "[--read-all] [--tenant NAME] [--collect] [--repair] [--config FILE]",
    .summary = "check what is in the store of suspended sandboxes, and say what is lost if something is",
    .help = "Exits with 1 when something is wrong. May run at any time. For root.\n",
    .options = options,
    .flags = COMMAND_NO_MOUNT,
    .run = run,
};
