// SPDX-License-Identifier: Apache-2.0
// The frames of HAProxy's stream processing offload protocol (doc/SPOE.txt of HAProxy 2.6, version 2.0), as its agent
// reads and writes them. Pure.
#ifndef SPACE_CREDD_SPOE_H
#define SPACE_CREDD_SPOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPOE_FRAME_MIN 256u
#define SPOE_FRAME_MAX 32764u /* bytes without the length before them: HAProxy's buffer, less 4 */
#define SPOE_LENGTH    4u     /* what comes before each frame: its length, big-endian */

enum spoe_type {
    SPOE_HAPROXY_HELLO = 1,
    SPOE_HAPROXY_DISCONNECT = 2,
    SPOE_NOTIFY = 3,
    SPOE_AGENT_HELLO = 101,
    SPOE_AGENT_DISCONNECT = 102,
    SPOE_ACK = 103,
};

/* Borrowed from the frame; no NUL. */
struct spoe_text {
    const char *s;
    size_t len;
};

struct spoe_frame {
    enum spoe_type type;
    uint64_t stream, frame;
    /* SPOE_HAPROXY_HELLO */
    bool version_known; /* it speaks 2.x */
    bool healthcheck;
    uint64_t frame_max;
    /* SPOE_NOTIFY: arguments of the message `use`. Those that are missing are empty. */
    struct spoe_text id, name, method;
    uint64_t port;
};

/* One frame of `len` bytes, without its length. 0; -EBADMSG: it is none. */
int spoe_read(const uint8_t *data, size_t len, struct spoe_frame *out);

/* Writes frames, with their length; `bad` stays once something had no room. */
struct spoe_writer {
    uint8_t *buf;
    size_t size, len;
    bool bad;
};

void spoe_write_hello(struct spoe_writer *w, uint64_t frame_max);
void spoe_write_disconnect(struct spoe_writer *w, uint32_t status, const char *message);

/* An answer: begin, variables of the transaction, end. */
void spoe_ack_begin(struct spoe_writer *w, uint64_t stream, uint64_t frame);
void spoe_ack_number(struct spoe_writer *w, const char *name, uint32_t value);
void spoe_ack_text(struct spoe_writer *w, const char *name, const void *text, size_t len);
void spoe_ack_end(struct spoe_writer *w);

#endif
