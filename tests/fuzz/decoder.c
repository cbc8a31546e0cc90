// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the 9P decoder, the framer and the directory entry parser. What is accepted must
// encode to the same bytes.
#include "9p/codec.h"
#include "9p/framer.h"
#include "fuzz/target.h"

#include <stdlib.h>
#include <string.h>

static void must_hold(int holds)
{
    if (!holds)
        abort();
}

static void decode_one(const uint8_t *data, size_t size)
{
    struct p9_msg m;
    if (p9_decode(data, size, &m) < 0)
        return;
    uint8_t *again = malloc(size);
    must_hold(p9_type_name(m.type) != NULL);
    must_hold(p9_encoded_size(&m) == size);
    must_hold(p9_encode(&m, again, size) == (long)size);
    must_hold(memcmp(again, data, size) == 0);
    free(again);
}

static void unpack_entries(const uint8_t *data, size_t size)
{
    struct p9_dirent d;
    size_t pos = 0, start = 0;
    while (p9_dirent_unpack(data, size, &pos, &d) == 1) {
        uint8_t *again = malloc(pos - start);
        size_t end = 0;
        must_hold(p9_dirent_pack(again, pos - start, &end, &d) == 0);
        must_hold(end == pos - start && memcmp(again, data + start, end) == 0);
        free(again);
        start = pos;
    }
}

/* The same bytes in pieces of `step` must give the same messages as in one piece. Returns a
 * checksum of them. */
static uint64_t frame_all(const uint8_t *data, size_t size, size_t step)
{
    struct p9_framer framer = {0};
    uint64_t sum = 0;
    int rc = 0;
    for (size_t at = 0; at < size && rc >= 0; at += step) {
        size_t n = size - at < step ? size - at : step;
        uint8_t *piece = malloc(n);
        const uint8_t *p = piece;
        struct p9_frame frame;
        memcpy(piece, data + at, n);
        while ((rc = p9_framer_next(&framer, &p, &n, P9_MSIZE_MIN, &frame)) > 0) {
            for (size_t i = 0; i < frame.len; i++)
                sum = sum * 31 + frame.p[i] + 1;
            p9_framer_recycle(&framer, &frame);
        }
        free(piece);
    }
    p9_framer_finish(&framer);
    return sum * 31 + (uint64_t)(rc < 0 ? -rc : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    decode_one(data, size);
    unpack_entries(data, size);
    uint64_t whole = frame_all(data, size, size ? size : 1);
    must_hold(frame_all(data, size, 1) == whole);
    must_hold(frame_all(data, size, 5) == whole);
    return 0;
}
