// SPDX-License-Identifier: Apache-2.0
// spacectl doctor: is everything there that sandboxes need, and how to mend what is not.
#include "spacectl/checks.h"
#include "spacectl/command.h"
#include "spacectl/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPT_CONFIG, OPT_JSON };

static const struct option_def options[] = {
    [OPT_CONFIG] = {'c', "config", "FILE", "the instance's configuration (default $SPACE_CONFIG, else " CONFIG_PATH_DEFAULT ")"},
    [OPT_JSON] = {'j', "json", NULL, "print a JSON array"},
    {0, NULL, NULL, NULL},
};

static const struct column columns[] = {
    {"check", COLUMN_TEXT, NULL}, {"result", COLUMN_TEXT, NULL}, {"text", COLUMN_TEXT, NULL}, {"mend", COLUMN_TEXT, NULL}, {NULL, COLUMN_TEXT, NULL},
};

static const char *const level_names[] = {[LEVEL_OK] = "ok", [LEVEL_NOTE] = "note", [LEVEL_BAD] = "FAIL"};

static void examine(const struct args *a, const struct tree *t, struct doctor *d)
{
    struct err e = {0};
    const char *path = args_value(a, OPT_CONFIG), *env = getenv("SPACE_CONFIG"), *space = getenv("SPACE");
    d->config_path = path ? path : env && *env ? env : CONFIG_PATH_DEFAULT;
    d->config_ok = config_load(d->config_path, &d->config, &e) == 0;
    snprintf(d->config_error, sizeof d->config_error, "%s", e.msg);
    d->mount = t->path ? t->path : space && *space ? space : d->config.mount;
}

static void report(struct table *table, const char *name, const struct finding *f, bool json)
{
    const char *const cells[] = {name, level_names[f->level], f->text, *f->mend ? f->mend : NULL};
    if (json) {
        table_add(table, cells);
        return;
    }
    printf("%-4s  %-13s %s\n", level_names[f->level], name, f->text);
    if (*f->mend)
        printf("      %-13s -> %s\n", "", f->mend);
    fflush(stdout);
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    struct doctor doctor;
    bool json = args_value(a, OPT_JSON) != NULL;
    int bad = 0;
    (void)self;
    (void)e;
    examine(a, t, &doctor);
    struct table *table = table_create(columns);
    for (const struct check *c = checks; c->name; c++) {
        struct finding f = {.level = LEVEL_OK};
        c->run(&doctor, &f);
        bad += f.level == LEVEL_BAD;
        report(table, c->name, &f, json);
    }
    if (json)
        table_print(table, true, stdout);
    table_destroy(table);
    return bad ? EXIT_FAILED : 0;
}

const struct command command_doctor = {
    .name = "doctor",
    .usage = "[--json] [--config FILE]",
    .summary = "check the host, the daemons and the mount, and say how to mend them",
    .help = "Exits with 1 when something is wrong. Run it as root to check everything.\n",
    .options = options,
    .flags = COMMAND_NO_MOUNT,
    .run = run,
};
