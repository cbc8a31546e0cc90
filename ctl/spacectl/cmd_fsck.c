// SPDX-License-Identifier: Apache-2.0
// spacectl fsck: checks what is in the store, through space-volumed; and removes its garbage.
#include "spacectl/command.h"
#include "spacectl/volumed.h"

#include "base/cleanup.h"
#include "base/config.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* 1: something is wrong. `ret_lines` (may be NULL) gets what was said of it. */
static int check(int fd, const char *tenant, uint32_t flags, int *ret_lines, struct err *e)
{
    struct volumed_reply rep;
    AUTO_CLOSE int lines = -1;
    int rc = volumed_ask(fd, VOLUMED_FSCK, tenant, flags, &rep, &lines, e);
    if (rc < 0)
        return rc;
    if (lines >= 0)
        print_file(lines);
    if (ret_lines)
        *ret_lines = steal_fd(&lines);
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

/* ---- mending ---- */

static char *read_text(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = size < 0 ? NULL : calloc(1, (size_t)size + 1);
    if (text && pread(fd, text, (size_t)size, 0) != size) {
        free(text);
        return NULL;
    }
    return text;
}

/* Does `said` say "artifact ID is" of one of a snapshot's artifacts, FILE TENANT ID a line? */
static bool is_affected(const char *said, char *artifacts)
{
    char *save = NULL, id[65], look[96];
    for (char *line = strtok_r(artifacts, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (sscanf(line, "%*s %*s %64s", id) != 1)
            continue;
        snprintf(look, sizeof look, "artifact %s is ", id);
        if (strstr(said, look))
            return true;
    }
    return false;
}

/* By space-hostd, which knows what lies in the pool. */
static void repair_snapshot(const char *artifacts)
{
    char state[PATH_MAX];
    size_t n = strlen(artifacts) - strlen("artifacts");
    snprintf(state, sizeof state, "%.*sstate", (int)n, artifacts);
    AUTO_CLOSE int fd = open(state, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd >= 0 && write(fd, "repair", 6) == 6)
        printf("%.*s: mended\n", (int)n - 1, artifacts);
    else
        printf("%.*s: %s (the last line of `error` in the tree says more)\n", (int)n - 1, artifacts, strerror(errno));
}

static int repair(const struct config *c, int lines, struct err *e)
{
    char pattern[PATH_MAX], text[8192];
    AUTO_FREE char *said = lines >= 0 ? read_text(lines) : NULL;
    glob_t found = {0};
    if (!said)
        return err_set(e, EIO, "what is wrong was not said");
    snprintf(pattern, sizeof pattern, "%s/snapshots/*/*/artifacts", c->mount);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == GLOB_NOSPACE)
        return err_set(e, ENOMEM, "look at all snapshots");
    for (size_t i = 0; i < found.gl_pathc; i++) {
        AUTO_CLOSE int fd = open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (n <= 0)
            continue;
        text[n] = 0;
        if (is_affected(said, text))
            repair_snapshot(found.gl_pathv[i]);
    }
    globfree(&found);
    return 0;
}

static int check_and_repair(int fd, const char *tenant, uint32_t flags, const struct config *c, struct err *e)
{
    AUTO_CLOSE int lines = -1;
    int wrong = check(fd, tenant, flags, &lines, e);
    int rc = wrong > 0 ? repair(c, lines, e) : 0;
    if (wrong <= 0 || rc < 0)
        return wrong <= 0 ? wrong : rc;
    return check(fd, tenant, flags | VOLUMED_MEND, NULL, e) > 0 ? check(fd, tenant, flags, NULL, e) : 0;
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
    struct config config;
    uint32_t flags = args_value(a, OPT_READ_ALL) ? VOLUMED_READ_ALL : 0;
    bool mend = args_value(a, OPT_REPAIR);
    if (rc == 0 && mend)
        rc = volumed_config(args_value(a, OPT_CONFIG), &config, e);
    int wrong = rc < 0 ? rc : mend ? check_and_repair(fd, tenant, flags, &config, e) : check(fd, tenant, flags, NULL, e);
    if (wrong == 0 && volumed_ask(fd, VOLUMED_STAT, tenant, 0, &rep, NULL, e) == 0 && rep.error == 0)
        print_stat(&rep);
    return wrong > 0 ? EXIT_FAILED : wrong;
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
