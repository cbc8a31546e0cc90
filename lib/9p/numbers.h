// SPDX-License-Identifier: Apache-2.0
// The two kinds of numbers that a 9P client hands out: tags, each with its owner, and fids.
#ifndef SPACE_9P_NUMBERS_H
#define SPACE_9P_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

#define P9_TAGS_MAX 65535u /* all but NOTAG */

/* Zero-initialised: empty. The table grows to what was in flight at most. */
struct p9_tagset {
    void **owners;  /* by tag; room for `cap` */
    uint16_t *free; /* stack of free tags; room for `cap` */
    uint32_t cap, n_free;
};

/* A tag for `owner` (not NULL). False when that would leave fewer than `reserve` free, or out of
 * memory. */
bool p9_tagset_take(struct p9_tagset *t, void *owner, uint32_t reserve, uint16_t *out);
/* The owner of a tag; NULL when it has none. Any number may be asked for. */
void *p9_tagset_find(const struct p9_tagset *t, uint16_t tag);
/* The tag stays taken, but nobody's. */
void p9_tagset_orphan(struct p9_tagset *t, uint16_t tag);
void p9_tagset_release(struct p9_tagset *t, uint16_t tag);
void p9_tagset_release_all(struct p9_tagset *t);
void p9_tagset_finish(struct p9_tagset *t);

/* Zero-initialised: empty. */
struct p9_fidset {
    uint32_t base; /* the numbers in use are `base` + the bits set */
    uint32_t words, hint;
    uint64_t *bits;
};

/* The lowest free number; P9_NOFID when out of memory. */
uint32_t p9_fidset_take(struct p9_fidset *f);
/* A number that is not taken, such as one from before p9_fidset_renew, is ignored. */
void p9_fidset_release(struct p9_fidset *f, uint32_t fid);
/* Forgets all numbers and starts with others, so that a late release of an old one hits nothing. */
void p9_fidset_renew(struct p9_fidset *f);
void p9_fidset_finish(struct p9_fidset *f);

#endif
