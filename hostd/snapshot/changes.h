// SPDX-License-Identifier: Apache-2.0
// Which files of a snapshot may differ from another one: extent maps from space-noded, mapped to names by the snapshot's browser.
#ifndef SPACE_HOSTD_CHANGES_H
#define SPACE_HOSTD_CHANGES_H

#include "hostd/object.h"

struct changes {
    unsigned refs;
    struct snapshot *now, *before;
    bool done;
    int rc; /* when done: 0 and the lines "BYTES PATH" (hostd/browse/changes.h), or -errno and the sentence */
    struct err error;
    char *text;
    size_t len, room;
    struct wait_list waiters; /* for that */
};

/* Both are ready. The caller has one reference. */
struct changes *changes_start(struct snapshot *now, struct snapshot *before);
void changes_unref(struct changes *c);

#endif
