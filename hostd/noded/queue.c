// SPDX-License-Identifier: Apache-2.0
// The work queue: see queue.h.
//
// Theory of operation. A task with a key first stands in the line of that key; the head of a line
// (and every task without a key) is ready and stands in the line of its lane; the first ones there,
// as many as the lane has threads, are worked on. When a task is done, the next one of its key is
// ready and the next one of its lane is worked on. A task whose time is over before its turn keeps
// its place, and is done without being worked on when the turn comes; it was answered already. All
// tasks with a limit are in one list, which a timer that runs while the list is not empty looks
// through: the limits are seconds and the list is short.
#include "hostd/noded/queue.h"

#include <stddef.h>
#include <stdlib.h>

#define TICK_MSEC 250u

/* Tasks of one key; there while it has any. The head is the one whose turn it is. */
struct line {
    struct hmap_node node;
    struct task *head, *tail;
};

struct lane_state {
    struct task *head, *tail; /* ready ones */
    uint32_t working;
};

struct queue {
    uv_loop_t *loop;
    uv_timer_t timer;
    struct hmap lines;
    struct lane_state lanes[LANE_COUNT];
    struct task *timed; /* those with a limit that is not over */
    uint32_t count;
    bool running;
};

static const uint32_t lane_threads[LANE_COUNT] = {[LANE_POOL] = 5, [LANE_VM] = 7, [LANE_END] = 4};
_Static_assert(5 + 7 + 4 == QUEUE_THREADS, "libuv's threads are divided among the lanes");

struct queue *queue_create(uv_loop_t *loop)
{
    struct queue *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    q->loop = loop;
    uv_timer_init(loop, &q->timer);
    q->timer.data = q;
    return q;
}

static void timer_closed(uv_handle_t *h)
{
    free(h->data);
}

void queue_destroy(struct queue *q)
{
    if (!q)
        return;
    hmap_finish(&q->lines);
    uv_close((uv_handle_t *)&q->timer, timer_closed);
}

/* ---- limits ---- */

static void timed_remove(struct task *t)
{
    struct queue *q = t->queue;
    if (!t->limit_msec || t->timed_out)
        return;
    if (t->timer_prev)
        t->timer_prev->timer_next = t->timer_next;
    else
        q->timed = t->timer_next;
    if (t->timer_next)
        t->timer_next->timer_prev = t->timer_prev;
    if (!q->timed)
        uv_timer_stop(&q->timer);
}

static void tick(uv_timer_t *timer)
{
    struct queue *q = timer->data;
    uint64_t now = uv_now(q->loop);
    for (struct task *t = q->timed, *next; t; t = next) {
        next = t->timer_next;
        if (t->deadline > now)
            continue;
        timed_remove(t);
        t->timed_out = true;
        t->expired(t);
    }
}

static void timed_add(struct task *t)
{
    struct queue *q = t->queue;
    if (!t->limit_msec)
        return;
    t->deadline = uv_now(q->loop) + t->limit_msec;
    t->timer_next = q->timed;
    if (q->timed)
        q->timed->timer_prev = t;
    else
        uv_timer_start(&q->timer, tick, TICK_MSEC, TICK_MSEC);
    q->timed = t;
}

/* ---- lanes ---- */

static void on_thread(uv_work_t *w)
{
    struct task *t = w->data;
    t->work(t);
}

static void run(struct queue *q);
static void finish(struct task *t);

static void after_thread(uv_work_t *w, int status)
{
    struct task *t = w->data;
    struct queue *q = t->queue;
    (void)status; /* nothing cancels */
    q->lanes[t->lane].working--;
    finish(t);
    run(q);
}

/* Gives the lane's threads work. True when tasks were done without any, which may have made others
 * ready. */
static bool lane_run(struct queue *q, struct lane_state *lane, uint32_t threads)
{
    bool finished = false;
    while (lane->head && lane->working < threads) {
        struct task *t = lane->head;
        lane->head = t->next_of_lane;
        if (t->timed_out) {
            finish(t);
            finished = true;
            continue;
        }
        lane->working++;
        t->started = true;
        t->work_req.data = t;
        uv_queue_work(q->loop, &t->work_req, on_thread, after_thread); /* fails only without a callback */
    }
    return finished;
}

static void run(struct queue *q)
{
    if (q->running)
        return; /* a `done` submits: the loop below sees it */
    q->running = true;
    for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < LANE_COUNT; i++)
            again = lane_run(q, &q->lanes[i], lane_threads[i]) || again;
    }
    q->running = false;
}

static void ready(struct task *t)
{
    struct lane_state *lane = &t->queue->lanes[t->lane];
    t->next_of_lane = NULL;
    if (lane->head)
        lane->tail->next_of_lane = t;
    else
        lane->head = t;
    lane->tail = t;
}

/* ---- keys ---- */

static struct line *line_of(const struct queue *q, uint64_t key)
{
    struct hmap_node *n = hmap_find(&q->lines, key);
    return n ? hmap_entry(n, struct line, node) : NULL;
}

/* Takes the head away; the next one, if any, is ready. */
static void line_next(struct queue *q, struct task *t)
{
    struct line *l = line_of(q, t->key);
    l->head = t->next_of_key;
    if (l->head) {
        ready(l->head);
        return;
    }
    hmap_remove(&q->lines, &l->node);
    free(l);
}

static void finish(struct task *t)
{
    struct queue *q = t->queue;
    if (t->key)
        line_next(q, t);
    timed_remove(t);
    q->count--;
    t->done(t);
}

void queue_submit(struct queue *q, struct task *t)
{
    struct line *l = t->key ? line_of(q, t->key) : NULL;
    t->queue = q;
    t->next_of_key = NULL;
    t->started = t->timed_out = false;
    t->timer_prev = t->timer_next = NULL;
    q->count++;
    timed_add(t);
    if (l) {
        l->tail->next_of_key = t;
        l->tail = t;
        return;
    }
    if (t->key) {
        l = calloc(1, sizeof *l);
        if (!l)
            abort(); /* as hmap_insert would */
        l->head = l->tail = t;
        hmap_insert(&q->lines, &l->node, t->key);
    }
    ready(t);
    run(q);
}

bool queue_working(const struct queue *q, uint64_t key)
{
    struct line *l = line_of(q, key);
    return l && l->head->started;
}

uint32_t queue_count(const struct queue *q)
{
    return q->count;
}
