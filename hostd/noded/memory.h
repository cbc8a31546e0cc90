// SPDX-License-Identifier: Apache-2.0
// Reading and writing the guest's memory in a QEMU, and measuring it, by small helper processes.
//
// space-noded itself cannot: Landlock keeps it from every process outside its own domain, and its
// system call filter denies the rest. So before it isolates itself it forks MEMORY_HELPERS
// processes (memory_helper.c) which do only this, with these rights: no user's (uid and gid
// nobody), no file but those of /proc (chroot), CAP_SYS_PTRACE, CAP_KILL, and CAP_SETUID and CAP_SETGID for
// one purpose: to take the file-system uid of a QEMU while they open its files in /proc. A system
// call filter allows reading, writing, opening and that; and of uids only those of virtual
// machines.
//
// Any thread. Calls wait for a helper that is free; none of them waits for a QEMU. When a helper
// is gone, calls fail with EPIPE and space-noded ends, to be started anew.
#ifndef SPACE_NODED_MEMORY_H
#define SPACE_NODED_MEMORY_H

#include "base/err.h"
#include "hostd/noded/memory_wire.h"

#define MEMORY_HELPERS 3

struct memory;

/* Forks the helpers. As root, before any thread and any descriptor that they must not have. They
 * end with this process. */
int memory_open(uid_t uid_base, uint32_t uid_count, struct memory **out, struct err *e);

/* The memory of one QEMU, as it was when it started. */
struct memory_target {
    int32_t pid;
    uid_t uid;
    uint64_t start_time;
    uint64_t address, length;
};

/* Fills in start_time of a process that runs now. ESRCH, EPERM when it is another uid's. */
int memory_identify(struct memory *m, struct memory_target *t, struct err *e);

/*
 * Writes each page that was changed since QEMU mapped its base to `ram`, at its offset, and its
 * entry to the page table at offset `table` of `table_fd`; the table must hold the base's entries,
 * without flags. Pages whose contents are the base's are neither written nor flagged. Calls
 * `copied` as soon as the QEMU may change its memory again (not when that already failed); what it
 * returns is returned when nothing else failed.
 */
typedef int memory_copied(void *user, struct err *e);
int memory_save(struct memory *m, const struct memory_target *t, int ram, int table_fd, uint64_t table, memory_copied *copied, void *user,
                uint64_t *ret_pages, uint64_t *ret_written, struct err *e);

/* Writes the flagged pages of `ram` into QEMU. EBADMSG when one is not what its entry says. */
int memory_load(struct memory *m, const struct memory_target *t, int ram, int table_fd, uint64_t table, uint64_t *ret_pages, struct err *e);

/* Proportional set size of the process, in bytes, and its anonymous part. */
int memory_pss(struct memory *m, const struct memory_target *t, uint64_t *ret_pss, uint64_t *ret_anon, struct err *e);

/* Ends the process at once, whatever it hangs in. */
int memory_kill(struct memory *m, const struct memory_target *t, struct err *e);

/* The main function of a helper; memory.c forks it. */
_Noreturn void memory_helper(int sock, uid_t uid_base, uint32_t uid_count);

#endif
