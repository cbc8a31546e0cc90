// SPDX-License-Identifier: Apache-2.0
// Checking and counting what tenants have: see gc.h.
//
// Theory of operation. First the packs that artifacts use are read: their trailers and indexes, or all of them; what is wrong is noted as ranges of packs. Then each segment of
// each artifact is looked at: each of its chunks must be in its pack's index, just there, and not in a range that is wrong. Indexes of packs that were looked at last are kept.
#include "base/cleanup.h"
#include "hostd/volumed/store/gc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIDTH     3u  /* packs read at the same time; whole ones with read_all */
#define KEPT      16u /* indexes of packs */
#define BASES     64u
#define LINES_MAX 100000u

struct wrong {
    struct object_id pack;
    uint32_t from, to;
};

/* What artifacts were derived from; of the last few it is known whether it is there. */
struct base {
    struct volumed_ref ref;
    bool missing;
};

struct kept {
    struct object_id pack;
    struct pack_entry *entries; /* NULL: could not be read */
    uint32_t count;
    uint64_t used;
};

struct fsck {
    struct store *store;
    struct session session;
    struct volumed_reply *rep;
    bool read_all, mend;
    int out; /* -1: nothing is said */
    unsigned lines;
    struct listed *packs;
    size_t pack_count;
    struct listed *manifests;
    size_t manifest_count;
    struct pack_set needed;
    struct wrong *wrongs;
    size_t wrong_count, wrong_room;
    struct kept kept[KEPT];
    uint64_t clock;
    struct segment *segment;
    struct base bases[BASES];
    unsigned base_count; /* that were looked at */
};

static void say(struct fsck *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void say(struct fsck *f, const char *fmt, ...)
{
    char line[ERR_MAX + 256];
    va_list ap;
    if (f->out < 0 || f->lines++ >= LINES_MAX)
        return;
    int n = snprintf(line, sizeof line, "tenant %s: ", f->session.tenant->name);
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t len = (size_t)n + ((size_t)m < sizeof line - (size_t)n - 2 ? (size_t)m : sizeof line - (size_t)n - 2);
    line[len] = '\n';
    if (write(f->out, line, len + 1) < 0)
        f->lines = LINES_MAX; /* no room: the counts still tell */
}

static bool note(struct fsck *f, const struct object_id *pack, uint32_t from, uint32_t to)
{
    f->rep->fsck.wrong++;
    if (f->wrong_count == f->wrong_room) {
        size_t room = f->wrong_room ? f->wrong_room * 2 : 16;
        struct wrong *more = realloc(f->wrongs, room * sizeof *more);
        if (!more)
            return false;
        f->wrongs = more;
        f->wrong_room = room;
    }
    f->wrongs[f->wrong_count++] = (struct wrong){*pack, from, to};
    return true;
}

static bool is_wrong(const struct fsck *f, const struct object_id *pack, uint32_t from, uint32_t stored)
{
    for (size_t i = 0; i < f->wrong_count; i++) {
        const struct wrong *w = &f->wrongs[i];
        if (memcmp(&w->pack, pack, sizeof *pack) == 0 && from < w->to && w->from < from + stored)
            return true;
    }
    return false;
}

/* ---- packs ---- */

static int compare_listed(const void *a, const void *b)
{
    return memcmp(a, &((const struct listed *)b)->id, sizeof(struct object_id));
}

/* `size` bytes from `offset`; -EBADMSG when they are not there. */
static int read_part(struct fsck *f, const struct object_id *pack, uint64_t offset, size_t size, uint8_t **out, struct err *e)
{
    char name[NAME_SIZE];
    struct backend_result r = {0};
    uint8_t *buf = malloc(size + 1);
    if (!buf)
        return err_set(e, ENOMEM, "check: out of memory");
    store_name(name, f->session.tenant->name, OBJECT_PACK, pack);
    int rc = backend_run_co(f->store->co, f->store->backend,
                            &(struct backend_request){.verb = BACKEND_GET, .name = name, .offset = offset, .buf = buf, .size = size}, &r, e);
    f->rep->fsck.read_bytes += rc == 0 ? r.got : 0;
    if (rc == 0 && r.got != size)
        rc = err_set(e, EBADMSG, "%s is cut", name);
    if (rc < 0) {
        free(buf);
        return rc == -ENOENT ? err_set(e, EBADMSG, "%s is missing", name) : rc;
    }
    *out = buf;
    return 0;
}

static int read_index(struct fsck *f, const struct listed *l, struct pack_entry **out, uint32_t *ret_count, struct err *e)
{
    AUTO_FREE uint8_t *trailer = NULL, *bytes = NULL;
    uint64_t offset = 0;
    size_t size = 0;
    struct chunk_keys k;
    char name[NAME_SIZE];
    store_name(name, f->session.tenant->name, OBJECT_PACK, &l->id);
    if (l->size < PACK_HEADER + PACK_TRAILER)
        return err_set(e, EBADMSG, "%s is cut", name);
    int rc = read_part(f, &l->id, l->size - PACK_TRAILER, PACK_TRAILER, &trailer, e);
    if (rc == 0 && pack_trailer(trailer, l->size, &offset, &size, ret_count) < 0)
        rc = err_set(e, EBADMSG, "%s: its trailer is damaged", name);
    if (rc == 0)
        rc = read_part(f, &l->id, offset, size, &bytes, e);
    if (rc == 0)
        rc = session_enter(&f->session, &k, e);
    if (rc < 0)
        return rc;
    rc = pack_index(&k, &l->id, bytes, size, *ret_count, out);
    session_leave(&f->session);
    return rc < 0 ? err_set(e, -rc, "%s: its index is damaged", name) : 0;
}

struct open_step {
    struct fsck *f;
    struct tenant_key *key;
    const struct listed *pack;
    const uint8_t *bytes;
    const struct pack_entry *entries;
    uint32_t count, first; /* damaged chunks from `first` on, one at a time */
    int rc;
};

/* Goes on until a chunk is damaged. */
static void open_chunks(void *arg)
{
    struct open_step *st = arg;
    struct store *s = st->f->store;
    struct chunk_codec *codec = store_codec(s);
    uint8_t *plain = malloc(CHUNK_MAX);
    st->rc = codec && plain ? 0 : -ENOMEM;
    for (; st->rc == 0 && st->first < st->count; st->first += st->rc == 0) {
        const struct pack_entry *x = &st->entries[st->first];
        struct chunk_keys k;
        if (!session_thread_enter(s, st->f->session.tenant->name, st->key, &k)) {
            st->rc = -EKEYEXPIRED;
            break;
        }
        st->rc = chunk_open(&k, codec, (enum chunk_kind)x->kind, &x->id, st->bytes + x->offset, x->stored, plain, x->plain);
        tenant_key_leave(st->key);
    }
    free(plain);
    if (codec)
        store_codec_return(s, codec);
}

static int check_chunks(struct fsck *f, const struct listed *l, const struct pack_entry *entries, uint32_t count, struct err *e)
{
    AUTO_FREE uint8_t *bytes = NULL;
    int rc = read_part(f, &l->id, 0, (size_t)l->size, &bytes, e);
    if (rc == 0 && !pack_header(bytes, &l->id, tenant_key_id(f->session.key))) {
        char name[NAME_SIZE];
        say(f, "%s: its header is damaged; no chunk is affected", store_name(name, f->session.tenant->name, OBJECT_PACK, &l->id));
        if (!note(f, &l->id, 0, PACK_HEADER))
            rc = err_set(e, ENOMEM, "check: out of memory");
    }
    struct open_step st = {.f = f, .pack = l, .bytes = bytes, .entries = entries, .count = count};
    while (rc == 0 && st.first < count) {
        st.key = tenant_key_ref(f->session.key);
        task_thread(f->store->co, open_chunks, &st);
        tenant_key_unref(st.key);
        if (st.rc == -EKEYEXPIRED) {
            rc = session_renew(&f->session, e);
        } else if (st.rc == -EBADMSG) {
            const struct pack_entry *x = &entries[st.first++];
            char name[NAME_SIZE];
            say(f, "%s is damaged at %u, %u bytes", store_name(name, f->session.tenant->name, OBJECT_PACK, &l->id), x->offset, x->stored);
            if (!note(f, &l->id, x->offset, x->offset + x->stored))
                rc = err_set(e, ENOMEM, "check: out of memory");
        } else if (st.rc < 0) {
            rc = err_set(e, -st.rc, "check: %s", strerror(-st.rc));
        }
    }
    f->rep->fsck.chunks += count;
    return rc;
}

static int check_pack(void *user, size_t i, struct err *e)
{
    struct fsck *f = user;
    const struct object_id *id = &f->needed.ids[i];
    const struct listed *l = f->pack_count ? bsearch(id, f->packs, f->pack_count, sizeof *f->packs, compare_listed) : NULL;
    AUTO_FREE struct pack_entry *entries = NULL;
    uint32_t count = 0;
    char name[NAME_SIZE];
    struct err why = {0};
    f->rep->fsck.packs++;
    int rc = l ? read_index(f, l, &entries, &count, &why)
               : err_set(&why, EBADMSG, "%s is missing", store_name(name, f->session.tenant->name, OBJECT_PACK, id));
    if (rc == 0 && f->read_all)
        rc = check_chunks(f, l, entries, count, &why);
    if (rc == -EBADMSG) {
        say(f, "%s", why.msg);
        return note(f, id, 0, UINT32_MAX) ? 0 : err_set(e, ENOMEM, "check: out of memory");
    }
    return rc < 0 ? err_set(e, -rc, "%s", why.msg) : 0;
}

/* ---- artifacts ---- */

static int compare_offsets(const void *key, const void *entry)
{
    uint32_t a = *(const uint32_t *)key, b = ((const struct pack_entry *)entry)->offset;
    return a < b ? -1 : a > b;
}

/* The index of a pack, read again when it was not looked at lately. NULL: it cannot be read, and that was said before. */
static const struct kept *index_of(struct fsck *f, const struct object_id *pack)
{
    struct kept *oldest = &f->kept[0];
    struct err e = {0};
    for (unsigned i = 0; i < KEPT; i++) {
        if (f->kept[i].used && memcmp(&f->kept[i].pack, pack, sizeof *pack) == 0) {
            f->kept[i].used = ++f->clock;
            return &f->kept[i];
        }
        if (f->kept[i].used < oldest->used)
            oldest = &f->kept[i];
    }
    free(oldest->entries);
    *oldest = (struct kept){.pack = *pack, .used = ++f->clock};
    const struct listed *l = f->pack_count ? bsearch(pack, f->packs, f->pack_count, sizeof *f->packs, compare_listed) : NULL;
    if (!l || read_index(f, l, &oldest->entries, &oldest->count, &e) < 0)
        oldest->count = 0;
    return oldest;
}

static bool chunk_there(struct fsck *f, const struct object_id *pack, const struct chunk_id *id, uint32_t offset, uint32_t stored)
{
    const struct kept *k = index_of(f, pack);
    const struct pack_entry *x = k->count ? bsearch(&offset, k->entries, k->count, sizeof *k->entries, compare_offsets) : NULL;
    return x && x->stored == stored && memcmp(&x->id, id, sizeof *id) == 0 && !is_wrong(f, pack, offset, stored);
}

static void check_segment(struct fsck *f, const struct manifest *m, const struct manifest_segment *ms, uint64_t *lost)
{
    struct err e = {0};
    if (!chunk_there(f, &m->packs[ms->pack], &ms->id, ms->offset, ms->stored) || store_get_segment(&f->session, m, ms, f->segment, &e) < 0) {
        if (e.msg[0])
            say(f, "%s", e.msg);
        *lost += (uint64_t)ms->count * CHUNK_BYTES;
        return;
    }
    for (uint32_t i = 0; i < SEGMENT_CHUNKS; i++) {
        const struct piece *x = &f->segment->pieces[i];
        if (x->kind == PIECE_DATA && !chunk_there(f, &x->pack, &x->id, x->offset, x->stored))
            *lost += chunk_length(m->size, (uint64_t)ms->number * SEGMENT_CHUNKS + i);
    }
}

static int check_base(struct fsck *f, const struct volumed_ref *ref, bool *ret_missing, struct err *e)
{
    char name[NAME_SIZE];
    struct object_id id = store_id(ref->id);
    *ret_missing = false;
    if (!ref->tenant[0])
        return 0;
    for (unsigned i = 0; i < BASES && i < f->base_count; i++)
        if (memcmp(&f->bases[i].ref, ref, sizeof *ref) == 0) {
            *ret_missing = f->bases[i].missing;
            return 0;
        }
    store_name(name, ref->tenant, OBJECT_MANIFEST, &id);
    int rc = backend_run_co(f->store->co, f->store->backend, &(struct backend_request){.verb = BACKEND_STAT, .name = name}, NULL, e);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    *ret_missing = rc == -ENOENT;
    f->rep->fsck.wrong += *ret_missing;
    f->bases[f->base_count++ % BASES] = (struct base){*ref, *ret_missing};
    return 0;
}

static int check_artifact(struct fsck *f, const struct listed *l, struct err *e)
{
    struct manifest m;
    uint64_t lost = 0;
    char id[33];
    struct err why = {0};
    f->rep->fsck.artifacts++;
    hex(id, l->id.b, 16);
    int rc = store_get_manifest(&f->session, l->id.b, &m, &why);
    if (rc == -ENOENT)
        return 0;
    if (rc == -EBADMSG) {
        f->rep->fsck.wrong++;
        f->rep->fsck.affected++;
        say(f, "%s", why.msg);
        say(f, "artifact %s is lost: its manifest cannot be read", id);
        return 0;
    }
    if (rc < 0)
        return err_set(e, -rc, "%s", why.msg);
    for (uint32_t i = 0; i < m.segment_count; i++)
        check_segment(f, &m, &m.segments[i], &lost);
    struct volumed_ref base = m.base;
    bool missing;
    manifest_finish(&m);
    if ((rc = check_base(f, &base, &missing, e)) < 0)
        return rc;
    if (missing) {
        char base_id[33];
        f->rep->fsck.affected += !lost;
        say(f, "artifact %s is affected: its base is missing, artifact %s of tenant %.64s", id, hex(base_id, base.id, 16), base.tenant);
    }
    if (lost) {
        f->rep->fsck.affected++;
        say(f, "artifact %s is affected: %llu bytes of the file cannot be had", id, (unsigned long long)lost);
    }
    return 0;
}

static int need_packs(void *user, size_t i, struct err *e)
{
    struct fsck *f = user;
    struct manifest m;
    int rc = store_get_manifest(&f->session, f->manifests[i].id.b, &m, e);
    if (rc < 0)
        return rc == -ENOENT || rc == -EBADMSG ? 0 : rc;
    for (uint32_t j = 0; rc == 0 && j < m.pack_count; j++)
        if (!pack_set_add(&f->needed, &m.packs[j]))
            rc = err_set(e, ENOMEM, "check: out of memory");
    manifest_finish(&m);
    return rc;
}

static int check_small(struct fsck *f, enum object_kind kind, enum sealed_kind sealed, struct err *e)
{
    AUTO_FREE struct listed *list = NULL;
    size_t count = 0;
    int rc = store_list(f->store, f->session.tenant->name, kind, NULL, &list, &count, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        AUTO_FREE uint8_t *object = NULL;
        size_t size;
        rc = store_get_sealed(&f->session, sealed, &list[i].id, &object, &size, e);
        if (rc == -EBADMSG) {
            f->rep->fsck.wrong++;
            say(f, "%s; no artifact is affected%s", e->msg,
                f->mend && kind == OBJECT_INDEX ? "; it was removed"
                : kind == OBJECT_CONDEMNED      ? "; the next upload or collection replaces it"
                                                : "");
            if (f->mend && kind == OBJECT_INDEX && (rc = store_delete(f->store, f->session.tenant->name, kind, &list[i].id, e)) < 0)
                return rc;
        }
        rc = rc == -ENOENT || rc == -EBADMSG ? 0 : rc;
    }
    return rc;
}

static int check_all(struct fsck *f, struct err *e)
{
    const char *tenant = f->session.tenant->name;
    int rc = store_list(f->store, tenant, OBJECT_MANIFEST, NULL, &f->manifests, &f->manifest_count, e);
    if (rc == 0)
        rc = task_each(f->store->co, f->manifest_count, WIDTH, need_packs, f, e);
    pack_set_sort(&f->needed);
    if (rc == 0) /* after the manifests: packs are there before */
        rc = store_list(f->store, tenant, OBJECT_PACK, NULL, &f->packs, &f->pack_count, e);
    if (rc == 0)
        rc = task_each(f->store->co, f->needed.count, WIDTH, check_pack, f, e);
    for (size_t i = 0; rc == 0 && i < f->manifest_count; i++)
        rc = check_artifact(f, &f->manifests[i], e);
    if (rc == 0)
        rc = check_small(f, OBJECT_INDEX, SEALED_INDEX, e);
    if (rc == 0)
        rc = check_small(f, OBJECT_CONDEMNED, SEALED_CONDEMNED, e);
    return rc == 0 ? check_small(f, OBJECT_CLAIM, SEALED_CLAIM, e) : rc;
}

int fsck_find_bad(struct session *x, const struct manifest *m, struct pack_set *bad, struct err *e)
{
    struct volumed_reply counts = {0};
    struct fsck *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ENOMEM, "check: out of memory");
    *f = (struct fsck){.store = x->store, .session = *x, .rep = &counts, .read_all = true, .out = -1};
    f->session.key = tenant_key_ref(x->key); /* ours may be renewed meanwhile, and so may theirs */
    int rc = store_list(x->store, x->tenant->name, OBJECT_PACK, NULL, &f->packs, &f->pack_count, e);
    for (uint32_t i = 0; rc == 0 && i < m->pack_count; i++)
        if (!pack_set_add(&f->needed, &m->packs[i]))
            rc = err_set(e, ENOMEM, "check: out of memory");
    pack_set_sort(&f->needed);
    if (rc == 0)
        rc = task_each(x->store->co, f->needed.count, WIDTH, check_pack, f, e);
    for (size_t i = 0; rc == 0 && i < f->wrong_count; i++)
        if (!pack_set_add(bad, &f->wrongs[i].pack))
            rc = err_set(e, ENOMEM, "check: out of memory");
    pack_set_sort(bad);
    tenant_key_unref(f->session.key);
    free(f->packs);
    free(f->wrongs);
    pack_set_finish(&f->needed);
    free(f);
    return rc;
}

int fsck_run(struct store *s, const char *tenant, unsigned flags, int out, struct volumed_reply *rep, struct err *e)
{
    struct fsck *f = calloc(1, sizeof *f);
    struct segment *segment = calloc(1, sizeof *segment);
    int rc = f && segment ? 0 : err_set(e, ENOMEM, "check: out of memory");
    if (rc == 0) {
        *f =
            (struct fsck){.store = s, .rep = rep, .read_all = flags & VOLUMED_READ_ALL, .mend = flags & VOLUMED_MEND, .out = out, .segment = segment};
        keys_forget(s->keys, tenant); /* so that the wrapped key is looked at, too; who uses the key gets it again */
        rc = session_open(s, tenant, 0, &f->session, e);
        if (rc == 0)
            rc = check_all(f, e);
        session_close(&f->session);
        for (unsigned i = 0; i < KEPT; i++)
            free(f->kept[i].entries);
        free(f->packs);
        free(f->manifests);
        free(f->wrongs);
        pack_set_finish(&f->needed);
    }
    free(segment);
    free(f);
    return rc;
}

/* ---- counting ---- */

int stat_run(struct store *s, const char *tenant, struct volumed_reply *rep, struct err *e)
{
    struct session x;
    AUTO_FREE struct listed *list = NULL, *packs = NULL, *indexes = NULL;
    size_t count = 0;
    int rc = session_open(s, tenant, 0, &x, e);
    if (rc < 0)
        return rc;
    rc = store_list(s, tenant, OBJECT_MANIFEST, NULL, &list, &count, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct manifest m;
        rc = store_get_manifest(&x, list[i].id.b, &m, e);
        if (rc == 0) {
            rep->stat.artifacts++;
            rep->stat.file_bytes += m.size;
            rep->stat.chunk_bytes += (m.chunks - m.zero_chunks) * CHUNK_BYTES;
            manifest_finish(&m);
        }
        rc = rc == -ENOENT ? 0 : rc;
    }
    if (rc == 0)
        rc = store_list(s, tenant, OBJECT_PACK, NULL, &packs, &count, e);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rep->stat.stored_bytes += packs[i].size;
    rep->stat.packs += rc == 0 ? count : 0;
    if (rc == 0)
        rc = store_list(s, tenant, OBJECT_INDEX, NULL, &indexes, &count, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        AUTO_FREE uint8_t *object = NULL;
        struct index_body b = {0};
        size_t size = 0;
        rc = store_get_sealed(&x, SEALED_INDEX, &indexes[i].id, &object, &size, e);
        if (rc == 0 && index_decode(object + SEALED_HEADER, size, &b) == 0)
            for (uint32_t j = 0; j < b.count; j++)
                rep->stat.unique_bytes += b.entries[j].e.kind == CHUNK_DATA ? b.entries[j].e.plain : 0;
        index_body_finish(&b);
        rc = rc == -ENOENT ? 0 : rc;
    }
    session_close(&x);
    return rc;
}

int list_run(struct store *s, const char *tenant, int out, struct err *e)
{
    struct session x;
    AUTO_FREE struct listed *list = NULL;
    size_t count = 0;
    int rc = session_open(s, tenant, 0, &x, e);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc;
    rc = store_list(s, tenant, OBJECT_MANIFEST, NULL, &list, &count, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct manifest m;
        char id[33], base[33];
        hex(id, list[i].id.b, 16);
        rc = store_get_manifest(&x, list[i].id.b, &m, e);
        if (rc == 0)
            dprintf(out, "%s %llu %llu %llu %u %s %s\n", id, (unsigned long long)m.size, (unsigned long long)m.stored_bytes,
                    (unsigned long long)m.created, m.file, m.base.tenant[0] ? m.base.tenant : "-", m.base.tenant[0] ? hex(base, m.base.id, 16) : "-");
        else if (rc == -EBADMSG)
            dprintf(out, "%s ? ? ? ? ? ?\n", id);
        if (rc == 0)
            manifest_finish(&m);
        rc = rc == -ENOENT || rc == -EBADMSG ? 0 : rc;
    }
    session_close(&x);
    return rc;
}
