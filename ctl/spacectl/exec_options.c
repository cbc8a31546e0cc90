// SPDX-License-Identifier: Apache-2.0
// The options that exec and shell share: see exec_options.h.
#include "spacectl/exec_options.h"

#include "base/str.h"

#include <errno.h>
#include <string.h>

enum { OPT_ENV, OPT_WORKDIR, OPT_USER, OPT_TIMEOUT };

const struct option_def exec_options[] = {
    [OPT_ENV] = {'e', "env", "NAME=VALUE", "set a variable; may be repeated"},
    [OPT_WORKDIR] = {'w', "workdir", "DIR", "working directory (default: the user's home)"},
    [OPT_USER] = {'u', "user", "USER", "run as this user of the sandbox (default root)"},
    [OPT_TIMEOUT] = {0, "timeout", "TIME", "kill it after this time, such as 90s or 5m"},
    {0, NULL, NULL, NULL},
};

static int collect_env(const struct args *a, char env[EXEC_ENV_MAX], struct err *e)
{
    size_t pos = 0;
    const char *item;
    env[0] = 0;
    for (int at = 0; (item = args_next(a, OPT_ENV, &at));) {
        const char *equals = strchr(item, '=');
        if (!equals || equals == item)
            return err_set(e, EINVAL, "-e takes NAME=VALUE, not \"%.80s\"", item);
        if (strchr(item, '\n'))
            return err_set(e, EINVAL, "the value of %.*s holds a newline: the env file cannot carry it", (int)(equals - item), item);
        if (!str_append(env, EXEC_ENV_MAX, &pos, "%s\n", item))
            return err_set(e, E2BIG, "the environment is longer than %d bytes", EXEC_ENV_MAX - 1);
    }
    return 0;
}

int exec_options_spec(const struct args *a, char env[EXEC_ENV_MAX], struct job_spec *spec, struct err *e)
{
    spec->sandbox = a->pos[0];
    spec->cwd = args_value(a, OPT_WORKDIR);
    spec->user = args_value(a, OPT_USER);
    spec->timeout = args_value(a, OPT_TIMEOUT);
    int rc = tree_check_name("sandbox", spec->sandbox, e);
    if (rc >= 0)
        rc = collect_env(a, env, e);
    spec->env = env[0] ? env : NULL;
    return rc;
}
