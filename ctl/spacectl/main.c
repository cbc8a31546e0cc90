// SPDX-License-Identifier: Apache-2.0
// spacectl: the command line for people who would rather not type echo and cat. It does only what
// file operations on the mount do, so everything here can be done without it.
#include "spacectl/command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ENTRY(name) &command_##name,
const struct command *const commands[] = {COMMANDS(ENTRY) NULL};
#undef ENTRY

static void print_overview(FILE *out)
{
    fputs("usage: spacectl [--space DIR] COMMAND [ARGUMENT...]\n\n"
          "Sandboxes, each a virtual machine, through the file system mounted on DIR (default "
          "$SPACE, else /space).\n\n",
          out);
    for (int i = 0; commands[i]; i++)
        fprintf(out, "  %-16s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n`spacectl COMMAND --help` says more about one. Manual: man spacectl\n", out);
}

static int print_help(const struct command *c)
{
    printf("usage: spacectl %s %s\n\n%s\n", c->name, c->usage, c->summary);
    if (c->help)
        printf("\n%s", c->help);
    puts("\noptions:");
    options_print(c->options);
    return 0;
}

/* Matches the first word, or the first two, of argv. Returns how many were taken, 0 for no match.
 */
static int match(const struct command *c, int argc, char **argv)
{
    const char *blank = strchr(c->name, ' ');
    if (!blank)
        return argc >= 1 && !strcmp(argv[0], c->name);
    size_t len = (size_t)(blank - c->name);
    return argc >= 2 && strlen(argv[0]) == len && !memcmp(argv[0], c->name, len) && !strcmp(argv[1], blank + 1) ? 2 : 0;
}

/* "template" alone: shows what may follow. */
static int group_usage(const char *group)
{
    size_t len = strlen(group);
    int found = 0;
    for (int i = 0; commands[i]; i++)
        if (!strncmp(commands[i]->name, group, len) && commands[i]->name[len] == ' ') {
            fprintf(stderr, "%sspacectl %s %s\n", found++ ? "       " : "usage: ", commands[i]->name, commands[i]->usage);
        }
    return found;
}

static int run_command(const struct command *c, const char *space, int argc, char **argv)
{
    struct err e = {0};
    struct args args;
    if (options_parse(c->options, c->passthrough, argc, argv, &args, &e) < 0) {
        fprintf(stderr, "spacectl %s: %s\n", c->name, e.msg);
        return c->fail_status ? c->fail_status : EXIT_USAGE;
    }
    if (args.help)
        return print_help(c);
    if (args.pos_count < c->pos_min || (c->pos_max >= 0 && args.pos_count > c->pos_max)) {
        fprintf(stderr, "usage: spacectl %s %s\n", c->name, c->usage);
        return c->fail_status ? c->fail_status : EXIT_USAGE;
    }
    struct tree tree = {.fd = -1, .path = args.space ? args.space : space};
    int rc = 0;
    if (!(c->flags & COMMAND_NO_MOUNT))
        rc = tree_open(tree.path, &tree, &e);
    if (rc >= 0)
        rc = c->run(c, &tree, &args, &e);
    tree_close(&tree);
    if (rc >= 0)
        return rc;
    fprintf(stderr, "spacectl: %s\n", e.msg);
    if (rc == -EINTR)
        return 130; /* as a shell reports SIGINT */
    return c->fail_status ? c->fail_status : EXIT_FAILED;
}

/* Options before the command: --space DIR, --help, --version. Returns how many words they took, or
 * -1. */
static int leading_options(int argc, char **argv, const char **space)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--space") && i + 1 < argc)
            *space = argv[++i];
        else if (!strncmp(argv[i], "--space=", 8))
            *space = argv[i] + 8;
        else
            return -1;
    }
    return i;
}

int main(int argc, char **argv)
{
    const char *space = NULL;
    if (argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))) {
        print_overview(stdout);
        return 0;
    }
    if (argc >= 2 && !strcmp(argv[1], "--version")) {
        puts("spacectl " SPACE_VERSION);
        return 0;
    }
    int at = leading_options(argc, argv, &space);
    if (at < 0 || at >= argc) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    for (int i = 0; commands[i]; i++) {
        int words = match(commands[i], argc - at, argv + at);
        if (words)
            return run_command(commands[i], space, argc - at - words, argv + at + words);
    }
    if (!group_usage(argv[at]))
        fprintf(stderr, "spacectl: unknown command \"%s\" (spacectl --help lists them)\n", argv[at]);
    return EXIT_USAGE;
}
