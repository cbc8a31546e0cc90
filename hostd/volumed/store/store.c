// SPDX-License-Identifier: Apache-2.0
// Names and objects of the store: see store.h.
#include "hostd/volumed/store/store.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_AT_ONCE (4u << 20)

struct codec_link {
    struct codec_link *next;
    struct chunk_codec *codec;
};

int store_init(struct store *s, uv_loop_t *loop, struct backend *b, struct keys *k, int cache, uint64_t stale_s, struct err *e)
{
    memset(s, 0, sizeof *s);
    s->loop = loop;
    s->backend = b;
    s->keys = k;
    s->cache = cache;
    s->claims = -1;
    s->stale_s = stale_s;
    s->co = co_sched_create(loop);
    s->crypt = crypt_create();
    if (!s->co || !s->crypt)
        return err_set(e, ENOSYS, "libcrypto has no SHA-256 or AES-256-GCM, or memory is out");
    task_pool_init(&s->packs, s->co, STORE_PACKS);
    task_pool_init(&s->uploads, s->co, STORE_UPLOADS);
    task_pool_init(&s->small_uploads, s->co, STORE_SMALL);
    task_pool_init(&s->requests, s->co, STORE_REQUESTS);
    task_pool_init(&s->downloads, s->co, STORE_DOWNLOADS);
    task_pool_init(&s->fills, s->co, STORE_FILLS);
    pthread_mutex_init(&s->lock, NULL);
    return 0;
}

void store_finish(struct store *s)
{
    for (struct codec_link *l = s->codecs, *next; l; l = next) {
        next = l->next;
        chunk_codec_destroy(l->codec);
        free(l);
    }
    crypt_destroy(s->crypt);
    co_sched_destroy(s->co);
    hmap_finish(&s->tenants);
    pthread_mutex_destroy(&s->lock);
}

/* ---- codecs: as many as threads used one at the same time ---- */

struct chunk_codec *store_codec(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    struct codec_link *l = s->codecs;
    if (l)
        s->codecs = l->next;
    pthread_mutex_unlock(&s->lock);
    struct chunk_codec *c = l ? l->codec : chunk_codec_create();
    free(l);
    return c;
}

void store_codec_return(struct store *s, struct chunk_codec *c)
{
    struct codec_link *l = malloc(sizeof *l);
    if (!l) {
        chunk_codec_destroy(c);
        return;
    }
    l->codec = c;
    pthread_mutex_lock(&s->lock);
    l->next = s->codecs;
    s->codecs = l;
    pthread_mutex_unlock(&s->lock);
}

/* ---- names ---- */

static const struct {
    const char *folder;
    size_t tail; /* bytes of the id that follow the artifact's */
    char between;
} kinds[] = {
    [OBJECT_KEY] = {"key", 0, 0},
    [OBJECT_REVOKED] = {"revoked", 0, 0},
    [OBJECT_PACK] = {"packs/", 8, '/'},
    [OBJECT_INDEX] = {"index/", 8, '/'},
    [OBJECT_MANIFEST] = {"manifests/", 0, 0},
    [OBJECT_CLAIM] = {"claims/", 8, '-'},
    [OBJECT_CONDEMNED] = {"condemned/", 0, 0},
};

char *hex(char *out, const uint8_t *p, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * n] = 0;
    return out;
}

struct object_id store_id(const uint8_t id[16])
{
    struct object_id o = {{0}};
    memcpy(o.b, id, 16);
    return o;
}

char *store_name(char *out, const char *tenant, enum object_kind kind, const struct object_id *id)
{
    size_t at = (size_t)snprintf(out, NAME_SIZE, "%.64s/%s", tenant, kinds[kind].folder);
    if (kind == OBJECT_KEY || kind == OBJECT_REVOKED)
        return out;
    hex(out + at, id->b, 16);
    at += 32;
    if (kinds[kind].tail) {
        out[at] = kinds[kind].between;
        hex(out + at + 1, id->b + 16, kinds[kind].tail);
    }
    return out;
}

char *store_prefix(char *out, const char *tenant, enum object_kind kind, const uint8_t *id)
{
    size_t at = (size_t)snprintf(out, NAME_SIZE, "%.64s/%s", tenant, kinds[kind].folder);
    if (id) {
        hex(out + at, id, 16);
        out[at + 32] = '/';
        out[at + 33] = 0;
    }
    return out;
}

static bool unhex(const char *s, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < 2 * n; i++) {
        char c = s[i];
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (v < 0)
            return false;
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | v : v << 4);
    }
    return true;
}

bool store_parse(const char *name, const char *tenant, enum object_kind kind, struct object_id *out)
{
    char prefix[NAME_SIZE];
    size_t n = strlen(store_prefix(prefix, tenant, kind, NULL)), tail = kinds[kind].tail, len = strlen(name);
    memset(out, 0, sizeof *out);
    if (strncmp(name, prefix, n) != 0 || len != n + 32 + (tail ? 1 + 2 * tail : 0) || !unhex(name + n, out->b, 16))
        return false;
    return tail == 0 || (name[n + 32] == kinds[kind].between && unhex(name + n + 33, out->b + 16, tail));
}

/* ---- lists ---- */

static int take_page(const struct backend_page *page, const char *tenant, enum object_kind kind, struct listed **list, size_t *count, struct err *e)
{
    struct listed *more = realloc(*list, (*count + page->count + 1) * sizeof *more);
    if (!more)
        return err_set(e, ENOMEM, "list the store: out of memory");
    *list = more;
    for (size_t i = 0; i < page->count; i++) {
        const struct backend_object *o = &page->objects[i];
        if (store_parse(o->name, tenant, kind, &more[*count].id)) {
            more[*count].size = o->size;
            more[(*count)++].modified = o->modified;
        }
    }
    return 0;
}

int store_list(struct store *s, const char *tenant, enum object_kind kind, const uint8_t *id, struct listed **out, size_t *ret_count, struct err *e)
{
    char prefix[NAME_SIZE], after[NAME_SIZE] = "";
    struct listed *list = NULL;
    size_t count = 0;
    struct backend_page page = {.more = true};
    int rc = 0;
    store_prefix(prefix, tenant, kind, id);
    while (rc == 0 && page.more) {
        page = (struct backend_page){0};
        rc = backend_list_co(s->co, s->backend, prefix, *after ? after : NULL, &page, e);
        if (rc == 0)
            rc = take_page(&page, tenant, kind, &list, &count, e);
        if (rc == 0 && page.count)
            str_copy(after, sizeof after, page.objects[page.count - 1].name);
        free(page.objects);
    }
    if (rc < 0) {
        free(list);
        return rc;
    }
    *out = list;
    *ret_count = count;
    return 0;
}

/* ---- whole objects ---- */

int store_get(struct store *s, const char *name, size_t max, uint8_t **out, size_t *ret_size, struct err *e)
{
    uint8_t *buf = NULL;
    size_t room = 64u << 10, size = 0;
    uint64_t total = 1;
    int rc = 0;
    while (rc == 0 && size < total) {
        uint8_t *bigger = realloc(buf, room);
        struct backend_result r = {0};
        if (!bigger) {
            rc = err_set(e, ENOMEM, "read %s: out of memory", name);
            break;
        }
        buf = bigger;
        struct backend_request q = {
            .verb = BACKEND_GET, .flags = BACKEND_URGENT, .name = name, .offset = size, .buf = buf + size, .size = room - size};
        if (q.size > READ_AT_ONCE)
            q.size = READ_AT_ONCE;
        rc = backend_run_co(s->co, s->backend, &q, &r, e);
        total = r.total;
        size += rc == 0 ? r.got : 0;
        if (rc == 0 && (total > max || (r.got == 0 && size < total)))
            rc = err_set(e, EBADMSG, "%s in %s is damaged: it has %llu bytes", name, backend_describe(s->backend), (unsigned long long)total);
        room = total > room ? (size_t)total : room;
    }
    if (rc < 0) {
        free(buf);
        return rc;
    }
    *out = buf;
    *ret_size = size;
    return 0;
}

static enum object_kind object_of(enum sealed_kind kind)
{
    static const enum object_kind of[] = {
        [SEALED_MANIFEST] = OBJECT_MANIFEST, [SEALED_INDEX] = OBJECT_INDEX, [SEALED_CLAIM] = OBJECT_CLAIM, [SEALED_CONDEMNED] = OBJECT_CONDEMNED};
    return of[kind];
}

int store_put_sealed(struct session *x, enum sealed_kind kind, const struct object_id *id, uint8_t *object, size_t size, unsigned flags,
                     struct err *e)
{
    char name[NAME_SIZE];
    uint8_t nonce[CRYPT_NONCE];
    struct chunk_keys k;
    int rc = session_enter(x, &k, e);
    if (rc < 0)
        return rc;
    crypt_random(nonce, sizeof nonce);
    bool good = sealed_close(&k, kind, id, tenant_key_id(x->key), nonce, object, size);
    session_leave(x);
    store_name(name, x->tenant->name, object_of(kind), id);
    if (!good)
        return err_set(e, ENOMEM, "encrypt %s: out of memory", name);
    const struct iovec iov = {object, SEALED_HEADER + size};
    return backend_run_co(x->store->co, x->store->backend,
                          &(struct backend_request){.verb = BACKEND_PUT, .name = name, .flags = flags, .iov = &iov, .iov_count = 1}, NULL, e);
}

int store_get_sealed(struct session *x, enum sealed_kind kind, const struct object_id *id, uint8_t **out, size_t *ret_size, struct err *e)
{
    char name[NAME_SIZE];
    AUTO_FREE uint8_t *object = NULL;
    size_t total = 0;
    struct chunk_keys k;
    store_name(name, x->tenant->name, object_of(kind), id);
    int rc = store_get(x->store, name, SEALED_MAX, &object, &total, e);
    if (rc == 0)
        rc = session_enter(x, &k, e);
    if (rc < 0)
        return rc;
    rc = sealed_open(&k, kind, id, object, total);
    session_leave(x);
    if (rc == -EBADMSG)
        return err_set(e, EBADMSG, "%s in %s is damaged, or was not written by us", name, backend_describe(x->store->backend));
    if (rc < 0)
        return err_set(e, -rc, "decrypt %s: %s", name, strerror(-rc));
    *out = steal_ptr(object);
    *ret_size = total - SEALED_HEADER;
    return 0;
}

int store_get_manifest(struct session *x, const uint8_t id[16], struct manifest *out, struct err *e)
{
    struct object_id o = store_id(id);
    AUTO_FREE uint8_t *object = NULL;
    size_t size = 0;
    char text[33];
    int rc = store_get_sealed(x, SEALED_MANIFEST, &o, &object, &size, e);
    if (rc < 0)
        return rc == -ENOENT ? err_set(e, ENOENT, "tenant %s has no artifact %s", x->tenant->name, hex(text, id, 16)) : rc;
    rc = manifest_decode(object + SEALED_HEADER, size, out);
    if (rc == 0)
        return 0;
    manifest_finish(out);
    return err_set(e, -rc, "the manifest of artifact %s makes no sense: it was forged, or written by a program with a fault", hex(text, id, 16));
}

int store_delete(struct store *s, const char *tenant, enum object_kind kind, const struct object_id *id, struct err *e)
{
    char name[NAME_SIZE];
    store_name(name, tenant, kind, id);
    return backend_run_co(s->co, s->backend, &(struct backend_request){.verb = BACKEND_DELETE, .name = name}, NULL, e);
}

static int open_segment(struct session *x, const struct manifest_segment *ms, const uint8_t *record, uint8_t *plain, struct err *e)
{
    struct chunk_keys k;
    struct chunk_codec *codec = store_codec(x->store);
    int rc = codec ? session_enter(x, &k, e) : err_set(e, ENOMEM, "out of memory");
    if (rc == 0) {
        rc = chunk_open(&k, codec, CHUNK_SEGMENT, &ms->id, record, ms->stored, plain, ms->plain);
        session_leave(x);
    }
    if (codec)
        store_codec_return(x->store, codec);
    return rc;
}

int store_get_segment(struct session *x, const struct manifest *m, const struct manifest_segment *ms, struct segment *out, struct err *e)
{
    char name[NAME_SIZE];
    AUTO_FREE uint8_t *record = malloc(ms->stored), *plain = malloc(ms->plain);
    struct backend_result r = {0};
    if (!record || !plain)
        return err_set(e, ENOMEM, "read a list of chunks: out of memory");
    store_name(name, x->tenant->name, OBJECT_PACK, &m->packs[ms->pack]);
    int rc = backend_run_co(x->store->co, x->store->backend,
                            &(struct backend_request){
                                .verb = BACKEND_GET, .flags = BACKEND_URGENT, .name = name, .offset = ms->offset, .buf = record, .size = ms->stored},
                            &r, e);
    if (rc == -ENOENT)
        return err_set(e, EBADMSG, "%s is missing in %s", name, backend_describe(x->store->backend));
    if (rc < 0)
        return rc;
    rc = r.got == ms->stored ? open_segment(x, ms, record, plain, e) : -EBADMSG;
    if (rc == 0)
        rc = segment_decode(plain, ms->plain, ms->number, m->size, out);
    if (rc == -EBADMSG)
        return err_set(e, EBADMSG, "%s in %s is damaged at %u (a list of chunks)", name, backend_describe(x->store->backend), ms->offset);
    return rc;
}
