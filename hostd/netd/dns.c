// SPDX-License-Identifier: Apache-2.0
// DNS messages: see dns.h.
#include "hostd/netd/dns.h"

#include <string.h>

#define HEADER 12
#define RECORD 16 /* of an answer: pointer, type, class, TTL, length, address */

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static char lower(uint8_t c)
{
    return (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
}

/* Labels from `p`, without pointers, which a question has no use for. Bytes taken, or 0. */
static size_t read_name(const uint8_t *p, size_t len, struct dns_question *out)
{
    size_t at = 0, n = 0;
    bool good = true;
    while (at < len && p[at]) {
        size_t label = p[at++];
        if (label > 63 || label > len - at || n + label + 1 > POLICY_NAME_MAX + 1)
            return 0;
        for (size_t i = 0; i < label; i++) {
            good = good && p[at + i] != '.' && p[at + i] != 0;
            out->name[n++] = lower(p[at + i]);
        }
        out->name[n++] = '.';
        at += label;
    }
    if (at >= len || at + 1 > sizeof out->wire)
        return 0;
    at++;
    memcpy(out->wire, p, at);
    out->wire_len = at;
    if (n)
        n--;
    out->name[n] = 0;
    if (!good || !policy_name_valid(out->name, n))
        out->name[0] = 0;
    return at;
}

int dns_read_question(const uint8_t *p, size_t len, struct dns_question *out)
{
    memset(out, 0, sizeof *out);
    if (len < HEADER || (p[2] & 0x80))
        return -1;
    out->id = get16(p);
    out->flags = get16(p + 2);
    if ((out->flags & 0x7800) != 0)
        return DNS_NOTIMP;
    if (get16(p + 4) != 1)
        return DNS_FORMERR;
    size_t n = read_name(p + HEADER, len - HEADER, out);
    if (!n || len - HEADER - n < 4)
        return DNS_FORMERR;
    out->type = get16(p + HEADER + n);
    out->dns_class = get16(p + HEADER + n + 2);
    return DNS_OK;
}

static uint8_t *put_record(uint8_t *p, const struct dns_answer *a)
{
    put16(p, 0xc000 | HEADER); /* the question's name */
    put16(p + 2, DNS_A);
    put16(p + 4, 1);
    put16(p + 6, a->ttl >> 16);
    put16(p + 8, a->ttl & 0xffff);
    put16(p + 10, 4);
    put16(p + 12, a->address >> 16);
    put16(p + 14, a->address & 0xffff);
    return p + RECORD;
}

size_t dns_write_answer(const struct dns_question *q, enum dns_code code, const struct dns_answer *answers, size_t count,
                        uint8_t out[DNS_MESSAGE_MAX])
{
    uint8_t *p = out + HEADER;
    if (count > DNS_ANSWERS_MAX)
        count = DNS_ANSWERS_MAX;
    memset(out, 0, HEADER);
    put16(out, q->id);
    put16(out + 2, 0x8080u | (q->flags & 0x7900u) | (uint32_t)code);
    if (q->wire_len) {
        put16(out + 4, 1);
        memcpy(p, q->wire, q->wire_len);
        put16(p + q->wire_len, q->type);
        put16(p + q->wire_len + 2, q->dns_class);
        p += q->wire_len + 4;
    }
    size_t written = 0;
    for (; written < count && q->wire_len && p + RECORD <= out + DNS_MESSAGE_MAX; written++)
        p = put_record(p, &answers[written]);
    put16(out + 6, (uint32_t)written);
    return (size_t)(p - out);
}
