// SPDX-License-Identifier: Apache-2.0
// How often the files server of the machine ended, for a host that wants to know at once (/files of
// the control tree).
#ifndef SPACE_GUEST_ENDS_H
#define SPACE_GUEST_ENDS_H

#include "9p/link.h"
#include "9p/server.h"

struct ends {
    uint64_t n;
    struct p9_link reads; /* that wait for it to change */
};

void ends_init(struct ends *e);
/* One more: answers all who wait. */
void ends_count(struct ends *e);
/* Answers with the number, in a line, as soon as it is not the read's offset. */
void ends_read(struct ends *e, struct p9_request *r);

#endif
