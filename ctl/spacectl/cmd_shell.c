// SPDX-License-Identifier: Apache-2.0
// spacectl shell: an interactive program on a terminal of the sandbox's own.
#include "spacectl/attach.h"
#include "spacectl/command.h"
#include "spacectl/exec_options.h"
#include "spacectl/terminal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The terminal's type belongs to this side of the line; the sandbox only guesses it. */
static void add_term(char env[EXEC_ENV_MAX], struct job_spec *spec)
{
    const char *term = getenv("TERM");
    char old[EXEC_ENV_MAX];
    if (!term || !*term)
        return;
    snprintf(old, sizeof old, "%s", env);
    int n = snprintf(env, EXEC_ENV_MAX, "TERM=%s\n%s", term, old); /* first: an explicit -e TERM=... behind it wins */
    if (n < 0 || n >= EXEC_ENV_MAX)
        snprintf(env, EXEC_ENV_MAX, "%s", old);
    spec->env = env[0] ? env : NULL;
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    static char *const login[] = {"/bin/sh", "-c", "exec \"${SHELL:-/bin/sh}\" -l", NULL};
    struct job_spec spec = {.argv = a->pos_count > 1 ? a->pos + 1 : login};
    char env[EXEC_ENV_MAX], size[32];
    unsigned columns, rows;
    (void)self;
    if (!isatty(STDIN_FILENO))
        return err_set(e, ENOTTY, "standard input is no terminal (use `spacectl exec`)");
    int rc = exec_options_spec(a, env, &spec, e);
    if (rc < 0)
        return rc;
    add_term(env, &spec);
    terminal_size(&columns, &rows);
    snprintf(size, sizeof size, "%ux%u", columns, rows);
    spec.tty = size;
    return attach_run(t, &spec, e);
}

const struct command command_shell = {
    .name = "shell",
    .usage = "[OPTION...] NAME [COMMAND [ARGUMENT...]]",
    .summary = "a login shell, or another interactive program, in a sandbox",
    .help = "Keys go to the sandbox as they are, Ctrl-C included. `~.` at the start of a line ends "
            "the session by force.\n"
            "Exit statuses are those of `spacectl exec`.\n",
    .options = exec_options,
    .pos_min = 1,
    .pos_max = -1,
    .passthrough = 1,
    .fail_status = EXIT_SELF,
    .run = run,
};
