// SPDX-License-Identifier: Apache-2.0
// Claims of uploads and condemnations of garbage collection: how each knows of the other without a lock. docs/protocol/store.md, "Garbage".
//
// Theory of operation. A condemnation is an object that lists packs that no new upload may use. An upload (1) puts a claim that says "I began", (2) lists the condemnations and reads
// them, (3) puts its claim again, with the names of those that it read, (4) reads the index, and uses no pack that they list, not even for
// chunks that it would take over from its parent. Garbage collection (1) puts a condemnation, (2) lists the claims: unless each of them names this condemnation it ends here, and
// a later run goes on, (3) lists the manifests and marks what they use, (4) deletes those packs of the condemnation that are not marked.
//
// An upload that has not seen the condemnation has put its claim before the condemnation was listed, so GC's step 2, which comes after its step 1, finds the claim. All others use none
// of its packs. So at step 3 the use of a condemned pack can only shrink: the mark is final, whoever else collects at the same time. A condemnation
// is deleted when all of its packs are, and the indexes that name them. Packs that are nearly empty are condemned in the same way: they go when their last user goes.
//
// A claim is renewed every minute. One that was not for a day is of an upload that died, and is deleted by GC; an upload that could not renew its own for half of that gives up.
// What a killed process of this node claimed need not wait so long (ledger.h).
// A condemnation that cannot be read is replaced by one of all packs, which is put before the damaged one goes: for who began before, that one's id stands for what it listed.
// The packs that an upload has put so far are told by their names: GC condemns none of an artifact that has a claim.
#ifndef SPACE_VOLUMED_CLAIM_H
#define SPACE_VOLUMED_CLAIM_H

#include "hostd/volumed/store/store.h"

struct claim {
    struct object_id id; /* the artifact's, and 8 random bytes: another try has another claim */
    uint64_t created;
    uint64_t beat; /* when it was put last, by CLOCK_BOOTTIME in ms */
    uint8_t (*seen)[16];
    uint32_t seen_count;
    bool put;
};

/* Steps 1 to 3. `excluded` is what must not be used, sorted. */
int claim_start(struct session *x, const uint8_t id[16], struct claim *out, struct pack_set *excluded, struct err *e);
/* Renews it when it is time. ESTALE when it is too late. */
int claim_beat(struct session *x, struct claim *c, struct err *e);
/* After the manifest was put: ESTALE if GC may have taken the claim before. */
int claim_still(const struct session *x, const struct claim *c, struct err *e);
void claim_finish(struct claim *c); /* frees it; the object stays: store_delete */

enum claim_phase { CLAIM_BEGAN = 1, CLAIM_SEEN = 2 };

/* Bodies. */
size_t claim_size(uint32_t seen);
void claim_encode(const struct claim *c, enum claim_phase phase, uint8_t *out);
/* Whether it names `gc`. -EBADMSG; 1 or 0. */
int claim_names(const uint8_t *p, size_t len, const uint8_t gc[16]);

#define CONDEMNED_MAX (1u << 20) /* packs */
size_t condemned_size(size_t packs);
void condemned_encode(const struct pack_set *s, uint64_t created, uint8_t *out);
int condemned_decode(const uint8_t *p, size_t len, struct pack_set *out); /* appends. 0, -EBADMSG, -ENOMEM */

#endif
