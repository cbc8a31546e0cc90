// SPDX-License-Identifier: Apache-2.0
// Chunks of an upload on threads: read, looked at for zeros, identified, looked up, and what is new compressed and encrypted.
#include "hostd/volumed/store/upload_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define IN_BYTES  ((size_t)BATCH_CHUNKS * CHUNK_BYTES)
#define OUT_BYTES ((size_t)BATCH_CHUNKS * (CHUNK_BYTES + CHUNK_OVERHEAD))

static uint8_t *map(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

bool batch_init(struct batch *b, struct packer *p, int fd, struct task_event *done)
{
    b->packer = p;
    b->fd = fd;
    b->done = done;
    b->in = map(IN_BYTES);
    b->out = map(OUT_BYTES);
    return b->in && b->out;
}

void batch_finish(struct batch *b)
{
    if (b->in)
        munmap(b->in, IN_BYTES);
    if (b->out)
        munmap(b->out, OUT_BYTES);
}

/* Reads chunks that lie next to each other at once. */
static int read_chunks(struct batch *b)
{
    for (unsigned i = 0; i < b->count;) {
        size_t size = b->chunks[i].length;
        unsigned n = 1;
        if (b->chunks[i].want != PIECE_DATA) {
            i++;
            continue;
        }
        for (; i + n < b->count && b->chunks[i + n].want == PIECE_DATA && b->chunks[i + n].index == b->chunks[i].index + n; n++)
            size += b->chunks[i + n].length;
        uint8_t *to = b->in + (size_t)i * CHUNK_BYTES;
        uint64_t at = b->chunks[i].index * CHUNK_BYTES;
        for (size_t done = 0; done < size;) {
            ssize_t got = pread(b->fd, to + done, size - done, (off_t)(at + done));
            if (got <= 0)
                return got < 0 ? err_sys(&b->err, "read the file at %llu", (unsigned long long)(at + done))
                               : err_set(&b->err, EIO, "the file ends at %llu: it became shorter", (unsigned long long)(at + done));
            done += (size_t)got;
        }
        b->read_bytes += size;
        i += n;
    }
    return 0;
}

static bool all_zeros(const uint8_t *p, size_t size)
{
    return p[0] == 0 && (size == 1 || memcmp(p, p + 1, size - 1) == 0);
}

static int take_chunk(struct batch *b, unsigned i, const struct chunk_keys *k, struct chunk_codec *codec, size_t *out_used)
{
    struct batch_chunk *c = &b->chunks[i];
    const uint8_t *plain = b->in + (size_t)i * CHUNK_BYTES;
    uint8_t nonce[CRYPT_NONCE];
    size_t len = 0;
    if (c->want == PIECE_ZEROS || all_zeros(plain, c->length)) {
        c->result = RESULT_ZEROS;
        return 0;
    }
    if (!chunk_identify(k, CHUNK_DATA, plain, c->length, &c->entry.id))
        return -ENOMEM;
    int rc = packer_find(b->packer, CHUNK_DATA, &c->entry.id, c->length, &c->entry, &c->pack);
    if (rc != 0) {
        c->result = RESULT_FOUND;
        return rc < 0 ? rc : 0;
    }
    crypt_random(nonce, sizeof nonce);
    c->result = RESULT_NEW;
    c->record = *out_used;
    if (!chunk_seal(k, codec, CHUNK_DATA, &c->entry.id, nonce, plain, c->length, b->out + c->record, &len))
        return -ENOMEM;
    c->entry.stored = (uint32_t)len;
    c->entry.plain = c->length;
    c->entry.kind = CHUNK_DATA;
    *out_used += len;
    return 0;
}

static void batch_work(uv_work_t *w)
{
    struct batch *b = w->data;
    struct session *x = b->packer->session;
    struct chunk_codec *codec = store_codec(x->store);
    size_t used = 0;
    b->read_bytes = 0;
    b->rc = codec ? read_chunks(b) : err_set(&b->err, ENOMEM, "out of memory");
    for (unsigned i = 0; b->rc == 0 && i < b->count; i++) {
        struct chunk_keys k;
        if (!session_thread_enter(x->store, x->tenant->name, b->key, &k)) {
            b->rc = -EKEYEXPIRED;
            break;
        }
        int rc = take_chunk(b, i, &k, codec, &used);
        tenant_key_leave(b->key);
        if (rc < 0)
            b->rc = err_set(&b->err, -rc, "chunk %llu: %s", (unsigned long long)b->chunks[i].index, strerror(-rc));
    }
    if (codec)
        store_codec_return(x->store, codec);
}

static void batch_done(uv_work_t *w, int status)
{
    struct batch *b = w->data;
    (void)status;
    tenant_key_unref(b->key);
    b->state = BATCH_DONE;
    task_set(b->done);
}

void batch_submit(struct batch *b)
{
    b->state = BATCH_WORKS;
    b->work.data = b;
    b->key = tenant_key_ref(b->packer->session->key);
    if (uv_queue_work(b->packer->store->loop, &b->work, batch_work, batch_done) < 0)
        abort();
}
