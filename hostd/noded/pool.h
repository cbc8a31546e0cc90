// SPDX-License-Identifier: Apache-2.0
// The pool: objects as btrfs subvolumes POOL/{templates,sandboxes,snapshots}/ID, and the files in
// them.
//
// Names are only ever built from validated numbers, opened relative to a directory descriptor, and
// never followed when they are symbolic links. All of it is root's; the one exception is a
// sandbox's disk.raw, which belongs to the uid of a virtual machine from before its QEMU starts
// until after it is known to be gone (pool_claim, pool_release).
//
// Needs CAP_SYS_ADMIN (deleting), CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER. Any thread; nothing here
// changes after pool_open.
#ifndef SPACE_NODED_POOL_H
#define SPACE_NODED_POOL_H

#include "base/err.h"
#include "ipc/noded.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pool;

struct pool_object {
    enum noded_kind kind;
    uint64_t id;
};

/* Opens the pool and makes its three directories. ENOTSUP when it is not btrfs, EPERM when somebody
 * else than root owns it. */
int pool_open(const char *path, struct pool **out, struct err *e);
void pool_close(struct pool *p);

/* As NODED_OBJECT_CREATE, _SNAPSHOT and _SEAL describe. A snapshot belongs to root again, whoever
 * ran the source, or lies sealed below a folder that only root enters. That of a sandbox has no memory
 * that could be loaded: no vm.state, and when it can be written to, neither ram.raw nor meta. */
int pool_create(const struct pool *p, struct pool_object o, struct err *e);
int pool_snapshot(const struct pool *p, struct pool_object from, struct pool_object to, bool read_only, struct err *e);
int pool_seal(const struct pool *p, struct pool_object o, struct err *e);

/* Missing is success. */
int pool_delete(const struct pool *p, struct pool_object o, struct err *e);

/* A sealed memfd with a line "KIND ID CREATED" for each object. */
int pool_list(const struct pool *p, int *ret_fd, struct err *e);

/* Bytes of the file system, and those that can still be written. */
int pool_stat(const struct pool *p, uint64_t *ret_size, uint64_t *ret_free, struct err *e);

/* Opens a file, read-only or (`writable`) read-write and made if missing. ENOENT, EROFS when
 * sealed. */
int pool_file_open(const struct pool *p, struct pool_object o, enum noded_file file, bool writable, int *ret_fd, struct err *e);

/* Replaces the contents of a file by those of `from` (read from its start), and lets everyone read
 * it. */
int pool_file_install(const struct pool *p, struct pool_object o, enum noded_file file, int from, struct err *e);

/* Makes the file of `to` share all bytes of that of `from`; root's. ENOENT when that has none. */
int pool_file_clone(const struct pool *p, struct pool_object from, struct pool_object to, enum noded_file file, struct err *e);
/* The same for open files; the target is emptied first. `to` is what an error is about. */
int pool_clone(int from_fd, int to_fd, struct pool_object to, enum noded_file file, struct err *e);

/* Missing is success. */
int pool_file_remove(const struct pool *p, struct pool_object o, enum noded_file file, struct err *e);

/* The path that QEMU opens. Fits always. */
void pool_file_path(const struct pool *p, struct pool_object o, enum noded_file file, char out[PATH_MAX]);

/* Grows disk.raw of a sandbox; EINVAL when it would shrink. */
int pool_disk_grow(const struct pool *p, uint64_t sandbox, uint64_t size, struct err *e);

/* Gives disk.raw to `uid` alone, and checks that kernel and initrd are there for it to read.
 * ENOENT. */
int pool_claim(const struct pool *p, uint64_t sandbox, uid_t uid, struct err *e);
/* Takes it back. A missing sandbox is success. */
int pool_release(const struct pool *p, uint64_t sandbox, struct err *e);
/* The uid that owns disk.raw; 0 when free, missing or unreadable. */
uid_t pool_holder(const struct pool *p, uint64_t sandbox);

/* Calls back for each sandbox in the pool. 0 or -errno. */
int pool_each_sandbox(const struct pool *p, void (*cb)(void *user, uint64_t sandbox), void *user, struct err *e);

#endif
