// SPDX-License-Identifier: Apache-2.0
// spacectl exec: a program in a sandbox, with this process's streams and its exit status.
#include "spacectl/attach.h"
#include "spacectl/command.h"
#include "spacectl/exec_options.h"

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    struct job_spec spec = {.argv = a->pos + 1};
    char env[EXEC_ENV_MAX];
    (void)self;
    int rc = exec_options_spec(a, env, &spec, e);
    return rc < 0 ? rc : attach_run(t, &spec, e);
}

const struct command command_exec = {
    .name = "exec",
    .usage = "[OPTION...] NAME COMMAND [ARGUMENT...]",
    .summary = "run a program in a sandbox",
    .help = "Standard input (unless it is a terminal), output and error are passed through; "
            "signals too.\n"
            "The exit status is the program's, 128+N when signal N ended it, 127 when it is not "
            "there, 126 when it cannot\n"
            "be run, 255 when nobody knows how it ended, 125 when spacectl itself failed.\n"
            "No shell is involved: for one, `spacectl exec NAME sh -c 'a | b'`.\n",
    .options = exec_options,
    .pos_min = 2,
    .pos_max = -1,
    .passthrough = 1,
    .fail_status = EXIT_SELF,
    .run = run,
};
