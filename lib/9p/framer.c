// SPDX-License-Identifier: Apache-2.0
// Message framing: see framer.h.
#include "9p/framer.h"

#include "9p/codec.h"
#include "9p/copy.h"

#include <errno.h>
#include <stdlib.h>

/* Room for a first read of small messages; grown once the size field is known. */
#define FIRST_CAP 512u

#define PAGE       4096u
#define TWRITE_HDR 23u /* of size, type, tag, fid, offset, count */
#define LARGE_PAD  (PAGE - TWRITE_HDR)

static int reserve_large(struct p9_framer *f, size_t cap)
{
    size_t size = (LARGE_PAD + cap + PAGE - 1) & ~(size_t)(PAGE - 1);
    uint8_t *base = malloc(PAGE + size); /* aligned_alloc finds no freed block of its own again: the heap would grow */
    if (!base)
        return -ENOMEM;
    uint8_t *buf = base + LARGE_PAD + (PAGE - (uintptr_t)base % PAGE) % PAGE;
    p9_copy(buf, f->buf, f->len);
    free(f->base);
    f->base = base;
    f->buf = buf;
    f->cap = size - LARGE_PAD;
    return 0;
}

static int reserve(struct p9_framer *f, size_t cap)
{
    if (cap <= f->cap)
        return 0;
    if (cap >= P9_FRAMER_LARGE)
        return reserve_large(f, cap);
    uint8_t *bigger = realloc(f->base, cap); /* a small buffer: it begins where malloc's does */
    if (!bigger)
        return -ENOMEM;
    f->base = f->buf = bigger;
    f->cap = cap;
    return 0;
}

/* Of the message that is split: 0 as long as nobody knows. */
static size_t split_size(const struct p9_framer *f)
{
    return f->len < 4 ? 0 : p9_peek_size(f->buf);
}

static int check_size(size_t size, size_t max)
{
    if (size < P9_HDR)
        return -EBADMSG;
    return size > max ? -EMSGSIZE : 0;
}

/* Moves input into the buffer until it holds `want` bytes. */
static void fill(struct p9_framer *f, const uint8_t **in, size_t *n, size_t want)
{
    size_t take = want - f->len < *n ? want - f->len : *n;
    p9_copy(f->buf + f->len, *in, take);
    f->len += take;
    *in += take;
    *n -= take;
}

int p9_framer_next(struct p9_framer *f, const uint8_t **in, size_t *n, size_t max, struct p9_frame *out)
{
    int rc;
    if (!*n && (!f->len || f->len != split_size(f)))
        return 0;
    if (!f->len && *n >= 4) {
        size_t size = p9_peek_size(*in);
        if ((rc = check_size(size, max)) < 0)
            return rc;
        if (size <= *n) {
            *out = (struct p9_frame){.p = *in, .len = size};
            *in += size;
            *n -= size;
            return 1;
        }
    }
    if (f->len < 4) {
        if ((rc = reserve(f, FIRST_CAP)) < 0)
            return rc;
        fill(f, in, n, 4);
        if (f->len < 4)
            return 0;
    }
    size_t size = p9_peek_size(f->buf);
    if ((rc = check_size(size, max)) < 0 || (rc = reserve(f, size)) < 0)
        return rc;
    fill(f, in, n, size);
    if (f->len < size)
        return 0;
    *out = (struct p9_frame){.p = f->buf, .len = size, .owned = f->base, .cap = f->cap};
    *f = (struct p9_framer){0};
    return 1;
}

uint8_t *p9_framer_space(const struct p9_framer *f, size_t *len)
{
    size_t size = split_size(f);
    if (size < P9_FRAMER_LARGE || size > f->cap)
        return NULL;
    *len = size - f->len;
    return *len ? f->buf + f->len : NULL;
}

void p9_framer_filled(struct p9_framer *f, size_t len)
{
    f->len += len;
}

void p9_framer_recycle(struct p9_framer *f, struct p9_frame *frame)
{
    if (!f->base && frame->owned) {
        f->base = frame->owned;
        f->buf = f->base + (frame->p - frame->owned);
        f->cap = frame->cap;
        f->len = 0;
    } else {
        free(frame->owned);
    }
    frame->owned = NULL;
}

void p9_framer_finish(struct p9_framer *f)
{
    free(f->base);
    *f = (struct p9_framer){0};
}
