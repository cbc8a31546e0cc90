// SPDX-License-Identifier: Apache-2.0
// The run-time directory: see rundir.h.
//
// hostd makes RUN/hostd.sock and is not trusted by root; RUN/vm holds paths that libvirt, as root,
// opens. A directory that belonged to hostd's user would let it exchange RUN/vm; one that belonged
// to a group would let every member squat hostd.sock. So an ACL entry for that one user it is
// (acl(5); the format of the attribute is in linux/posix_acl_xattr.h).
#include "hostd/noded/rundir.h"

#include "base/cleanup.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define LOCK_NAME "noded.lock"

static struct posix_acl_xattr_entry entry(uint16_t tag, uint16_t perm, uint32_t id)
{
    return (struct posix_acl_xattr_entry){htole16(tag), htole16(perm), htole32(id)};
}

static int allow_user(int fd, uid_t user)
{
    enum { R_X = ACL_READ | ACL_EXECUTE, RWX = R_X | ACL_WRITE, ENTRIES = 5 };
    struct posix_acl_xattr_header head = {htole32(POSIX_ACL_XATTR_VERSION)};
    struct posix_acl_xattr_entry entries[ENTRIES] = {
        entry(ACL_USER_OBJ, RWX, (uint32_t)ACL_UNDEFINED_ID),  entry(ACL_USER, RWX, user),
        entry(ACL_GROUP_OBJ, R_X, (uint32_t)ACL_UNDEFINED_ID), entry(ACL_MASK, RWX, (uint32_t)ACL_UNDEFINED_ID),
        entry(ACL_OTHER, R_X, (uint32_t)ACL_UNDEFINED_ID),
    };
    char acl[sizeof head + sizeof entries];
    memcpy(acl, &head, sizeof head);
    memcpy(acl + sizeof head, entries, sizeof entries);
    return fsetxattr(fd, "system.posix_acl_access", acl, sizeof acl, 0) < 0 ? -errno : 0;
}

int rundir_open(const char *path, uid_t user, struct err *e)
{
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return err_sys(e, "make %s", path);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, "open %s", path);
    if (fchown(fd, 0, 0) < 0 || fchmod(fd, 01755) < 0)
        return err_sys(e, "make %s root's", path);
    if (user != 0 && allow_user(fd, user) < 0)
        return err_sys(e,
                       "let uid %u make sockets in %s (`run` must be on a file system with ACLs, "
                       "as tmpfs has)",
                       user, path);
    int lock = openat(fd, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0)
        return err_sys(e, "open %s/%s", path, LOCK_NAME);
    if (flock(lock, LOCK_EX | LOCK_NB) < 0) {
        close(lock);
        return err_set(e, EBUSY, "another space-noded runs with %s", path);
    }
    return steal_fd(&fd); /* `lock` stays open on purpose */
}
