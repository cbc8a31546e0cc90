// SPDX-License-Identifier: Apache-2.0
// Runs a job with the caller's standard streams joined to it: the common part of exec and shell.
#ifndef SPACE_CTL_ATTACH_H
#define SPACE_CTL_ATTACH_H

#include "spacectl/job.h"

/*
 * Creates and starts the job, passes stdin, stdout and stderr through, waits, removes it. With
 * spec->tty the terminal is put into raw mode meanwhile. Returns the exit status to end with (the
 * job's; 128 + n for a signal; EXIT_*), or -errno before the job ran. Call it once, from the main
 * thread: threads of it may live until the process ends.
 */
int attach_run(const struct tree *t, const struct job_spec *spec, struct err *e);

#endif
