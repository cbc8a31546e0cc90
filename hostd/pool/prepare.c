// SPDX-License-Identifier: Apache-2.0
// Templates booted once for each size that is asked for, and kept as heads with memory. See pool.h.
#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/noded_client.h"
#include "hostd/pool/pool.h"
#include "hostd/snapshot/account.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BOOT_MSEC   120000u
#define SETTLE_MSEC 10000u
#define RETRY_MSEC  300000u /* after a failure */

struct prepared {
    struct prepared *next; /* in space.prepared, oldest first */
    struct head_row row;
};

/* A size of a template that somebody asked for. */
struct wish {
    struct wish *next;
    struct template *template;
    uint64_t memory;
    uint32_t vcpus;
};

static struct prepared *prepared_by_id(const struct space *s, uint64_t id)
{
    struct prepared *p = s->prepared;
    while (p && (uint64_t)p->row.id != id)
        p = p->next;
    return p;
}

bool prepared_has_object(const struct space *s, uint64_t id)
{
    return prepared_by_id(s, id) != NULL;
}

static struct head head_of(const struct head_row *row)
{
    return (struct head){
        .kind = NODED_TEMPLATE, .id = (uint64_t)row->id, .memory = (uint64_t)row->memory, .disk = (uint64_t)row->disk, .vcpus = (uint32_t)row->vcpus};
}

static void wish_for(struct template *t, uint64_t memory, uint32_t vcpus)
{
    struct wish **at = &t->space->wishes;
    for (; *at; at = &(*at)->next)
        if ((*at)->template == t && (*at)->memory == memory && (*at)->vcpus == vcpus)
            return;
    *at = calloc(1, sizeof **at);
    if (!*at)
        abort();
    **at = (struct wish){NULL, template_ref(t), memory, vcpus};
    pool_kick(t->space);
}

bool template_head(struct template *t, uint64_t memory, uint32_t vcpus, struct head *out)
{
    for (const struct prepared *p = t->space->prepared; p; p = p->next)
        if (p->row.template == t->row.id && (uint64_t)p->row.memory == memory && (uint32_t)p->row.vcpus == vcpus && p->row.accel == t->space->accel) {
            *out = head_of(&p->row);
            return true;
        }
    if (uv_now(t->space->loop) >= t->unfit && template_is_here(t))
        wish_for(t, memory, vcpus);
    return false;
}

static void attach(struct space *s, const struct head_row *row)
{
    struct prepared **at = &s->prepared;
    while (*at)
        at = &(*at)->next;
    *at = calloc(1, sizeof **at);
    if (!*at)
        abort();
    (*at)->row = *row;
}

static void remove_prepared(struct space *s, struct prepared **at)
{
    struct prepared *p = *at;
    *at = p->next;
    db_delete(s->db, DB_HEADS, p->row.id, NULL);
    account_gone(s, NODED_TEMPLATE, (uint64_t)p->row.id, NODED_TEMPLATE, p->row.template);
    pool_drain(s, (uint64_t)p->row.id);
    object_delete_later(s, NODED_TEMPLATE, (uint64_t)p->row.id);
    free(p);
}

void template_heads_remove(struct template *t)
{
    for (struct prepared **at = &t->space->prepared; *at;)
        if ((*at)->row.template == t->row.id)
            remove_prepared(t->space, at);
        else
            at = &(*at)->next;
}

void prepared_failed(struct space *s, uint64_t id, int rc, const char *why)
{
    if (rc != -ENOEXEC && rc != -EBADMSG)
        return;
    for (struct prepared **at = &s->prepared; *at; at = &(*at)->next)
        if ((uint64_t)(*at)->row.id == id) {
            log_warn("prepared template head %012" PRIx64 " is made anew: %s", id, why);
            remove_prepared(s, at);
            return;
        }
}

static void lost(void *user, int code, const char *why)
{
    (void)code;
    log_warn("while a template was prepared: %s", why);
    *(bool *)user = true;
}

/* Boots the machine `object`, lets it settle, leaves it with nobody connected. */
static int boot_and_settle(struct space *s, const struct wish *w, uint64_t object, uint32_t slot, struct err *e)
{
    bool gone = false;
    struct guest *g = NULL;
    struct guest_hooks hooks = {.lost = lost, .user = &gone};
    struct noded_request run = {
        .op = NODED_VM_START, .kind = NODED_SANDBOX, .id = object, .memory = w->memory, .vcpus = w->vcpus, .accel = s->accel, .slot = slot};
    int rc = noded_call(s, &run, NULL, NULL, e);
    if (rc == 0)
        rc = guest_connect(s, object, &hooks, BOOT_MSEC, &g, e);
    if (rc == 0 && guest_ctl(g, SETTLE_MSEC, "settle") < 0)
        log_info("template '%s' is prepared as it is: it did not come to rest", w->template->row.name); /* of any size, only larger */
    guest_close(g);
    return rc == 0 && gone ? err_set(e, EIO, "its machine ended") : rc;
}

static int capture(struct space *s, const struct wish *w, uint64_t object, struct err *e)
{
    struct head_row row = {.id = (int64_t)space_new_id(),
                           .template = w->template->row.id,
                           .memory = (int64_t)w->memory,
                           .vcpus = w->vcpus,
                           .disk = w->template->row.size,
                           .created = space_now(),
                           .accel = s->accel,
                           .node = s->node_id};
    struct noded_request take = {.op = NODED_VM_CAPTURE, .kind = NODED_TEMPLATE, .id = (uint64_t)row.id, .kind2 = NODED_SANDBOX, .id2 = object};
    struct noded_request seal = {.op = NODED_OBJECT_SEAL, .kind = NODED_TEMPLATE, .id = (uint64_t)row.id};
    s->preparing_head = (uint64_t)row.id;
    int rc = noded_call(s, &take, NULL, NULL, e);
    if (rc == 0)
        rc = noded_call(s, &seal, NULL, NULL, e);
    if (rc == 0 && w->template->row.deleted)
        rc = err_set(e, ENOENT, "it was removed meanwhile");
    if (rc == 0)
        rc = db_save(s->db, DB_HEADS, &row, e);
    if (rc == 0)
        attach(s, &row);
    else
        object_delete_later(s, NODED_TEMPLATE, (uint64_t)row.id);
    s->preparing_head = 0;
    return rc;
}

static int prepare(struct space *s, const struct wish *w, struct err *e)
{
    uint32_t slot;
    uint64_t object = space_new_id();
    struct noded_request copy = {
        .op = NODED_OBJECT_SNAPSHOT, .kind = NODED_SANDBOX, .id = object, .kind2 = NODED_TEMPLATE, .id2 = (uint64_t)w->template->row.id};
    struct noded_request end = {.op = NODED_VM_KILL, .kind = NODED_SANDBOX, .id = object};
    struct err ignored = {0};
    int rc = machine_charge(s, object, w->memory, true, &slot, e);
    if (rc < 0)
        return rc;
    s->preparing = object;
    rc = noded_call(s, &copy, NULL, NULL, e);
    if (rc == 0)
        rc = boot_and_settle(s, w, object, slot, e);
    if (rc == 0)
        rc = capture(s, w, object, e);
    if (noded_call(s, &end, NULL, NULL, &ignored) == 0)
        object_delete_later(s, NODED_SANDBOX, object);
    s->preparing = 0;
    machine_discharge(s, w->memory, true, slot);
    return rc;
}

static void prepare_first(void *arg)
{
    struct space *s = arg;
    struct wish *w = s->wishes;
    struct err e = {0};
    struct template *t = w->template;
    int rc = t->row.deleted ? -ENOENT : prepare(s, w, &e);
    if (rc == 0) {
        struct event_scope scope = {t->row.owner, t->row.gid, 0700};
        char size[24];
        event_emit(s, &scope, "template", (uint64_t)t->row.id, t->row.name, ",\"state\":\"prepared\",\"memory\":\"%s\",\"vcpus\":%u",
                   str_format_size(w->memory, size), w->vcpus);
    } else if (!t->row.deleted) {
        log_warn("template '%s' could not be prepared, its sandboxes boot: %s", t->row.name, e.msg);
        t->unfit = uv_now(s->loop) + RETRY_MSEC;
    }
    s->wishes = w->next;
    template_unref(t);
    free(w);
    s->prepare_running = false;
    pool_kick(s);
}

void prepare_next(struct space *s)
{
    if (!s->wishes || s->prepare_running)
        return;
    s->prepare_running = true;
    co_spawn(s->co, prepare_first, s);
}

void template_wish(struct template *t)
{
    struct head ignored;
    template_head(t, t->space->config.memory, t->space->config.vcpus, &ignored);
}

void template_heads_text(const struct template *t, void (*add)(void *user, uint64_t memory, uint32_t vcpus), void *user)
{
    for (const struct prepared *p = t->space->prepared; p; p = p->next)
        if (p->row.template == t->row.id)
            add(user, (uint64_t)p->row.memory, (uint32_t)p->row.vcpus);
}

static void load_row(void *user, const void *row)
{
    const struct space *s = user;
    if (((const struct head_row *)row)->node == s->node_id) /* else it is in another's pool */
        attach(user, row);
}

int heads_load(struct space *s, struct err *e)
{
    return db_load(s->db, DB_HEADS, load_row, s, e);
}
