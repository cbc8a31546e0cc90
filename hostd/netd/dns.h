// SPDX-License-Identifier: Apache-2.0
// DNS messages (RFC 1035) between a guest and netd. Pure.
//
// A guest's question is read; what it is answered is made here from nothing but the question and a
// list of addresses. No byte that a guest chose goes any further than back to it.
#ifndef SPACE_NETD_DNS_H
#define SPACE_NETD_DNS_H

#include "hostd/netd/policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DNS_MESSAGE_MAX 512 /* of an answer: a plain UDP one, never cut */
#define DNS_ANSWERS_MAX 16

enum dns_type { DNS_A = 1, DNS_PTR = 12, DNS_AAAA = 28 };
enum dns_code { DNS_OK = 0, DNS_FORMERR = 1, DNS_SERVFAIL = 2, DNS_NXDOMAIN = 3, DNS_NOTIMP = 4, DNS_REFUSED = 5 };

struct dns_question {
    uint16_t id, type, dns_class, flags;
    char name[POLICY_NAME_MAX + 1];    /* lower case; only names that policy_name_valid takes */
    uint8_t wire[POLICY_NAME_MAX + 2]; /* as it came */
    size_t wire_len;
};

struct dns_answer {
    uint32_t address, ttl;
};

/* DNS_OK; DNS_FORMERR, DNS_NOTIMP: can be answered with that; -1: is no question, not to be
 * answered at all. A name that is none of ours gives DNS_OK and an empty `name`. */
int dns_read_question(const uint8_t *p, size_t len, struct dns_question *out);

/* Returns the size of the answer. */
size_t dns_write_answer(const struct dns_question *q, enum dns_code code, const struct dns_answer *answers, size_t count,
                        uint8_t out[DNS_MESSAGE_MAX]);

#endif
