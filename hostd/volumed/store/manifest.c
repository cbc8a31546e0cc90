// SPDX-License-Identifier: Apache-2.0
// Manifests and segments as bytes: see manifest.h.
#include "hostd/volumed/store/manifest.h"

#include "base/str.h"
#include "hostd/volumed/bytes.h"
#include "hostd/volumed/store/sealed.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SEGMENT_HEADER 16u
#define SEGMENT_PIECE  48u
#define HEADER         192u
#define HEADER_USED    148u
#define ONE_SEGMENT    64u
#define ONE_REF        8u

/* ---- segments ---- */

/* Place of the pack in the table so far; chunks of one pack come one after the other. */
static uint32_t place(struct object_id *packs, uint32_t *count, const struct object_id *id)
{
    for (uint32_t i = *count; i-- > 0;)
        if (memcmp(packs[i].b, id->b, sizeof id->b) == 0)
            return i;
    packs[*count] = *id;
    return (*count)++;
}

size_t segment_encode(const struct segment *s, uint8_t out[CHUNK_MAX])
{
    static_assert(SEGMENT_HEADER + SEGMENT_CHUNKS * (sizeof(struct object_id) + SEGMENT_PIECE) <= CHUNK_MAX, "a segment is a chunk");
    struct object_id *packs = malloc(SEGMENT_CHUNKS * sizeof *packs);
    uint32_t pack_of[SEGMENT_CHUNKS], count = 0;
    if (!packs)
        return 0;
    for (uint32_t i = 0; i < SEGMENT_CHUNKS; i++)
        if (s->pieces[i].kind == PIECE_DATA)
            pack_of[i] = place(packs, &count, &s->pieces[i].pack);
    uint8_t *p = put_u32(put_u32(put_u32(put_u32(out, s->number), s->count), count), 0);
    p = put_bytes(p, packs, count * sizeof *packs);
    for (uint32_t i = 0; i < SEGMENT_CHUNKS; i++) {
        const struct piece *x = &s->pieces[i];
        if (x->kind == PIECE_NONE)
            continue;
        p = put_u16(put_u16(p, (uint16_t)i), (uint16_t)x->kind);
        if (x->kind == PIECE_DATA)
            p = put_bytes(put_u32(put_u32(put_u32(p, pack_of[i]), x->offset), x->stored), x->id.b, sizeof x->id.b);
        else
            p = put_zeros(p, SEGMENT_PIECE - 4);
    }
    free(packs);
    return (size_t)(p - out);
}

static bool decode_piece(struct cursor *c, const uint8_t *packs, uint32_t pack_count, struct piece *x)
{
    if (x->kind == PIECE_ZEROS) {
        cursor_zeros(c, SEGMENT_PIECE - 4);
        return !c->bad;
    }
    uint32_t pack = cursor_u32(c);
    x->offset = cursor_u32(c);
    x->stored = cursor_u32(c);
    cursor_copy(c, x->id.b, sizeof x->id.b);
    if (c->bad || x->kind != PIECE_DATA || pack >= pack_count || x->offset < PACK_HEADER || x->stored <= CHUNK_OVERHEAD ||
        x->stored > CHUNK_RECORD_MAX || x->offset > PACK_MAX - x->stored)
        return false;
    memcpy(x->pack.b, packs + (size_t)pack * sizeof x->pack.b, sizeof x->pack.b);
    return true;
}

int segment_decode(const uint8_t *p, size_t len, uint32_t number, uint64_t size, struct segment *out)
{
    struct cursor c = cursor_of(p, len);
    uint64_t first = (uint64_t)number * SEGMENT_CHUNKS, chunks = (size + CHUNK_BYTES - 1) / CHUNK_BYTES;
    memset(out, 0, sizeof *out);
    out->number = cursor_u32(&c);
    out->count = cursor_u32(&c);
    uint32_t pack_count = cursor_u32(&c);
    cursor_zeros(&c, 4);
    if (c.bad || out->number != number || out->count == 0 || out->count > SEGMENT_CHUNKS || pack_count > out->count)
        return -EBADMSG;
    const uint8_t *packs = cursor_take(&c, pack_count * sizeof(struct object_id));
    for (uint32_t i = 0, next = 0; i < out->count; i++) {
        uint32_t at = cursor_u16(&c), kind = cursor_u16(&c);
        if (c.bad || at < next || at >= SEGMENT_CHUNKS || first + at >= chunks)
            return -EBADMSG;
        out->pieces[at].kind = kind;
        if (!decode_piece(&c, packs, pack_count, &out->pieces[at]))
            return -EBADMSG;
        next = at + 1;
    }
    return c.bad || c.left ? -EBADMSG : 0;
}

/* ---- manifests: writing ---- */

static bool grow(void *array, uint32_t *room, uint32_t count, size_t one)
{
    if (count < *room)
        return true;
    uint32_t more = *room ? *room * 2 : 16;
    void *bigger = more > *room ? realloc(*(void **)array, (size_t)more * one) : NULL;
    if (!bigger)
        return false;
    *(void **)array = bigger;
    *room = more;
    return true;
}

/* Slot of the pack in the hash table, or the empty one where it would be. */
static uint32_t *slot_of(const struct manifest *m, const struct object_id *id)
{
    uint32_t at = (uint32_t)XXH3_64bits(id->b, sizeof id->b) & (m->slot_count - 1);
    while (m->slots[at] && memcmp(m->packs[m->slots[at] - 1].b, id->b, sizeof id->b) != 0)
        at = (at + 1) & (m->slot_count - 1);
    return &m->slots[at];
}

/* At most half full. */
static bool grow_slots(struct manifest *m)
{
    if (m->pack_count < m->slot_count / 2)
        return true;
    uint32_t count = m->slot_count ? m->slot_count * 2 : 64;
    while (count / 2 <= m->pack_count)
        count *= 2;
    uint32_t *slots = calloc(count, sizeof *slots);
    if (!slots)
        return false;
    free(m->slots);
    m->slots = slots;
    m->slot_count = count;
    for (uint32_t i = 0; i < m->pack_count; i++)
        *slot_of(m, &m->packs[i]) = i + 1;
    return true;
}

int64_t manifest_pack(struct manifest *m, const struct object_id *id)
{
    if (!grow_slots(m) || !grow(&m->packs, &m->pack_room, m->pack_count, sizeof *m->packs))
        return -1;
    uint32_t *slot = slot_of(m, id);
    if (!*slot) {
        m->packs[m->pack_count++] = *id;
        *slot = m->pack_count;
    }
    return *slot - 1;
}

struct manifest_segment *manifest_add(struct manifest *m)
{
    if (!grow(&m->segments, &m->segment_room, m->segment_count, sizeof *m->segments))
        return NULL;
    struct manifest_segment *s = &m->segments[m->segment_count++];
    memset(s, 0, sizeof *s);
    s->refs = m->ref_count;
    return s;
}

bool manifest_ref(struct manifest *m, uint32_t pack, uint32_t bytes)
{
    struct manifest_segment *s = &m->segments[m->segment_count - 1];
    for (uint32_t i = s->ref_count; i-- > 0;)
        if (m->refs[s->refs + i].pack == pack) {
            m->refs[s->refs + i].bytes += bytes;
            return true;
        }
    if (!grow(&m->refs, &m->ref_room, m->ref_count, sizeof *m->refs))
        return false;
    m->refs[m->ref_count++] = (struct manifest_ref){pack, bytes};
    s->ref_count++;
    return true;
}

void manifest_finish(struct manifest *m)
{
    free(m->packs);
    free(m->segments);
    free(m->refs);
    free(m->slots);
    memset(m, 0, sizeof *m);
}

static uint64_t body_size(uint64_t packs, uint64_t segments, uint64_t refs)
{
    return HEADER + packs * sizeof(struct object_id) + segments * ONE_SEGMENT + refs * ONE_REF;
}

bool manifest_size(const struct manifest *m, size_t *out)
{
    uint64_t size = body_size(m->pack_count, m->segment_count, m->ref_count);
    *out = (size_t)size;
    return size <= SEALED_MAX - SEALED_HEADER;
}

void manifest_encode(const struct manifest *m, uint8_t *out)
{
    uint8_t *p = put_u32(put_u32(out, m->file), CHUNK_BYTES);
    p = put_u64(put_u64(p, m->size), m->created);
    p = put_bytes(put_bytes(p, m->base.tenant, sizeof m->base.tenant), m->base.id, sizeof m->base.id);
    p = put_zeros(p, 4);
    p = put_u64(put_u64(put_u64(p, m->chunks), m->zero_chunks), m->stored_bytes);
    p = put_u32(put_u32(put_u32(p, m->pack_count), m->segment_count), m->ref_count);
    p = put_zeros(p, HEADER - (size_t)(p - out));
    p = put_bytes(p, m->packs ? (const void *)m->packs : "", m->pack_count * sizeof *m->packs);
    for (uint32_t i = 0; i < m->segment_count; i++) {
        const struct manifest_segment *s = &m->segments[i];
        p = put_u32(put_u32(put_u32(put_u32(p, s->number), s->count), s->pack), s->offset);
        p = put_u32(put_u32(put_u32(put_u32(p, s->stored), s->plain), s->refs), s->ref_count);
        p = put_bytes(p, s->id.b, sizeof s->id.b);
    }
    for (uint32_t i = 0; i < m->ref_count; i++)
        p = put_u32(put_u32(p, m->refs[i].pack), m->refs[i].bytes);
}

/* ---- manifests: reading ---- */

static bool base_valid(const struct volumed_ref *r)
{
    static const struct volumed_ref none;
    size_t name = strnlen(r->tenant, sizeof r->tenant);
    if (name == 0)
        return memcmp(r, &none, sizeof none) == 0;
    bool good = name <= VOLUMED_TENANT_MAX && str_name_valid(r->tenant, name) && memcmp(r->id, none.id, sizeof none.id) != 0;
    for (size_t i = name; good && i < sizeof r->tenant; i++)
        good = r->tenant[i] == 0;
    return good;
}

static bool decode_header(struct cursor *c, struct manifest *m)
{
    m->file = cursor_u32(c);
    uint32_t chunk = cursor_u32(c);
    m->size = cursor_u64(c);
    m->created = cursor_u64(c);
    cursor_copy(c, m->base.tenant, sizeof m->base.tenant);
    cursor_copy(c, m->base.id, sizeof m->base.id);
    cursor_zeros(c, 4);
    m->chunks = cursor_u64(c);
    m->zero_chunks = cursor_u64(c);
    m->stored_bytes = cursor_u64(c);
    m->pack_count = cursor_u32(c);
    m->segment_count = cursor_u32(c);
    m->ref_count = cursor_u32(c);
    cursor_zeros(c, HEADER - HEADER_USED);
    return !c->bad && chunk == CHUNK_BYTES && m->size <= ARTIFACT_MAX && base_valid(&m->base) &&
           body_size(m->pack_count, m->segment_count, m->ref_count) == HEADER + (uint64_t)c->left;
}

static bool decode_segment(struct cursor *c, const struct manifest *m, int64_t before, struct manifest_segment *s)
{
    s->number = cursor_u32(c);
    s->count = cursor_u32(c);
    s->pack = cursor_u32(c);
    s->offset = cursor_u32(c);
    s->stored = cursor_u32(c);
    s->plain = cursor_u32(c);
    s->refs = cursor_u32(c);
    s->ref_count = cursor_u32(c);
    cursor_copy(c, s->id.b, sizeof s->id.b);
    return s->number > before && s->number * SEGMENT_BYTES < m->size && s->count > 0 && s->count <= SEGMENT_CHUNKS && s->pack < m->pack_count &&
           s->offset >= PACK_HEADER && s->stored > CHUNK_OVERHEAD && s->stored <= CHUNK_RECORD_MAX && s->offset <= PACK_MAX - s->stored &&
           s->plain > 0 && s->plain <= CHUNK_MAX && s->refs <= m->ref_count && s->ref_count <= m->ref_count - s->refs;
}

int manifest_decode(const uint8_t *p, size_t len, struct manifest *out)
{
    struct cursor c = cursor_of(p, len);
    memset(out, 0, sizeof *out);
    if (!decode_header(&c, out)) {
        out->pack_count = out->segment_count = out->ref_count = 0;
        return -EBADMSG;
    }
    out->pack_room = out->pack_count;
    out->segment_room = out->segment_count;
    out->ref_room = out->ref_count;
    out->packs = calloc((size_t)out->pack_count + 1, sizeof *out->packs);
    out->segments = calloc((size_t)out->segment_count + 1, sizeof *out->segments);
    out->refs = calloc((size_t)out->ref_count + 1, sizeof *out->refs);
    if (!out->packs || !out->segments || !out->refs)
        return -ENOMEM;
    cursor_copy(&c, out->packs, out->pack_count * sizeof *out->packs);
    int64_t before = -1;
    for (uint32_t i = 0; i < out->segment_count; i++) {
        if (!decode_segment(&c, out, before, &out->segments[i]))
            return -EBADMSG;
        before = out->segments[i].number;
    }
    for (uint32_t i = 0; i < out->ref_count; i++) {
        out->refs[i].pack = cursor_u32(&c);
        out->refs[i].bytes = cursor_u32(&c);
        if (out->refs[i].pack >= out->pack_count)
            return -EBADMSG;
    }
    return c.bad || c.left ? -EBADMSG : 0;
}
