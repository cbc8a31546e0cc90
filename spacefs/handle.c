// SPDX-License-Identifier: Apache-2.0
// Open files and directories: see handle.h.
#include "spacefs/handle.h"

#include "9p/client.h"
#include "spacefs/attr.h"
#include "spacefs/conn.h"
#include "spacefs/fid.h"
#include "spacefs/lock.h"
#include "spacefs/poll.h"
#include "spacefs/task.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

uint32_t handle_p9_flags(int flags)
{
    static const struct {
        int host;
        uint32_t p9;
    } map[] = {{O_CREAT, P9_CREATE},      {O_EXCL, P9_EXCL},   {O_TRUNC, P9_TRUNC},        {O_APPEND, P9_APPEND},
               {O_NONBLOCK, P9_NONBLOCK}, {O_DSYNC, P9_DSYNC}, {O_DIRECTORY, P9_DIRECTORY}};
    uint32_t out = (uint32_t)(flags & O_ACCMODE);
    for (size_t i = 0; i < sizeof map / sizeof *map; i++)
        if (flags & map[i].host)
            out |= map[i].p9;
    if ((flags & O_SYNC) == O_SYNC)
        out |= P9_SYNC;
    return out;
}

bool handle_is_stream(const struct node *n)
{
    static const char *const streams[] = {"stdout", "stderr", "wait", "events"};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (!strcmp(n->name, streams[i]))
            return true;
    return node_is_port(n);
}

bool handle_has_position(const struct node *n)
{
    return node_is_control(n) && n->format == S_IFREG && (node_is_port(n) || !strcmp(n->name, "events"));
}

/* Keeps the read's data when it is all there is. */
static void take_text(const struct call *read, struct opening *out)
{
    const struct p9_data *d = &read->reply.Rread.data;
    if (d->len != out->attr.size)
        return;
    out->text = malloc(d->len + 1u);
    if (!out->text)
        return;
    memcpy(out->text, d->p, d->len);
    out->text_len = d->len;
}

static struct call *start_read(struct task *t, uint32_t fid)
{
    struct p9_msg m = {.type = P9_Tread};
    m.Tread = (struct p9_Tread){.fid = fid, .count = HANDLE_TEXT_MAX};
    return call_start(t, &m);
}

static int open_once(struct task *t, struct node *n, uint32_t uid, uint32_t flags, unsigned want, struct opening *out)
{
    struct fs *fs = t->fs;
    struct fid_ref *ref;
    int rc = fid_get(t, n, uid, &ref);
    if (rc < 0)
        return rc;
    uint32_t fid = fid_alloc(fs), generation = conn_generation(fs->conn);
    struct p9_msg walk = {.type = P9_Twalk}, lopen = {.type = P9_Tlopen}, getattr = {.type = P9_Tgetattr};
    walk.Twalk.fid = ref->fid;
    walk.Twalk.newfid = fid;
    lopen.Tlopen = (struct p9_Tlopen){.fid = fid, .flags = flags};
    getattr.Tgetattr = (struct p9_Tgetattr){.fid = fid, .mask = P9_GETATTR_BASIC};
    struct call *walking = call_start(t, &walk);
    struct call *opening = call_start(t, &lopen);
    struct call *attr = want & OPENING_ATTR ? call_start(t, &getattr) : NULL;
    struct call *text = want & OPENING_TEXT ? start_read(t, fid) : NULL;
    rc = call_wait(walking);
    if (rc == 0)
        rc = call_wait(opening);
    if (rc == 0 && attr && (rc = call_wait(attr)) == 0)
        out->attr = attr->reply.Rgetattr;
    if (rc == 0 && text && (rc = call_wait(text)) == 0)
        take_text(text, out);
    call_end(text);
    call_end(attr);
    call_end(opening);
    call_end(walking);
    rc = fid_finish(t, ref, rc);
    if (rc < 0)
        fid_clunk(fs, generation, fid);
    else
        out->fid = (struct opened){.fid = fid, .generation = generation};
    return rc;
}

int handle_open_node(struct task *t, struct node *n, uint32_t uid, uint32_t p9_flags, unsigned want, struct opening *out)
{
    memset(out, 0, sizeof *out);
    int rc = open_once(t, n, uid, p9_flags, want, out);
    if (rc == -ENFILE) {
        fid_shrink(t->fs);
        rc = open_once(t, n, uid, p9_flags, want, out);
    }
    return rc;
}

struct handle *handle_create(struct fs *fs, struct node *n, uint32_t uid, int flags, struct opening *o)
{
    struct handle *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->fs = fs;
    h->node = node_ref(n);
    h->uid = uid;
    h->flags = flags;
    h->refs = 1;
    h->fid[0] = o->fid;
    h->pin = fid_pin(fs, n, uid);
    h->text = o->text;
    h->text_len = o->text_len;
    h->next = n->handles;
    n->handles = h;
    fs->handles++;
    return h;
}

struct handle *handle_ref(struct handle *h)
{
    h->refs++;
    return h;
}

void handle_release(struct fs *fs, struct handle *h)
{
    if (h->released)
        return;
    h->released = true;
    struct handle **p = &h->node->handles;
    while (*p != h)
        p = &(*p)->next;
    *p = h->next;
    for (int i = 0; i < 2; i++)
        if (h->fid[i].generation)
            fid_clunk(fs, h->fid[i].generation, h->fid[i].fid);
    poll_release(h);
    lock_release_handle(fs, h);
    fid_put(h->pin);
    h->pin = NULL;
}

void handle_unref(struct fs *fs, struct handle *h)
{
    if (!h || --h->refs)
        return;
    handle_release(fs, h);
    poll_free(h);
    node_unref(fs, h->node);
    free(h->text);
    free(h->entries);
    free(h);
    fs->handles--;
}

static bool is_current(struct fs *fs, const struct opened *o)
{
    return o->generation && conn_is_up(fs->conn) && o->generation == conn_generation(fs->conn);
}

static int slot_of(const struct handle *h, bool nonblock)
{
    if (handle_has_position(h->node))
        return 0; /* two fids would be two positions */
    return nonblock != ((h->flags & O_NONBLOCK) != 0);
}

bool handle_is_ready(struct fs *fs, const struct handle *h, bool nonblock)
{
    return is_current(fs, &h->fid[slot_of(h, nonblock)]);
}

int handle_fid(struct task *t, struct handle *h, bool nonblock, uint32_t *fid)
{
    struct fs *fs = t->fs;
    struct opened *slot = &h->fid[slot_of(h, nonblock)];
    nonblock = nonblock && !handle_has_position(h->node);
    if (!is_current(fs, slot) && node_is_port(h->node))
        return -ECONNRESET; /* opening it again would be another connection */
    if (!is_current(fs, slot)) {
        struct opening o;
        int flags = (h->flags & ~(O_CREAT | O_EXCL | O_TRUNC | O_NONBLOCK)) | (nonblock ? O_NONBLOCK : 0);
        int rc = handle_open_node(t, h->node, h->uid, handle_p9_flags(flags), 0, &o);
        if (rc < 0)
            return rc;
        if (is_current(fs, slot) || h->released)
            fid_clunk(fs, o.fid.generation, o.fid.fid); /* another task was first */
        else
            *slot = o.fid;
        if (h->released)
            return -EBADF;
    }
    *fid = slot->fid;
    return 0;
}

int handle_own_fid(struct task *t, struct handle *h, uint32_t *fid)
{
    return handle_fid(t, h, (h->flags & O_NONBLOCK) != 0, fid);
}

int handle_refresh(struct task *t, struct handle *h)
{
    struct fs *fs = t->fs;
    struct opening o;
    uint32_t flags = handle_p9_flags(h->flags & ~(O_CREAT | O_EXCL | O_TRUNC));
    int rc = handle_open_node(t, h->node, h->uid, flags, OPENING_ATTR | OPENING_TEXT, &o);
    if (rc < 0)
        return rc;
    if (h->released) {
        fid_clunk(fs, o.fid.generation, o.fid.fid);
        free(o.text);
        return -EBADF;
    }
    fid_clunk(fs, h->fid[0].generation, h->fid[0].fid);
    h->fid[0] = o.fid;
    free(h->text);
    h->text = o.text;
    h->text_len = o.text_len;
    attr_to_stat(&o.attr, &h->attr);
    attr_seen(h->node, &o.attr);
    return 0;
}
