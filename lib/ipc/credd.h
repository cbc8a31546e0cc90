// SPDX-License-Identifier: Apache-2.0
// What space-hostd and space-credd say to each other: docs/protocol/credd.md.
//
// Transport: SOCK_SEQPACKET unix socket RUN/credd.sock, mode 0600, of the configuration's `user`;
// credd also checks the peer's uid. One struct credd_request a packet, one struct credd_reply an
// answer, in any order, with its tag. Longer texts come along as descriptors of memory files, in
// both directions. Host byte order, one machine. Secrets are in none of them: values come sealed.
#ifndef SPACE_IPC_CREDD_H
#define SPACE_IPC_CREDD_H

#include <stdint.h>

#define CREDD_VERSION 2u

#define CREDD_NAME_SIZE   65u
#define CREDD_LABEL_SIZE  129u /* KEY=VALUE */
#define CREDD_METHOD_SIZE 256u
#define CREDD_HOSTS_SIZE  4096u /* lines */
#define CREDD_TEXT_SIZE   512u  /* of a request, with its NUL */
#define CREDD_KEY_BYTES   32u   /* of a public key */
#define CREDD_VALUE_MAX   16384u
#define CREDD_PAYLOAD_MAX 65536u /* bytes of a descriptor that comes with a request */
#define CREDD_PACKED_SIZE 28416u /* of a record that is handed over: base64, with its NUL */
/* Of a sandbox's own credentials so many that were removed are remembered: the newest. */
#define CREDD_REMOVED_MAX 64u
/* How a sealed value begins; crypto_box_seal's bytes follow in base64, without a newline. */
#define CREDD_SEALED "sealed1:"

/* From the widest to the closest. */
enum credd_scope_kind {
    CREDD_PLATFORM = 1,
    CREDD_TENANT,   /* of `tenant` */
    CREDD_LABELLED, /* its sandboxes with this label of the administrator's */
    CREDD_SANDBOX,
};

struct credd_scope {
    uint32_t kind;
    uint32_t tenant;              /* uid; 0 for the platform, too */
    uint64_t sandbox;             /* id; CREDD_SANDBOX */
    char label[CREDD_LABEL_SIZE]; /* CREDD_LABELLED: admin.KEY=VALUE */
    char unused[7];
};

/* A credential, without its value. */
struct credd_record {
    uint64_t id; /* 48 bits, random, never reused */
    struct credd_scope scope;
    uint32_t maker; /* uid */
    uint32_t has_value;
    int64_t created;                  /* ns of CLOCK_REALTIME */
    int64_t expires;                  /* the same; 0: never */
    uint32_t rate_uses, rate_seconds; /* so many uses in so long; 0: no limit */
    char name[CREDD_NAME_SIZE];
    char method[CREDD_METHOD_SIZE]; /* normalised: docs/credentials.md */
    char hosts[CREDD_HOSTS_SIZE];   /* a HOST[:PORT] each line */
    char unused[7];
    uint64_t number;  /* of two versions of a record the one with the higher number counts */
    uint32_t removed; /* of a sandbox's: it was removed, and this is what is remembered of it */
    uint32_t unused_too;
};

enum credd_op {
    /* First on a connection; EPROTO for another version. The answer brings all records, one after
     * the other, removed ones too, and the public key that values are sealed to. With `field` 1 it
     * is space-hostd: sandboxes that were told before are forgotten. */
    CREDD_HELLO = 1,
    /* A new credential `name` in `scope`, of `uid`. Brings its record. EEXIST, EMFILE. */
    CREDD_MAKE,
    /* One field of `credential`; the payload is its text. Brings the record. EINVAL with a
     * sentence; EPERM when the value would go to another place than it was given for. */
    CREDD_SET,
    /* The payload is a sealed value; empty revokes it. Brings the record. EINVAL, EBADMSG. */
    CREDD_VALUE,
    /* Missing is success. One of a sandbox's stays known as removed. */
    CREDD_REMOVE,
    /* Brings lines on its last uses. */
    CREDD_LOG,
    /* There is a `sandbox` of `uid`, with these labels (payload): it may use credentials from now
     * on. Again whenever its labels change. */
    CREDD_KNOW,
    /* It may not any more. Missing is success. `field`: what becomes of its own credentials. */
    CREDD_FORGET,
    /* `uid` asks for a login for `sandbox`: the payload is ORIGIN and the public key that the
     * answer is sealed to. Brings a line. ENOENT, EACCES, EKEYEXPIRED, EAGAIN with a sentence. */
    CREDD_LOGIN,
    /* space-netd denied connections of `sandbox`, which belongs to `uid`: `count` of them, the
     * payload tells of the last. */
    CREDD_DENIED,
    /* Where the audit log ends: the answer's `audit`. */
    CREDD_AUDIT,
    /* Brings the certificates (PEM) that guests of `uid` are to trust; nothing when there is no
     * credential that one of them could use. */
    CREDD_TRUST,
    /* `credential`, a sandbox's own, removed or not, for another node: brings the record, and behind
     * it the same with its value, packed: text that nobody can read who has another master key.
     * ESTALE. */
    CREDD_PACK,
    /* The payload is a packed record of `sandbox`: it is kept if it is newer than what is here.
     * Brings the record that counts now. ENOKEY: it was packed under another master key; EBADMSG,
     * EINVAL: it is none, or not that sandbox's; EMFILE. */
    CREDD_TAKE,
};

/* Of CREDD_FORGET. */
enum credd_forget {
    CREDD_KEEP,  /* its credentials stay */
    CREDD_MOVED, /* they are another node's now, as it is: nothing of them stays here */
    CREDD_GONE,  /* they are removed, as it was */
};

/* Of CREDD_SET. */
enum credd_field { CREDD_FIELD_HOSTS = 1, CREDD_FIELD_METHOD, CREDD_FIELD_EXPIRES, CREDD_FIELD_RATE };

struct credd_request {
    uint32_t version; /* CREDD_VERSION */
    uint32_t op;      /* enum credd_op */
    uint64_t tag;
    uint64_t credential, sandbox;
    uint32_t uid; /* who asks for it, or whose it is */
    uint32_t field;
    uint64_t count;
    struct credd_scope scope;
    char name[CREDD_NAME_SIZE];
    char text[CREDD_TEXT_SIZE]; /* the payload, unless a descriptor comes along */
    char unused[7];
};

enum credd_event {
    CREDD_REPLY = 100,
};

struct credd_reply {
    uint32_t version;
    uint32_t event; /* enum credd_event */
    uint64_t tag;
    uint64_t sandbox;
    int32_t error;                /* 0 or a negative errno; then there is a sentence */
    uint32_t count;               /* CREDD_HELLO: of records */
    uint8_t key[CREDD_KEY_BYTES]; /* CREDD_HELLO */
    struct {
        uint64_t lines;
        uint8_t hash[32];
    } audit; /* CREDD_AUDIT */
    char sentence[480];
};

#endif
