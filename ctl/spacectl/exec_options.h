// SPDX-License-Identifier: Apache-2.0
// The options that exec and shell share.
#ifndef SPACE_CTL_EXEC_OPTIONS_H
#define SPACE_CTL_EXEC_OPTIONS_H

#include "spacectl/job.h"
#include "spacectl/options.h"

#define EXEC_ENV_MAX 65536

extern const struct option_def exec_options[];

/* Fills in the sandbox (the first positional argument) and what the options say; `env` backs
 * spec->env. 0 or -EINVAL, -E2BIG. */
int exec_options_spec(const struct args *a, char env[EXEC_ENV_MAX], struct job_spec *spec, struct err *e);

#endif
