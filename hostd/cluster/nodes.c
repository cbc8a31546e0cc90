// SPDX-License-Identifier: Apache-2.0
// Which nodes there are, and which of them are up. See cluster.h.
#include "hostd/cluster/cluster_impl.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/credential/credential.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEAT_MSEC 2000
#define AWAY_MSEC 10000 /* a node that was not heard of for so long is away */

/* ---- ourselves ---- */

static int make_id(struct space *s, const char *path, struct err *e)
{
    char text[16], fresh[CONFIG_PATH_MAX + 16];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    s->node_id = (int64_t)space_new_id();
    snprintf(text, sizeof text, "%012" PRIx64 "\n", (uint64_t)s->node_id);
    AUTO_CLOSE int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || fsync(fd) < 0 || rename(fresh, path) < 0)
        return err_sys(e, "write %s", path);
    return 0;
}

int cluster_identify(struct space *s, struct err *e)
{
    char path[CONFIG_PATH_MAX + 8], text[16] = "";
    uint64_t id;
    snprintf(path, sizeof path, "%s/node", s->config.state);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return make_id(s, path, e);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
        return err_sys(e, "read %s", path);
    if (str_parse_id(text, strcspn(text, "\n"), &id) < 0)
        return err_set(e, EINVAL, "%s does not hold the id of a node", path);
    s->node_id = (int64_t)id;
    return 0;
}

void cluster_say(struct space *s)
{
    struct node_entry *us = cluster_node(s, s->node_id);
    const char *key = s->credentials ? credential_key(s) : "";
    struct err e = {0};
    if (!us)
        return;
    if (key[0])
        snprintf(us->row.key, sizeof us->row.key, "%.*s", (int)strcspn(key, "\n"), key);
    us->row.seen = space_now();
    us->row.dead = 0;
    us->row.accel = s->accel;
    us->row.cpus = s->host_cpus;
    us->row.memory = (int64_t)s->host_memory;
    us->row.guest_memory = (int64_t)s->guest_memory;
    us->row.pool_size = (int64_t)s->pool_size;
    us->row.pool_free = (int64_t)s->pool_free;
    str_copy(us->row.qemu, sizeof us->row.qemu, s->host_qemu);
    str_copy(us->row.kernel, sizeof us->row.kernel, s->host_kernel);
    str_copy(us->row.cpu, sizeof us->row.cpu, s->host_cpu);
    us->heard = uv_now(s->loop);
    if (db_save(s->db, DB_NODES, &us->row, &e) < 0)
        log_warn("other nodes cannot be told that this one is up: %s", e.msg);
}

static void beat(uv_timer_t *t)
{
    cluster_say(t->data);
}

/* ---- all of them ---- */

struct node_entry *cluster_node(const struct space *s, int64_t id)
{
    struct node_entry *n = s->nodes;
    while (n && n->row.id != id)
        n = n->next;
    return n;
}

struct node_entry *cluster_node_named(const struct space *s, const char *name)
{
    struct node_entry *found = NULL;
    for (struct node_entry *n = s->nodes; n; n = n->next)
        if (!n->gone && !strcmp(n->row.name, name) && (!found || cluster_state(s, n) == NODE_IS_UP))
            found = n; /* of several of a name, the one that is up */
    return found;
}

const char *cluster_name(const struct space *s, int64_t id)
{
    const struct node_entry *n = cluster_node(s, id);
    return n ? n->row.name : "an unknown node";
}

enum node_state cluster_state(const struct space *s, const struct node_entry *n)
{
    if (n->row.id == s->node_id)
        return NODE_IS_UP;
    if (n->row.dead)
        return NODE_IS_DEAD;
    return n->heard && uv_now(s->loop) - n->heard < AWAY_MSEC ? NODE_IS_UP : NODE_IS_AWAY;
}

const char *cluster_state_name(enum node_state state)
{
    static const char *const names[] = {"up", "away", "dead"};
    return names[state];
}

bool cluster_has_others(const struct space *s)
{
    for (const struct node_entry *n = s->nodes; n; n = n->next)
        if (!n->gone && n->row.id != s->node_id)
            return true;
    return false;
}

int cluster_declare_dead(struct space *s, struct node_entry *n, struct err *e)
{
    if (cluster_state(s, n) == NODE_IS_UP)
        return err_set(e, EBUSY, "node %s is up: it was heard of less than %d s ago", n->row.name, AWAY_MSEC / 1000);
    n->row.dead = 1;
    return db_save(s->db, DB_NODES, &n->row, e);
}

static bool owns_something(const struct space *s, const struct node_entry *n)
{
    for (struct hmap_node *at = NULL; (at = hmap_iterate(&s->sandboxes, at));)
        if (hmap_entry(at, struct sandbox, by_id)->row.node == n->row.id)
            return true;
    for (struct hmap_node *at = NULL; (at = hmap_iterate(&s->snapshots, at));)
        if (hmap_entry(at, struct snapshot, by_id)->row.node == n->row.id)
            return true;
    for (struct hmap_node *at = NULL; (at = hmap_iterate(&s->templates, at));)
        if (hmap_entry(at, struct template, by_id)->row.node == n->row.id)
            return true;
    return false;
}

/* A template that was prepared in its pool. */
static void forget_head(void *user, const void *row)
{
    struct space *s = user;
    db_delete(s->db, DB_HEADS, ((const struct head_row *)row)->id, NULL);
}

int cluster_forget(struct space *s, struct node_entry *n, struct err *e)
{
    if (cluster_state(s, n) == NODE_IS_UP)
        return err_set(e, EBUSY, "node %s is up", n->row.name);
    if (owns_something(s, n))
        return err_set(e, ENOTEMPTY, "sandboxes, snapshots or templates belong to node %s: move or remove them first", n->row.name);
    db_begin(s->db);
    int rc = db_load_by(s->db, DB_HEADS, "node", n->row.id, forget_head, s, e);
    if (rc == 0)
        rc = db_delete(s->db, DB_NODES, n->row.id, e);
    volume_inherit(s, n->row.id);
    int rc2 = db_commit(s->db, rc < 0 ? NULL : e);
    rc = rc < 0 ? rc : rc2;
    n->gone = rc == 0;
    return rc;
}

/* Told by its own node, or loaded. */
static void learn(void *user, const void *row)
{
    struct space *s = user;
    const struct node_row *r = row;
    struct node_entry *n = cluster_node(s, r->id);
    if (!n) {
        n = calloc(1, sizeof *n);
        if (!n)
            abort();
        n->next = s->nodes;
        s->nodes = n;
        n->row.seen = r->seen; /* until we hear of it anew */
        if (space_now() - r->seen < AWAY_MSEC * 1000000ll)
            n->heard = uv_now(s->loop);
    }
    if (n->row.seen != r->seen)
        n->heard = uv_now(s->loop);
    n->row = *r;
    n->gone = false;
}

void cluster_node_told(struct space *s, int64_t id, const struct node_row *row)
{
    struct node_entry *n = cluster_node(s, id);
    if (id == s->node_id)
        return; /* somebody took us for dead: our next beat says more */
    if (row && !n)
        volume_kick(s); /* it will want our templates */
    if (row)
        learn(s, row);
    else if (n)
        n->gone = true;
}

int cluster_nodes_open(struct space *s, struct err *e)
{
    static uv_timer_t timer;
    uv_update_time(s->loop);
    int rc = db_load(s->db, DB_NODES, learn, s, e);
    if (rc < 0)
        return rc;
    struct node_entry *same = cluster_node_named(s, s->config.node);
    if (same && same->row.id != s->node_id && cluster_state(s, same) == NODE_IS_UP)
        return err_set(e, EEXIST, "another node is called '%s' and is up: give this one another name (`node` in its configuration)", s->config.node);
    struct node_row us = {.id = s->node_id, .seen = space_now(), .started = space_now()};
    str_copy(us.name, sizeof us.name, s->config.node);
    str_copy(us.version, sizeof us.version, SPACE_VERSION);
    const struct node_entry *before = cluster_node(s, s->node_id);
    if (before) /* until space-credd has said hello */
        str_copy(us.key, sizeof us.key, before->row.key);
    learn(s, &us);
    cluster_say(s);
    timer.data = s;
    uv_timer_init(s->loop, &timer);
    uv_timer_start(&timer, beat, BEAT_MSEC, BEAT_MSEC);
    return 0;
}
