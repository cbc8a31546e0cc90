// SPDX-License-Identifier: Apache-2.0
// SPOE frames: see spoe.h.
#include "hostd/credd/spoe.h"

#include <errno.h>
#include <string.h>

#define FLAG_FIN      1u
#define FLAG_ABORT    2u
#define TYPE_MASK     0x0f
#define BOOL_TRUE     0x10
#define ACTION_SET    1
#define SCOPE_TXN     2
#define ARGUMENTS_MAX 32
#define TEXT_MAX      16384u

enum { T_NULL, T_BOOL, T_INT32, T_UINT32, T_INT64, T_UINT64, T_IPV4, T_IPV6, T_STRING, T_BINARY };

/* ---- reading ---- */

struct cursor {
    const uint8_t *p, *end;
    bool bad;
};

struct value {
    int type;
    uint64_t number;
    struct spoe_text text;
};

static uint8_t take_byte(struct cursor *c)
{
    if (c->bad || c->p == c->end) {
        c->bad = true;
        return 0;
    }
    return *c->p++;
}

static const uint8_t *take_bytes(struct cursor *c, size_t n)
{
    if (c->bad || n > (size_t)(c->end - c->p)) {
        c->bad = true;
        return NULL;
    }
    c->p += n;
    return c->p - n;
}

static uint64_t take_number(struct cursor *c)
{
    uint64_t n = take_byte(c);
    unsigned shift = 4;
    if (n < 240)
        return n;
    for (uint8_t b = 0x80; b & 0x80 && !c->bad; shift += 7) {
        b = take_byte(c);
        if (shift > 60)
            c->bad = true;
        else
            n += (uint64_t)b << shift;
    }
    return n;
}

static struct spoe_text take_text(struct cursor *c)
{
    uint64_t len = take_number(c);
    const uint8_t *p = take_bytes(c, len > TEXT_MAX ? SIZE_MAX : (size_t)len);
    return p ? (struct spoe_text){(const char *)p, (size_t)len} : (struct spoe_text){"", 0};
}

static struct value take_value(struct cursor *c)
{
    uint8_t tag = take_byte(c);
    struct value v = {.type = tag & TYPE_MASK, .text = {"", 0}};
    switch (v.type) {
    case T_NULL: break;
    case T_BOOL: v.number = (tag & BOOL_TRUE) != 0; break;
    case T_INT32:
    case T_UINT32:
    case T_INT64:
    case T_UINT64: v.number = take_number(c); break;
    case T_IPV4:
    case T_IPV6: take_bytes(c, v.type == T_IPV4 ? 4 : 16); break;
    case T_STRING:
    case T_BINARY: v.text = take_text(c); break;
    default: c->bad = true;
    }
    return v;
}

static bool is(struct spoe_text t, const char *word)
{
    return t.len == strlen(word) && memcmp(t.s, word, t.len) == 0;
}

static bool is_left(const struct cursor *c)
{
    return !c->bad && c->p < c->end;
}

/* Of several versions that HAProxy offers, one that begins with `2.` */
static bool offers_2(struct spoe_text versions)
{
    for (size_t i = 0; i + 1 < versions.len; i++)
        if (versions.s[i] == '2' && versions.s[i + 1] == '.' && (i == 0 || versions.s[i - 1] == ' ' || versions.s[i - 1] == ','))
            return true;
    return false;
}

static void read_hello(struct cursor *c, struct spoe_frame *out)
{
    while (is_left(c)) {
        struct spoe_text key = take_text(c);
        struct value v = take_value(c);
        if (is(key, "supported-versions"))
            out->version_known = offers_2(v.text);
        else if (is(key, "max-frame-size"))
            out->frame_max = v.number;
        else if (is(key, "healthcheck"))
            out->healthcheck = v.number;
    }
}

static void read_argument(struct cursor *c, struct spoe_frame *out)
{
    struct spoe_text key = take_text(c);
    struct value v = take_value(c);
    if (is(key, "id"))
        out->id = v.text;
    else if (is(key, "name"))
        out->name = v.text;
    else if (is(key, "method"))
        out->method = v.text;
    else if (is(key, "port"))
        out->port = v.number;
}

/* One message, `use`, is all that our configuration sends. */
static void read_messages(struct cursor *c, struct spoe_frame *out)
{
    bool known = is(take_text(c), "use");
    uint8_t count = take_byte(c);
    if (!known || count > ARGUMENTS_MAX)
        c->bad = true;
    for (uint8_t i = 0; i < count && !c->bad; i++)
        read_argument(c, out);
    if (is_left(c))
        c->bad = true;
}

int spoe_read(const uint8_t *data, size_t len, struct spoe_frame *out)
{
    struct cursor c = {data, data + len, false};
    const struct spoe_text none = {"", 0};
    *out = (struct spoe_frame){.id = none, .name = none, .method = none};
    out->type = take_byte(&c);
    uint32_t flags = 0;
    for (int i = 0; i < 4; i++)
        flags = flags << 8 | take_byte(&c);
    out->stream = take_number(&c);
    out->frame = take_number(&c);
    if (!(flags & FLAG_FIN) || flags & FLAG_ABORT)
        return -EBADMSG; /* pieces of frames are for who says that it takes them */
    if (out->type == SPOE_HAPROXY_HELLO)
        read_hello(&c, out);
    else if (out->type == SPOE_NOTIFY)
        read_messages(&c, out);
    else if (out->type != SPOE_HAPROXY_DISCONNECT)
        c.bad = true;
    return c.bad ? -EBADMSG : 0;
}

/* ---- writing ---- */

static void put_byte(struct spoe_writer *w, uint8_t byte)
{
    if (w->len < w->size)
        w->buf[w->len++] = byte;
    else
        w->bad = true;
}

static void put_number(struct spoe_writer *w, uint64_t n)
{
    if (n < 240) {
        put_byte(w, (uint8_t)n);
        return;
    }
    put_byte(w, (uint8_t)(n | 240));
    for (n = (n - 240) >> 4; n >= 128; n = (n - 128) >> 7)
        put_byte(w, (uint8_t)(n | 128));
    put_byte(w, (uint8_t)n);
}

static void put_text(struct spoe_writer *w, const void *text, size_t len)
{
    put_number(w, len);
    if (w->bad || len > w->size - w->len) {
        w->bad = true;
        return;
    }
    memcpy(w->buf + w->len, text, len);
    w->len += len;
}

static void put_word(struct spoe_writer *w, const char *word)
{
    put_text(w, word, strlen(word));
}

static void begin(struct spoe_writer *w, enum spoe_type type, uint64_t stream, uint64_t frame)
{
    const uint8_t head[] = {0, 0, 0, 0, (uint8_t)type, 0, 0, 0, FLAG_FIN};
    for (size_t i = 0; i < sizeof head; i++)
        put_byte(w, head[i]);
    put_number(w, stream);
    put_number(w, frame);
}

static void end(struct spoe_writer *w)
{
    size_t len = w->len - SPOE_LENGTH;
    for (int i = 0; i < 4 && !w->bad; i++)
        w->buf[i] = (uint8_t)(len >> (24 - 8 * i));
}

static void put_pair_text(struct spoe_writer *w, const char *key, const char *text)
{
    put_word(w, key);
    put_byte(w, T_STRING);
    put_word(w, text);
}

static void put_pair_number(struct spoe_writer *w, const char *key, uint64_t number)
{
    put_word(w, key);
    put_byte(w, T_UINT32);
    put_number(w, number);
}

void spoe_write_hello(struct spoe_writer *w, uint64_t frame_max)
{
    begin(w, SPOE_AGENT_HELLO, 0, 0);
    put_pair_text(w, "version", "2.0");
    put_pair_number(w, "max-frame-size", frame_max);
    put_pair_text(w, "capabilities", "pipelining");
    end(w);
}

void spoe_write_disconnect(struct spoe_writer *w, uint32_t status, const char *message)
{
    begin(w, SPOE_AGENT_DISCONNECT, 0, 0);
    put_pair_number(w, "status-code", status);
    put_pair_text(w, "message", message);
    end(w);
}

void spoe_ack_begin(struct spoe_writer *w, uint64_t stream, uint64_t frame)
{
    begin(w, SPOE_ACK, stream, frame);
}

static void put_action(struct spoe_writer *w, const char *name)
{
    put_byte(w, ACTION_SET);
    put_byte(w, 3);
    put_byte(w, SCOPE_TXN);
    put_word(w, name);
}

void spoe_ack_number(struct spoe_writer *w, const char *name, uint32_t value)
{
    put_action(w, name);
    put_byte(w, T_UINT32);
    put_number(w, value);
}

void spoe_ack_text(struct spoe_writer *w, const char *name, const void *text, size_t len)
{
    put_action(w, name);
    put_byte(w, T_STRING);
    put_text(w, text, len);
}

void spoe_ack_end(struct spoe_writer *w)
{
    end(w);
}
