// SPDX-License-Identifier: Apache-2.0
// Claims and condemnations: see claim.h.
#include "hostd/volumed/store/claim.h"

#include "base/cleanup.h"
#include "hostd/volumed/bytes.h"
#include "hostd/volumed/store/gc.h"
#include "hostd/volumed/store/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HEADER   32u
#define SEEN_MAX 65536u
#define LISTINGS 16u /* of condemnations that are being put together meanwhile */

static uint64_t boottime_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- bodies ---- */

size_t claim_size(uint32_t seen)
{
    return HEADER + (size_t)seen * 16;
}

void claim_encode(const struct claim *c, enum claim_phase phase, uint8_t *out)
{
    uint32_t n = phase == CLAIM_SEEN ? c->seen_count : 0;
    uint8_t *p = put_u32(put_u32(put_u64(out, c->created), phase), n);
    p = put_zeros(p, HEADER - 16);
    put_bytes(p, n ? (const void *)c->seen : "", (size_t)n * 16);
}

int claim_names(const uint8_t *p, size_t len, const uint8_t gc[16])
{
    struct cursor c = cursor_of(p, len);
    cursor_u64(&c);
    uint32_t phase = cursor_u32(&c), n = cursor_u32(&c);
    cursor_zeros(&c, HEADER - 16);
    if (c.bad || (phase != CLAIM_BEGAN && phase != CLAIM_SEEN) || n > SEEN_MAX || c.left != (size_t)n * 16)
        return -EBADMSG;
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(cursor_take(&c, 16), gc, 16) == 0)
            return phase == CLAIM_SEEN;
    return 0;
}

size_t condemned_size(size_t packs)
{
    return HEADER + packs * sizeof(struct object_id);
}

void condemned_encode(const struct pack_set *s, uint64_t created, uint8_t *out)
{
    uint8_t *p = put_u32(put_u64(out, created), (uint32_t)s->count);
    p = put_zeros(p, HEADER - 12);
    put_bytes(p, s->count ? (const void *)s->ids : "", s->count * sizeof *s->ids);
}

int condemned_decode(const uint8_t *p, size_t len, struct pack_set *out)
{
    struct cursor c = cursor_of(p, len);
    cursor_u64(&c);
    uint32_t n = cursor_u32(&c);
    cursor_zeros(&c, HEADER - 12);
    if (c.bad || n > CONDEMNED_MAX || c.left != n * sizeof(struct object_id))
        return -EBADMSG;
    for (uint32_t i = 0; i < n; i++) {
        struct object_id id;
        cursor_copy(&c, id.b, sizeof id.b);
        if (!pack_set_add(out, &id))
            return -ENOMEM;
    }
    return 0;
}

/* ---- claims ---- */

static int put_claim(struct session *x, struct claim *c, enum claim_phase phase, struct err *e)
{
    size_t size = claim_size(phase == CLAIM_SEEN ? c->seen_count : 0);
    AUTO_FREE uint8_t *object = malloc(SEALED_HEADER + size);
    uint64_t now = boottime_ms();
    if (!object)
        return err_set(e, ENOMEM, "claim: out of memory");
    claim_encode(c, phase, object + SEALED_HEADER);
    if (!c->put)
        ledger_note(x->store, x->tenant->name, &c->id);
    c->put = true;
    int rc = store_put_sealed(x, SEALED_CLAIM, &c->id, object, size, 0, e);
    if (rc == 0)
        c->beat = now;
    return rc;
}

/* 1: one of them is gone, or was replaced since it cannot be read. Its packs are gone; or it is part of another one, which was put before. */
static int read_condemned(struct session *x, const struct listed *list, size_t count, struct claim *c, struct pack_set *excluded, struct err *e)
{
    free(c->seen);
    c->seen_count = 0;
    excluded->count = 0;
    if (count > SEEN_MAX)
        return err_set(e, EFBIG, "tenant %s has %zu condemnations: collect the garbage", x->tenant->name, count);
    c->seen = calloc(count + 1, sizeof *c->seen);
    if (!c->seen)
        return err_set(e, ENOMEM, "claim: out of memory");
    bool again = false;
    for (size_t i = 0; i < count; i++) {
        AUTO_FREE uint8_t *object = NULL;
        size_t size = 0;
        int rc = store_get_sealed(x, SEALED_CONDEMNED, &list[i].id, &object, &size, e);
        if (rc == -ENOENT)
            return 1;
        if (rc == 0 && (rc = condemned_decode(object + SEALED_HEADER, size, excluded)) < 0)
            rc = err_set(e, -rc, "a condemnation of tenant %s makes no sense", x->tenant->name);
        if (rc == -EBADMSG) {
            again = true;
            rc = gc_replace_condemned(x, &list[i].id, e);
        }
        if (rc < 0)
            return rc;
        if (again)
            continue;
        memcpy(c->seen[c->seen_count++], list[i].id.b, 16);
    }
    pack_set_sort(excluded);
    return again;
}

int claim_start(struct session *x, const uint8_t id[16], struct claim *out, struct pack_set *excluded, struct err *e)
{
    struct listed *list = NULL;
    size_t count = 0;
    *out = (struct claim){.id = store_id(id), .created = (uint64_t)time(NULL)};
    crypt_random(out->id.b + 16, 8);
    int rc = put_claim(x, out, CLAIM_BEGAN, e);
    for (unsigned tries = 0; rc == 0 && tries < LISTINGS; tries++) {
        rc = store_list(x->store, x->tenant->name, OBJECT_CONDEMNED, NULL, &list, &count, e);
        if (rc == 0)
            rc = read_condemned(x, list, count, out, excluded, e);
        free(list);
        list = NULL;
        if (rc == 0)
            break;
        rc = rc < 0 ? rc : tries + 1 < LISTINGS ? 0 : err_set(e, EAGAIN, "the condemnations of tenant %s change all the time", x->tenant->name);
    }
    return rc < 0 ? rc : put_claim(x, out, CLAIM_SEEN, e);
}

int claim_still(const struct session *x, const struct claim *c, struct err *e)
{
    if (boottime_ms() - c->beat < x->store->stale_s * 1000 / 2)
        return 0;
    return err_set(e, ESTALE, "the upload stood still for %llu s, so that garbage collection may have gone past it: upload again",
                   (unsigned long long)(boottime_ms() - c->beat) / 1000);
}

int claim_beat(struct session *x, struct claim *c, struct err *e)
{
    uint64_t often = x->store->stale_s * 1000 / 4;
    if (boottime_ms() - c->beat < (often < CLAIM_BEAT_S * 1000 ? often : CLAIM_BEAT_S * 1000))
        return 0;
    int rc = claim_still(x, c, e);
    return rc < 0 ? rc : put_claim(x, c, CLAIM_SEEN, e);
}

void claim_finish(struct claim *c)
{
    free(c->seen);
    c->seen = NULL;
}
