// SPDX-License-Identifier: Apache-2.0
// What an upload stores: packs that are filled and sent while the next one is filled, indexes of them, and a table of what is in them.
#include "base/cleanup.h"
#include "hostd/volumed/store/upload_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TAIL_BYTES (64u << 10) /* of a pack, read at once when its index is wanted */

struct put {
    struct put *next;
    struct packer *packer;
    struct backend_op *op;
    uint8_t *bytes;
};

/* ---- the table ---- */

static uint32_t slot_of(const struct packer *p, const struct chunk_id *id)
{
    uint32_t at;
    memcpy(&at, id->b, sizeof at);
    at &= TABLE_SLOTS - 1;
    while (p->slots[at] && memcmp(p->entries[p->slots[at] - 1].e.id.b, id->b, sizeof id->b) != 0)
        at = (at + 1) & (TABLE_SLOTS - 1);
    return at;
}

static int find(const struct packer *p, const struct chunk_id *id, struct pack_entry *out, struct object_id *ret_pack)
{
    uint32_t slot = slot_of(p, id);
    if (p->slots[slot]) {
        const struct index_entry *x = &p->entries[p->slots[slot] - 1];
        *out = x->e;
        *ret_pack = p->part_packs[x->pack];
        return 1;
    }
    return view_find(&p->view, id, out, ret_pack);
}

int packer_find(struct packer *p, enum chunk_kind kind, const struct chunk_id *id, uint32_t plain, struct pack_entry *out, struct object_id *ret_pack)
{
    struct pack_entry found;
    pthread_rwlock_rdlock(&p->lock);
    int rc = find(p, id, &found, ret_pack);
    pthread_rwlock_unlock(&p->lock);
    if (rc <= 0)
        return rc;
    if (found.kind != (uint32_t)kind || found.plain != plain)
        return 0; /* an index that lies */
    *out = found;
    return 1;
}

/* There is room: the caller has seen to it. */
static void remember(struct packer *p, const struct pack_entry *e)
{
    pthread_rwlock_wrlock(&p->lock);
    uint32_t slot = slot_of(p, &e->id);
    p->entries[p->count] = (struct index_entry){*e, p->pack_count - 1};
    p->count++;
    if (!p->slots[slot])
        p->slots[slot] = p->count;
    pthread_rwlock_unlock(&p->lock);
}

static void remember_pack(struct packer *p, const struct object_id *id)
{
    pthread_rwlock_wrlock(&p->lock);
    p->part_packs[p->pack_count++] = *id;
    pthread_rwlock_unlock(&p->lock);
}

/* ---- sending ---- */

static struct object_id number(const struct packer *p, uint32_t n)
{
    struct object_id id = p->next;
    for (unsigned i = 0; i < 4; i++)
        id.b[20 + i] = (uint8_t)(n >> (24 - 8 * i)); /* so that names are in order */
    return id;
}

static void put_done(void *user, const struct backend_result *r)
{
    struct put *put = user;
    struct packer *p = put->packer;
    struct put **at = &p->first_put;
    while (*at != put)
        at = &(*at)->next;
    *at = put->next;
    if (r->rc < 0 && p->rc == 0) {
        p->rc = r->rc;
        p->err = r->e;
    }
    munmap(put->bytes, PACK_BYTES);
    task_pool_give(&p->store->packs);
    free(put);
    p->puts--;
    task_set(&p->changed);
}

static int close_pack(struct packer *p, struct err *e)
{
    struct chunk_keys k;
    char name[NAME_SIZE];
    uint8_t nonce[CRYPT_NONCE];
    int rc = p->open ? session_enter(p->session, &k, e) : 0;
    if (!p->open || rc < 0)
        return rc;
    crypt_random(nonce, sizeof nonce);
    bool good = pack_close(&p->writer, &k, nonce);
    session_leave(p->session);
    struct put *put = calloc(1, sizeof *put);
    if (!good || !put) {
        free(put);
        return err_set(e, ENOMEM, "close a pack: out of memory");
    }
    *put = (struct put){p->first_put, p, NULL, p->writer.bytes};
    p->first_put = put;
    p->puts++;
    p->open = false;
    p->stored += p->writer.size;
    const struct iovec iov = {put->bytes, p->writer.size};
    store_name(name, p->session->tenant->name, OBJECT_PACK, &p->writer.id);
    put->op = backend_start(p->store->backend,
                            &(struct backend_request){.verb = BACKEND_PUT, .name = name, .iov = &iov, .iov_count = 1, .done = put_done, .user = put});
    return 0;
}

static int wait_puts(struct packer *p, struct err *e)
{
    while (p->puts > 0 && p->rc == 0)
        if (task_wait(&p->changed, false) < 0)
            return err_set(e, ECANCELED, "cancelled");
    return p->rc < 0 ? err_set(e, -p->rc, "%s", p->err.msg) : 0;
}

/* ---- indexes ---- */

struct run_step {
    struct tenant *tenant;
    const struct object_id *source;
    struct index_body body;
    char name[32];
    struct index_run *run;
    struct err e;
};

static void write_run(void *arg)
{
    struct run_step *w = arg;
    index_run_write(w->tenant->dir, w->name, w->source, &w->body, &w->run, &w->e);
}

/* What this upload has stored so far stays known to it. Not to be able to write it down costs room in the store, no more. */
static void keep_run(struct packer *p, const struct object_id *id)
{
    struct run_step w = {.tenant = p->session->tenant, .source = id, .body = {p->part_packs, p->entries, p->pack_count, p->count}};
    snprintf(w.name, sizeof w.name, "%llu.run", (unsigned long long)w.tenant->next_run++);
    task_thread(p->store->co, write_run, &w);
    if (!w.run)
        return;
    pthread_rwlock_wrlock(&p->lock);
    struct index_run **runs = realloc(p->view.runs, (p->view.count + 1) * sizeof(struct index_run *));
    uint8_t **skip = realloc(p->view.skip, (p->view.count + 1) * sizeof(uint8_t *));
    if (!runs || !skip)
        abort();
    p->view.runs = runs;
    p->view.skip = skip;
    runs[p->view.count] = w.run;
    skip[p->view.count++] = NULL;
    pthread_rwlock_unlock(&p->lock);
}

static int put_index(struct packer *p, bool last, struct err *e)
{
    struct object_id id = number(p, p->indexes_made);
    size_t size = index_size(p->pack_count, p->count);
    AUTO_FREE uint8_t *object = malloc(SEALED_HEADER + size);
    if (!object)
        return err_set(e, ENOMEM, "write an index: out of memory");
    pthread_rwlock_wrlock(&p->lock); /* it sorts the entries */
    index_encode(p->part_packs, p->pack_count, p->entries, p->count, object + SEALED_HEADER);
    memset(p->slots, 0, TABLE_SLOTS * sizeof *p->slots);
    for (uint32_t i = 0; i < p->count; i++)
        p->slots[slot_of(p, &p->entries[i].e.id)] = i + 1;
    pthread_rwlock_unlock(&p->lock);
    int rc = store_put_sealed(p->session, SEALED_INDEX, &id, object, size, 0, e);
    if (rc < 0)
        return rc;
    p->indexes_made++;
    p->stored += SEALED_HEADER + size;
    if (!last)
        keep_run(p, &id);
    pthread_rwlock_wrlock(&p->lock);
    memset(p->slots, 0, TABLE_SLOTS * sizeof *p->slots);
    p->count = p->pack_count = 0;
    pthread_rwlock_unlock(&p->lock);
    return 0;
}

static int flush(struct packer *p, bool last, struct err *e)
{
    int rc = close_pack(p, e);
    if (rc == 0)
        rc = wait_puts(p, e);
    return rc == 0 && p->count > 0 ? put_index(p, last, e) : rc;
}

int packer_flush(struct packer *p, struct err *e)
{
    return flush(p, true, e);
}

/* ---- adding ---- */

static int open_pack(struct packer *p, struct err *e)
{
    if (task_pool_take(&p->store->packs) < 0)
        return err_set(e, ECANCELED, "cancelled");
    void *bytes = mmap(NULL, PACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) {
        task_pool_give(&p->store->packs);
        return err_set(e, ENOMEM, "open a pack: out of memory");
    }
    struct object_id id = number(p, p->packs_made++);
    pack_start(&p->writer, &id, tenant_key_id(p->session->key), bytes);
    remember_pack(p, &id);
    p->open = true;
    return 0;
}

int packer_add(struct packer *p, struct pack_entry *entry, const uint8_t *record, struct object_id *ret_pack, struct err *e)
{
    int rc = p->rc < 0 ? err_set(e, -p->rc, "%s", p->err.msg) : 0;
    if (rc == 0 && p->count == INDEX_ENTRIES_MAX)
        rc = flush(p, false, e);
    if (rc == 0 && p->open && !pack_add(&p->writer, entry, record))
        rc = close_pack(p, e);
    else if (rc == 0 && p->open)
        goto added;
    if (rc == 0)
        rc = open_pack(p, e);
    if (rc == 0 && !pack_add(&p->writer, entry, record))
        rc = err_set(e, ENOMEM, "add to a pack: out of memory");
    if (rc < 0)
        return rc;
added:
    remember(p, entry);
    *ret_pack = p->writer.id;
    return 0;
}

/* ---- what was there ---- */

/* The tail of a pack of `size` bytes, with its index. */
static int read_tail(struct packer *p, const struct listed *l, uint8_t **out, size_t *ret_len, struct err *e)
{
    char name[NAME_SIZE];
    uint64_t offset = 0;
    size_t len = l->size < TAIL_BYTES ? (size_t)l->size : TAIL_BYTES, index = 0;
    uint32_t count;
    store_name(name, p->session->tenant->name, OBJECT_PACK, &l->id);
    for (unsigned tries = 0; tries < 2; tries++) {
        struct backend_result r = {0};
        free(*out);
        if (!(*out = malloc(len + 1)))
            return err_set(e, ENOMEM, "read %s: out of memory", name);
        int rc =
            backend_run_co(p->store->co, p->store->backend,
                           &(struct backend_request){.verb = BACKEND_GET, .name = name, .offset = l->size - len, .buf = *out, .size = len}, &r, e);
        if (rc < 0)
            return rc;
        if (r.got != len || len < PACK_TRAILER || pack_trailer(*out + len - PACK_TRAILER, l->size, &offset, &index, &count) < 0)
            return err_set(e, EBADMSG, "%s is damaged", name);
        if (index + PACK_TRAILER <= len)
            break;
        len = index + PACK_TRAILER;
    }
    *ret_len = len;
    return 0;
}

static int resume_pack(struct packer *p, const struct listed *l, struct err *e)
{
    AUTO_FREE uint8_t *tail = NULL;
    AUTO_FREE struct pack_entry *entries = NULL;
    size_t len = 0, size = 0;
    uint64_t offset;
    uint32_t count = 0;
    struct chunk_keys k;
    int rc = read_tail(p, l, &tail, &len, e);
    if (rc == 0)
        rc = session_enter(p->session, &k, e);
    if (rc < 0)
        return rc;
    pack_trailer(tail + len - PACK_TRAILER, l->size, &offset, &size, &count);
    rc = pack_index(&k, &l->id, tail + len - PACK_TRAILER - size, size, count, &entries);
    session_leave(p->session);
    if (rc == 0 && p->count + count > INDEX_ENTRIES_MAX)
        rc = flush(p, false, e);
    if (rc < 0)
        return rc;
    remember_pack(p, &l->id);
    for (uint32_t i = 0; i < count; i++)
        remember(p, &entries[i]);
    return 0;
}

int packer_resume(struct packer *p, const struct pack_set *excluded, struct err *e)
{
    AUTO_FREE struct listed *list = NULL;
    size_t count = 0;
    int rc = store_list(p->store, p->session->tenant->name, OBJECT_PACK, p->next.b, &list, &count, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (pack_set_has(excluded, &list[i].id))
            continue;
        rc = resume_pack(p, &list[i], e);
        if (rc == -EBADMSG || rc == -ENOENT)
            rc = 0; /* it is stored again */
    }
    return rc;
}

/* ---- life ---- */

int packer_init(struct packer *p, struct session *x, const uint8_t id[16], struct err *e)
{
    memset(p, 0, sizeof *p);
    p->store = x->store;
    p->session = x;
    p->changed.sched = x->store->co;
    p->next = store_id(id);
    crypt_random(p->next.b + 16, 4); /* this try's */
    pthread_rwlock_init(&p->lock, NULL);
    p->entries = calloc(INDEX_ENTRIES_MAX, sizeof *p->entries);
    p->part_packs = calloc(INDEX_ENTRIES_MAX + 1, sizeof *p->part_packs);
    p->slots = calloc(TABLE_SLOTS, sizeof *p->slots);
    return p->entries && p->part_packs && p->slots ? 0 : err_set(e, ENOMEM, "upload: out of memory");
}

void packer_finish(struct packer *p, bool cancel)
{
    for (struct put *put = p->first_put; cancel && put; put = put->next)
        backend_cancel(put->op);
    while (p->puts > 0)
        task_wait(&p->changed, true);
    if (p->open) {
        munmap(p->writer.bytes, PACK_BYTES);
        task_pool_give(&p->store->packs);
    }
    pack_finish(&p->writer);
    view_close(&p->view);
    free(p->entries);
    free(p->part_packs);
    free(p->slots);
    pthread_rwlock_destroy(&p->lock);
}
