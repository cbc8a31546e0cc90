// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the browser of disk images. The input is an image without its zeros; everything in
// it is asked for over 9P, within bounds. Every request must be answered, by a message that
// decodes.
//
// Input: one byte n, the image has (n % 128 + 1) * 32 KiB; then pieces: place / 64 (2 bytes),
// length (1 byte), bytes. browse_corpus.py makes such inputs from images.
#include "9p/seek.h"
#include "fuzz/script.h"
#include "fuzz/target.h"
#include "hostd/browse/serve.h"
#include "unit/check.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNIT        (32u << 10)
#define OBJECTS_MAX 60u /* that are looked into */
#define NAMES_MAX   16u /* of a directory */
#define DEPTH_MAX   8u
#define MAP_FID     1000000

struct client {
    struct p9_server *server;
    uint8_t *reply; /* to the last request, */
    size_t len;
    struct p9_msg m; /* decoded; of type Rlerror too */
    unsigned objects;
};

static void take(void *user, void *buf, size_t len)
{
    struct client *c = user;
    CHECK(!c->reply);
    c->reply = buf;
    c->len = len;
    CHECK_EQ(p9_decode(buf, len, &c->m), 0);
    p9_server_sent(c->server, len);
}

/* True on success. */
static bool call(struct client *c, struct p9_msg m)
{
    uint8_t buf[1024];
    m.tag = m.type == P9_Tversion ? P9_NOTAG : 1;
    long size = p9_encode(&m, buf, sizeof buf);
    CHECK(size > 0);
    free(c->reply);
    c->reply = NULL;
    CHECK_EQ(p9_server_input(c->server, buf, (size_t)size), 0);
    CHECK(c->reply != NULL);
    return c->m.type == m.type + 1;
}

static void look_at_xattrs(struct client *c, uint32_t fid)
{
    static const char *const names[] = {"", "user.x", "system.posix_acl_access", "system.data"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!call(c, (struct p9_msg){.type = P9_Txattrwalk, .Txattrwalk = {fid, fid + 1, p9_str_of(names[i])}}))
            continue;
        CHECK(call(c, (struct p9_msg){.type = P9_Tread, .Tread = {fid + 1, 0, 70000}}));
        call(c, (struct p9_msg){.type = P9_Tclunk, .Tclunk.fid = fid + 1});
    }
}

static void look_at_data(struct client *c, uint32_t fid, uint64_t size)
{
    const uint64_t places[] = {0, 5000, 12 << 10, 300 << 10, size / 2, size - 100, size, UINT64_MAX};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        call(c, (struct p9_msg){.type = P9_Tread, .Tread = {fid, places[i], 20000}});
}

/* An answer lies at or behind the place, and not behind the end. */
static void look_for_holes(struct client *c, uint32_t fid, uint64_t size)
{
    const uint64_t places[] = {0, 5000, size / 2, size - 1, size};
    for (size_t i = 0; i < 2 * sizeof places / sizeof *places; i++) {
        char name[P9_SEEK_TEXT_MAX];
        uint64_t at = places[i / 2], got;
        p9_seek_name(name, i % 2 ? SEEK_HOLE : SEEK_DATA, at);
        if (!call(c, (struct p9_msg){.type = P9_Txattrwalk, .Txattrwalk = {fid, fid + 1, p9_str_of(name)}}))
            continue;
        CHECK(call(c, (struct p9_msg){.type = P9_Tread, .Tread = {fid + 1, 0, 100}}));
        CHECK(p9_seek_value(c->m.Rread.data, &got) && got >= at && got <= size);
        call(c, (struct p9_msg){.type = P9_Tclunk, .Tclunk.fid = fid + 1});
    }
}

struct names {
    unsigned n;
    uint8_t len[NAMES_MAX];
    char text[NAMES_MAX][P9_NAME_MAX];
};

static void take_names(const struct p9_data *d, uint64_t *offset, struct names *names)
{
    struct p9_dirent e;
    size_t pos = 0;
    int rc;
    while ((rc = p9_dirent_unpack(d->p, d->len, &pos, &e)) == 1) {
        CHECK(e.name.len > 0 && e.name.len <= P9_NAME_MAX && !memchr(e.name.s, '/', e.name.len));
        *offset = e.offset;
        if (names->n == NAMES_MAX || p9_str_eq(e.name, ".") || p9_str_eq(e.name, ".."))
            continue;
        memcpy(names->text[names->n], e.name.s, e.name.len);
        names->len[names->n++] = (uint8_t)e.name.len;
    }
    CHECK_EQ(rc, 0);
}

static void look_at(struct client *c, uint32_t fid, unsigned depth);

static void look_below(struct client *c, uint32_t fid, unsigned depth)
{
    struct names *names = calloc(1, sizeof *names);
    uint64_t offset = 0;
    for (unsigned i = 0; i < 4; i++) {
        if (!call(c, (struct p9_msg){.type = P9_Treaddir, .Treaddir = {fid, offset, 500}}) || !c->m.Rreaddir.data.len)
            break;
        take_names(&c->m.Rreaddir.data, &offset, names);
    }
    call(c, (struct p9_msg){.type = P9_Treaddir, .Treaddir = {fid, offset + 4, 500}});
    for (unsigned i = 0; i < names->n && depth < DEPTH_MAX; i++) {
        struct p9_msg m = {.type = P9_Twalk, .Twalk = {fid, fid + 2, {.n = 1}}};
        m.Twalk.names.v[0] = (struct p9_str){names->text[i], names->len[i]};
        if (!call(c, m))
            continue;
        look_at(c, fid + 2, depth + 1);
        call(c, (struct p9_msg){.type = P9_Tclunk, .Tclunk.fid = fid + 2});
    }
    free(names);
}

static void look_at(struct client *c, uint32_t fid, unsigned depth)
{
    if (++c->objects > OBJECTS_MAX || !call(c, (struct p9_msg){.type = P9_Tgetattr, .Tgetattr = {fid, P9_GETATTR_ALL}}))
        return;
    struct p9_Rgetattr a = c->m.Rgetattr;
    CHECK(a.mtime_nsec < 1000000000 && a.size <= INT64_MAX);
    look_at_xattrs(c, fid);
    if (call(c, (struct p9_msg){.type = P9_Treadlink, .Treadlink.fid = fid}))
        CHECK(S_ISLNK(a.mode));
    if (!call(c, (struct p9_msg){.type = P9_Tlopen, .Tlopen.fid = fid}))
        return;
    if (S_ISDIR(a.mode))
        look_below(c, fid, depth);
    else
        look_at_data(c, fid, a.size);
    look_for_holes(c, fid, a.size);
}

/* The map of changes: of some ranges that may overlap, or of all of it. */
static void look_at_changes(struct client *c)
{
    const uint64_t some[][2] = {{0, 5000}, {40 << 10, 64 << 10}, {1 << 20, 1}, {1 << 19, 3 << 20}, {0, UINT64_MAX}};
    struct p9_msg m = {.type = P9_Txattrwalk, .Txattrwalk = {1, MAP_FID, p9_str_of(SERVE_CHANGES)}};
    for (unsigned n = 4; n <= 5; n++) {
        CHECK(call(c, m));
        CHECK(call(c, (struct p9_msg){.type = P9_Twrite, .Twrite = {MAP_FID, 0, {(const uint8_t *)some, n * 16}}}));
        CHECK(!call(c, (struct p9_msg){.type = P9_Twrite, .Twrite = {MAP_FID, 0, {(const uint8_t *)some, 15}}}));
        for (unsigned i = 0; i < 64; i++) {
            if (!call(c, (struct p9_msg){.type = P9_Tread, .Tread = {MAP_FID, 0, 64 << 10}}) || !c->m.Rread.data.len)
                break;
            CHECK_EQ(((const char *)c->m.Rread.data.p)[c->m.Rread.data.len - 1], '\n');
        }
        call(c, (struct p9_msg){.type = P9_Tclunk, .Tclunk.fid = MAP_FID});
    }
}

/* A file with the image; -1 when the input is none. */
static int unpack(struct script *s)
{
    int fd = memfd_create("image", MFD_CLOEXEC);
    size_t size = (script_byte(s) % 128 + 1) * UNIT;
    CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    while (s->left) {
        size_t at = script_byte(s), len;
        at = (at | (size_t)script_byte(s) << 8) * 64;
        const uint8_t *p = script_bytes(s, script_byte(s), &len);
        if (at < size)
            CHECK(pwrite(fd, p, len < size - at ? len : size - at, (off_t)at) >= 0);
    }
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script s = {data, size};
    struct client c = {.objects = 0};
    const struct p9_transport transport = {&c, take};
    struct serve *serve = calloc(1, sizeof *serve);
    struct err e = {0};
    int fd = unpack(&s);
    CHECK_EQ(serve_init(serve), 0);
    serve->error = volume_open(&serve->volume, fd, &e);
    c.server = p9_server_create(serve_backend(), &transport, serve_config(), serve);
    CHECK(call(&c, (struct p9_msg){.type = P9_Tversion, .Tversion = {P9_MSIZE_MAX, p9_str_of(P9_VERSION)}}));
    if (call(&c, (struct p9_msg){.type = P9_Tattach, .Tattach = {.fid = 1, .afid = P9_NOFID}})) {
        call(&c, (struct p9_msg){.type = P9_Tstatfs, .Tstatfs.fid = 1});
        look_at_changes(&c);
        look_at(&c, 1, 0);
    }
    p9_server_destroy(c.server);
    free(c.reply);
    volume_close(&serve->volume);
    serve_finish(serve);
    free(serve);
    close(fd);
    return 0;
}
