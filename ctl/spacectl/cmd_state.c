// SPDX-License-Identifier: Apache-2.0
// spacectl start, pause, resume, suspend, stop, kill: the verbs that `state` takes, for one or more
// sandboxes.
#include "spacectl/command.h"
#include "spacectl/progress.h"
#include "spacectl/state.h"

#include <stdio.h>

/* Goes on behind a failure: the others were asked for too. */
static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    int failures = 0;
    for (int i = 0; i < a->pos_count; i++) {
        pid_t child = progress_start(t, a->pos[i]);
        int rc = state_verb(t, a->pos[i], self->name, e);
        progress_stop(child);
        if (rc < 0) {
            fprintf(stderr, "spacectl: %s\n", e->msg);
            failures++;
        }
    }
    return failures ? EXIT_FAILED : 0;
}

#define VERB(verb, does, more)                                                                                                                       \
    const struct command command_##verb = {                                                                                                          \
        .name = #verb,                                                                                                                               \
        .usage = "NAME...",                                                                                                                          \
        .summary = does,                                                                                                                             \
        .help = more,                                                                                                                                \
        .pos_min = 1,                                                                                                                                \
        .pos_max = -1,                                                                                                                               \
        .run = run,                                                                                                                                  \
    };

VERB(start, "boot stopped sandboxes", NULL)
VERB(pause, "halt sandboxes where they are, memory kept", "Opening a file or starting a job in one resumes it, unless `wake` says manual.\n")
VERB(resume, "let paused and suspended sandboxes run on", NULL)
VERB(suspend, "move sandboxes to the object store: memory, processes and disk",
     "Neither memory nor a processor of this node is used any more. The next use brings one back, "
     "unless\n`wake` says manual. `stats` says how far it is.\n")
VERB(stop, "shut sandboxes down: programs get to end, the disk is kept", NULL)
VERB(kill, "cut the power of sandboxes", "What the guest had not written to its disk is lost.\n")
