// SPDX-License-Identifier: Apache-2.0
// Prints the tables of hostd/lifecycle/state.c for compare.py: states, moves, and what each verb does in each state.
#include "hostd/lifecycle/state.h"

#include <stdio.h>

int main(void)
{
    static const char *const answers[] = {[VERB_REFUSED] = "EBUSY", [VERB_DONE] = "done", [VERB_RUN] = "runs"};
    for (int from = 1; from < SANDBOX_STATE_COUNT; from++) {
        printf("state %s\n", state_name((enum sandbox_state)from));
        for (int to = 1; to < SANDBOX_STATE_COUNT; to++)
            if (from != to && state_may_move((enum sandbox_state)from, (enum sandbox_state)to))
                printf("move %s %s\n", state_name((enum sandbox_state)from), state_name((enum sandbox_state)to));
        for (int v = 0; v < VERB_COUNT; v++)
            printf("verb %s %s %s\n", verb_name((enum verb)v), state_name((enum sandbox_state)from),
                   answers[verb_allowed((enum sandbox_state)from, (enum verb)v)]);
    }
    return 0;
}
