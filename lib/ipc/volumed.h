// SPDX-License-Identifier: Apache-2.0
// What space-hostd may ask of space-volumed, which keeps files of heads in an object store: chunks, packs, manifests (docs/protocol/store.md).
//
// Transport: SOCK_SEQPACKET unix socket RUN/volumed.sock, mode 0600, owner `user` of the configuration; the peer's uid (that user or root) is
// checked by SO_PEERCRED. One struct volumed_request a packet, with at most two descriptors by SCM_RIGHTS; one struct volumed_reply a packet, in any order,
// matched by tag. Host byte order, one machine. Fields that an operation does not use must be 0, and descriptors that it does not
// name are refused: EINVAL. A connection's requests are cancelled when it closes. docs/protocol/volumed.md says what follows what.
//
// An **artifact** is one file of a head (disk.raw, ram.raw, vm.state, meta) in the store: immutable, named by its tenant and a random id that hostd
// makes, whole or not there at all. A **base** is an artifact that a file was derived from and that whoever downloads has already (the
// template's): an artifact holds only the chunks in which it differs from its base. A **parent** is an earlier artifact of the same tenant on the
// same base: what did not change since is taken over from it without being read. No artifact needs its parent afterwards.
#ifndef SPACE_IPC_VOLUMED_H
#define SPACE_IPC_VOLUMED_H

#include <stdint.h>

#define VOLUMED_VERSION    1u
#define VOLUMED_CHUNK      65536u
#define VOLUMED_TENANT_MAX 64u

struct volumed_ref {
    char tenant[VOLUMED_TENANT_MAX + 4]; /* a name (str_name_valid), NULs behind it; templates have a tenant of their own */
    uint8_t id[16];                      /* random, not all zeros; all zeros and no tenant: none */
};

enum volumed_op {
    /* Answers `hello`. The first request of a connection; another version gets EPROTO. */
    VOLUMED_HELLO = 1,

    /* Stores a file as the artifact `object`. Descriptors: the file, readable; and, unless the whole file is meant, one of struct volumed_range by offset,
     * not overlapping: where it differs from `parent`, else from `base`, else from a file of holes. `size` is the file's. With a parent, `base` is the
     * parent's. Done means: durable, and its manifest was read back and verified. An artifact that is there is a success without a look at the file; an
     * upload that was interrupted goes on where it was when it is asked for again, what it had stored is not stored again. The first upload of a
     * tenant makes its key. The file must not change meanwhile. `upload` of the reply says what it took.
     * ENOENT no such parent; EINVAL the parent is of another size (it may have been smaller), chunking or base; EKEYREVOKED, ENOKEY; ESTALE
     * it stood still for so long that garbage collection went past it: ask again. */
    VOLUMED_UPLOAD,
    /* Writes the artifact `object` into a file, descriptor writable and readable. The file holds `base` (which must be the artifact's) or nothing: it is a
     * reflink of the base's file, or empty. Sets its size. Each chunk is verified before it is written. Not synced. A failed download may be
     * asked for again with the same file. With VOLUMED_HAVE chunks that the file has already are not fetched: it was begun before, or is a left-over.
     * `download` of the reply. ENOENT; EBADMSG what was damaged, by name; EKEYREVOKED; ENOSPC; EINVAL another base.
     * With VOLUMED_FILL others read and write the file meanwhile, each chunk once its bit is set in the second descriptor, the file `fill` (ipc/fill.h), which has
     * the size of the artifact: chunks whose bit is set are left alone, all others' are set as they arrive. Asked for again it goes on from those bits, once
     * an earlier one into the same file has ended. */
    VOLUMED_DOWNLOAD,
    /* Of the download `tag2` of this connection: fetch bytes [offset, offset + length), 1 MiB at most, before anything else, answer when they are in the file.
     * ESRCH when there is no such download (any more: then it is complete or has failed). */
    VOLUMED_FETCH,
    /* Ends the request `tag2` of this connection: that one answers ECANCELED, unless it was done. What an upload stored stays for a later try, until
     * garbage collection. ESRCH. */
    VOLUMED_CANCEL,

    /* Is `object` whole: its manifest and its lists are sound and every pack that it needs is there. With VOLUMED_READ_ALL each chunk is read
     * and verified. `download` of the reply counts. Errors as of VOLUMED_DOWNLOAD. */
    VOLUMED_VERIFY,
    /* The artifact is gone when this is answered; what only it held goes with garbage collection. Missing is success. */
    VOLUMED_DELETE,
    /* A descriptor (memfd) with a line "ID SIZE STORED CREATED FILE BASE_TENANT BASE_ID" for each artifact of object.tenant; ids as 32 hex digits, FILE a number of enum
     * volumed_file, CREATED in Unix seconds, no base as "- -". Artifacts that cannot be read have "ID ? ? ? ? ? ?". */
    VOLUMED_LIST,

    /* Collects the garbage of object.tenant, of all tenants if that is empty. May run at any time on any node. `gc` of the reply. */
    VOLUMED_GC,
    /* Checks all that object.tenant has, or all tenants: every reference, with VOLUMED_READ_ALL every chunk. With VOLUMED_MEND indexes that cannot be read are removed: they
     * spare uploads some room, no more. A descriptor (memfd) with a line of text for
     * each thing that is wrong, and for each artifact that it affects, "tenant TENANT: artifact ID is ...". `fsck` of the reply. EBADMSG when there was any. */
    VOLUMED_FSCK,
    /* `stat` of object.tenant, of all tenants together if that is empty. */
    VOLUMED_STAT,

    /* The tenant's key. flags: 0, can it be used now (0, EKEYREVOKED, EAGAIN, ENOKEY; ENOENT it has none yet); VOLUMED_KEY_FRESH asks its service
     * that, whatever is cached (the answer has no id); VOLUMED_KEY_HOLD does, too, and keeps the key of a tenant with a service of its own cached for another five
     * minutes when it is given, and what is cached for the rest of its five when it is not, so that uploads go on until VOLUMED_KEY_FORGET; VOLUMED_KEY_ROTATE wraps it by the wrapping key that
     * the tenant's file names now; VOLUMED_KEY_REVOKE makes what the tenant stored unreadable for good; VOLUMED_KEY_CLOSE does, once
     * space-hostd, which is told by VOLUMED_KEY_HOLD, has encrypted what it has of a tenant with a service of its own (VOLUMED_KEY_FORGET), or after five minutes. `key` of the reply, also
     * when it fails with EKEYREVOKED. */
    VOLUMED_KEY,

    /* Mends the artifact `object`, all of which is read: what is damaged or missing is stored anew in other packs, and the manifest refers to those. What
     * is missing comes from the tenant's other chunks, or from the file that the artifact was made of, when that is at hand: descriptors, `size` and `base` as of VOLUMED_UPLOAD.
     * Packs that are damaged are condemned, so that no upload counts on them. `upload` of the reply; all zeros when nothing was wrong. EBADMSG what cannot be had, and the artifact is as it
     * was; EINVAL the file is not what the artifact holds; ENOENT there is no such artifact, and no file. */
    VOLUMED_REPAIR,
};

enum volumed_flags {
    VOLUMED_HAVE = 1,
    VOLUMED_READ_ALL = 2,
    VOLUMED_KEY_ROTATE = 4,
    VOLUMED_KEY_REVOKE = 8,
    VOLUMED_KEY_FRESH = 16,
    VOLUMED_MEND = 32,
    VOLUMED_FILL = 64,
    VOLUMED_KEY_HOLD = 128,
    VOLUMED_KEY_FORGET = 256,
    VOLUMED_KEY_CLOSE = 512
};

/* What an artifact was; kept in its manifest, of no consequence. */
enum volumed_file { VOLUMED_DISK = 1, VOLUMED_RAM = 2, VOLUMED_STATE = 3, VOLUMED_META = 4 };

/* As struct noded_range: the answer of NODED_FILE_COMPARE may be handed on. Kinds as there: 1 data, 2 nothing but zeros. */
struct volumed_range {
    uint64_t offset, length;
    uint64_t kind;
};

struct volumed_request {
    uint32_t version; /* VOLUMED_VERSION */
    uint32_t op;      /* enum volumed_op */
    uint64_t tag;     /* chosen by hostd, echoed; not 0 */
    uint64_t tag2;
    uint32_t flags, file;
    uint64_t size, offset, length;
    struct volumed_ref object, base, parent;
};

enum volumed_event {
    VOLUMED_REPLY = 0,    /* answers the request with this tag */
    VOLUMED_PROGRESS = 1, /* of the request with this tag: `progress`; a few a second at most */
};

struct volumed_reply {
    uint32_t version, event; /* enum volumed_event */
    uint64_t tag;
    int32_t error; /* 0 or a negative errno */
    uint32_t reserved;
    union {
        struct {
            char store[128]; /* as "directory /x" */
        } hello;
        struct {
            uint64_t done, total; /* bytes of the file (upload: of its ranges; download: of its chunks), or objects */
        } progress;
        struct {
            uint64_t read_bytes;      /* of the file */
            uint64_t zero_bytes;      /* chunks of zeros, which take no room */
            uint64_t reused_bytes;    /* of chunks that the tenant had already */
            uint64_t new_bytes;       /* of chunks that were new, before */
            uint64_t stored_bytes;    /* and after compression and encryption, with all lists and the manifest */
            uint64_t inherited_bytes; /* of chunks taken over from the parent unread */
            uint64_t msec;
        } upload;
        struct {
            uint64_t chunks;        /* that the artifact lists, zeros included */
            uint64_t fetched_bytes; /* from the store */
            uint64_t written_bytes, zero_bytes, had_bytes;
            uint64_t msec;
        } download;
        struct {
            uint64_t artifacts, packs, stored_bytes; /* that are there and used */
            uint64_t condemned_packs, deleted_packs, deleted_bytes, deleted_others;
            uint64_t waiting;  /* uploads that were older than what was condemned: the rest is for a later run */
            uint64_t replaced; /* condemnations that could not be read, by whatever met them since the last answer */
        } gc;
        struct {
            uint64_t artifacts, packs, chunks, read_bytes, wrong, affected;
        } fsck;
        struct {
            uint64_t artifacts, file_bytes; /* sizes of the files */
            uint64_t chunk_bytes;           /* bytes of chunks that artifacts list */
            uint64_t unique_bytes;          /* of different ones */
            uint64_t packs, stored_bytes;
        } stat;
        struct {
            uint32_t policy;     /* of running guests when it is revoked: 0 pause, 1 continue, 2 kill */
            uint8_t id[16];      /* of the data key */
            char wrapped_by[80]; /* as "file k1", "pkcs11 kek1": service and wrapping key of what is stored now */
            uint32_t own;        /* 1: the tenant has a key service of its own */
            uint32_t unpacked;   /* what could not be encrypted in time, when it is revoked: 0 keep, 1 destroy */
        } key;
    };
    char sentence[256]; /* when error != 0: what was tried, on what, why, what to do */
};

#endif
