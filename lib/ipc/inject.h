// SPDX-License-Identifier: Apache-2.0
// How space-netd, space-credd and HAProxy work together: docs/injection.md.
//
// Below RUN/inject, a directory of root's that is HAProxy's root:
//
//   ask     space-netd asks space-credd whether a name has a credential: SOCK_SEQPACKET, one
//           struct inject_ask a packet, one struct inject_answer each, in any order, with its tag
//   in-N    HAProxy takes connections of tenant slot N: a PROXY v2 header first, which carries the
//           name that space-netd verified (PP2_TYPE_AUTHORITY) and whose connection it is
//           (PP2_TYPE_UNIQUE_ID, INJECT_ID_FORMAT)
//   out     space-netd takes HAProxy's connections to servers: a PROXY v2 header with that unique
//           id, then what is for the server
//   spoe    space-credd is HAProxy's agent (SPOE 2.0) and gives it the secret for each request
//   admin   HAProxy's runtime API, through which space-credd loads certificates
#ifndef SPACE_IPC_INJECT_H
#define SPACE_IPC_INJECT_H

#include <stdint.h>

#define INJECT_VERSION   1u
#define INJECT_NAME_SIZE 256u
/* Tenants whose connections can be decrypted at the same time; a slot has one tenant's
 * certificates.
 */
#define INJECT_SLOTS 64u

#define INJECT_DIR   "inject"
#define INJECT_ASK   "ask"
#define INJECT_OUT   "out"
#define INJECT_SPOE  "spoe"
#define INJECT_LOG   "log"
#define INJECT_ADMIN "admin"
#define INJECT_IN    "in-%u"
/* Files of HAProxy's, beside the sockets. */
#define INJECT_LIST "list-%u" /* empty: certificates of a slot exist in memory only */

/* Whose connection it is: the sandbox's id and a random number, in hex. */
#define INJECT_ID_FORMAT "%012llx.%016llx"
#define INJECT_ID_LEN    29u

struct inject_ask {
    uint32_t version; /* INJECT_VERSION */
    uint32_t port;
    uint64_t tag;
    uint64_t sandbox;            /* id */
    char name[INJECT_NAME_SIZE]; /* lower case; empty: the connection `tag` has ended */
};

enum inject_verdict {
    INJECT_PASS = 1, /* no credential: it goes on as it is, never decrypted */
    INJECT_SLOT,     /* through HAProxy, by slot `slot` */
    INJECT_REFUSE,   /* it has one, but cannot be served: `sentence` */
    INJECT_WAIT,     /* not known yet, space-hostd has to tell first: ask again */
};

struct inject_answer {
    uint32_t version;
    uint32_t verdict; /* enum inject_verdict */
    uint64_t tag;
    uint32_t slot;
    char sentence[228];
};

#endif
