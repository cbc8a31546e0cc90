// SPDX-License-Identifier: Apache-2.0
// What `spacectl doctor` looks at: each check reports a line, and how to mend what is wrong.
#ifndef SPACE_CTL_CHECKS_H
#define SPACE_CTL_CHECKS_H

#include "base/config.h"

#include <stdbool.h>

enum level { LEVEL_OK, LEVEL_NOTE /* works, but worth knowing */, LEVEL_BAD };

struct finding {
    enum level level;
    char text[400]; /* what is so */
    char mend[300]; /* what to do; empty when nothing is to do */
};

struct doctor {
    struct config config;
    const char *config_path;
    bool config_ok;
    char config_error[ERR_MAX];
    const char *mount; /* the tree to look at: --space, $SPACE, or the configuration's */
};

/* Fills in the finding. None takes longer than a few seconds, whatever hangs. */
typedef void check_function(const struct doctor *d, struct finding *out);

struct check {
    const char *name;
    check_function *run;
};

/* In the order in which one thing rests on another; ends with a NULL name. */
extern const struct check checks[];

/* Checks of the daemons and the mount, in checks_daemons.c; the others are in checks_host.c. */
check_function check_noded, check_netd, check_browsed, check_volumed, check_credd, check_inject, check_hostd, check_mount, check_template,
    check_acceleration;

void finding_set(struct finding *f, enum level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void finding_mend(struct finding *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
