// SPDX-License-Identifier: Apache-2.0
// Uploads: see upload.h.
//
// Theory of operation. One coroutine goes through the chunks that are to be looked at, in order: those of the changed ranges (plan.h), and those of the parent whose packs must not be used
// any more. Batches of them are read, identified, looked up, compressed and encrypted on threads, a few at the same time; their results are taken in order, so that everything that
// is not thread-safe happens here: records are added to the open pack, full packs are sent in the background, and the segment that the chunk belongs to
// notes where it lies. A segment of which no chunk changed is taken over from the parent as it is, unread; one with changes begins as the parent's.
//
// Order of what is stored: claim (claim.h), packs, index, manifest; then the manifest is read back, and only then is the upload done. Killed before the
// manifest, the artifact does not exist; the next try takes over the packs that are there (their names begin with the artifact's id, they have indexes of their own).
// Killed after it, the next try finds it. What is left without a manifest is garbage: the claim goes stale, then GC takes the packs.
#include "hostd/volumed/store/upload.h"

#include "base/cleanup.h"
#include "hostd/volumed/store/gc.h"
#include "hostd/volumed/store/ledger.h"
#include "hostd/volumed/store/upload_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define PROGRESS_NSEC 250000000u

struct upload {
    struct store *store;
    struct upload_request *q; /* a copy */
    struct session session;
    struct claim claim;
    struct pack_set excluded;
    struct pack_set bad; /* of a repair: damaged */
    bool anew;           /* a repair that stores all of it: not even the lists can be read */
    uint64_t lost;       /* bytes that a repair did not find */
    struct packer packer;
    bool has_base, has_parent;
    struct manifest parent, out; /* a repair's parent is the artifact itself */
    uint32_t parent_next;        /* segments of the parent below this are done */
    struct segment *segment, *spare;
    bool segment_open;
    struct plan *plan;
    unsigned span;           /* of the plan's */
    struct plan_span *again; /* chunks of the parent that must be read though they did not change */
    size_t again_count, again_room, again_at;
    struct batch batches[BATCHES];
    struct task_event batch_done;
    unsigned head, tail; /* batches head to tail - 1 are in progress, modulo BATCHES */
    struct chunk_codec *codec;
    uint64_t told, total;
    struct volumed_reply *rep;
};

static int out_of_memory(struct err *e)
{
    return err_set(e, ENOMEM, "upload: out of memory");
}

/* ---- segments ---- */

/* A list of chunks becomes a chunk itself. */
static int store_segment(struct upload *u, const struct segment *s, struct pack_entry *entry, struct object_id *pack, struct err *e)
{
    AUTO_FREE uint8_t *plain = malloc(CHUNK_MAX), *record = malloc(CHUNK_RECORD_MAX);
    struct chunk_keys k;
    uint8_t nonce[CRYPT_NONCE];
    size_t len = 0, size = plain && record ? segment_encode(s, plain) : 0;
    int rc = size ? session_enter(&u->session, &k, e) : out_of_memory(e);
    if (rc < 0)
        return rc;
    rc = chunk_identify(&k, CHUNK_SEGMENT, plain, size, &entry->id) ? 0 : out_of_memory(e);
    if (rc == 0 && (rc = packer_find(&u->packer, CHUNK_SEGMENT, &entry->id, (uint32_t)size, entry, pack)) != 0) {
        session_leave(&u->session);
        return rc < 0 ? err_set(e, -rc, "look in the index: %s", strerror(-rc)) : 0;
    }
    crypt_random(nonce, sizeof nonce);
    if (rc == 0 && !chunk_seal(&k, u->codec, CHUNK_SEGMENT, &entry->id, nonce, plain, size, record, &len))
        rc = out_of_memory(e);
    session_leave(&u->session);
    entry->stored = (uint32_t)len;
    entry->plain = (uint32_t)size;
    entry->kind = CHUNK_SEGMENT;
    return rc < 0 ? rc : packer_add(&u->packer, entry, record, pack, e);
}

static int list_segment(struct upload *u, const struct segment *s, struct err *e)
{
    struct pack_entry entry = {.kind = 0};
    struct object_id pack;
    int rc = store_segment(u, s, &entry, &pack, e);
    struct manifest_segment *ms = rc == 0 ? manifest_add(&u->out) : NULL;
    int64_t place = ms ? manifest_pack(&u->out, &pack) : -1;
    if (rc < 0 || place < 0)
        return rc < 0 ? rc : out_of_memory(e);
    ms->id = entry.id;
    ms->number = s->number;
    ms->count = s->count;
    ms->pack = (uint32_t)place;
    ms->offset = entry.offset;
    ms->stored = entry.stored;
    ms->plain = entry.plain;
    for (uint32_t i = 0; i < SEGMENT_CHUNKS; i++) {
        const struct piece *x = &s->pieces[i];
        u->out.chunks += x->kind != PIECE_NONE;
        u->out.zero_chunks += x->kind == PIECE_ZEROS;
        if (x->kind == PIECE_DATA && ((place = manifest_pack(&u->out, &x->pack)) < 0 || !manifest_ref(&u->out, (uint32_t)place, x->stored)))
            return out_of_memory(e);
    }
    return 0;
}

static int close_segment(struct upload *u, struct err *e)
{
    if (!u->segment_open)
        return 0;
    u->segment_open = false;
    return u->segment->count ? list_segment(u, u->segment, e) : 0;
}

/* Packs of the parent from which nothing may be taken over. (A repair leaves what is only condemned where it is: there may be no file to store it from.) */
static const struct pack_set *shunned(const struct upload *u)
{
    return u->q->repair ? &u->bad : &u->excluded;
}

/* A segment without changes: listed as the parent has it, unless it lies itself in a pack that must not be used. */
static int inherit(struct upload *u, const struct manifest_segment *ps, struct err *e)
{
    const struct manifest *p = &u->parent;
    if (pack_set_has(shunned(u), &p->packs[ps->pack])) {
        int rc = store_get_segment(&u->session, p, ps, u->spare, e);
        return rc < 0 ? rc : list_segment(u, u->spare, e);
    }
    struct manifest_segment *ms = manifest_add(&u->out);
    int64_t place = ms ? manifest_pack(&u->out, &p->packs[ps->pack]) : -1;
    if (place < 0)
        return out_of_memory(e);
    uint32_t refs = ms->refs;
    *ms = *ps;
    ms->refs = refs;
    ms->ref_count = 0;
    ms->pack = (uint32_t)place;
    for (uint32_t i = 0; i < ps->ref_count; i++) {
        const struct manifest_ref *r = &p->refs[ps->refs + i];
        if ((place = manifest_pack(&u->out, &p->packs[r->pack])) < 0 || !manifest_ref(&u->out, (uint32_t)place, r->bytes))
            return out_of_memory(e);
    }
    u->out.chunks += ps->count; /* its zeros are counted with the others' */
    u->rep->upload.inherited_bytes += (uint64_t)ps->count * CHUNK_BYTES;
    return 0;
}

static int inherit_below(struct upload *u, uint64_t number, struct err *e)
{
    int rc = 0;
    while (rc == 0 && u->parent_next < u->parent.segment_count && u->parent.segments[u->parent_next].number < number)
        rc = inherit(u, &u->parent.segments[u->parent_next++], e);
    return rc;
}

static int open_segment(struct upload *u, uint32_t number, struct err *e)
{
    if (u->segment_open && u->segment->number == number)
        return 0;
    int rc = close_segment(u, e);
    if (rc == 0)
        rc = inherit_below(u, number, e);
    if (rc < 0)
        return rc;
    if (u->parent_next < u->parent.segment_count && u->parent.segments[u->parent_next].number == number) {
        rc = store_get_segment(&u->session, &u->parent, &u->parent.segments[u->parent_next++], u->segment, e);
        u->rep->upload.inherited_bytes += (uint64_t)u->segment->count * CHUNK_BYTES;
    } else {
        memset(u->segment, 0, sizeof *u->segment);
        u->segment->number = number;
    }
    u->segment_open = rc == 0;
    return rc;
}

static void set_piece(struct upload *u, uint64_t index, const struct piece *x)
{
    struct piece *at = &u->segment->pieces[index % SEGMENT_CHUNKS];
    if (at->kind != PIECE_NONE) {
        u->segment->count--;
        u->rep->upload.inherited_bytes -= CHUNK_BYTES;
    }
    *at = *x;
    if (x->kind == PIECE_ZEROS && !u->has_base)
        memset(at, 0, sizeof *at); /* nothing there is zeros, too */
    u->segment->count += at->kind != PIECE_NONE;
}

/* ---- results ---- */

/* A repair's file must be what the artifact was made of. */
static int same_as_before(const struct upload *u, const struct batch_chunk *c, struct err *e)
{
    const struct piece *x = &u->segment->pieces[c->index % SEGMENT_CHUNKS];
    if (x->kind == PIECE_DATA && c->result != RESULT_ZEROS && memcmp(&x->id, &c->entry.id, sizeof x->id) == 0)
        return 0;
    return err_set(e, EINVAL, "the file is not what the artifact was made of: it differs at %llu", (unsigned long long)(c->index * CHUNK_BYTES));
}

static int take_result(struct upload *u, struct batch *b, struct batch_chunk *c, struct err *e)
{
    struct piece x = {.kind = PIECE_ZEROS};
    int rc = open_segment(u, (uint32_t)(c->index / SEGMENT_CHUNKS), e);
    if (rc == 0 && u->q->repair && !u->anew)
        rc = same_as_before(u, c, e);
    if (rc == 0 && c->result == RESULT_NEW) {
        struct pack_entry now = c->entry;
        int found = packer_find(&u->packer, CHUNK_DATA, &now.id, c->length, &now, &c->pack); /* by another batch, meanwhile */
        if (found > 0) {
            c->entry = now;
            c->result = RESULT_FOUND;
        } else {
            rc = packer_add(&u->packer, &c->entry, b->out + c->record, &c->pack, e);
            u->rep->upload.new_bytes += c->length;
        }
    }
    if (rc < 0)
        return rc;
    if (c->result == RESULT_ZEROS)
        u->rep->upload.zero_bytes += c->length;
    else
        x = (struct piece){.id = c->entry.id, .pack = c->pack, .offset = c->entry.offset, .stored = c->entry.stored, .kind = PIECE_DATA};
    if (c->result == RESULT_FOUND)
        u->rep->upload.reused_bytes += c->length;
    set_piece(u, c->index, &x);
    return 0;
}

static void tell(struct upload *u, uint64_t done)
{
    uint64_t now = uv_hrtime();
    if (u->q->progress && now - u->told > PROGRESS_NSEC) {
        u->told = now;
        u->q->progress(u->q->user, done, u->total);
    }
}

/* The oldest batch: waits for it, takes what it found. */
static int finish_batch(struct upload *u, struct err *e)
{
    struct batch *b = &u->batches[u->head % BATCHES];
    int rc = 0;
    for (;;) {
        while (b->state != BATCH_DONE)
            if (task_wait(&u->batch_done, false) < 0)
                return err_set(e, ECANCELED, "cancelled");
        if (b->rc != -EKEYEXPIRED)
            break;
        if ((rc = session_renew(&u->session, e)) < 0)
            return rc;
        batch_submit(b);
    }
    u->rep->upload.read_bytes += b->read_bytes;
    if (b->rc < 0)
        rc = err_set(e, -b->rc, "%s", b->err.msg);
    for (unsigned i = 0; rc == 0 && i < b->count; i++)
        rc = take_result(u, b, &b->chunks[i], e);
    b->state = BATCH_FREE;
    u->head++;
    if (rc == 0)
        rc = claim_beat(&u->session, &u->claim, e);
    if (rc == 0 && b->count)
        tell(u, b->chunks[b->count - 1].index * CHUNK_BYTES);
    return rc;
}

/* ---- what is looked at ---- */

struct plan_step {
    struct plan *plan;
    int rc;
    struct err e;
};

static void fill(void *arg)
{
    struct plan_step *st = arg;
    st->rc = plan_fill(st->plan, &st->e);
}

/* The plan's next span, NULL at the end. */
static int plan_head(struct upload *u, struct plan_span **out, struct err *e)
{
    while (u->span == u->plan->count) {
        struct plan_step st = {.plan = u->plan};
        *out = NULL;
        if (u->plan->ended)
            return 0;
        task_thread(u->store->co, fill, &st);
        u->span = 0;
        if (st.rc < 0)
            return err_set(e, -st.rc, "%s", st.e.msg);
    }
    *out = &u->plan->spans[u->span];
    return 0;
}

/* The next chunk. 1, 0 at the end, -errno. */
static int next_chunk(struct upload *u, struct batch_chunk *out, struct err *e)
{
    struct plan_span *p = NULL, *a = u->again_at < u->again_count ? &u->again[u->again_at] : NULL;
    int rc = plan_head(u, &p, e);
    if (rc < 0 || (!p && !a))
        return rc;
    bool use_plan = p && (!a || p->first <= a->first);
    struct plan_span *use = use_plan ? p : a;
    *out = (struct batch_chunk){.index = use->first, .length = chunk_length(u->q->size, use->first), .want = use->kind};
    if (a && a->first == out->index && ++a->first && --a->count == 0)
        u->again_at++;
    if (use_plan && ++p->first && --p->count == 0)
        u->span++;
    return 1;
}

static int start_batch(struct upload *u, bool *ended, struct err *e)
{
    struct batch *b = &u->batches[u->tail % BATCHES];
    int rc = 1;
    for (b->count = 0; b->count < BATCH_CHUNKS && rc > 0; b->count += rc > 0)
        rc = next_chunk(u, &b->chunks[b->count], e);
    *ended = rc <= 0;
    if (rc < 0 || b->count == 0)
        return rc;
    batch_submit(b);
    u->tail++;
    return 0;
}

static int all_chunks(struct upload *u, struct err *e)
{
    bool ended = false;
    int rc = 0;
    while (rc == 0 && (!ended || u->head != u->tail))
        rc = !ended && u->tail - u->head < BATCHES ? start_batch(u, &ended, e) : finish_batch(u, e);
    return rc;
}

/* ---- the parent ---- */

static bool read_again(struct upload *u, uint64_t chunk)
{
    struct plan_span *last = u->again_count ? &u->again[u->again_count - 1] : NULL;
    if (last && last->first + last->count == chunk) {
        last->count++;
        return true;
    }
    if (u->again_count == u->again_room) {
        u->again_room = u->again_room ? u->again_room * 2 : 64;
        struct plan_span *bigger = realloc(u->again, u->again_room * sizeof *bigger);
        if (!bigger)
            return false;
        u->again = bigger;
    }
    u->again[u->again_count++] = (struct plan_span){chunk, 1, PIECE_DATA};
    return true;
}

static bool uses_excluded(const struct upload *u, const struct manifest_segment *ps)
{
    for (uint32_t i = 0; i < ps->ref_count; i++)
        if (pack_set_has(shunned(u), &u->parent.packs[u->parent.refs[ps->refs + i].pack]))
            return true;
    return false;
}

/* Chunks in packs that must not be used are stored again: the file has them. So is the last one when the file grew. */
static int find_again(struct upload *u, struct err *e)
{
    uint64_t last = u->parent.size % CHUNK_BYTES && u->q->size > u->parent.size ? u->parent.size / CHUNK_BYTES : UINT64_MAX;
    for (uint32_t i = 0; i < u->parent.segment_count; i++) {
        const struct manifest_segment *ps = &u->parent.segments[i];
        uint64_t first = (uint64_t)ps->number * SEGMENT_CHUNKS;
        bool excluded = shunned(u)->count && uses_excluded(u, ps), grown = last - first < SEGMENT_CHUNKS;
        if (!excluded && !grown)
            continue;
        int rc = store_get_segment(&u->session, &u->parent, ps, u->spare, e);
        if (rc < 0)
            return rc;
        for (uint32_t j = 0; j < SEGMENT_CHUNKS; j++) {
            const struct piece *x = &u->spare->pieces[j];
            bool bad = x->kind == PIECE_DATA && pack_set_has(shunned(u), &x->pack);
            if ((bad || (x->kind != PIECE_NONE && first + j == last)) && !read_again(u, first + j))
                return out_of_memory(e);
        }
    }
    return 0;
}

static int read_parent(struct upload *u, struct err *e)
{
    int rc = u->has_parent ? store_get_manifest(&u->session, u->q->parent, &u->parent, e) : 0;
    if (!u->has_parent || rc < 0)
        return rc;
    if (u->parent.size > u->q->size)
        return err_set(e, EINVAL, "the parent has %llu bytes, more than the file", (unsigned long long)u->parent.size);
    if (memcmp(&u->parent.base, &u->q->base, sizeof u->q->base) != 0)
        return err_set(e, EINVAL, "the parent has another base");
    return find_again(u, e);
}

/* ---- repairs ---- */

/* What is damaged: packs are in u->bad; what not even a list can be had of is stored anew. */
static int find_damage(struct upload *u, struct err *e)
{
    int rc = store_get_manifest(&u->session, u->q->id, &u->parent, e);
    if (rc == 0)
        rc = fsck_find_bad(&u->session, &u->parent, &u->bad, e);
    for (uint32_t i = 0; rc == 0 && i < u->parent.segment_count; i++)
        if (pack_set_has(&u->bad, &u->parent.packs[u->parent.segments[i].pack]))
            rc = store_get_segment(&u->session, &u->parent, &u->parent.segments[i], u->spare, e);
    if ((rc != -EBADMSG && rc != -ENOENT) || u->q->fd < 0)
        return rc;
    *e = (struct err){0};
    u->anew = true;
    manifest_finish(&u->parent);
    memset(&u->parent, 0, sizeof u->parent);
    return 0;
}

static int shun(struct upload *u, struct err *e)
{
    struct pack_set fresh = {0};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < u->bad.count; i++)
        if (!pack_set_has(&u->excluded, &u->bad.ids[i]) && !pack_set_add(&fresh, &u->bad.ids[i]))
            rc = out_of_memory(e);
    if (rc == 0 && fresh.count)
        rc = gc_condemn(&u->session, &fresh, e);
    for (size_t i = 0; rc == 0 && i < fresh.count; i++)
        if (!pack_set_add(&u->excluded, &fresh.ids[i]))
            rc = out_of_memory(e);
    pack_set_sort(&u->excluded);
    pack_set_finish(&fresh);
    return rc;
}

/* 1: nothing is wrong. */
static int begin_repair(struct upload *u, struct err *e)
{
    int rc = find_damage(u, e);
    if (rc == 0)
        rc = shun(u, e);
    if (rc < 0 || u->anew)
        return rc;
    if (u->q->fd >= 0 && u->q->size != u->parent.size)
        return err_set(e, EINVAL, "the artifact has %llu bytes, and the file %llu", (unsigned long long)u->parent.size,
                       (unsigned long long)u->q->size);
    u->q->size = u->parent.size;
    u->q->file = u->parent.file;
    u->q->base = u->parent.base;
    u->has_base = u->q->base.tenant[0] != 0;
    u->plan->ended = true; /* nothing changed */
    return u->bad.count ? 0 : 1;
}

/* Without a file: chunks are where somebody else stored them again. */
static int find_elsewhere(struct upload *u, struct err *e)
{
    struct batch_chunk c;
    int rc;
    while ((rc = next_chunk(u, &c, e)) > 0) {
        if ((rc = open_segment(u, (uint32_t)(c.index / SEGMENT_CHUNKS), e)) < 0)
            return rc;
        struct piece *x = &u->segment->pieces[c.index % SEGMENT_CHUNKS];
        rc = packer_find(&u->packer, CHUNK_DATA, &x->id, c.length, &c.entry, &c.pack);
        if (rc < 0)
            return err_set(e, -rc, "look in the index: %s", strerror(-rc));
        u->lost += rc == 0 ? c.length : 0;
        u->rep->upload.reused_bytes += rc == 1 ? c.length : 0;
        if (rc == 1)
            *x = (struct piece){.id = x->id, .pack = c.pack, .offset = c.entry.offset, .stored = c.entry.stored, .kind = PIECE_DATA};
    }
    if (rc == 0 && u->lost)
        return err_set(e, EBADMSG, "%llu bytes are nowhere else in the store: they can be had from a file that has them only",
                       (unsigned long long)u->lost);
    return rc;
}

/* ---- the manifest ---- */

static int put_manifest(struct upload *u, struct err *e)
{
    size_t size;
    struct object_id id = store_id(u->q->id);
    u->out.file = u->q->file;
    u->out.size = u->q->size;
    u->out.created = (uint64_t)time(NULL);
    u->out.base = u->q->base;
    if (!manifest_size(&u->out, &size))
        return err_set(e, EFBIG, "the artifact's manifest would be larger than %u MiB", SEALED_MAX >> 20);
    u->packer.stored += SEALED_HEADER + size;
    u->out.stored_bytes = u->packer.stored;
    AUTO_FREE uint8_t *object = malloc(SEALED_HEADER + size);
    if (!object)
        return out_of_memory(e);
    manifest_encode(&u->out, object + SEALED_HEADER);
    int rc = store_put_sealed(&u->session, SEALED_MANIFEST, &id, object, size, u->q->repair ? 0 : BACKEND_IF_ABSENT, e);
    return rc == -EEXIST ? 0 : rc; /* a try that seemed to fail; read back below */
}

static int verify_manifest(struct upload *u, struct err *e)
{
    struct manifest again;
    struct object_id id = store_id(u->q->id);
    int rc = store_get_manifest(&u->session, u->q->id, &again, e);
    if (rc < 0)
        return err_wrap(e, "the manifest that was just stored cannot be read");
    if (again.size != u->out.size || again.chunks != u->out.chunks || again.segment_count != u->out.segment_count)
        rc = err_set(e, EBADMSG, "another artifact was stored under the same id");
    manifest_finish(&again);
    if (rc == 0 && (rc = claim_still(&u->session, &u->claim, e)) < 0 && !u->q->repair)
        store_delete(u->store, u->q->tenant, OBJECT_MANIFEST, &id, NULL);
    return rc;
}

/* ---- all of it ---- */

static int store_file(struct upload *u, struct err *e)
{
    int rc = claim_start(&u->session, u->q->id, &u->claim, &u->excluded, e);
    if (rc == 0)
        rc = packer_init(&u->packer, &u->session, u->q->id, e);
    if (rc < 0)
        return rc;
    if (u->q->repair && (rc = begin_repair(u, e)) != 0)
        return rc < 0 ? rc : 0;
    rc = view_open(&u->session, &u->excluded, &u->packer.view, e);
    if (rc == 0 && !u->q->repair)
        rc = packer_resume(&u->packer, &u->excluded, e);
    if (rc == 0)
        rc = u->q->repair ? find_again(u, e) : read_parent(u, e);
    for (unsigned i = 0; rc == 0 && i < BATCHES; i++)
        if (!batch_init(&u->batches[i], &u->packer, u->q->fd, &u->batch_done))
            rc = out_of_memory(e);
    if (rc == 0)
        rc = u->q->fd < 0 ? find_elsewhere(u, e) : all_chunks(u, e);
    if (rc == 0)
        rc = close_segment(u, e);
    if (rc == 0)
        rc = inherit_below(u, UINT64_MAX, e);
    if (rc == 0)
        rc = packer_flush(&u->packer, e);
    if (rc == 0)
        rc = put_manifest(u, e);
    return rc < 0 ? rc : verify_manifest(u, e);
}

static bool batches_work(const struct upload *u)
{
    for (unsigned i = 0; i < BATCHES; i++)
        if (u->batches[i].state == BATCH_WORKS)
            return true;
    return false;
}

static void upload_free(struct upload *u, bool failed)
{
    while (batches_work(u))
        task_wait(&u->batch_done, true);
    for (unsigned i = 0; i < BATCHES; i++)
        batch_finish(&u->batches[i]);
    if (u->packer.store)
        packer_finish(&u->packer, failed);
    if (u->claim.put)
        ledger_forget(u->store, u->q->tenant, &u->claim.id);
    claim_finish(&u->claim);
    pack_set_finish(&u->excluded);
    pack_set_finish(&u->bad);
    manifest_finish(&u->parent);
    manifest_finish(&u->out);
    free(u->segment);
    free(u->spare);
    free(u->plan);
    free(u->again);
    if (u->codec)
        store_codec_return(u->store, u->codec);
    session_close(&u->session);
    free(u);
}

/* 1: the artifact is there. */
static int is_there(struct upload *u, struct err *e)
{
    struct manifest m;
    struct err why = {0};
    int rc = store_get_manifest(&u->session, u->q->id, &m, &why);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return err_set(e, why.code, "%s", why.msg);
    rc = m.size == u->q->size && memcmp(&m.base, &u->q->base, sizeof m.base) == 0 ? 1 : err_set(e, EEXIST, "another artifact has this id");
    manifest_finish(&m);
    return rc;
}

static int prepare(struct upload *u, struct err *e)
{
    static const uint8_t none[16];
    struct stat st;
    u->has_base = u->q->base.tenant[0] != 0;
    u->has_parent = memcmp(u->q->parent, none, sizeof none) != 0;
    u->batch_done.sched = u->store->co;
    u->total = u->q->size;
    if (u->q->size > ARTIFACT_MAX)
        return err_set(e, EFBIG, "a file of more than %llu bytes", (unsigned long long)ARTIFACT_MAX);
    if (u->q->fd < 0 && u->q->size)
        return err_set(e, EINVAL, "a size without a file");
    if (u->q->fd >= 0 && (fstat(u->q->fd, &st) < 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size < u->q->size))
        return err_set(e, EINVAL, "the descriptor is not of a file of %llu bytes", (unsigned long long)u->q->size);
    u->segment = calloc(1, sizeof *u->segment);
    u->spare = calloc(1, sizeof *u->spare);
    u->plan = calloc(1, sizeof *u->plan);
    u->codec = store_codec(u->store);
    if (!u->segment || !u->spare || !u->plan || !u->codec)
        return out_of_memory(e);
    u->plan->file = u->q->fd;
    u->plan->ranges = u->q->ranges;
    u->plan->size = u->q->size;
    u->plan->holes = u->has_base || u->has_parent;
    return session_open(u->store, u->q->tenant, u->q->repair ? 0 : SESSION_CREATE, &u->session, e);
}

int upload_run(struct store *s, const struct upload_request *q, struct volumed_reply *rep, struct err *e)
{
    uint64_t began = uv_hrtime();
    struct upload_request own = *q;
    struct task_pool *pool = q->size <= SMALL_BYTES ? &s->small_uploads : &s->uploads;
    if (task_pool_take(pool) < 0)
        return err_set(e, ECANCELED, "cancelled");
    struct upload *u = calloc(1, sizeof *u);
    int rc = u ? 0 : out_of_memory(e);
    if (rc == 0) {
        u->store = s;
        u->q = &own;
        u->rep = rep;
        rc = prepare(u, e);
        if (rc == 0 && !own.repair)
            rc = is_there(u, e);
        if (rc == 0)
            rc = store_file(u, e);
        rep->upload.stored_bytes = u->packer.stored;
        upload_free(u, rc < 0);
    }
    rep->upload.msec = (uv_hrtime() - began) / 1000000;
    task_pool_give(pool);
    return rc < 0 ? rc : 0;
}
