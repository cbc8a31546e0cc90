// SPDX-License-Identifier: Apache-2.0
// A part of the library that is preloaded into each QEMU: memory that arrives while its guest runs.
//
// Theory of operation. The guest's memory begins as an anonymous mapping in which nothing is
// present, and which a userfaultfd watches. Whoever touches a page first, a processor of the guest
// or the kernel that reads the disk into it, stands still, and one of the threads here is told. It
// waits until the page's chunk is in the file (ipc/fill.h), and then maps that chunk of the file
// over the anonymous one, privately, and wakes who stands there. So each chunk becomes what all of
// a guest's memory is otherwise (qemu_ram.c): pages of the file, and anonymous copies of those that
// the guest changed. No page is ever copied here, and none can be lost: the anonymous mapping that
// is replaced never had any. Neighbouring chunks of the file join to one mapping.
//
// When all has arrived what is not mapped yet is mapped in one go, and the threads end: nothing is
// left that would tell this memory from another.
//
// A chunk that cannot be had is asked for again, for as long as it takes: a guest that stands still
// in its memory cannot be told of an error. space-hostd says so instead (hostd/volume/fill.c).
//
// The threads touch no memory of the guest's and take no lock of QEMU's.
#include "hostd/noded/qemu_lazy.h"

#include "hostd/noded/qemu_fill.h"
#include "ipc/volumed.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define THREADS      8u     /* so many accesses can wait for the store at the same time */
#define STACK_BYTES  65536u /* of one */
#define PIECES_MAX   32768u /* the kernel allows 65,530 mappings (vm.max_map_count) */
#define WINDOW_BYTES (2u << 20)
#define ASK_BYTES    (256u << 10)
#define LOOK_MSEC    200
#define AGAIN_NSEC   200000000L

static struct fill_part part = FILL_PART(FILL_MEMORY);
static uint8_t *memory;
static size_t size, piece; /* bytes; `piece` of them are mapped at once, some chunks */
static size_t pieces;      /* in all */
static int access_rights, file = -1, faults = -1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool *mapped; /* by piece */
static bool over;    /* all are */
static unsigned threads;

/* ---- mapping ---- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Behind the chunks of the first `count` pieces. */
static uint64_t chunks_of(size_t count)
{
    return (least(count * piece, size) + VOLUMED_CHUNK - 1) / VOLUMED_CHUNK;
}

static bool all_there(size_t i)
{
    for (uint64_t chunk = chunks_of(i); chunk < chunks_of(i + 1); chunk++)
        if (!fill_part_has(&part, chunk))
            return false;
    return true;
}

/* Bytes [from, to). The kernel may have too many mappings now, which join as others come. */
static void map(size_t from, size_t to)
{
    const int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
    while (mmap(memory + from, to - from, access_rights, flags, file, (off_t)from) == MAP_FAILED)
        nanosleep(&(struct timespec){.tv_nsec = AGAIN_NSEC}, NULL);
    madvise(memory + from, to - from, MADV_DONTDUMP); /* as QEMU said of what was there */
}

/* Of pieces [first, end) those that are there and not mapped, neighbours together. */
static void map_there(size_t first, size_t end, bool complete)
{
    pthread_mutex_lock(&lock);
    for (size_t i = first, start = first; i <= end; i++) {
        if (i < end && !mapped[i] && (complete || all_there(i))) {
            mapped[i] = true;
            continue;
        }
        if (i > start)
            map(start * piece, least(i * piece, size));
        start = i + 1;
    }
    pthread_mutex_unlock(&lock);
    struct uffdio_range r = {.start = (uintptr_t)memory + first * piece, .len = least(end * piece, size) - first * piece};
    ioctl(faults, UFFDIO_WAKE, &r);
}

/* ---- faults ---- */

static void wait_for(size_t i)
{
    uint64_t end = chunks_of(i + 1), all = chunks_of(pieces);
    for (uint64_t chunk = chunks_of(i); chunk < end; chunk++)
        while (fill_part_state(&part) == FILL_RUNS && !fill_part_has(&part, chunk)) {
            uint64_t ask = ASK_BYTES / VOLUMED_CHUNK, to = (chunk / ask + 1) * ask;
            if (to > all)
                to = all;
            if (fill_part_ask(&part, chunk, to > end ? to : end) < 0)
                nanosleep(&(struct timespec){.tv_nsec = AGAIN_NSEC}, NULL);
        }
}

static void serve(uint64_t address)
{
    size_t i = (size_t)(address - (uintptr_t)memory) / piece;
    size_t around = piece < WINDOW_BYTES ? WINDOW_BYTES / piece : 1;
    wait_for(i);
    map_there(i / around * around, least((i / around + 1) * around, pieces), fill_part_state(&part) == FILL_COMPLETE);
}

/* The last thread to leave closes the descriptor, which nobody needs any more. */
static void finish(void)
{
    pthread_mutex_lock(&lock);
    bool last = --threads == 0;
    pthread_mutex_unlock(&lock);
    if (last)
        close(faults);
}

static bool is_over(void)
{
    pthread_mutex_lock(&lock);
    bool is = over;
    pthread_mutex_unlock(&lock);
    return is;
}

static void *work(void *arg)
{
    (void)arg;
    while (!is_over()) {
        struct uffd_msg m;
        struct pollfd p = {.fd = faults, .events = POLLIN};
        int ready = poll(&p, 1, LOOK_MSEC);
        if (ready > 0 && read(faults, &m, sizeof m) == (ssize_t)sizeof m) {
            serve(m.arg.pagefault.address);
        } else if (ready == 0 && fill_part_state(&part) == FILL_COMPLETE) {
            map_there(0, pieces, true);
            pthread_mutex_lock(&lock);
            over = true;
            pthread_mutex_unlock(&lock);
        }
    }
    finish();
    return NULL;
}

/* ---- start ---- */

static void watch(int device)
{
    struct uffdio_api api = {.api = UFFD_API};
    faults = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
    close(device);
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) < 0)
        library_fail("make a userfaultfd");
    struct uffdio_register r = {.range = {.start = (uintptr_t)memory, .len = size}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(faults, UFFDIO_REGISTER, &r) < 0)
        library_fail("watch the guest's memory");
}

/* QEMU's signals are for threads of its own. */
static void start_threads(void)
{
    sigset_t all, before;
    pthread_attr_t attr;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    threads = THREADS;
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_t t;
        errno = pthread_create(&t, &attr, work, NULL);
        if (errno)
            library_fail("start a thread for the guest's memory");
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
}

void lazy_start(void *at, size_t length, int prot, int ram, int device)
{
    memory = at;
    size = length;
    access_rights = prot;
    file = fcntl(ram, F_DUPFD_CLOEXEC, 0); /* QEMU may close its own */
    for (piece = VOLUMED_CHUNK; (pieces = (length + piece - 1) / piece) > PIECES_MAX;)
        piece *= 2;
    mapped = calloc(pieces, sizeof *mapped);
    if (!mapped || file < 0)
        library_fail("remember what of the guest's memory is there");
    fill_part_open(&part, "fill.ram");
    if (fill_part_state(&part) != FILL_RUNS || fill_part_bits(&part) < 0 || part.size != length)
        library_fail("read which of the guest's memory is there");
    watch(device);
    start_threads();
}
