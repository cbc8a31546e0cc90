// SPDX-License-Identifier: Apache-2.0
// The claims that this node has in the store, as empty files of its own disk, so that those of a process that was killed need not wait until they are a day old.
//
// Theory of operation. The file of a claim is made before the claim is put, and removed when the claim was seen to be deleted. They lie in store_cache/.claims, which one process has
// locked: what a new one finds there is of a process that is gone. Its claims are deleted, at once where nothing that such a process asked for can still
// happen (a directory). A request to a server may be on its way, or wait in a server that hangs; but none is taken 15 minutes after it was signed, so
// there the claims stay for 20. Which upload they were of does not matter: one that is asked for again has a claim of its own. Where these files are lost, or the folder
// cannot be locked, a claim goes when it is a day old (claim.h).
#ifndef SPACE_VOLUMED_LEDGER_H
#define SPACE_VOLUMED_LEDGER_H

#include "hostd/volumed/store/store.h"

/* Looks what an earlier process left, and begins to delete that. Never fails: it says in the log what is the matter. */
void ledger_open(struct store *s);
/* From a coroutine, before the claim is put. */
void ledger_note(struct store *s, const char *tenant, const struct object_id *claim);
/* Deletes a claim, soon, whatever becomes of the calling coroutine; until it could. */
void ledger_forget(struct store *s, const char *tenant, const struct object_id *claim);

#endif
