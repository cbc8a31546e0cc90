// SPDX-License-Identifier: Apache-2.0
// Garbage collection: see gc.h and the theory of operation in claim.h.
#include "hostd/volumed/store/gc.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/volumed/store/claim.h"
#include "hostd/volumed/store/gc_merge.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WIDTH          8u         /* objects read or deleted at the same time */
#define SPARSE_MIN     (4u << 20) /* bytes that a pack must waste before it is condemned for it, */
#define SPARSE_PART    4u         /* when no artifact uses more than one part in so many */
#define SENTENCES_MANY 4u         /* condemnations that stay are put together */

/* A condemnation. */
struct sentence {
    struct object_id id;
    struct pack_set packs;
    bool waits;   /* an upload has not seen it */
    bool damaged; /* and cannot be read */
    size_t gone;  /* packs that are not there any more */
};

/* What artifacts use of a pack. */
struct use {
    struct object_id pack;
    uint64_t bytes; /* by that one which uses most of it */
};

struct gc {
    struct store *store;
    struct session session;
    struct volumed_reply *rep;
    struct listed *packs, *claims, *manifests;
    size_t pack_count, claim_count, manifest_count;
    struct use *uses; /* sorted once marking is done */
    size_t use_count, use_room;
    struct sentence *sentences;
    size_t sentence_count, sentence_room;
    struct pack_set deleted;
};

static int out_of_memory(struct err *e)
{
    return err_set(e, ENOMEM, "collect garbage: out of memory");
}

int store_next_tenant(struct store *s, char after[KEYS_TENANT_MAX + 1], struct err *e)
{
    char from[KEYS_TENANT_MAX + 4] = "";
    struct backend_page page = {0};
    for (;;) {
        if (*after)
            snprintf(from, sizeof from, "%s/zz", after); /* behind all that it has */
        int rc = backend_list_co(s->co, s->backend, "", *from ? from : NULL, &page, e);
        if (rc < 0)
            return rc;
        const char *slash = page.count ? strchr(page.objects[0].name, '/') : NULL;
        size_t n = slash ? (size_t)(slash - page.objects[0].name) : 0;
        bool found = page.count > 0, good = n > 0 && n <= KEYS_TENANT_MAX && str_name_valid(page.objects[0].name, n);
        if (good) {
            memcpy(after, page.objects[0].name, n);
            after[n] = 0;
        } else if (found) {
            str_copy(from, sizeof from, page.objects[0].name); /* something else lies here */
            *after = 0;
        }
        free(page.objects);
        if (!found)
            return err_set(e, ENOENT, "no more tenants");
        if (good)
            return 0;
    }
}

/* ---- marking ---- */

static int compare_uses(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct object_id));
}

static bool add_use(struct gc *g, const struct object_id *pack, uint64_t bytes)
{
    if (g->use_count == g->use_room) {
        size_t room = g->use_room ? g->use_room * 2 : 256;
        struct use *uses = realloc(g->uses, room * sizeof *uses);
        if (!uses)
            return false;
        g->uses = uses;
        g->use_room = room;
    }
    g->uses[g->use_count++] = (struct use){*pack, bytes};
    return true;
}

static void sort_uses(struct gc *g)
{
    size_t n = 0;
    if (g->use_count == 0)
        return;
    qsort(g->uses, g->use_count, sizeof *g->uses, compare_uses);
    for (size_t i = 1; i < g->use_count; i++)
        if (compare_uses(&g->uses[n], &g->uses[i]) != 0)
            g->uses[++n] = g->uses[i];
        else if (g->uses[n].bytes < g->uses[i].bytes)
            g->uses[n].bytes = g->uses[i].bytes;
    g->use_count = n + 1;
}

static const struct use *used(const struct gc *g, const struct object_id *pack)
{
    return g->use_count ? bsearch(pack, g->uses, g->use_count, sizeof *g->uses, compare_uses) : NULL;
}

static int mark_one(void *user, size_t i, struct err *e)
{
    struct gc *g = user;
    struct manifest m;
    int rc = store_get_manifest(&g->session, g->manifests[i].id.b, &m, e);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc; /* deleted meanwhile */
    uint64_t *bytes = calloc((size_t)m.pack_count + 1, sizeof *bytes);
    for (uint32_t j = 0; bytes && j < m.ref_count; j++)
        bytes[m.refs[j].pack] += m.refs[j].bytes;
    for (uint32_t j = 0; bytes && j < m.segment_count; j++)
        bytes[m.segments[j].pack] += m.segments[j].stored;
    for (uint32_t j = 0; bytes && rc == 0 && j < m.pack_count; j++)
        if (!add_use(g, &m.packs[j], bytes[j]))
            rc = out_of_memory(e);
    if (!bytes)
        rc = out_of_memory(e);
    free(bytes);
    manifest_finish(&m);
    return rc;
}

/* Reads all manifests that there are now. */
static int mark(struct gc *g, struct err *e)
{
    free(g->manifests);
    g->manifests = NULL;
    g->use_count = 0;
    int rc = store_list(g->store, g->session.tenant->name, OBJECT_MANIFEST, NULL, &g->manifests, &g->manifest_count, e);
    if (rc == 0)
        rc = task_each(g->store->co, g->manifest_count, WIDTH, mark_one, g, e);
    sort_uses(g);
    return rc;
}

/* ---- condemning ---- */

static int read_sentence(void *user, size_t i, struct err *e)
{
    struct gc *g = user;
    struct sentence *s = &g->sentences[i];
    AUTO_FREE uint8_t *object = NULL;
    size_t size = 0;
    int rc = store_get_sealed(&g->session, SEALED_CONDEMNED, &s->id, &object, &size, e);
    if (rc == 0)
        rc = condemned_decode(object + SEALED_HEADER, size, &s->packs);
    pack_set_sort(&s->packs);
    s->damaged = rc == -EBADMSG;
    return rc == -ENOENT || rc == -EBADMSG ? 0 : rc;
}

static void free_sentences(struct gc *g)
{
    for (size_t i = 0; i < g->sentence_room; i++)
        pack_set_finish(&g->sentences[i].packs);
    free(g->sentences);
    g->sentences = NULL;
    g->sentence_count = g->sentence_room = 0;
}

static int list_sentences(struct gc *g, struct err *e)
{
    AUTO_FREE struct listed *list = NULL;
    size_t count = 0;
    free_sentences(g);
    int rc = store_list(g->store, g->session.tenant->name, OBJECT_CONDEMNED, NULL, &list, &count, e);
    if (rc < 0)
        return rc;
    g->sentences = calloc(count + 1, sizeof *g->sentences); /* and one of our own */
    if (!g->sentences)
        return out_of_memory(e);
    g->sentence_count = count;
    g->sentence_room = count + 1;
    for (size_t i = 0; i < count; i++)
        g->sentences[i].id = list[i].id;
    return task_each(g->store->co, count, WIDTH, read_sentence, g, e);
}

/* Those that are damaged are replaced first. */
static int read_sentences(struct gc *g, struct err *e)
{
    bool damaged = false;
    int rc = list_sentences(g, e);
    for (size_t i = 0; rc == 0 && i < g->sentence_count; i++)
        if (g->sentences[i].damaged) {
            rc = gc_replace_condemned(&g->session, &g->sentences[i].id, e);
            g->rep->gc.deleted_others += rc == 0;
            damaged = true;
        }
    return rc == 0 && damaged ? list_sentences(g, e) : rc;
}

static bool condemned(const struct gc *g, const struct object_id *pack)
{
    for (size_t i = 0; i < g->sentence_count; i++)
        if (pack_set_has(&g->sentences[i].packs, pack))
            return true;
    return false;
}

/* Of an upload in progress, or one that may come back soon. */
static bool claimed(const struct gc *g, const struct object_id *pack)
{
    for (size_t i = 0; i < g->claim_count; i++)
        if (memcmp(g->claims[i].id.b, pack->b, 16) == 0)
            return true;
    return false;
}

/* Nobody uses it, or so little that it is better to store that again elsewhere, as it is come by. */
static bool to_condemn(const struct gc *g, const struct listed *pack)
{
    const struct use *u = used(g, &pack->id);
    if (u && (u->bytes > pack->size / SPARSE_PART || pack->size - u->bytes < SPARSE_MIN))
        return false;
    return !condemned(g, &pack->id) && !claimed(g, &pack->id);
}

static int put_condemned(struct session *x, const struct object_id *id, const struct pack_set *packs, struct err *e)
{
    AUTO_FREE uint8_t *object = malloc(SEALED_HEADER + condemned_size(packs->count));
    if (!object)
        return out_of_memory(e);
    condemned_encode(packs, (uint64_t)time(NULL), object + SEALED_HEADER);
    return store_put_sealed(x, SEALED_CONDEMNED, id, object, condemned_size(packs->count), 0, e);
}

int gc_condemn(struct session *x, const struct pack_set *packs, struct err *e)
{
    struct object_id id = {{0}};
    crypt_random(id.b, 16);
    return put_condemned(x, &id, packs, e);
}

static int condemn_all(struct session *x, size_t *ret_count, struct err *e)
{
    AUTO_FREE struct listed *list = NULL;
    int rc = store_list(x->store, x->tenant->name, OBJECT_PACK, NULL, &list, ret_count, e);
    for (size_t at = 0; rc == 0 && at < *ret_count; at += CONDEMNED_MAX) {
        struct pack_set packs = {0};
        for (size_t i = at; rc == 0 && i < *ret_count && i < at + CONDEMNED_MAX; i++)
            if (!pack_set_add(&packs, &list[i].id))
                rc = out_of_memory(e);
        pack_set_sort(&packs);
        if (rc == 0)
            rc = gc_condemn(x, &packs, e);
        pack_set_finish(&packs);
    }
    return rc;
}

int gc_replace_condemned(struct session *x, const struct object_id *id, struct err *e)
{
    AUTO_FREE uint8_t *object = NULL;
    struct pack_set packs = {0};
    struct err why = {0};
    size_t size = 0, count = 0;
    char name[NAME_SIZE];
    int rc = store_get_sealed(x, SEALED_CONDEMNED, id, &object, &size, &why); /* once more */
    if (rc == 0)
        rc = condemned_decode(object + SEALED_HEADER, size, &packs);
    pack_set_finish(&packs);
    if (rc != -EBADMSG)
        return rc == -ENOENT || rc == 0 ? 0 : err_set(e, -rc, "%s", why.msg);
    rc = condemn_all(x, &count, e);
    if (rc == 0)
        rc = store_delete(x->store, x->tenant->name, OBJECT_CONDEMNED, id, e);
    x->store->replaced += rc == 0;
    if (rc == 0)
        log_warn("%s cannot be read: all %zu packs of the tenant are condemned in its place, and uploads store again what they need of them",
                 store_name(name, x->tenant->name, OBJECT_CONDEMNED, id), count);
    return rc;
}

static int condemn(struct gc *g, struct err *e)
{
    struct sentence *own = &g->sentences[g->sentence_count];
    for (size_t i = 0; i < g->pack_count && own->packs.count < CONDEMNED_MAX; i++)
        if (to_condemn(g, &g->packs[i]) && !pack_set_add(&own->packs, &g->packs[i].id))
            return out_of_memory(e);
    if (own->packs.count == 0)
        return 0;
    pack_set_sort(&own->packs);
    crypt_random(own->id.b, 16);
    g->rep->gc.condemned_packs += own->packs.count;
    int rc = put_condemned(&g->session, &own->id, &own->packs, e);
    g->sentence_count += rc == 0;
    return rc;
}

/* ---- who has not seen it ---- */

static bool stale(const struct gc *g, const struct listed *claim)
{
    int64_t now = (int64_t)time(NULL) + backend_stats(g->store->backend).clock_offset_ms / 1000;
    return now - claim->modified > (int64_t)g->store->stale_s;
}

static int ask_claim(void *user, size_t i, struct err *e)
{
    struct gc *g = user;
    const struct listed *claim = &g->claims[i];
    AUTO_FREE uint8_t *object = NULL;
    size_t size = 0;
    char text[33];
    if (stale(g, claim)) {
        log_warn("tenant %s: the upload of artifact %s died long ago: what it left is garbage", g->session.tenant->name, hex(text, claim->id.b, 16));
        g->rep->gc.deleted_others++;
        return store_delete(g->store, g->session.tenant->name, OBJECT_CLAIM, &claim->id, e);
    }
    int rc = store_get_sealed(&g->session, SEALED_CLAIM, &claim->id, &object, &size, e);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0 && rc != -EBADMSG)
        return rc;
    bool waits = false;
    for (size_t j = 0; j < g->sentence_count; j++)
        if (rc < 0 || claim_names(object + SEALED_HEADER, size, g->sentences[j].id.b) != 1)
            waits = g->sentences[j].waits = true;
    g->rep->gc.waiting += waits;
    return 0;
}

static int ask_claims(struct gc *g, struct err *e)
{
    free(g->claims);
    g->claims = NULL;
    int rc = store_list(g->store, g->session.tenant->name, OBJECT_CLAIM, NULL, &g->claims, &g->claim_count, e);
    return rc < 0 ? rc : task_each(g->store->co, g->claim_count, WIDTH, ask_claim, g, e);
}

/* ---- deleting ---- */

static const struct listed *listed_pack(const struct gc *g, const struct object_id *id)
{
    for (size_t low = 0, high = g->pack_count; low < high;) {
        size_t mid = low + (high - low) / 2;
        int c = memcmp(g->packs[mid].id.b, id->b, sizeof id->b);
        if (c == 0)
            return &g->packs[mid];
        *(c < 0 ? &low : &high) = c < 0 ? mid + 1 : mid;
    }
    return NULL;
}

static int delete_one(void *user, size_t i, struct err *e)
{
    struct gc *g = user;
    return store_delete(g->store, g->session.tenant->name, OBJECT_PACK, &g->deleted.ids[i], e);
}

static int delete_packs(struct gc *g, struct err *e)
{
    for (size_t i = 0; i < g->sentence_count; i++) {
        struct sentence *s = &g->sentences[i];
        for (size_t j = 0; !s->waits && j < s->packs.count; j++) {
            const struct listed *l = listed_pack(g, &s->packs.ids[j]);
            if (used(g, &s->packs.ids[j]))
                continue;
            s->gone++;
            if (!pack_set_add(&g->deleted, &s->packs.ids[j]))
                return out_of_memory(e);
            g->rep->gc.deleted_packs += l != NULL;
            g->rep->gc.deleted_bytes += l ? l->size : 0;
        }
    }
    pack_set_sort(&g->deleted);
    return task_each(g->store->co, g->deleted.count, WIDTH, delete_one, g, e);
}

static int lift_sentences(struct gc *g, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < g->sentence_count; i++) {
        const struct sentence *s = &g->sentences[i];
        if (s->waits || s->gone < s->packs.count)
            continue;
        rc = store_delete(g->store, g->session.tenant->name, OBJECT_CONDEMNED, &s->id, e);
        g->rep->gc.deleted_others++;
    }
    return rc;
}

static bool is_left(const struct sentence *s)
{
    return !s->waits && !s->damaged && s->gone < s->packs.count;
}

/*
 * Each upload reads all condemnations, and those of which a pack is in use stay: many become one. It is put before the others are removed, so that who lists them
 * finds one or the other. Uploads in progress have not seen it, and so nothing of it is deleted before they end.
 */
static int merge_sentences(struct gc *g, struct err *e)
{
    struct pack_set left = {0};
    size_t many = 0;
    int rc = 0;
    for (size_t i = 0; i < g->sentence_count; i++)
        many += is_left(&g->sentences[i]);
    for (size_t i = 0; many >= SENTENCES_MANY && rc == 0 && i < g->sentence_count; i++)
        for (size_t j = 0; is_left(&g->sentences[i]) && rc == 0 && j < g->sentences[i].packs.count; j++)
            if (!pack_set_has(&g->deleted, &g->sentences[i].packs.ids[j]) && !pack_set_add(&left, &g->sentences[i].packs.ids[j]))
                rc = out_of_memory(e);
    pack_set_sort(&left);
    if (rc == 0 && left.count && left.count <= CONDEMNED_MAX) {
        rc = gc_condemn(&g->session, &left, e);
        for (size_t i = 0; rc == 0 && i < g->sentence_count; i++)
            if (is_left(&g->sentences[i])) {
                rc = store_delete(g->store, g->session.tenant->name, OBJECT_CONDEMNED, &g->sentences[i].id, e);
                g->rep->gc.deleted_others++;
            }
    }
    pack_set_finish(&left);
    return rc;
}

/* ---- all of it ---- */

static int collect(struct gc *g, struct err *e)
{
    const char *tenant = g->session.tenant->name;
    /* In this order: a pack's upload has a claim, or, later, a manifest. */
    int rc = store_list(g->store, tenant, OBJECT_PACK, NULL, &g->packs, &g->pack_count, e);
    if (rc == 0)
        rc = store_list(g->store, tenant, OBJECT_CLAIM, NULL, &g->claims, &g->claim_count, e);
    if (rc == 0)
        rc = mark(g, e);
    if (rc == 0)
        rc = read_sentences(g, e);
    if (rc == 0)
        rc = condemn(g, e);
    if (rc == 0)
        rc = ask_claims(g, e);
    if (rc == 0 && g->sentence_count)
        rc = mark(g, e);
    if (rc == 0)
        rc = delete_packs(g, e);
    if (rc == 0)
        rc = gc_indexes(&g->session, &g->deleted, &g->rep->gc.deleted_others, e);
    if (rc == 0)
        rc = lift_sentences(g, e);
    if (rc == 0)
        rc = merge_sentences(g, e);
    if (rc < 0)
        return rc;
    g->rep->gc.artifacts += g->manifest_count;
    g->rep->gc.packs += g->pack_count;
    for (size_t i = 0; i < g->pack_count; i++)
        g->rep->gc.stored_bytes += g->packs[i].size;
    return 0;
}

int gc_run(struct store *s, const char *tenant, struct volumed_reply *rep, struct err *e)
{
    struct gc *g = calloc(1, sizeof *g);
    if (!g)
        return out_of_memory(e);
    g->store = s;
    g->rep = rep;
    uint64_t packs = rep->gc.deleted_packs, bytes = rep->gc.deleted_bytes;
    int rc = session_uphold_revocation(s, tenant, e);
    if (rc == 0)
        rc = session_open(s, tenant, 0, &g->session, e);
    if (rc == 0) {
        rc = collect(g, e);
        rep->gc.packs -= rep->gc.deleted_packs - packs;
        rep->gc.stored_bytes -= rep->gc.deleted_bytes - bytes;
    }
    session_close(&g->session);
    free_sentences(g);
    pack_set_finish(&g->deleted);
    free(g->packs);
    free(g->claims);
    free(g->manifests);
    free(g->uses);
    free(g);
    return rc == -ENOENT ? 0 : rc;
}
