// SPDX-License-Identifier: Apache-2.0
// What space-hostd and space-netd say to each other: docs/protocol/netd.md.
//
// Transport: SOCK_SEQPACKET unix socket RUN/netd.sock, mode 0600, of the configuration's `user`;
// netd also checks the peer's uid. One struct netd_message a packet, followed by `len` bytes of
// text. Host byte order, one machine. Requests are answered in order, with their tag; events come
// in between.
#ifndef SPACE_IPC_NETD_H
#define SPACE_IPC_NETD_H

#include <stdint.h>

#define NETD_VERSION 3u

/* Bytes of text in a message at most. */
#define NETD_TEXT_MAX 65536u

enum netd_op {
    /* First on a connection; EPROTO for another version. Answered with a line for each guest that
     * netd has: its key, 12 hex digits. */
    NETD_HELLO = 1,
    /* A guest's sockets, which come along as descriptors: TCP, then UDP (NODED_NET_SOCKET). It is
     * allowed nothing until NETD_POLICY. EEXIST. */
    NETD_ADD,
    /* Its connections are reset and its sockets closed. Missing is success. */
    NETD_REMOVE,
    /* The text is, from now on, in its first `head` bytes what the guest belongs to (lines as in
     * hostd/netd/levels.h), in the next `tenant` what its tenant allows all its sandboxes (may be
     * nothing), and behind that its own policy; `id` the sandbox that it is, for logs.
     * Connections that it does not allow are reset before the answer. EINVAL with a sentence: it
     * does not parse, and nothing is allowed then. ENOENT. */
    NETD_POLICY,
};

enum netd_event {
    NETD_REPLY = 100,
    /* The text is a line on a decision about the guest `key`. There are fewer of them than
     * decisions when a guest is quick: `counts` are exact. */
    NETD_EVENT_DECISION,
    /* Of a guest whose counts changed, at most once a second. */
    NETD_EVENT_COUNTS,
};

/* Since netd was given the guest. */
struct netd_counts {
    uint64_t sent_bytes, received_bytes; /* by the guest */
    uint64_t allowed, denied;            /* connections */
    uint64_t names, names_denied;        /* questions about names */
    uint64_t open;                       /* connections now */
};

struct netd_message {
    uint32_t version; /* NETD_VERSION */
    uint32_t op;      /* enum netd_op or netd_event */
    uint64_t tag;
    uint64_t key; /* of the guest: the object of its virtual machine */
    uint64_t id;
    int32_t error; /* of a reply: 0 or a negative errno; the text is the sentence */
    uint32_t len;
    uint32_t denied;       /* NETD_EVENT_DECISION: 1 or 0 */
    uint32_t head, tenant; /* NETD_POLICY */
    uint32_t unused;
    struct netd_counts counts; /* NETD_EVENT_COUNTS, NETD_EVENT_DECISION */
};

#endif
