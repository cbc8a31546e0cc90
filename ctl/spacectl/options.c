// SPDX-License-Identifier: Apache-2.0
// Command-line parsing: see options.h.
#include "spacectl/options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Negative indices, so that they never meet a command's own. */
enum { GLOBAL_SPACE = -1, GLOBAL_HELP = -2 };

static const struct option_def global_defs[] = {
    {0, "space", "DIR", "the mount to work on (default: $SPACE, else /space)"},
    {'h', "help", NULL, "show this help"},
    {0, NULL, NULL, NULL},
};

static int global_index(int i)
{
    return i == 0 ? GLOBAL_SPACE : GLOBAL_HELP;
}

/* Finds by letter, or by name of `len` bytes when letter is 0. Returns the definition, its index in
 * *index. */
static const struct option_def *find(const struct option_def *defs, char letter, const char *name, size_t len, int *index)
{
    for (int i = 0; defs && defs[i].name; i++)
        if (letter ? defs[i].letter == letter : strlen(defs[i].name) == len && !memcmp(defs[i].name, name, len)) {
            *index = i;
            return &defs[i];
        }
    for (int i = 0; global_defs[i].name; i++)
        if (letter ? global_defs[i].letter == letter : strlen(global_defs[i].name) == len && !memcmp(global_defs[i].name, name, len)) {
            *index = global_index(i);
            return &global_defs[i];
        }
    return NULL;
}

static int take(struct args *a, int index, const char *value, struct err *e)
{
    if (index == GLOBAL_SPACE) {
        a->space = value;
    } else if (index == GLOBAL_HELP) {
        a->help = true;
    } else {
        if (a->given_count == OPTIONS_GIVEN_MAX)
            return err_set(e, EINVAL, "more than %d options", OPTIONS_GIVEN_MAX);
        a->given[a->given_count].def = index;
        a->given[a->given_count++].value = value ? value : "";
    }
    return 0;
}

/* One "--name", "--name=value" or "--name value". Moves *i over a value of its own. */
static int parse_long(const struct option_def *defs, int argc, char **argv, int *i, struct args *a, struct err *e)
{
    const char *name = argv[*i] + 2;
    const char *equals = strchr(name, '=');
    size_t len = equals ? (size_t)(equals - name) : strlen(name);
    int index;
    const struct option_def *d = find(defs, 0, name, len, &index);
    if (!d)
        return err_set(e, EINVAL, "unknown option --%.*s (see --help)", (int)len, name);
    if (!d->value)
        return equals ? err_set(e, EINVAL, "option --%s takes no value", d->name) : take(a, index, NULL, e);
    if (equals)
        return take(a, index, equals + 1, e);
    if (*i + 1 >= argc)
        return err_set(e, EINVAL, "option --%s needs a value: %s", d->name, d->value);
    return take(a, index, argv[++*i], e);
}

/* One "-x", "-xyz" (flags), "-xVALUE" or "-x VALUE". */
static int parse_letters(const struct option_def *defs, int argc, char **argv, int *i, struct args *a, struct err *e)
{
    for (const char *p = argv[*i] + 1; *p; p++) {
        int index, rc;
        const struct option_def *d = find(defs, *p, NULL, 0, &index);
        if (!d)
            return err_set(e, EINVAL, "unknown option -%c (see --help)", *p);
        if (!d->value) {
            rc = take(a, index, NULL, e);
            if (rc < 0)
                return rc;
            continue;
        }
        if (p[1])
            return take(a, index, p + 1, e);
        if (*i + 1 >= argc)
            return err_set(e, EINVAL, "option -%c needs a value: %s", *p, d->value);
        return take(a, index, argv[++*i], e);
    }
    return 0;
}

/* Positional arguments are moved to the front of argv, so that they need no storage of their own.
 */
int options_parse(const struct option_def *defs, int passthrough, int argc, char **argv, struct args *out, struct err *e)
{
    bool options_end = false;
    memset(out, 0, sizeof *out);
    out->pos = argv;
    for (int i = 0; i < argc; i++) {
        char *arg = argv[i];
        int rc = 0;
        if (passthrough && out->pos_count == passthrough && !options_end) {
            if (!strcmp(arg, "--")) {
                options_end = true;
                continue;
            }
            options_end = arg[0] != '-' || !arg[1]; /* options may stand between NAME and the command */
        }
        if (options_end || arg[0] != '-' || !arg[1])
            argv[out->pos_count++] = arg;
        else if (!strcmp(arg, "--"))
            options_end = !passthrough;
        else if (arg[1] == '-')
            rc = parse_long(defs, argc, argv, &i, out, e);
        else
            rc = parse_letters(defs, argc, argv, &i, out, e);
        if (rc < 0)
            return rc;
        if (out->help)
            return 0;
    }
    argv[out->pos_count] = NULL; /* argv[argc] is NULL already, and pos_count <= argc */
    return 0;
}

const char *args_next(const struct args *a, int def, int *at)
{
    for (int i = *at; i < a->given_count; i++)
        if (a->given[i].def == def) {
            *at = i + 1;
            return a->given[i].value;
        }
    return NULL;
}

const char *args_value(const struct args *a, int def)
{
    const char *value = NULL, *next;
    for (int at = 0; (next = args_next(a, def, &at));)
        value = next;
    return value;
}

static void print_defs(const struct option_def *defs)
{
    for (; defs && defs->name; defs++) {
        char left[64];
        char letter[5] = "    ";
        if (defs->letter)
            snprintf(letter, sizeof letter, "-%c, ", defs->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, defs->name, defs->value ? " " : "", defs->value ? defs->value : "");
        printf("  %-26s %s\n", left, defs->help);
    }
}

void options_print(const struct option_def *defs)
{
    print_defs(defs);
    print_defs(global_defs);
}
