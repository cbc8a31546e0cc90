// SPDX-License-Identifier: Apache-2.0
// The CA of a tenant in its guests (docs/injection.md): space-credd makes it, space-daemon puts it where programs look.
//
// A tenant has one as soon as there is a credential that one of its sandboxes could use. A guest is told before anybody uses it: at each load, boot and resume; and
// all that run are told when credentials come, space-credd is another, or the CA changes. Sandboxes of tenants without credentials cost nothing.
#ifndef SPACE_HOSTD_TRUST_H
#define SPACE_HOSTD_TRUST_H

#include "hostd/object.h"

int trust_open(struct space *s, struct err *e);

/* Credentials changed, or space-credd came back: look soon. */
void trust_kick(struct space *s);
/* From a coroutine, with a guest that answers (not necessarily the sandbox's yet): tells it, if there is something new to tell. Waits for a moment at most, and
 * failing is logged: the guest is usable all the same. */
void trust_settle(struct sandbox *sb, struct guest *g);

#endif
