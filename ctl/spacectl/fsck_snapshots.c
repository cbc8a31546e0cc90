// SPDX-License-Identifier: Apache-2.0
// Snapshots and their artifacts: see fsck_snapshots.h.
//
// The store itself cannot say that an artifact is missing: one whose manifest is gone looks like one that was deleted. So snapshots are read first, then the store's
// list, and what is not on it is looked for in its snapshot once more: that may have been removed meanwhile.
#include "spacectl/fsck_snapshots.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "spacectl/volumed.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARTIFACTS_MAX 8192u /* bytes of a file `artifacts` */

/* Lists of tenants that were asked for. */
struct listed {
    struct listed *next;
    char tenant[VOLUMED_TENANT_MAX + 1];
    char *text; /* NULL: it cannot be had */
};

static int find_snapshots(const struct config *c, glob_t *found, struct err *e)
{
    char pattern[PATH_MAX];
    snprintf(pattern, sizeof pattern, "%s/snapshots/*/*/artifacts", c->mount);
    if (glob(pattern, GLOB_NOSORT, NULL, found) == GLOB_NOSPACE)
        return err_set(e, ENOMEM, "look at all snapshots");
    return 0;
}

static bool read_artifacts(const char *path, char text[ARTIFACTS_MAX])
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, ARTIFACTS_MAX - 1);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* ---- what is missing ---- */

static const char *list_of(struct listed **lists, int volumed, const char *tenant)
{
    struct volumed_reply rep;
    struct err e = {0};
    AUTO_CLOSE int file = -1;
    struct listed *l = *lists;
    while (l && strcmp(l->tenant, tenant) != 0)
        l = l->next;
    if (l)
        return l->text;
    if (!(l = calloc(1, sizeof *l)))
        return NULL;
    str_copy(l->tenant, sizeof l->tenant, tenant);
    l->next = *lists;
    *lists = l;
    if (volumed_ask(volumed, VOLUMED_LIST, tenant, 0, &rep, &file, &e) == 0 && rep.error == 0 && file >= 0)
        l->text = volumed_text(file);
    return l->text;
}

static bool still_needed(const char *path, const char *line)
{
    char text[ARTIFACTS_MAX];
    return read_artifacts(path, text) && strstr(text, line);
}

static int check_snapshot(int volumed, struct listed **lists, const char *path, const char *only, FILE *out)
{
    char text[ARTIFACTS_MAX], tenant[VOLUMED_TENANT_MAX + 1], id[33], *save = NULL;
    int missing = 0;
    if (!read_artifacts(path, text))
        return 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (sscanf(line, "%*s %64s %32s", tenant, id) != 2 || (only && strcmp(only, tenant) != 0))
            continue;
        const char *list = list_of(lists, volumed, tenant);
        if (!list || strstr(list, id) || !still_needed(path, line))
            continue;
        fprintf(out, "tenant %s: artifact %s is missing: %.*s needs it\n", tenant, id, (int)(strlen(path) - strlen("/artifacts")), path);
        missing++;
    }
    return missing;
}

int snapshots_missing(int volumed, const struct config *c, const char *tenant, FILE *out, struct err *e)
{
    glob_t found = {0};
    struct listed *lists = NULL;
    int missing = 0, rc = find_snapshots(c, &found, e);
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++)
        missing += check_snapshot(volumed, &lists, found.gl_pathv[i], tenant, out);
    globfree(&found);
    for (struct listed *l; (l = lists);) {
        lists = l->next;
        free(l->text);
        free(l);
    }
    return rc < 0 ? rc : missing;
}

/* ---- mending ---- */

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

int snapshots_repair(const struct config *c, const char *said, struct err *e)
{
    char text[ARTIFACTS_MAX];
    glob_t found = {0};
    int rc = find_snapshots(c, &found, e);
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++)
        if (read_artifacts(found.gl_pathv[i], text) && is_affected(said, text))
            repair_snapshot(found.gl_pathv[i]);
    globfree(&found);
    return rc;
}
