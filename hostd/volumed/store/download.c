// SPDX-License-Identifier: Apache-2.0
// Downloads: see download.h.
//
// Theory of operation. The manifest is read, then its segments, a few at the same time. A segment's chunks that are not taken yet are taken: put in order of where they lie, and what lies
// close together is read by one request. Its answer goes to a thread, which opens each chunk and writes it to the file: nothing that was not verified is ever
// written. download_fetch does the same with the chunks of its range, before all that waits, and then waits for those that somebody else took. A chunk is taken
// once, so nothing is written twice: who fetched a range may write to it from then on.
//
// A fill is a download into a file that others use at the same time. Chunks of which little is stored come first: for what a guest may want next, as many chunks as can be
// had in a given time; what it works with is among them rather than what it keeps.
//
// Its bits (ipc/fill.h) outlive this process and are the truth: a chunk whose bit is set is taken and
// done from the start. A bit is set, by the thread that wrote the chunk or found that there is nothing to write, after that: whoever sees it may write to
// the chunk, so no thread of an earlier download into the same file may be left when the next one begins (wait_turn).
#include "hostd/volumed/store/download.h"

#include "base/cleanup.h"
#include "ipc/fill.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEGMENTS      4u          /* at the same time */
#define GROUP_BYTES   (2u << 20)  /* of one */
#define GAP_BYTES     (64u << 10) /* read and thrown away rather than asked for around */
#define BLOCK_BYTES   4096u
#define FETCH_MAX     (1u << 20)
#define PROGRESS_NSEC 250000000u
#define SMALL_STORED  (32u << 10) /* as stored: half of a chunk */
#define FILL_SEGMENTS 2u          /* of a fill: what guests wait for comes in between */
#define FILL_CACHE    16u         /* segments that fetches look at */
#define TURN_MSEC     10u
#define EARLY_MSEC    20000u       /* from the start of a fill: a guest that begins touches a little of everything, one after the other. Then, */
#define HURRY_MSEC    500u         /* after it asked for something, */
#define HURRY_GROUPS  4u           /* so many groups of all fills are read, of at most */
#define HURRY_BYTES   (256u << 10) /* since what it asks for next would wait behind them */
#define FAILED_MAX    16u          /* groups of a fill; what else there is arrives nevertheless */

struct download {
    struct store *store;
    const struct download_request *q;
    struct session session;
    struct manifest m;
    struct volumed_reply *rep;
    uint8_t *taken, *done; /* bits, by chunk */
    struct fill *fill;     /* NULL: nobody uses the file meanwhile */
    bool fresh;            /* the file held nothing when this began */
    unsigned running;      /* groups */
    unsigned fetches;      /* coroutines inside download_fetch */
    struct task_event ended;
    int rc; /* the first failure */
    struct err err;
    struct fetch_wait *waits;
    uint64_t told, over; /* chunks */
    struct group *groups;
};

/* A file that is in use meanwhile. */
struct fill {
    struct fill *next; /* of all in this process */
    dev_t dev;
    ino_t ino;
    pthread_mutex_t lock;
    uint8_t *before, *bits; /* as found; as they are in the file, under the lock */
    uint64_t used;          /* counts */
    uint64_t began;         /* uv_now */
    unsigned failed;        /* groups */
    int rc;                 /* of the first of them */
    struct err err;
    struct {
        struct segment *segment; /* NULL: none */
        uint64_t used;
    } cache[FILL_CACHE];
};

static struct fill *fills; /* of the loop's thread */

struct fetch_wait {
    struct fetch_wait *next;
    struct task_event event;
    bool due;
};

/* Chunks of one pack that lie close together. */
struct group_chunk {
    uint64_t index;
    struct chunk_id id;
    uint32_t offset, stored; /* in the pack */
};

struct group {
    struct group *next;
    struct download *d;
    struct backend_op *op;
    uv_work_t work;
    struct tenant_key *key;
    struct object_id pack;
    uint32_t offset, size, count;
    bool slot;
    uint8_t *bytes;
    uint64_t written;
    int rc;
    struct err err;
    struct group_chunk chunks[];
};

static bool bit(const uint8_t *bits, uint64_t i)
{
    return bits[i / 8] & 1u << i % 8;
}

static void set_bit(uint8_t *bits, uint64_t i)
{
    bits[i / 8] |= (uint8_t)(1u << i % 8);
}

static uint64_t chunk_count(const struct download *d)
{
    return (d->m.size + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

/* Who is woken may run at once, and leave the list. */
static void wake_all(struct download *d)
{
    for (struct fetch_wait *w = d->waits; w; w = w->next)
        w->due = true;
    for (struct fetch_wait *w = d->waits; w;) {
        bool due = w->due;
        w->due = false;
        if (due)
            task_set(&w->event);
        w = due ? d->waits : w->next;
    }
    task_set(&d->ended);
}

static void fail(struct download *d, int rc, const struct err *e)
{
    if (d->rc == 0) {
        d->rc = rc;
        d->err = *e;
    }
}

static void finish_chunk(struct download *d, uint64_t index)
{
    set_bit(d->done, index);
    d->over++;
    uint64_t now = uv_hrtime();
    if (d->q->progress && now - d->told > PROGRESS_NSEC) {
        d->told = now;
        d->q->progress(d->q->user, d->over * CHUNK_BYTES, d->m.chunks * CHUNK_BYTES);
    }
}

/* ---- bits ---- */

/* Any thread; the chunk is in the file, or needs not be. */
static int show_chunk(const struct download *d, uint64_t index, struct err *e)
{
    struct fill *f = d->fill;
    int rc = 0;
    if (!f)
        return 0;
    pthread_mutex_lock(&f->lock);
    if (!bit(f->bits, index)) {
        set_bit(f->bits, index);
        ssize_t n = pwrite(d->q->bits, &f->bits[index / 8], 1, (off_t)(FILL_BITS + index / 8));
        if (n != 1)
            rc = n < 0 ? err_sys(e, "say that bytes at %llu of the file are there", (unsigned long long)index * CHUNK_BYTES)
                       : err_set(e, EIO, "nothing was written");
    }
    pthread_mutex_unlock(&f->lock);
    return rc;
}

/* ---- groups ---- */

static int write_bytes(const struct download *d, const uint8_t *plain, size_t size, uint64_t at, struct err *e)
{
    for (size_t put = 0; put < size;) {
        ssize_t n = pwrite(d->q->fd, plain + put, size - put, (off_t)(at + put));
        if (n <= 0)
            return n < 0 ? err_sys(e, "write the file at %llu", (unsigned long long)at) : err_set(e, EIO, "write the file: nothing was written");
        put += (size_t)n;
    }
    return 0;
}

static bool block_is_zeros(const uint8_t *p, size_t size)
{
    return p[0] == 0 && memcmp(p, p + 1, size - 1) == 0;
}

/* Into a file of holes: its blocks of zeros stay such. */
static int write_blocks(const struct download *d, const uint8_t *plain, size_t size, uint64_t at, struct err *e)
{
    int rc = 0;
    for (size_t from = 0, to; rc == 0 && from < size; from = to) {
        size_t n = size - from < BLOCK_BYTES ? size - from : BLOCK_BYTES;
        bool zeros = block_is_zeros(plain + from, n);
        for (to = from + n; to < size; to += n) {
            n = size - to < BLOCK_BYTES ? size - to : BLOCK_BYTES;
            if (block_is_zeros(plain + to, n) != zeros)
                break;
        }
        if (!zeros)
            rc = write_bytes(d, plain + from, to - from, at + from, e);
    }
    return rc;
}

static int open_chunk(struct group *g, const struct group_chunk *c, const struct chunk_keys *k, struct chunk_codec *codec, uint8_t *plain)
{
    const struct download *d = g->d;
    uint32_t length = chunk_length(d->m.size, c->index);
    uint64_t at = c->index * CHUNK_BYTES;
    int rc = chunk_open(k, codec, CHUNK_DATA, &c->id, g->bytes + (c->offset - g->offset), c->stored, plain, length);
    if (rc < 0) {
        char name[NAME_SIZE];
        store_name(name, d->q->tenant, OBJECT_PACK, &g->pack);
        return err_set(&g->err, -rc, "%s in %s is damaged at %u, where bytes %llu to %llu of the file should be", name,
                       backend_describe(d->store->backend), c->offset, (unsigned long long)at, (unsigned long long)(at + length));
    }
    g->written += length;
    if (d->q->flags & DOWNLOAD_VERIFY)
        return 0;
    return d->fresh ? write_blocks(d, plain, length, at, &g->err) : write_bytes(d, plain, length, at, &g->err);
}

static void group_work(uv_work_t *w)
{
    struct group *g = w->data;
    struct store *s = g->d->store;
    struct chunk_codec *codec = store_codec(s);
    uint8_t *plain = malloc(CHUNK_BYTES);
    g->written = 0;
    g->rc = codec && plain ? 0 : err_set(&g->err, ENOMEM, "out of memory");
    for (uint32_t i = 0; g->rc == 0 && i < g->count; i++) {
        struct chunk_keys k;
        if (!session_thread_enter(s, g->d->q->tenant, g->key, &k)) {
            g->rc = -EKEYEXPIRED;
            break;
        }
        g->rc = open_chunk(g, &g->chunks[i], &k, codec, plain);
        tenant_key_leave(g->key);
    }
    for (uint32_t i = 0; g->rc == 0 && i < g->count; i++)
        g->rc = show_chunk(g->d, g->chunks[i].index, &g->err);
    free(plain);
    if (codec)
        store_codec_return(s, codec);
}

/* In a fill it can be asked for again, and is no reason to keep the rest from a guest, before there are many. */
static void group_failed(struct group *g)
{
    struct download *d = g->d;
    struct fill *f = d->fill;
    if (!f || g->rc == -ECANCELED || ++f->failed >= FAILED_MAX) {
        fail(d, g->rc, &g->err);
        return;
    }
    if (f->rc == 0) {
        f->rc = g->rc;
        f->err = g->err;
    }
    for (uint32_t i = 0; i < g->count; i++)
        d->taken[g->chunks[i].index / 8] &= (uint8_t) ~(1u << g->chunks[i].index % 8);
}

static void group_end(struct group *g)
{
    struct download *d = g->d;
    struct group **at = &d->groups;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    if (g->rc < 0)
        group_failed(g);
    for (uint32_t i = 0; g->rc == 0 && i < g->count; i++)
        finish_chunk(d, g->chunks[i].index);
    d->rep->download.written_bytes += g->rc == 0 ? g->written : 0;
    if (g->slot)
        task_pool_give(&d->store->requests);
    d->store->fill_groups -= g->slot && d->fill;
    d->running--;
    free(g->bytes);
    free(g);
    wake_all(d);
}

static void open_group(struct group *g);

/* The key expired between: a coroutine gets it again. */
static void renew_and_open(void *arg)
{
    struct group *g = arg;
    g->rc = session_renew(&g->d->session, &g->err);
    if (g->rc < 0)
        group_end(g);
    else
        open_group(g);
}

static void group_opened(uv_work_t *w, int status)
{
    struct group *g = w->data;
    (void)status;
    tenant_key_unref(g->key);
    if (g->rc == -EKEYEXPIRED)
        co_spawn(g->d->store->co, renew_and_open, g);
    else
        group_end(g);
}

static void open_group(struct group *g)
{
    g->key = tenant_key_ref(g->d->session.key);
    g->work.data = g;
    if (uv_queue_work(g->d->store->loop, &g->work, group_work, group_opened) < 0)
        abort();
}

static void group_read(void *user, const struct backend_result *r)
{
    struct group *g = user;
    struct download *d = g->d;
    g->op = NULL;
    g->rc = r->rc;
    g->err = r->e;
    if (r->rc == 0)
        d->rep->download.fetched_bytes += r->got;
    if (r->rc == -ENOENT || (r->rc == 0 && r->got != g->size)) {
        char name[NAME_SIZE];
        store_name(name, d->q->tenant, OBJECT_PACK, &g->pack);
        g->rc = err_set(&g->err, EBADMSG, "%s in %s is %s, which holds bytes at %llu of the file", name, backend_describe(d->store->backend),
                        r->rc < 0 ? "missing" : "cut", (unsigned long long)g->chunks[0].index * CHUNK_BYTES);
    }
    if (g->rc < 0 || d->rc < 0)
        group_end(g);
    else
        open_group(g);
}

static void start_group(struct download *d, const struct piece *pieces, const uint32_t *order, uint32_t count, uint64_t first, bool slot)
{
    struct group *g = calloc(1, sizeof *g + count * sizeof *g->chunks);
    if (!g)
        abort();
    const struct piece *a = &pieces[order[0]], *z = &pieces[order[count - 1]];
    g->d = d;
    g->pack = a->pack;
    g->offset = a->offset;
    g->size = z->offset + z->stored - a->offset;
    g->count = count;
    g->slot = slot;
    g->bytes = malloc(g->size);
    if (!g->bytes)
        abort();
    for (uint32_t i = 0; i < count; i++) {
        const struct piece *x = &pieces[order[i]];
        g->chunks[i] = (struct group_chunk){first + order[i], x->id, x->offset, x->stored};
    }
    g->next = d->groups;
    d->groups = g;
    d->running++;
    d->store->fill_groups += slot && d->fill;
    char name[NAME_SIZE];
    store_name(name, d->q->tenant, OBJECT_PACK, &g->pack);
    g->op = backend_start(d->store->backend, &(struct backend_request){.verb = BACKEND_GET,
                                                                       .flags = slot ? 0 : BACKEND_URGENT,
                                                                       .name = name,
                                                                       .offset = g->offset,
                                                                       .buf = g->bytes,
                                                                       .size = g->size,
                                                                       .done = group_read,
                                                                       .user = g});
}

/* ---- segments ---- */

static int by_place(const void *a, const void *b, void *arg)
{
    const struct piece *pieces = arg, *x = &pieces[*(const uint32_t *)a], *y = &pieces[*(const uint32_t *)b];
    int c = memcmp(x->pack.b, y->pack.b, sizeof x->pack.b);
    return c ? c : x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Does a guest wait for something of a fill, or will it soon? */
static bool is_hurried(const struct download *d)
{
    return d->fill && uv_now(d->store->loop) - d->store->hurried < HURRY_MSEC;
}

static void hurry(const struct download *d)
{
    uint64_t now = uv_now(d->store->loop);
    if (d->fill && now - d->fill->began < EARLY_MSEC)
        d->store->hurried = now;
}

/* How many of `order` one request reads: none of them taken, the first by assumption. */
static uint32_t group_length(const struct download *d, const struct piece *pieces, const uint32_t *order, uint32_t count, uint64_t first)
{
    const uint64_t most = is_hurried(d) ? HURRY_BYTES : GROUP_BYTES;
    const struct piece *a = &pieces[order[0]];
    uint64_t end = (uint64_t)a->offset + a->stored;
    uint32_t n = 1;
    for (; n < count; n++) {
        const struct piece *x = &pieces[order[n]];
        uint64_t to = (uint64_t)x->offset + x->stored;
        if (memcmp(x->pack.b, a->pack.b, sizeof a->pack.b) != 0 || x->offset > end + GAP_BYTES || to - a->offset > most ||
            bit(d->taken, first + order[n]))
            break;
        end = to > end ? to : end;
        if (end != to)
            break; /* overlapping records: only a forged list has them */
    }
    return n;
}

/* Others come first: a guest that stands still goes on when one small answer has come, and asks for the next. */
static int stand_back(const struct download *d)
{
    struct store *s = d->store;
    while (s->fill_groups >= HURRY_GROUPS && is_hurried(d) && d->rc == 0)
        if (co_sleep(s->co, TURN_MSEC) < 0)
            return -ECANCELED;
    return 0;
}

/* Takes what nobody took of chunks [from, to) of the segment and starts to read it. Only what is read at once is taken: somebody in a hurry may come for the rest. */
static int start_pieces(struct download *d, const struct segment *s, uint32_t from, uint32_t to, bool slot, bool small)
{
    uint32_t order[SEGMENT_CHUNKS], count = 0;
    uint64_t first = (uint64_t)s->number * SEGMENT_CHUNKS;
    for (uint32_t i = from; i < to; i++)
        if (s->pieces[i].kind == PIECE_DATA && !bit(d->taken, first + i) && (!small || s->pieces[i].stored <= SMALL_STORED))
            order[count++] = i;
    qsort_r(order, count, sizeof *order, by_place, (void *)(uintptr_t)s->pieces);
    for (uint32_t i = 0, n; i < count && d->rc == 0; i += n) {
        n = 1;
        if (bit(d->taken, first + order[i]))
            continue;
        if (slot && d->fill && stand_back(d) < 0)
            return -ECANCELED;
        if (slot && task_pool_take(&d->store->requests) < 0)
            return -ECANCELED;
        if (bit(d->taken, first + order[i])) { /* while we waited */
            if (slot)
                task_pool_give(&d->store->requests);
            continue;
        }
        n = group_length(d, s->pieces, order + i, count - i, first);
        for (uint32_t k = i; k < i + n; k++)
            set_bit(d->taken, first + order[k]);
        start_group(d, s->pieces, order + i, n, first, slot);
    }
    return d->rc;
}

struct local_step {
    struct download *d;
    struct tenant_key *key;
    const struct segment *s;
    uint32_t from, to;
    bool mine[SEGMENT_CHUNKS], had[SEGMENT_CHUNKS];
    int rc;
    struct err e;
};

/* Zeros where the base may have something else. */
static int punch(struct local_step *st)
{
    const struct download *d = st->d;
    uint64_t first = (uint64_t)st->s->number * SEGMENT_CHUNKS;
    for (uint32_t i = st->from; i < st->to; i++) {
        uint64_t at = (first + i) * CHUNK_BYTES, size = chunk_length(d->m.size, first + i);
        if (st->s->pieces[i].kind != PIECE_ZEROS || !st->mine[i])
            continue;
        for (; i + 1 < st->to && st->s->pieces[i + 1].kind == PIECE_ZEROS && st->mine[i + 1]; i++)
            size += chunk_length(d->m.size, first + i + 1);
        if (fallocate(d->q->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)size) < 0)
            return err_sys(&st->e, "make a hole at %llu of the file", (unsigned long long)at);
    }
    return 0;
}

static int compare_have(struct local_step *st)
{
    const struct download *d = st->d;
    uint64_t first = (uint64_t)st->s->number * SEGMENT_CHUNKS;
    AUTO_FREE uint8_t *plain = malloc(CHUNK_BYTES);
    if (!plain)
        return err_set(&st->e, ENOMEM, "out of memory");
    for (uint32_t i = st->from; i < st->to; i++) {
        const struct piece *x = &st->s->pieces[i];
        struct chunk_id id;
        struct chunk_keys k;
        uint32_t size = x->kind == PIECE_DATA && st->mine[i] ? chunk_length(d->m.size, first + i) : 0;
        if (size == 0 || pread(d->q->fd, plain, size, (off_t)((first + i) * CHUNK_BYTES)) != (ssize_t)size)
            continue;
        if (!session_thread_enter(d->store, d->q->tenant, st->key, &k))
            return 0; /* then it is fetched */
        st->had[i] = chunk_identify(&k, CHUNK_DATA, plain, size, &id) && memcmp(id.b, x->id.b, sizeof id.b) == 0;
        tenant_key_leave(st->key);
    }
    return 0;
}

/* What is as in the base, and what is zeros now. */
static int show_local(struct local_step *st)
{
    uint64_t first = (uint64_t)st->s->number * SEGMENT_CHUNKS, count = chunk_count(st->d);
    int rc = 0;
    for (uint32_t i = 0; st->d->fill && rc == 0 && i < SEGMENT_CHUNKS && first + i < count; i++)
        if (st->s->pieces[i].kind == PIECE_NONE || (st->s->pieces[i].kind == PIECE_ZEROS && st->mine[i]))
            rc = show_chunk(st->d, first + i, &st->e);
    return rc;
}

static void local_work(void *arg)
{
    struct local_step *st = arg;
    st->rc = punch(st);
    if (st->rc == 0)
        st->rc = show_local(st);
    if (st->rc == 0 && (st->d->q->flags & DOWNLOAD_HAVE))
        st->rc = compare_have(st);
}

/* What needs no request: zeros, and what the file has. Nobody else may touch these chunks meanwhile, so they are taken; what was not there is given back. */
static int do_local(struct download *d, const struct segment *s, uint32_t from, uint32_t to, struct err *e)
{
    uint64_t first = (uint64_t)s->number * SEGMENT_CHUNKS;
    if (d->q->flags & DOWNLOAD_VERIFY)
        return 0;
    struct local_step *st = calloc(1, sizeof *st);
    if (!st)
        return err_set(e, ENOMEM, "out of memory");
    *st = (struct local_step){.d = d, .s = s, .from = from, .to = to, .key = tenant_key_ref(d->session.key)};
    for (uint32_t i = from; i < to; i++) {
        bool local = s->pieces[i].kind == PIECE_ZEROS || (s->pieces[i].kind == PIECE_DATA && (d->q->flags & DOWNLOAD_HAVE));
        st->mine[i] = local && !bit(d->taken, first + i);
        if (st->mine[i])
            set_bit(d->taken, first + i);
    }
    task_thread(d->store->co, local_work, st);
    tenant_key_unref(st->key);
    int rc = st->rc < 0 ? err_set(e, -st->rc, "%s", st->e.msg) : 0;
    for (uint32_t i = from; i < to; i++) {
        bool zeros = s->pieces[i].kind == PIECE_ZEROS;
        if (st->mine[i] && rc == 0 && (zeros || st->had[i])) {
            finish_chunk(d, first + i);
            *(zeros ? &d->rep->download.zero_bytes : &d->rep->download.had_bytes) += chunk_length(d->m.size, first + i);
        } else if (st->mine[i]) {
            d->taken[(first + i) / 8] &= (uint8_t) ~(1u << (first + i) % 8);
        }
    }
    wake_all(d);
    free(st);
    return rc;
}

/* From those that were read lately, or the store. */
static int get_segment(struct download *d, const struct manifest_segment *ms, struct segment *out, struct err *e)
{
    struct fill *f = d->fill;
    unsigned oldest = 0;
    for (unsigned i = 0; f && i < FILL_CACHE; i++) {
        const struct segment *s = f->cache[i].segment;
        if (s && s->number == ms->number) {
            memcpy(out, s, sizeof *out);
            f->cache[i].used = ++f->used;
            return 0;
        }
    }
    int rc = store_get_segment(&d->session, &d->m, ms, out, e);
    if (rc < 0 || !f)
        return rc;
    d->rep->download.fetched_bytes += ms->stored;
    for (unsigned i = 1; i < FILL_CACHE; i++)
        if (f->cache[i].used < f->cache[oldest].used)
            oldest = i;
    if (!f->cache[oldest].segment)
        f->cache[oldest].segment = malloc(sizeof *out);
    if (f->cache[oldest].segment) {
        memcpy(f->cache[oldest].segment, out, sizeof *out);
        f->cache[oldest].used = ++f->used;
    }
    return 0;
}

/* Chunks that were there before this download count as done by it. */
static void count_before(struct download *d, const struct segment *s)
{
    uint64_t first = (uint64_t)s->number * SEGMENT_CHUNKS;
    for (uint32_t i = 0; d->fill && i < SEGMENT_CHUNKS; i++)
        if (s->pieces[i].kind != PIECE_NONE && bit(d->fill->before, first + i)) {
            d->over++;
            d->rep->download.had_bytes += chunk_length(d->m.size, first + i);
        }
}

static int do_segment(void *user, size_t i, struct err *e)
{
    struct download *d = user;
    const struct manifest_segment *ms = &d->m.segments[i];
    AUTO_FREE struct segment *s = malloc(sizeof *s);
    if (!s)
        return err_set(e, ENOMEM, "out of memory");
    int rc = d->rc < 0 ? d->rc : get_segment(d, ms, s, e);
    if (rc < 0)
        return rc;
    d->rep->download.fetched_bytes += d->fill ? 0 : ms->stored;
    count_before(d, s);
    if (d->q->flags & DOWNLOAD_NO_CHUNKS)
        return 0;
    rc = do_local(d, s, 0, SEGMENT_CHUNKS, e);
    return rc < 0 ? rc : start_pieces(d, s, 0, SEGMENT_CHUNKS, true, d->fill != NULL);
}

/* Of a fill, whose small chunks are there or on their way. */
static int do_rest(void *user, size_t i, struct err *e)
{
    struct download *d = user;
    AUTO_FREE struct segment *s = malloc(sizeof *s);
    if (!s)
        return err_set(e, ENOMEM, "out of memory");
    int rc = d->rc < 0 ? d->rc : get_segment(d, &d->m.segments[i], s, e);
    return rc < 0 || (d->q->flags & DOWNLOAD_NO_CHUNKS) ? rc : start_pieces(d, s, 0, SEGMENT_CHUNKS, true, false);
}

/* ---- fetches ---- */

static int fetch_segment(struct download *d, uint32_t number, uint64_t from, uint64_t to, struct err *e)
{
    uint64_t first = (uint64_t)number * SEGMENT_CHUNKS;
    const struct manifest_segment *ms = NULL;
    for (uint32_t low = 0, high = d->m.segment_count; low < high;) {
        uint32_t mid = low + (high - low) / 2;
        if (d->m.segments[mid].number == number)
            ms = &d->m.segments[mid];
        if (ms)
            break;
        *(d->m.segments[mid].number < number ? &low : &high) = d->m.segments[mid].number < number ? mid + 1 : mid;
    }
    if (!ms)
        return 0; /* as in the base */
    AUTO_FREE struct segment *s = malloc(sizeof *s);
    if (!s)
        return err_set(e, ENOMEM, "out of memory");
    uint32_t a = from > first ? (uint32_t)(from - first) : 0, z = to - first < SEGMENT_CHUNKS ? (uint32_t)(to - first) : SEGMENT_CHUNKS;
    int rc = get_segment(d, ms, s, e);
    if (rc == 0)
        rc = do_local(d, s, a, z, e);
    if (rc == 0)
        rc = start_pieces(d, s, a, z, false, false);
    struct fetch_wait w = {.next = d->waits, .event = {.sched = d->store->co}};
    d->waits = &w;
    for (uint32_t i = a; rc == 0 && i < z;) {
        if (s->pieces[i].kind == PIECE_NONE || bit(d->done, first + i))
            i++;
        else if (d->rc < 0)
            rc = err_set(e, ESRCH, "the download failed: %s", d->err.msg);
        else if (!bit(d->taken, first + i)) /* it was, by a group that failed */
            rc = err_set(e, EIO, "%s", d->fill ? d->fill->err.msg : "");
        else if (task_wait(&w.event, false) < 0)
            rc = err_set(e, ECANCELED, "cancelled");
    }
    struct fetch_wait **at = &d->waits;
    while (*at != &w)
        at = &(*at)->next;
    *at = w.next;
    return rc;
}

int download_fetch(struct download *d, uint64_t offset, uint64_t length, struct err *e)
{
    int rc = length && length <= FETCH_MAX && offset < d->m.size && length <= d->m.size - offset
                 ? 0
                 : err_set(e, EINVAL, "no range of 1 MiB at most within the file");
    uint64_t from = offset / CHUNK_BYTES, to = (offset + length + CHUNK_BYTES - 1) / CHUNK_BYTES;
    d->fetches++;
    hurry(d);
    for (uint64_t n = from / SEGMENT_CHUNKS; rc == 0 && n * SEGMENT_CHUNKS < to; n++)
        rc = fetch_segment(d, (uint32_t)n, from, to, e);
    d->fetches--;
    hurry(d);
    task_set(&d->ended);
    return rc;
}

/* ---- all of it ---- */

/* All packs of one artifact's uploads are listed at once. */
static int check_packs(struct download *d, struct err *e)
{
    struct pack_set need = {0};
    AUTO_FREE struct listed *list = NULL;
    size_t count = 0, at = 0;
    int rc = 0;
    for (uint32_t i = 0; i < d->m.pack_count; i++)
        if (!pack_set_add(&need, &d->m.packs[i]))
            rc = err_set(e, ENOMEM, "out of memory");
    pack_set_sort(&need);
    for (size_t i = 0; rc == 0 && i < need.count; i++) {
        if (i == 0 || memcmp(need.ids[i].b, need.ids[i - 1].b, 16) != 0) {
            free(list);
            list = NULL;
            at = 0;
            rc = store_list(d->store, d->q->tenant, OBJECT_PACK, need.ids[i].b, &list, &count, e);
        }
        while (rc == 0 && at < count && memcmp(list[at].id.b, need.ids[i].b, sizeof list->id.b) < 0)
            at++;
        if (rc == 0 && (at == count || memcmp(list[at].id.b, need.ids[i].b, sizeof list->id.b) != 0)) {
            char name[NAME_SIZE], id[33];
            store_name(name, d->q->tenant, OBJECT_PACK, &need.ids[i]);
            rc = err_set(e, EBADMSG, "%s is missing in %s, and artifact %s needs it", name, backend_describe(d->store->backend),
                         hex(id, d->q->id, 16));
        }
    }
    pack_set_finish(&need);
    return rc;
}

/* An earlier one may still write what it took. Its requests are being cancelled, since whoever asked for it is gone. */
static int wait_turn(struct download *d, const struct stat *st, struct err *e)
{
    for (const struct fill *f = fills; f;)
        if (f->dev != st->st_dev || f->ino != st->st_ino)
            f = f->next;
        else if (co_sleep(d->store->co, TURN_MSEC) < 0)
            return err_set(e, ECANCELED, "cancelled");
        else
            f = fills;
    return 0;
}

/* Bits of segments that the artifact does not have at all are set at once. */
static int show_unlisted(struct download *d, struct err *e)
{
    uint64_t count = chunk_count(d);
    int rc = 0;
    for (uint64_t i = 0, s = 0; rc == 0 && i < count; i++) {
        while (s < d->m.segment_count && (uint64_t)(d->m.segments[s].number + 1) * SEGMENT_CHUNKS <= i)
            s++;
        if (s < d->m.segment_count && d->m.segments[s].number * (uint64_t)SEGMENT_CHUNKS <= i)
            i = (uint64_t)(d->m.segments[s].number + 1) * SEGMENT_CHUNKS - 1;
        else
            rc = show_chunk(d, i, e);
    }
    return rc;
}

struct show_step {
    struct download *d;
    struct err *e;
    int rc;
};

static void show_work(void *arg)
{
    struct show_step *st = arg;
    st->rc = show_unlisted(st->d, st->e);
}

static int read_bits(struct download *d, struct err *e)
{
    struct fill_header h;
    size_t bytes = chunk_count(d) / 8 + 1;
    struct fill *f = d->fill;
    if (pread(d->q->bits, &h, sizeof h, 0) != (ssize_t)sizeof h || memcmp(h.magic, FILL_MAGIC, sizeof h.magic) != 0 || h.version != FILL_VERSION ||
        h.size != d->m.size)
        return err_set(e, EINVAL, "the second descriptor is not of the bits of such a file");
    f->bits = calloc(bytes, 1);
    f->before = calloc(bytes, 1);
    if (!f->bits || !f->before)
        return err_set(e, ENOMEM, "download: out of memory");
    if (pread(d->q->bits, f->bits, bytes, FILL_BITS) != (ssize_t)bytes)
        return err_set(e, EINVAL, "the file has not so many bits");
    memcpy(f->before, f->bits, bytes);
    memcpy(d->taken, f->bits, bytes);
    memcpy(d->done, f->bits, bytes);
    return 0;
}

static void fill_end(struct download *d)
{
    struct fill *f = d->fill, **at = &fills;
    if (!f)
        return;
    while (*at && *at != f)
        at = &(*at)->next;
    if (*at)
        *at = f->next;
    for (unsigned i = 0; i < FILL_CACHE; i++)
        free(f->cache[i].segment);
    pthread_mutex_destroy(&f->lock);
    free(f->bits);
    free(f->before);
    free(f);
    d->fill = NULL;
}

static int fill_start(struct download *d, const struct stat *st, struct err *e)
{
    int rc = wait_turn(d, st, e);
    if (rc < 0)
        return rc;
    struct fill *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ENOMEM, "download: out of memory");
    pthread_mutex_init(&f->lock, NULL);
    f->dev = st->st_dev;
    f->ino = st->st_ino;
    f->next = fills;
    fills = d->fill = f;
    f->began = uv_now(d->store->loop);
    hurry(d); /* its guest will ask at once */
    rc = read_bits(d, e);
    struct show_step step = {.d = d, .e = e};
    if (rc == 0)
        task_thread(d->store->co, show_work, &step);
    return rc < 0 ? rc : step.rc;
}

static int prepare(struct download *d, struct err *e)
{
    struct stat st;
    bool verify = d->q->flags & DOWNLOAD_VERIFY;
    if (!verify && memcmp(&d->m.base, &d->q->base, sizeof d->m.base) != 0) {
        char id[33];
        return err_set(e, EINVAL, "the artifact's base is %s %s, not the one that was named", d->m.base.tenant[0] ? d->m.base.tenant : "none",
                       hex(id, d->m.base.id, 16));
    }
    if (!verify && (fstat(d->q->fd, &st) < 0 || !S_ISREG(st.st_mode)))
        return err_set(e, EINVAL, "the descriptor is of no file");
    d->fresh = !verify && st.st_blocks == 0;
    bool fill = d->q->bits >= 0;
    if (fill && (uint64_t)st.st_size < d->m.size)
        return err_set(e, EINVAL, "the file that is filled is smaller than what was stored");
    if (!verify && !fill && (uint64_t)st.st_size != d->m.size && ftruncate(d->q->fd, (off_t)d->m.size) < 0)
        return err_sys(e, "make the file %llu bytes long", (unsigned long long)d->m.size);
    d->taken = calloc(chunk_count(d) / 8 + 1, 1);
    d->done = calloc(chunk_count(d) / 8 + 1, 1);
    if (!d->taken || !d->done)
        return err_set(e, ENOMEM, "download: out of memory");
    return fill ? fill_start(d, &st, e) : 0;
}

/* Requests in progress end first; then threads. */
static void wait_groups(struct download *d)
{
    if (d->rc < 0)
        for (struct group *g = d->groups; g; g = g->next)
            if (g->op)
                backend_cancel(g->op);
    while (d->running > 0 || d->fetches > 0) {
        if (task_wait(&d->ended, d->rc < 0) == 0)
            continue;
        fail(d, -ECANCELED, &(struct err){.code = ECANCELED, .msg = "cancelled"});
        for (struct group *g = d->groups; g; g = g->next)
            if (g->op)
                backend_cancel(g->op);
        wake_all(d);
    }
}

static int transfer(struct download *d, struct err *e)
{
    struct err why = {0};
    int rc = prepare(d, e);
    if (rc == 0 && (d->q->flags & DOWNLOAD_VERIFY))
        rc = check_packs(d, e);
    if (rc < 0)
        return rc;
    if (d->q->fetchable)
        d->q->fetchable(d->q->user, d);
    d->rep->download.chunks = d->m.chunks;
    rc = task_each(d->store->co, d->m.segment_count, d->fill ? FILL_SEGMENTS : SEGMENTS, do_segment, d, &why);
    if (rc == 0 && d->fill)
        rc = task_each(d->store->co, d->m.segment_count, FILL_SEGMENTS, do_rest, d, &why);
    if (rc < 0 && !why.msg[0])
        err_set(&why, -rc, "%s", rc == -ECANCELED ? "cancelled" : strerror(-rc));
    if (rc < 0)
        fail(d, rc, &why);
    wait_groups(d);
    if (d->q->fetchable)
        d->q->fetchable(d->q->user, NULL);
    while (d->fetches > 0) /* those that began before the handle went */
        task_wait(&d->ended, true);
    if (d->rc == 0 && d->fill && d->fill->rc < 0)
        fail(d, d->fill->rc, &d->fill->err);
    return d->rc < 0 ? err_set(e, -d->rc, "%s", d->err.msg) : 0;
}

int download_run(struct store *s, const struct download_request *q, struct volumed_reply *rep, struct err *e)
{
    uint64_t began = uv_hrtime();
    struct task_pool *turn = q->bits >= 0 ? &s->fills : &s->downloads;
    if (task_pool_take(turn) < 0)
        return err_set(e, ECANCELED, "cancelled");
    struct download *d = calloc(1, sizeof *d);
    int rc = d ? 0 : err_set(e, ENOMEM, "download: out of memory");
    if (rc == 0) {
        d->store = s;
        d->q = q;
        d->rep = rep;
        d->ended.sched = s->co;
        rc = session_open(s, q->tenant, 0, &d->session, e);
        if (rc == 0)
            rc = store_get_manifest(&d->session, q->id, &d->m, e);
        if (rc == 0)
            rc = transfer(d, e);
        fill_end(d);
        manifest_finish(&d->m);
        session_close(&d->session);
        free(d->taken);
        free(d->done);
        free(d);
    }
    rep->download.msec = (uv_hrtime() - began) / 1000000;
    task_pool_give(turn);
    return rc;
}
