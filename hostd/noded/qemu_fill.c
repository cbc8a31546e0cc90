// SPDX-License-Identifier: Apache-2.0
// A part of the library that is preloaded into each QEMU: requests to a disk wait for chunks of it
// that have not arrived yet. qemu_lazy.c does the same for memory, with the same bits and
// questions.
//
// Theory of operation. QEMU does its disk's requests in threads of its own, by pread, pwrite and
// fallocate on disk.raw. Each of them first looks at the word `state` of the file `fill`
// (ipc/fill.h), which is mapped: as long as nothing was loaded that way, and again once all of it
// has arrived, that is all there is to it. Meanwhile each request on the disk looks at the bits of
// its chunks, and asks space-hostd for those that are missing over a connection of its own. Writes
// wait as well: what arrives must never be laid over what the guest wrote. No lock of QEMU is held
// by these threads, so that its other work goes on.
//
// A request that cannot be had fails with EIO when space-hostd says so, or when nobody answers for
// WAIT_SEC: QEMU then pauses the guest (rerror_policy and error_policy are stop) and does the
// request again when it is resumed. So nothing here ends QEMU once it runs.
//
// The bits come from another process by write(2), and are read here through a mapping of the same
// page cache; the chunk was written before its bit.
#include "hostd/noded/qemu_fill.h"

#include "ipc/fill.h"
#include "ipc/volumed.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define EXPORT     __attribute__((visibility("default")))
#define WAIT_SEC   60 /* for an answer to any one request of QEMU's; space-hostd gives up earlier */
#define ANSWER_SEC 5  /* then it is asked again: another space-hostd may be there */
#define PAUSE_NSEC 20000000L

EXPORT ssize_t space_pread(int fd, void *to, size_t n, off_t at) __asm__("pread64");
EXPORT ssize_t space_pread_chk(int fd, void *to, size_t n, off_t at, size_t room) __asm__("__pread64_chk");
EXPORT ssize_t space_pwrite(int fd, const void *from, size_t n, off_t at) __asm__("pwrite64");
EXPORT ssize_t space_preadv(int fd, const struct iovec *v, int count, off_t at) __asm__("preadv64");
EXPORT ssize_t space_pwritev(int fd, const struct iovec *v, int count, off_t at) __asm__("pwritev64");

static struct fill_part part = FILL_PART(FILL_DISK);
static char folder[PATH_MAX], asked_at[sizeof((struct sockaddr_un *)0)->sun_path];

/* Which file it is about; set before its bits. */
static dev_t dev;
static ino_t ino;

static struct {
    ssize_t (*pread)(int, void *, size_t, off_t);
    ssize_t (*pwrite)(int, const void *, size_t, off_t);
    ssize_t (*preadv)(int, const struct iovec *, int, off_t);
    ssize_t (*pwritev)(int, const struct iovec *, int, off_t);
} next;

enum fill_state fill_part_state(const struct fill_part *p)
{
    return p->header ? (enum fill_state)atomic_load_explicit((const _Atomic uint32_t *)&p->header->state, memory_order_acquire) : FILL_IDLE;
}

static void path_of(const char *name, char out[PATH_MAX])
{
    size_t n = strlen(folder);
    if (n + strlen(name) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        library_fail(FILL_FILE_ENV);
    }
    memcpy(out, folder, n);
    strcpy(out + n, name);
}

/* Maps the bits, when they are needed first. */
static int open_bits(struct fill_part *p)
{
    char disk[PATH_MAX];
    struct stat st, there;
    uint64_t chunks, bytes;
    path_of("disk.raw", disk);
    if (fstat(p->file, &there) < 0 || (p->what == FILL_DISK && stat(disk, &st) < 0))
        return -1;
    p->size = p->header->size;
    chunks = (p->size + VOLUMED_CHUNK - 1) / VOLUMED_CHUNK;
    bytes = chunks / 8 + 1;
    if ((uint64_t)there.st_size < FILL_BITS + bytes) {
        errno = EIO;
        return -1;
    }
    if (p->what == FILL_DISK) {
        dev = st.st_dev;
        ino = st.st_ino;
    }
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, p->file, FILL_BITS);
    if (at == MAP_FAILED)
        return -1;
    atomic_store_explicit(&p->bits, at, memory_order_release);
    return 0;
}

int fill_part_bits(struct fill_part *p)
{
    int rc = 0;
    if (atomic_load_explicit(&p->bits, memory_order_acquire))
        return 0;
    pthread_mutex_lock(&p->lock);
    if (!atomic_load_explicit(&p->bits, memory_order_acquire))
        rc = open_bits(p);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

bool fill_part_has(const struct fill_part *p, uint64_t chunk)
{
    const uint8_t *at = atomic_load_explicit(&p->bits, memory_order_acquire) + chunk / 8;
    return atomic_load_explicit((const _Atomic uint8_t *)at, memory_order_acquire) & 1u << chunk % 8;
}

static bool is_disk(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

/* 0: look again; else the errno that the request fails with. */
static int ask(enum fill_file what, uint64_t offset, uint64_t length)
{
    struct fill_want want = {.version = FILL_VERSION, .file = what, .offset = offset, .length = length};
    struct fill_answer answer;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const struct timeval limit = {.tv_sec = ANSWER_SEC};
    memcpy(addr.sun_path, asked_at, sizeof addr.sun_path);
    int error = 0, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool answered = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
                    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0 &&
                    send(fd, &want, sizeof want, MSG_NOSIGNAL) == (ssize_t)sizeof want &&
                    recv(fd, &answer, sizeof answer, 0) == (ssize_t)sizeof answer && answer.version == FILL_VERSION;
    if (answered)
        error = answer.error < 0 ? EIO : 0;
    else
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NSEC}, NULL); /* nobody listens now */
    if (fd >= 0)
        close(fd);
    return error;
}

int fill_part_ask(const struct fill_part *p, uint64_t first, uint64_t end)
{
    uint64_t last = first + 1;
    while (last < end && (last - first + 1) * VOLUMED_CHUNK <= FILL_WANT && !fill_part_has(p, last))
        last++;
    uint64_t from = first * VOLUMED_CHUNK, to = last * VOLUMED_CHUNK;
    int error = ask(p->what, from, (to < p->size ? to : p->size) - from);
    errno = error;
    return error ? -1 : 0;
}

/* Until chunk `first`, and what is missing right behind it, is there. */
static int wait_chunk(uint64_t first, uint64_t end, time_t until)
{
    struct timespec now;
    while (!fill_part_has(&part, first)) {
        if (fill_part_ask(&part, first, end) < 0)
            return -1;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > until && !fill_part_has(&part, first)) {
            errno = EIO;
            return -1;
        }
        if (fill_part_state(&part) != FILL_RUNS)
            return 0;
    }
    return 0;
}

static int wait_range(uint64_t from, uint64_t length)
{
    struct timespec now;
    uint64_t end = length > part.size || from > part.size - length ? part.size : from + length;
    if (from >= end)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    end = (end + VOLUMED_CHUNK - 1) / VOLUMED_CHUNK;
    for (uint64_t chunk = from / VOLUMED_CHUNK; chunk < end; chunk++)
        if (!fill_part_has(&part, chunk) && wait_chunk(chunk, end, now.tv_sec + WAIT_SEC) < 0)
            return -1;
    return 0;
}

int fill_wait(int fd, uint64_t from, uint64_t length)
{
    if (fill_part_state(&part) != FILL_RUNS)
        return 0;
    if (fill_part_bits(&part) < 0) {
        errno = EIO;
        return -1;
    }
    return is_disk(fd) ? wait_range(from, length) : 0;
}

static uint64_t bytes_of(const struct iovec *v, int count)
{
    uint64_t n = 0;
    for (int i = 0; i < count; i++)
        n += v[i].iov_len;
    return n;
}

/* dlsym's answer is a function, which C cannot say. */
static void find(void *to, const char *name)
{
    void *at = dlsym(RTLD_NEXT, name);
    memcpy(to, &at, sizeof at);
}

/* Another library's constructor may come before ours. */
static void find_all(void)
{
    if (next.pwritev)
        return;
    find(&next.pread, "pread64");
    find(&next.pwrite, "pwrite64");
    find(&next.preadv, "preadv64");
    find(&next.pwritev, "pwritev64");
}

ssize_t space_pread(int fd, void *to, size_t n, off_t at)
{
    find_all();
    return fill_wait(fd, (uint64_t)at, n) < 0 ? -1 : next.pread(fd, to, n, at);
}

ssize_t space_pread_chk(int fd, void *to, size_t n, off_t at, size_t room)
{
    if (n > room)
        abort();
    return space_pread(fd, to, n, at);
}

ssize_t space_pwrite(int fd, const void *from, size_t n, off_t at)
{
    find_all();
    return fill_wait(fd, (uint64_t)at, n) < 0 ? -1 : next.pwrite(fd, from, n, at);
}

ssize_t space_preadv(int fd, const struct iovec *v, int count, off_t at)
{
    find_all();
    return fill_wait(fd, (uint64_t)at, bytes_of(v, count)) < 0 ? -1 : next.preadv(fd, v, count, at);
}

ssize_t space_pwritev(int fd, const struct iovec *v, int count, off_t at)
{
    find_all();
    return fill_wait(fd, (uint64_t)at, bytes_of(v, count)) < 0 ? -1 : next.pwritev(fd, v, count, at);
}

void fill_part_open(struct fill_part *p, const char *name)
{
    char path[PATH_MAX];
    path_of(name, path);
    p->file = open(path, O_RDONLY | O_CLOEXEC);
    void *at = p->file < 0 ? MAP_FAILED : mmap(NULL, FILL_BITS, PROT_READ, MAP_SHARED, p->file, 0);
    if (at == MAP_FAILED)
        library_fail(path);
    p->header = at;
}

void fill_open(void)
{
    const char *name = getenv(FILL_FILE_ENV), *sock = getenv(FILL_SOCKET_ENV);
    find_all();
    if (!name || !sock)
        return;
    const char *end = strrchr(name, '/');
    size_t dir = end ? (size_t)(end - name) + 1 : 0;
    if (strlen(sock) >= sizeof asked_at || dir >= sizeof folder) {
        errno = ENAMETOOLONG;
        library_fail(FILL_FILE_ENV);
    }
    memcpy(folder, name, dir);
    strcpy(asked_at, sock);
    fill_part_open(&part, name + dir);
}
