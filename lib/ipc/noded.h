// SPDX-License-Identifier: Apache-2.0
// The closed list of operations that space-hostd may ask of space-noded, the only root process.
//
// Transport: SOCK_SEQPACKET unix socket RUN/noded.sock, mode 0600, owner `user` of the configuration; noded also checks the
// peer's uid (that user or root) with SO_PEERCRED. One struct noded_request a packet, one struct noded_reply a packet, in any
// order, matched by tag. A descriptor comes with SCM_RIGHTS on the reply where the operation says so. noded validates every
// field of every request as if it came from an attacker, and writes one audit line for each. Host byte order, one machine.
// Fields that an operation does not use must be 0 (kind may be NODED_SANDBOX where only a sandbox is meant): EINVAL.
//
// Operations on one object run in the order of the requests, others at the same time. Those that need libvirt fail with ENOTCONN while
// it is away (NODED_EVENT_RESYNC says that it is back), and with ETIMEDOUT when it or a QEMU hangs: after 10 s (stats), 30 s, or 90 s
// (start, kill). NODED_VM_KILL goes ahead of an operation that hangs on its QEMU. A start that succeeds too late is undone.
#ifndef SPACE_IPC_NODED_H
#define SPACE_IPC_NODED_H

#include <stdint.h>

#define NODED_VERSION 1u

/* Where an object lives: POOL/templates/ID, POOL/sandboxes/ID, POOL/snapshots/ID; ID is 12 hex digits (ids are 48 bit, not 0). */
enum noded_kind { NODED_TEMPLATE = 1, NODED_SANDBOX = 2, NODED_SNAPSHOT = 3 };

/* Files in an object. The names on disk: disk.raw ram.raw vm.state kernel initrd meta, and fill and fill.ram, of sandboxes only. What a head's files hold: docs/protocol/head.md. */
enum noded_file {
    NODED_DISK = 1,
    NODED_RAM = 2,
    NODED_STATE = 3,
    NODED_KERNEL = 4,
    NODED_INITRD = 5,
    NODED_META = 6,
    NODED_FILL = 7,
    NODED_FILL_RAM = 8 /* ipc/fill.h; neither of NODED_FILE_OPEN */
};

enum noded_op {
    /* Answers host facts in `node`. Must be the first request of a connection (and may come again); another version gets EPROTO. */
    NODED_HELLO = 1,

    /* A new empty subvolume (kind, id). EEXIST. Owned by root, mode 0711 so that a QEMU can traverse. */
    NODED_OBJECT_CREATE,
    /* Snapshot of (kind2, id2) as (kind, id), read-only when flags has NODED_READ_ONLY; of a sandbox, without memory that could be loaded
     * (vm.state), since it is not of the same instant. ENOENT, EEXIST, ENOSPC. */
    NODED_OBJECT_SNAPSHOT,
    /* Makes (kind, id) read-only for good. fsyncs its files first. */
    NODED_OBJECT_SEAL,
    /* Deletes the subvolume; returns at once, btrfs cleans later. Missing is success. EBUSY when a domain still uses it. */
    NODED_OBJECT_DELETE,
    /* A descriptor (memfd, sealed) with one line "KIND ID CREATED_UNIX_SECONDS" for each object in the pool; KIND is
     * template, sandbox or snapshot. */
    NODED_OBJECT_LIST,

    /* A descriptor of file (kind, id, file): read-only, or with NODED_WRITABLE read-write and created if missing (only of what is
     * not sealed, else EROFS, and of sandboxes whose domain does not run). */
    NODED_FILE_OPEN,
    /* Copies the instance's guest kernel and initrd (config `guest`) into template (id) as kernel and initrd. */
    NODED_TEMPLATE_KERNEL,
    /* Grows sandbox (id)'s disk.raw to `size` bytes; tells a running QEMU. EINVAL when it would shrink. */
    NODED_DISK_GROW,

    /* Starts a transient domain PREFIX-ID for sandbox (id): `memory` bytes, `vcpus`, accel `accel`, uid `uid_base + slot`.
     * Its QEMU listens on RUN/vm/ID/space.0 and space.1. Returns when QEMU runs. EEXIST when it already does. With
     * NODED_PROBE no disk is attached and the kernel comes from config `guest` (id is then any unused id).
     * Its memory is a private mapping: of an empty ram.raw in the sandbox's own object, which boots a kernel; with NODED_INCOMING of
     * the ram.raw of the head (kind2, id2), its base, which is never written to and shared by all that map it. The QEMU then waits for
     * NODED_VM_LOAD; the sandbox's object must be a copy of that head, which is a template or a snapshot. With NODED_FILLING, too, that head's memory has not arrived: the
     * sandbox's own copy of ram.raw is mapped, and each access to it waits for its chunk until NODED_VM_FILLED (ENOTSUP when this host cannot: `arrives` of NODED_HELLO). EINVAL when `memory` or `vcpus` are not the head's, ENOEXEC (and
     * a sentence that names both) when this host cannot load it, EBADMSG when its checksums do not fit. */
    NODED_VM_START,
    /* Captures (id2), a sandbox whose domain exists, as the new object (kind, id), a template or a snapshot: a complete head (disk, memory
     * and device state of one instant), not yet durable: NODED_OBJECT_SEAL comes next where it is to last. The domain is paused
     * meanwhile if it ran, for a time in proportion to what it changed since its base. On failure nothing is left of (kind, id) and the
     * domain is as before. `capture` of the reply says what it took. The pause is not reported as an event. EEXIST, ENOSPC, ESRCH.
     * Asked again after its space-noded was killed, it makes the half-made object anew; EEXIST then says that it was whole. */
    NODED_VM_CAPTURE,
    /* Moves the waiting QEMU of sandbox (id) to the head (kind2, id2) and lets it run. The head's base must be that of the QEMU, or the head
     * itself. The head's disk is laid over the sandbox's, but for NODED_OWN_DISK, which says that the sandbox's disk is a copy of it.
     * With NODED_FILLING that disk is not what the head's guest had, which arrives later: each request of the QEMU to the disk waits for its chunks until
     * NODED_VM_FILLED (ipc/fill.h). Until then the sandbox's disk cannot be copied, captured, grown or booted from: EBUSY.
     * EBADMSG when a checksum does not fit, ENOEXEC as above, EBUSY when the QEMU does not wait (it was loaded before). After a failure the
     * QEMU is of no more use: NODED_VM_KILL. */
    NODED_VM_LOAD,
    /* Ends QEMU at once. Missing is success. Removes RUN/vm/ID. */
    NODED_VM_KILL,
    NODED_VM_PAUSE, /* ESRCH when there is no such domain, as for the next two */
    NODED_VM_RESUME,
    NODED_VM_STATS, /* fills `stats` */
    /* A descriptor (memfd, sealed) with one line "ID STATE SLOT" per domain of this instance; STATE is running, paused,
     * waiting (NODED_INCOMING, not loaded) or other (such as one whose load did not end: NODED_VM_KILL); SLOT is the uid slot. */
    NODED_VM_LIST,
    /* A descriptor connected to RUN/vm/ID/space.PORT (`port` 0 or 1). ECONNREFUSED when QEMU is gone. */
    NODED_CHANNEL_OPEN,

    NODED_POOL_STAT, /* fills `pool` */

    /* In what `file` of (kind, id) differs from that of (kind2, id2), or with both 0 from a file of holes, by where their bytes lie and not by what they are:
     * fills `extents`. With NODED_RANGES a descriptor (memfd, sealed) of struct noded_range comes along, by offset. Looks at bytes from `size` (a multiple of
     * 4096) on and stops after bounded work: `next` says where to go on, 0 that this was the end. Exact between read-only objects; of one that is being
     * written to, it is what the file system has given a place already (fsync gives it), and not of one instant. ENOENT. */
    NODED_FILE_COMPARE,

    /* A descriptor of a socket in the network namespace of (id)'s QEMU, to which all of its guest's traffic goes: `port` 0 a listening one, for TCP to
     * any address and port (SO_ORIGINAL_DST tells which), 1 a UDP one, for DNS to any address. EADDRINUSE while somebody has the one of before;
     * ESRCH, ENOENT when it does not run. */
    NODED_NET_SOCKET,

    /* For a sandbox (id) that was started or loaded with NODED_FILLING and is not filled yet, also when its QEMU has ended: a descriptor, by `port` (enum
     * noded_fill_port): files readable and writable, and a listening socket (SOCK_SEQPACKET) that its QEMU asks for chunks at, in place of the one before. EINVAL when
     * that does not arrive, or has arrived; ENOENT. */
    NODED_VM_FILL,
    /* All of its disk (`port` 0), or memory (1), has arrived: syncs the disk, and nothing of the QEMU's waits for it any more. Again is success. EINVAL when it was not
     * loaded so. */
    NODED_VM_FILLED,
};

enum noded_flags {
    NODED_READ_ONLY = 1,
    NODED_WRITABLE = 2,
    NODED_PROBE = 4,
    NODED_INCOMING = 8,
    NODED_OWN_DISK = 16,
    NODED_RANGES = 32,
    NODED_FILLING = 64
};
enum noded_fill_port { NODED_FILL_DISK, NODED_FILL_DISK_BITS, NODED_FILL_MEMORY, NODED_FILL_MEMORY_BITS, NODED_FILL_SOCKET };
enum noded_accel { NODED_TCG = 1, NODED_KVM = 2 };

/* Bytes in which a file differs from another. */
enum noded_range_kind { NODED_RANGE_DATA = 1, NODED_RANGE_ZEROS = 2 /* it has nothing there */ };
struct noded_range {
    uint64_t offset, length; /* multiples of 4096, but for the end of the file */
    uint64_t kind;           /* enum noded_range_kind */
};

struct noded_request {
    uint32_t version; /* NODED_VERSION */
    uint32_t op;      /* enum noded_op */
    uint64_t tag;     /* chosen by hostd, echoed */
    uint32_t kind, kind2;
    uint64_t id, id2;
    uint32_t file, flags;
    uint64_t size;   /* NODED_DISK_GROW, NODED_FILE_COMPARE: bytes, multiple of 4096 */
    uint64_t memory; /* NODED_VM_START: bytes, multiple of 1 MiB, 32M to 1T */
    uint32_t vcpus;  /* 1 to 64 */
    uint32_t accel;  /* enum noded_accel */
    uint32_t slot;   /* below uid_count; EBUSY when another running domain has it */
    uint32_t port;
};

enum noded_event {
    NODED_REPLY = 0,       /* answers the request with this tag */
    NODED_EVENT_VM = 1,    /* unasked: the domain of sandbox `id` changed; `vm_event` says to what. GONE and CRASHED come after the
                               uid and the disk were taken back: the slot is free then */
    NODED_EVENT_RESYNC = 2 /* unasked: libvirt was away and is back; events may have been lost, ask NODED_VM_LIST */
};

enum noded_vm_event {
    NODED_VM_GONE = 1,
    NODED_VM_CRASHED = 2,
    NODED_VM_PAUSED = 3,
    NODED_VM_RESUMED = 4,
    NODED_VM_IO_ERROR = 5,
    NODED_VM_GUEST_PANIC = 6
};

struct noded_reply {
    uint32_t version;
    uint32_t event; /* enum noded_event */
    uint64_t tag;
    int32_t error; /* 0 or a negative errno */
    uint32_t vm_event;
    uint64_t id;
    union {
        struct {
            uint64_t memory; /* of the host, bytes */
            uint32_t cpus;
            uint32_t kvm;  /* 1 when /dev/kvm opens and QEMU's user may use it */
            char qemu[32]; /* "7.2.22"; empty until libvirt was reached */
            char host_kernel[65];
            char cpu_model[65]; /* host's, for the acceleration cache's key */
            uint8_t arrives;    /* 1 when memory can arrive while a QEMU runs (NODED_VM_START with NODED_FILLING) */
        } node;
        struct {
            uint64_t cpu_nsec;  /* consumed by QEMU */
            uint64_t rss_bytes; /* of QEMU: its proportional set size (Pss) */
            uint32_t running;   /* 1 running, 0 paused */
        } stats;
        struct {
            uint64_t size_bytes, free_bytes;
        } pool;
        struct {
            uint64_t pause_nsec;    /* how long the domain did not run; 0 when it was paused before */
            uint64_t changed_bytes; /* of memory, against the base */
            uint64_t state_bytes;
        } capture;
        struct {
            uint64_t size_bytes;    /* of the file of (kind, id); the rest is about its bytes from `size` to `next` */
            uint64_t held_bytes;    /* that take up room */
            uint64_t changed_bytes; /* of those, that the other file does not hold at the same place, */
            uint64_t emptied_bytes; /* and the holes where the other file has something */
            uint64_t next;
        } extents;
    };
    char sentence[256]; /* when error != 0: what was tried, on what, why, what to do */
};

#endif
