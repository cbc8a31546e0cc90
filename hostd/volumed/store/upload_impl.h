// SPDX-License-Identifier: Apache-2.0
// The parts of an upload: see upload.c.
#ifndef SPACE_VOLUMED_UPLOAD_IMPL_H
#define SPACE_VOLUMED_UPLOAD_IMPL_H

#include "hostd/volumed/store/claim.h"
#include "hostd/volumed/store/plan.h"
#include "hostd/volumed/store/upload.h"

#define BATCH_CHUNKS 16u
#define BATCHES      6u /* of an upload at the same time */
#define TABLE_SLOTS  (2 * INDEX_ENTRIES_MAX)

/* ---- what this upload stored itself (upload_packs.c) ---- */

struct packer {
    struct store *store;
    struct session *session;
    struct object_id next; /* id of the next pack, and of the next index */
    uint32_t packs_made, indexes_made;
    struct pack_writer writer;
    bool open;     /* writer has a buffer */
    unsigned puts; /* packs on their way */
    struct task_event changed;
    int rc; /* the first that failed */
    struct err err;
    struct put *first_put;
    uint64_t stored; /* bytes */

    /* Since the last index object: guarded by `lock` against threads that look things up. */
    pthread_rwlock_t lock;
    struct index_entry *entries;
    struct object_id *part_packs;
    uint32_t count, pack_count;
    uint32_t *slots; /* hash table: place in entries + 1 */
    struct view view;
};

int packer_init(struct packer *p, struct session *x, const uint8_t id[16], struct err *e);
/* Takes over what earlier tries of this artifact left, but for what is `excluded`. */
int packer_resume(struct packer *p, const struct pack_set *excluded, struct err *e);
/* From any thread: was it stored before, by anybody of the tenant? 1, 0, -errno. */
int packer_find(struct packer *p, enum chunk_kind kind, const struct chunk_id *id, uint32_t plain, struct pack_entry *out,
                struct object_id *ret_pack);
/* Adds a record; its place is in e->offset and *ret_pack. May wait. */
int packer_add(struct packer *p, struct pack_entry *e, const uint8_t *record, struct object_id *ret_pack, struct err *err);
/* Everything is in the store, and an index of it. */
int packer_flush(struct packer *p, struct err *e);
/* Waits for what is on its way; `cancel`: ends that. */
void packer_finish(struct packer *p, bool cancel);

/* ---- chunks on threads (upload_batch.c) ---- */

enum batch_state { BATCH_FREE, BATCH_WORKS, BATCH_DONE };
enum result_kind { RESULT_ZEROS, RESULT_FOUND, RESULT_NEW };

struct batch_chunk {
    uint64_t index;
    uint32_t length;
    enum piece_kind want; /* PIECE_ZEROS is not read */
    enum result_kind result;
    struct pack_entry entry; /* its identity; and, RESULT_FOUND, where it is */
    struct object_id pack;
    size_t record; /* RESULT_NEW: in `out` */
};

struct batch {
    uv_work_t work;
    struct packer *packer;
    struct tenant_key *key;
    int fd;
    enum batch_state state;
    unsigned count;
    struct batch_chunk chunks[BATCH_CHUNKS];
    uint8_t *in, *out;
    uint64_t read_bytes;
    int rc; /* -EKEYEXPIRED: the key, submit it again */
    struct err err;
    struct task_event *done;
};

bool batch_init(struct batch *b, struct packer *p, int fd, struct task_event *done);
void batch_finish(struct batch *b);
void batch_submit(struct batch *b);

#endif
