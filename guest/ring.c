// SPDX-License-Identifier: Apache-2.0
// fsync through io_uring: see ring.h.
//
// Each request is handed to the kernel when it is made, so the submission queue never holds more
// than one, and a completion queue that overflows is the kernel's to sort out. The kernel runs an
// fsync in a worker of its own, which may look up the descriptor only then: an op keeps it open.
#include "guest/ring.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 64u

struct ring_op {
    ring_done *done; /* NULL: forgotten */
    void *user;
    int fd;
};

static void complete(struct ring_op *op, int rc)
{
    if (op->done)
        op->done(op->user, rc);
    close(op->fd);
    free(op);
}

static void ring_ready(struct poll_watch *w, uint32_t events)
{
    struct ring *r = (struct ring *)(void *)((char *)w - offsetof(struct ring, watch));
    (void)events;
    for (uint32_t head = *r->cq_head; head != __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE);) {
        const struct io_uring_cqe *c = &r->cqes[head & r->cq_mask];
        struct ring_op *op = (struct ring_op *)(uintptr_t)c->user_data;
        int rc = c->res;
        __atomic_store_n(r->cq_head, ++head, __ATOMIC_RELEASE);
        r->busy--;
        complete(op, rc);
    }
}

static void *map(int fd, size_t size, off_t what)
{
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
}

int ring_init(struct ring *r, struct poll_loop *l)
{
    struct io_uring_params p = {0};
    int fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (fd < 0)
        return -errno;
    size_t sq = p.sq_off.array + p.sq_entries * sizeof(uint32_t), cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    char *base = map(fd, sq > cq ? sq : cq, IORING_OFF_SQ_RING);
    void *sqes = map(fd, p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    if (base == MAP_FAILED || sqes == MAP_FAILED) {
        close(fd); /* the program ends over this: the mappings go with it */
        return -ENOMEM;
    }
    *r = (struct ring){
        .watch = {fd, ring_ready},
        .sq_tail = (uint32_t *)(void *)(base + p.sq_off.tail),
        .cq_head = (uint32_t *)(void *)(base + p.cq_off.head),
        .cq_tail = (uint32_t *)(void *)(base + p.cq_off.tail),
        .sq_mask = *(uint32_t *)(void *)(base + p.sq_off.ring_mask),
        .cq_mask = *(uint32_t *)(void *)(base + p.cq_off.ring_mask),
        .array = (uint32_t *)(void *)(base + p.sq_off.array),
        .sqes = sqes,
        .cqes = (struct io_uring_cqe *)(void *)(base + p.cq_off.cqes),
    };
    return poll_watch_start(l, &r->watch, EPOLLIN);
}

/* Takes one entry and hands it over. */
static int submit(struct ring *r, const struct io_uring_sqe *e)
{
    uint32_t tail = *r->sq_tail, at = tail & r->sq_mask;
    long n;
    r->sqes[at] = *e;
    r->array[at] = at;
    __atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
    do
        n = syscall(SYS_io_uring_enter, r->watch.fd, 1, 0, 0, NULL, 0);
    while (n < 0 && errno == EINTR);
    if (n == 1)
        return 0;
    int rc = n < 0 ? -errno : -EAGAIN;
    __atomic_store_n(r->sq_tail, tail, __ATOMIC_RELEASE); /* not taken: nobody looks at it now */
    return rc;
}

struct ring_op *ring_fsync(struct ring *r, int fd, bool datasync, ring_done *done, void *user)
{
    struct ring_op *op = r->busy < RING_MAX ? malloc(sizeof *op) : NULL;
    int rc = r->busy < RING_MAX ? -ENOMEM : -EAGAIN;
    if (op) {
        *op = (struct ring_op){done, user, fd};
        rc = submit(r, &(struct io_uring_sqe){
                           .opcode = IORING_OP_FSYNC, .fd = fd, .fsync_flags = datasync ? IORING_FSYNC_DATASYNC : 0, .user_data = (uintptr_t)op});
    }
    if (rc == 0) {
        r->busy++;
        return op;
    }
    free(op);
    close(fd);
    errno = -rc;
    return NULL;
}

void ring_forget(struct ring_op *op)
{
    op->done = NULL;
}
