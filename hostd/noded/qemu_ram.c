// SPDX-License-Identifier: Apache-2.0
// A library that is preloaded into each QEMU: its guest's memory becomes a private mapping of a
// file that QEMU can only read, its tap a descriptor that it was given, and its own network an
// empty one.
//
// Theory of operation. QEMU is told that its memory is a shared mapping of RAM_PLACEHOLDER. With
// the migration capability x-ignore-shared it then leaves that memory out of the device state that
// it writes and reads. In truth the open of that path is answered with a read-only descriptor
// from space-noded (ram_wire.h), and the one mapping of it is made private: every QEMU on one base
// shares its pages, and what the guest writes is anonymous memory of this process, which
// /proc/PID/pagemap tells apart.
//
// Memory that arrives while the guest runs begins as an empty mapping; qemu_lazy.c puts that of the
// file in its place, piece by piece.
//
// QEMU's discard of guest memory (the balloon) first punches a hole into the file, then drops the
// mapping's pages. The hole is answered with success: dropping the private pages is all there is to
// do.
//
// Whatever fails here ends QEMU with a line in its log: it must not go on with memory of another
// kind. Runs inside libvirt's sandbox of QEMU, in its only thread at that time.
#include "hostd/noded/net_wire.h"
#include "hostd/noded/qemu_fill.h"
#include "hostd/noded/qemu_lazy.h"
#include "hostd/noded/ram_wire.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* What this library stands in front of. _FILE_OFFSET_BITS would rename the short forms. */
EXPORT int space_open(const char *path, int flags, ...) __asm__("open");
EXPORT int space_open64(const char *path, int flags, ...) __asm__("open64");
EXPORT int space_open64_2(const char *path, int flags) __asm__("__open64_2");
EXPORT void *space_mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset) __asm__("mmap");
EXPORT void *space_mmap64(void *at, size_t length, int prot, int flags, int fd, off_t offset) __asm__("mmap64");
EXPORT int space_fallocate(int fd, int mode, off_t offset, off_t length) __asm__("fallocate64");

static int faults = -1; /* /dev/userfaultfd: it arrives while the guest runs */
static int ram = -1;    /* the descriptor, */
static bool opened;     /* which QEMU has now */
static int noded = -1;  /* the connection, until it was mapped */
static uint64_t length; /* bytes of memory */

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "space-qemu-ram: %s: %s; this QEMU cannot run\n", what, strerror(errno));
    abort();
}

void library_fail(const char *what)
{
    give_up(what);
}

static void connect_noded(void)
{
    const char *path = getenv(RAM_SOCKET_ENV);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (!path || strlen(path) >= sizeof addr.sun_path) {
        errno = EINVAL;
        give_up(RAM_SOCKET_ENV);
    }
    strcpy(addr.sun_path, path);
    noded = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (noded < 0 || connect(noded, (struct sockaddr *)&addr, sizeof addr) < 0)
        give_up(path);
}

/* To where QEMU's command line says that it is, which also makes it stay open. */
static void place(int fd, int at)
{
    if (dup2(fd, at) < 0)
        give_up("put the guest's network in its place");
    close(fd);
}

static int receive_gifts(void)
{
    struct ram_offer offer;
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(RAM_WIRE_FDS * sizeof(int))];
    } control;
    struct iovec iov = {&offer, sizeof offer};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(noded, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = got == (ssize_t)sizeof offer ? CMSG_FIRSTHDR(&msg) : NULL;
    if (got >= 0)
        errno = EPROTO;
    if (!c || c->cmsg_type != SCM_RIGHTS || offer.version != RAM_WIRE_VERSION)
        give_up("receive the guest's memory from space-noded");
    int fds[RAM_WIRE_FDS] = {-1, -1, -1, -1}, *next = fds + 1;
    memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    length = offer.length;
    if (offer.gifts & RAM_HAS_NETWORK) {
        place(*next++, NET_QEMU_TAP);
        place(*next++, NET_QEMU_NS);
    }
    if (offer.gifts & RAM_ARRIVES)
        faults = *next;
    return fds[0];
}

static void tell_mapped(void *at)
{
    struct ram_mapped m = {.version = RAM_WIRE_VERSION, .address = (uint64_t)(uintptr_t)at, .length = length};
    if (send(noded, &m, sizeof m, MSG_NOSIGNAL) != (ssize_t)sizeof m)
        give_up("tell space-noded where the guest's memory is");
    close(noded);
    noded = -1;
}

/* ---- what QEMU calls ---- */

static int open_any(const char *path, int flags, mode_t mode)
{
    static int (*next)(const char *, int, ...);
    if (strcmp(path, RAM_PLACEHOLDER) == 0 && ram >= 0 && !opened) {
        opened = true;
        return ram;
    }
    if (!next)
        next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    return next(path, flags, mode);
}

static bool takes_mode(int flags)
{
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

int space_open64(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = takes_mode(flags) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return open_any(path, flags, mode);
}

int space_open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = takes_mode(flags) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return open_any(path, flags, mode);
}

int space_open64_2(const char *path, int flags)
{
    return open_any(path, flags, 0);
}

void *space_mmap64(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    static void *(*next)(void *, size_t, int, int, int, off_t);
    if (!next)
        next = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap64");
    if (fd < 0 || fd != ram)
        return next(at, bytes, prot, flags, fd, offset);
    if (noded < 0 || offset != 0 || bytes != length) {
        errno = EINVAL;
        give_up("map the guest's memory in another way than space-noded knows");
    }
    flags = (flags & ~(MAP_SHARED | MAP_SHARED_VALIDATE | MAP_SYNC)) | MAP_PRIVATE | MAP_NORESERVE;
    bool arrives = faults >= 0;
    void *got = arrives ? next(at, bytes, prot, flags | MAP_ANONYMOUS, -1, 0) : next(at, bytes, prot, flags, fd, offset);
    if (got != MAP_FAILED && arrives)
        lazy_start(got, bytes, prot, fd, faults);
    if (got != MAP_FAILED)
        tell_mapped(got);
    return got;
}

void *space_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    return space_mmap64(at, bytes, prot, flags, fd, offset);
}

int space_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    static int (*next)(int, int, off_t, off_t);
    if (fd >= 0 && fd == ram)
        return 0;
    if (!next)
        next = (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate64");
    return fill_wait(fd, (uint64_t)offset, (uint64_t)bytes) < 0 ? -1 : next(fd, mode, offset, bytes);
}

static void write_map(const char *path, const char *text)
{
    int fd = open_any(path, O_WRONLY, 0);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fprintf(stderr, "space-qemu-ram: write %s: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

/*
 * QEMU's own sockets have nobody to talk to: its network is a new, empty one, which takes a user
 * namespace of its own, where it is who it was, and gives up again the rights that it was born
 * with. A host may forbid that: then QEMU stays in the host's network.
 */
static void leave_network(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[2] = {{0}};
    char map[48];
    unsigned uid = getuid(), gid = getgid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0) {
        fprintf(stderr, "space-qemu-ram: leave the host's network: %s\n", strerror(errno));
        return;
    }
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    write_map("/proc/self/uid_map", map);
    write_map("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", gid, gid);
    write_map("/proc/self/gid_map", map);
    if (syscall(SYS_capset, &head, none) < 0)
        give_up("give up the rights in its user namespace");
}

/* Huge pages would make a few touched bytes of the emulator's code cache and heap cost 2 MiB. */
__attribute__((constructor)) static void start(void)
{
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    unsetenv("LD_PRELOAD");
    connect_noded(); /* QEMU opens its network before its memory */
    ram = receive_gifts();
    fill_open();
    leave_network();
}
