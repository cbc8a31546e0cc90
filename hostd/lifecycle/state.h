// SPDX-License-Identifier: Apache-2.0
// The sandbox's state machine as tables: states, allowed moves, verbs.
#ifndef SPACE_HOSTD_STATE_H
#define SPACE_HOSTD_STATE_H

#include <stdbool.h>

/* Numbers are stored in the database: never renumber. */
enum sandbox_state {
    SANDBOX_CREATING = 1,
    SANDBOX_RUNNING = 2,
    SANDBOX_PAUSED = 3,
    SANDBOX_STOPPING = 4,
    SANDBOX_STOPPED = 5,
    SANDBOX_STARTING = 6,
    SANDBOX_ROLLING_BACK = 7,
    SANDBOX_FAILED = 8,
    SANDBOX_DESTROYING = 9,
    SANDBOX_SUSPENDING = 10,
    SANDBOX_SUSPENDED = 11,
    SANDBOX_RESTORING = 12,
    SANDBOX_STATE_COUNT
};

enum verb { VERB_START, VERB_PAUSE, VERB_RESUME, VERB_SUSPEND, VERB_STOP, VERB_KILL, VERB_COUNT };

enum verb_answer {
    VERB_REFUSED, /* EBUSY: does not fit the state */
    VERB_DONE,    /* already there */
    VERB_RUN
};

const char *state_name(enum sandbox_state s);

/* May the state move from `from` to `to`? Every move is checked against this. */
bool state_may_move(enum sandbox_state from, enum sandbox_state to);

/* A state that an operation is bound to leave soon. */
bool state_is_transitional(enum sandbox_state s);

/* The verb of that name, or VERB_COUNT. */
enum verb verb_of(const char *name);
const char *verb_name(enum verb v);
enum verb_answer verb_allowed(enum sandbox_state s, enum verb v);

#endif
