// SPDX-License-Identifier: Apache-2.0
// What a user says for all its sandboxes: so far, a policy of egress above theirs (the file egress of the tree's root).
//
// All nodes have all of them in memory; whoever writes last is right. Nobody's is missing: it says nothing.
#ifndef SPACE_HOSTD_TENANT_H
#define SPACE_HOSTD_TENANT_H

#include "hostd/db/db.h"
#include "hostd/space.h"

/* At the start. */
int tenants_load(struct space *s, struct err *e);

/* "" when it says nothing. Borrowed until the next change. */
const char *tenant_egress(const struct space *s, int64_t uid);
/* The text was checked (net_check_tenant). On failure all is as it was. Then net_apply or net_kick. */
int tenant_set_egress(struct space *s, int64_t uid, const char *text, struct err *e);

/* Another node did. */
void tenant_told(struct space *s, int64_t uid, const struct tenant_row *row);

#endif
