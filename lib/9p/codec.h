// SPDX-License-Identifier: Apache-2.0
// The 9P2000.L wire format: structs, encoder and decoder, all from messages.def.
#ifndef SPACE_9P_CODEC_H
#define SPACE_9P_CODEC_H

#include <stddef.h>
#include <stdint.h>

#define P9_VERSION   "9P2000.L"
#define P9_NOTAG     0xffffu
#define P9_NOFID     0xffffffffu
#define P9_NONUNAME  0xffffffffu
#define P9_WALK_MAX  16u        /* names in one Twalk (9P: MAXWELEM) */
#define P9_NAME_MAX  255u       /* longest file name; the decoder allows longer STR (targets, paths) */
#define P9_MSIZE_MIN 4096u      /* smallest msize a session accepts (v9fs needs it) */
#define P9_MSIZE_MAX (1u << 20) /* largest msize a session offers */
#define P9_HDR       7u         /* size[4] type[1] tag[2] */
#define P9_IOHDR     24u        /* room that msize must leave around the data of Twrite/Rread/Rreaddir */

/* qid.type */
enum { P9_QTDIR = 0x80, P9_QTSYMLINK = 0x02, P9_QTFILE = 0x00 };

/* Tgetattr mask / Rgetattr valid */
#define P9_GETATTR_BASIC 0x000007ffull
#define P9_GETATTR_ALL   0x00003fffull

/* Tsetattr valid */
enum {
    P9_SETATTR_MODE = 0x1,
    P9_SETATTR_UID = 0x2,
    P9_SETATTR_GID = 0x4,
    P9_SETATTR_SIZE = 0x8,
    P9_SETATTR_ATIME = 0x10,
    P9_SETATTR_MTIME = 0x20,
    P9_SETATTR_CTIME = 0x40,
    P9_SETATTR_ATIME_SET = 0x80,
    P9_SETATTR_MTIME_SET = 0x100,
};

/* Tlopen/Tlcreate flags: Linux's octal numbers, independent of the host's headers */
enum {
    P9_RDONLY = 0,
    P9_WRONLY = 1,
    P9_RDWR = 2,
    P9_ACCMODE = 3,
    P9_CREATE = 0100,
    P9_EXCL = 0200,
    P9_NOCTTY = 0400,
    P9_TRUNC = 01000,
    P9_APPEND = 02000,
    P9_NONBLOCK = 04000,
    P9_DSYNC = 010000,
    P9_DIRECT = 040000,
    P9_LARGEFILE = 0100000,
    P9_DIRECTORY = 0200000,
    P9_NOFOLLOW = 0400000,
    P9_SYNC = 04000000,
};

enum { P9_UNLINKAT_REMOVEDIR = 0x200 };                           /* Tunlinkat flags */
enum { P9_LOCK_RDLCK = 0, P9_LOCK_WRLCK = 1, P9_LOCK_UNLCK = 2 }; /* Tlock type */
enum { P9_LOCK_SUCCESS = 0, P9_LOCK_BLOCKED = 1, P9_LOCK_ERROR = 2, P9_LOCK_GRACE = 3 };
enum { P9_LOCK_FLAGS_BLOCK = 1, P9_LOCK_FLAGS_RECLAIM = 2 };

struct p9_str {
    const char *s; /* not NUL-ended; borrowed from the message's buffer */
    uint16_t len;
};

struct p9_qid {
    uint8_t type;
    uint32_t version;
    uint64_t path;
};

struct p9_data {
    const void *p; /* borrowed */
    uint32_t len;
};

struct p9_names {
    uint16_t n;
    struct p9_str v[P9_WALK_MAX];
};

struct p9_qids {
    uint16_t n;
    struct p9_qid v[P9_WALK_MAX];
};

/* enum p9_type: P9_Tversion = 100, ... */
enum p9_type {
#define P9_MSG(name, type, fields) P9_##name = type,
#include "9p/messages.def"
#undef P9_MSG
    P9_TYPE_MAX = 128
};

#define U8(M, f)    uint8_t f;
#define U16(M, f)   uint16_t f;
#define U32(M, f)   uint32_t f;
#define U64(M, f)   uint64_t f;
#define STR(M, f)   struct p9_str f;
#define QID(M, f)   struct p9_qid f;
#define DATA(M, f)  struct p9_data f;
#define NAMES(M, f) struct p9_names f;
#define QIDS(M, f)  struct p9_qids f;
#define P9_MSG(name, type, fields)                                                                                                                   \
    struct p9_##name {                                                                                                                               \
        fields                                                                                                                                       \
    };
#include "9p/messages.def"
#undef P9_MSG
#undef U8
#undef U16
#undef U32
#undef U64
#undef STR
#undef QID
#undef DATA
#undef NAMES
#undef QIDS

/* One message. `type` chooses the member: msg.Twalk.fid when type == P9_Twalk. */
struct p9_msg {
    uint8_t type;
    uint16_t tag;
    union {
#define P9_MSG(name, type, fields) struct p9_##name name;
#include "9p/messages.def"
#undef P9_MSG
    };
};

/* "Twalk", or NULL for a number that is no message. */
const char *p9_type_name(uint8_t type);

/* Bytes that the message takes on the wire (header included); 0 when it cannot be encoded. */
size_t p9_encoded_size(const struct p9_msg *m);

/*
 * Writes the message. Returns its size, -EMSGSIZE when `size` is too small, -EINVAL for an unknown type
 * or a list longer than P9_WALK_MAX.
 */
long p9_encode(const struct p9_msg *m, void *buf, size_t size);

/*
 * Reads exactly one whole message of `len` bytes (its own size field included, which must equal `len`).
 * Strings and data in `out` point into `buf`. Returns 0 or -EBADMSG: unknown type, short, trailing bytes,
 * a NUL in a string, or a list longer than P9_WALK_MAX. A count near UINT32_MAX is refused, never wraps.
 */
int p9_decode(const void *buf, size_t len, struct p9_msg *out);

/* Size field of a message whose first 4 bytes are at `buf`. */
uint32_t p9_peek_size(const void *buf);

/* True when the string equals the NUL-ended `s`. */
int p9_str_eq(struct p9_str a, const char *s);

/* Borrowed p9_str of a NUL-ended string of at most 65535 bytes (longer ones are cut). */
struct p9_str p9_str_of(const char *s);

/* One directory entry of an Rreaddir payload. */
struct p9_dirent {
    struct p9_qid qid;
    uint64_t offset; /* where the next Treaddir continues */
    uint8_t type;    /* DT_* */
    struct p9_str name;
};

/* Appends one whole entry at *pos of buf; returns 0, or -ENOSPC (nothing written) when it does not fit. */
int p9_dirent_pack(void *buf, size_t size, size_t *pos, const struct p9_dirent *d);

/* Takes one entry at *pos. Returns 1 and moves *pos, 0 at the end, -EBADMSG for a cut or malformed entry. */
int p9_dirent_unpack(const void *buf, size_t size, size_t *pos, struct p9_dirent *out);

#endif
