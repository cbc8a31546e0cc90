// SPDX-License-Identifier: Apache-2.0
// State and verb tables: see state.h. docs/tree.md prints the same tables; tests/unit compares them.
#include "hostd/lifecycle/state.h"

#include <string.h>

#define S(name) (1u << SANDBOX_##name)

static const struct {
    const char *name;
    unsigned next; /* states it may move to */
} states[SANDBOX_STATE_COUNT] = {
    [SANDBOX_CREATING] = {"creating", S(RUNNING) | S(PAUSED) | S(FAILED) | S(DESTROYING) | S(STOPPED) | S(SUSPENDED)},
    [SANDBOX_RUNNING] = {"running", S(PAUSED) | S(SUSPENDING) | S(SUSPENDED) | S(STOPPING) | S(STOPPED) | S(ROLLING_BACK) | S(CREATING) | S(FAILED) |
                                        S(DESTROYING)},
    [SANDBOX_PAUSED] = {"paused", S(RUNNING) | S(SUSPENDING) | S(SUSPENDED) | S(STOPPING) | S(STOPPED) | S(ROLLING_BACK) | S(CREATING) | S(FAILED) |
                                      S(DESTROYING)},
    [SANDBOX_STOPPING] = {"stopping", S(STOPPED) | S(FAILED) | S(DESTROYING)},
    [SANDBOX_STOPPED] = {"stopped", S(STARTING) | S(SUSPENDED) | S(ROLLING_BACK) | S(CREATING) | S(FAILED) | S(DESTROYING)},
    [SANDBOX_STARTING] = {"starting", S(RUNNING) | S(STOPPED) | S(FAILED) | S(DESTROYING)},
    [SANDBOX_ROLLING_BACK] = {"rolling-back", S(RUNNING) | S(SUSPENDED) | S(PAUSED) | S(STOPPED) | S(FAILED) | S(DESTROYING)},
    [SANDBOX_FAILED] = {"failed", S(RESTORING) | S(SUSPENDED) | S(STARTING) | S(ROLLING_BACK) | S(CREATING) | S(STOPPED) | S(DESTROYING)},
    [SANDBOX_DESTROYING] = {"destroying", 0},
    [SANDBOX_SUSPENDING] = {"suspending", S(RUNNING) | S(PAUSED) | S(SUSPENDED) | S(STOPPED) | S(FAILED) | S(DESTROYING)},
    [SANDBOX_SUSPENDED] = {"suspended", S(RESTORING) | S(STOPPED) | S(ROLLING_BACK) | S(CREATING) | S(FAILED) | S(DESTROYING)},
    [SANDBOX_RESTORING] = {"restoring", S(RUNNING) | S(SUSPENDED) | S(STOPPED) | S(FAILED) | S(DESTROYING)},
};

#define A(name, answer) [SANDBOX_##name] = VERB_##answer

static const struct {
    const char *name;
    enum verb_answer in[SANDBOX_STATE_COUNT]; /* unnamed: VERB_REFUSED */
} verbs[VERB_COUNT] = {
    [VERB_START] = {"start", {A(STOPPED, RUN), A(FAILED, RUN), A(RUNNING, DONE), A(SUSPENDED, RUN)}},
    [VERB_PAUSE] = {"pause", {A(RUNNING, RUN), A(PAUSED, DONE)}},
    [VERB_RESUME] = {"resume", {A(PAUSED, RUN), A(RUNNING, DONE), A(SUSPENDED, RUN)}},
    [VERB_SUSPEND] = {"suspend", {A(RUNNING, RUN), A(PAUSED, RUN), A(SUSPENDED, DONE)}},
    [VERB_STOP] = {"stop", {A(RUNNING, RUN), A(PAUSED, RUN), A(STOPPED, DONE), A(SUSPENDED, RUN)}},
    [VERB_KILL] = {"kill",
                   {A(RUNNING, RUN), A(PAUSED, RUN), A(FAILED, RUN), A(STOPPED, DONE), A(CREATING, RUN), A(STARTING, RUN), A(STOPPING, RUN),
                    A(ROLLING_BACK, RUN), A(SUSPENDING, RUN), A(SUSPENDED, RUN), A(RESTORING, RUN)}},
};

const char *state_name(enum sandbox_state s)
{
    return s > 0 && s < SANDBOX_STATE_COUNT ? states[s].name : "unknown";
}

bool state_may_move(enum sandbox_state from, enum sandbox_state to)
{
    return from == to || (states[from].next >> to & 1u);
}

bool state_is_transitional(enum sandbox_state s)
{
    return s == SANDBOX_CREATING || s == SANDBOX_STOPPING || s == SANDBOX_STARTING || s == SANDBOX_ROLLING_BACK || s == SANDBOX_DESTROYING ||
           s == SANDBOX_SUSPENDING || s == SANDBOX_RESTORING;
}

enum verb verb_of(const char *name)
{
    int v = 0;
    while (v < VERB_COUNT && strcmp(verbs[v].name, name) != 0)
        v++;
    return (enum verb)v;
}

const char *verb_name(enum verb v)
{
    return verbs[v].name;
}

enum verb_answer verb_allowed(enum sandbox_state s, enum verb v)
{
    return verbs[v].in[s];
}
