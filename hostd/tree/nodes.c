// SPDX-License-Identifier: Apache-2.0
// What names mean: lookup, listing, identity and rights of the control nodes.
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/credential/credential.h"
#include "hostd/tree/ports.h"
#include "hostd/tree/tree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const struct {
    const char *name;
    enum node_kind kind;
} trees[] = {{"help", NODE_HELP},   {"templates", NODE_TEMPLATES}, {"sandboxes", NODE_SANDBOXES}, {"snapshots", NODE_SNAPSHOTS},
             {"root", NODE_GUESTS}, {"proc", NODE_PROCS},          {"ports", NODE_PORTS},         {"credentials", NODE_CREDENTIALS},
             {"nodes", NODE_NODES}};

void node_copy(struct node *dst, const struct node *src)
{
    *dst = *src;
    if (dst->sandbox)
        sandbox_ref(dst->sandbox);
    if (dst->snapshot)
        snapshot_ref(dst->snapshot);
    if (dst->template)
        template_ref(dst->template);
    if (dst->job)
        job_ref(dst->job);
    if (dst->scope)
        scope_ref(dst->scope);
    if (dst->credential)
        credential_ref(dst->credential);
}

void node_clear(struct node *n)
{
    sandbox_unref(n->sandbox);
    snapshot_unref(n->snapshot);
    template_unref(n->template);
    job_unref(n->job);
    scope_unref(n->scope);
    credential_unref(n->credential);
    *n = (struct node){0};
}

bool node_is_dir(const struct node *n)
{
    switch (n->kind) {
    case NODE_ROOT_FILE:
    case NODE_HELP_FILE:
    case NODE_TEMPLATE_FILE:
    case NODE_SANDBOX_FILE:
    case NODE_SNAPSHOT_FILE:
    case NODE_JOB_FILE:
    case NODE_PORT:
    case NODE_CREDENTIALS_FILE:
    case NODE_SCOPE_FILE:
    case NODE_CREDENTIAL_FILE:
    case NODE_NODE_FILE:
    case NODE_COPY: return false;
    default: return true;
    }
}

struct p9_qid node_qid(const struct space *s, const struct node *n)
{
    uint64_t id1 = n->entry      ? (uint64_t)n->entry->row.id
                   : n->template ? (uint64_t)n->template->row.id
                   : n->sandbox  ? (uint64_t)n->sandbox->row.id
                                 : n->orphan;
    uint64_t id2 = n->snapshot ? (uint64_t)n->snapshot->row.id : n->job ? (uint64_t)n->job->row.id : n->port;
    if (n->snapshot)
        id1 = (uint64_t)n->snapshot->row.sandbox;
    if (n->scope) {
        id1 = XXH3_64bits_withSeed(n->scope->s.label, strlen(n->scope->s.label), (uint64_t)n->scope->s.kind << 32 | n->scope->s.tenant) ^
              n->scope->s.sandbox;
        id2 = n->credential ? n->credential->rec.id : 0;
    }
    bool dir = node_is_dir(n);
    /* files hash like their directory, so that their paths ascend in table order */
    uint32_t tree = (uint32_t)(dir || n->kind == NODE_COPY ? n->kind : n->kind - 1u);
    uint8_t index = dir ? 0 : n->kind == NODE_COPY ? 255 : (uint8_t)(n->index + 1);
    return (struct p9_qid){dir ? P9_QTDIR : P9_QTFILE, 0, space_qid(s, tree, id1, id2, index)};
}

const struct attr *attr_table(enum node_kind dir)
{
    switch (dir) {
    case NODE_ROOT: return root_attrs;
    case NODE_TEMPLATE: return template_attrs;
    case NODE_SANDBOX: return sandbox_attrs;
    case NODE_SNAPSHOT: return snapshot_attrs;
    case NODE_JOB: return job_attrs;
    case NODE_CREDENTIALS: return credentials_attrs;
    case NODE_SCOPE: return scope_attrs;
    case NODE_CREDENTIAL: return credential_attrs;
    case NODE_NODE: return node_attrs;
    default: return NULL;
    }
}

const struct attr *attr_of(const struct node *n)
{
    const struct attr *table = node_is_dir(n) || n->kind == NODE_COPY || n->kind == NODE_HELP_FILE ? NULL : attr_table((enum node_kind)(n->kind - 1));
    return table ? &table[n->index] : NULL;
}

bool attr_present(const struct node *dir, const struct attr *a)
{
    const struct template *t = dir->template;
    if (dir->kind == NODE_SCOPE)
        return dir->sandbox != NULL;
    if (dir->snapshot && !strcmp(a->name, "ram.raw"))
        return dir->snapshot->row.memory != 0;
    return !(t && a->flags & ATTR_RAW && (t->row.state == ARTIFACT_READY || t->busy || t->copying));
}

bool node_gone(const struct node *n)
{
    return (n->sandbox && (n->sandbox->gone || !n->sandbox->named)) || (n->snapshot && n->snapshot->gone) ||
           (n->template && n->template->row.deleted) || (n->job && n->job->gone) || (n->credential && n->credential->gone) ||
           (n->entry && n->entry->gone);
}

/* ---- rights ---- */

static bool may_see_sandbox(const struct sandbox *sb, const struct caller *c)
{
    return sb->named && caller_may_read(c, sb->row.owner, sb->row.gid, sb->row.mode);
}

static bool may_see_snapshot(const struct snapshot *sn, const struct caller *c)
{
    return !sn->gone && caller_may_read(c, sn->row.owner, sn->row.gid, sn->row.mode);
}

bool node_visible(const struct node *n, const struct caller *c)
{
    if (n->scope)
        return scope_may_read(&n->scope->s, c);
    if (n->snapshot)
        return caller_may_read(c, n->snapshot->row.owner, n->snapshot->row.gid, n->snapshot->row.mode);
    if (n->template)
        return template_may_use(n->template, c);
    return !n->sandbox || caller_may_read(c, n->sandbox->row.owner, n->sandbox->row.gid, n->sandbox->row.mode);
}

void node_rights(const struct node *n, uint32_t *uid, uint32_t *gid, uint32_t *mode)
{
    *uid = *gid = 0;
    *mode = node_is_dir(n) ? 0755 : 0444;
    if (n->scope) {
        *uid = n->credential ? n->credential->rec.maker : n->scope->s.tenant;
        *mode = node_is_dir(n) ? 0700 : 0444;
    } else if (n->snapshot) {
        *uid = (uint32_t)n->snapshot->row.owner;
        *gid = (uint32_t)n->snapshot->row.gid;
    } else if (n->sandbox) {
        *uid = (uint32_t)n->sandbox->row.owner;
        *gid = (uint32_t)n->sandbox->row.gid;
    } else if (n->template) {
        *uid = (uint32_t)n->template->row.owner;
        *gid = (uint32_t)n->template->row.gid;
    }
    if (n->kind == NODE_SNAPSHOT || n->kind == NODE_FILES || (n->kind == NODE_SNAPSHOTS_OF && n->snapshot))
        *mode = (uint32_t)n->snapshot->row.mode;
    else if (n->kind == NODE_TEMPLATE)
        *mode = 0755;
    else if (n->sandbox && node_is_dir(n) && !n->scope)
        *mode = (uint32_t)n->sandbox->row.mode;
    if (!node_is_dir(n)) {
        const struct attr *a = attr_of(n);
        *mode = n->kind == NODE_COPY ? 0200 : n->kind == NODE_PORT ? 0600 : a ? a->mode : 0444;
    }
}

/* ---- lookup ---- */

/* NAME, OWNER:NAME or #ID among the sandboxes that the caller sees. */
struct sandbox *node_find_sandbox(struct space *s, const struct caller *c, const char *name)
{
    struct sandbox *sb = NULL;
    const char *colon = strchr(name, ':');
    uint64_t id;
    uint32_t owner;
    char user[NAME_LEN_MAX + 1];
    if (name[0] == '#') {
        sb = str_parse_id(name + 1, strlen(name + 1), &id) == 0 ? sandbox_by_id(s, id) : NULL;
    } else if (colon && (size_t)(colon - name) < sizeof user) {
        memcpy(user, name, (size_t)(colon - name));
        user[colon - name] = 0;
        if (caller_uid_of(user, &owner) == 0)
            sb = sandbox_by_name(s, owner, colon + 1);
    } else {
        sb = sandbox_by_name(s, c->uid, name);
    }
    return sb && may_see_sandbox(sb, c) ? sb : NULL;
}

static struct template *find_template(struct space *s, const struct caller *c, const char *name)
{
    uint64_t id;
    struct template *t;
    if (name[0] == '#')
        t = str_parse_id(name + 1, strlen(name + 1), &id) == 0 ? template_by_id(s, id) : NULL;
    else
        t = template_resolve(s, c, name);
    return t && !t->row.deleted && template_may_use(t, c) ? t : NULL;
}

/* The group of snapshots that a removed sandbox left: NAME~ID, or #ID. */
static struct snapshot *find_orphans(struct space *s, const struct caller *c, const char *name)
{
    const char *tilde = name[0] == '#' ? name : strrchr(name, '~');
    uint64_t id;
    if (!tilde || str_parse_id(tilde + 1, strlen(tilde + 1), &id) < 0)
        return NULL;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        struct sandbox *sb = sandbox_by_id(s, (uint64_t)sn->row.sandbox);
        if ((uint64_t)sn->row.sandbox == id && !(sb && sb->named) && may_see_snapshot(sn, c))
            return sn;
    }
    return NULL;
}

static int lookup_attr(const struct node *dir, const char *name, struct node *out)
{
    const struct attr *table = attr_table(dir->kind);
    for (uint8_t i = 0; table && table[i].name; i++)
        if (!strcmp(table[i].name, name) && attr_present(dir, &table[i])) {
            node_copy(out, dir);
            out->kind = (enum node_kind)(dir->kind + 1);
            out->index = i;
            return 0;
        }
    return -ENOENT;
}

static int lookup_root(const char *name, struct node *out)
{
    struct node root = {.kind = NODE_ROOT};
    for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++)
        if (!strcmp(trees[i].name, name)) {
            *out = (struct node){.kind = trees[i].kind};
            return 0;
        }
    return lookup_attr(&root, name, out);
}

static int lookup_in_sandbox_tree(struct space *s, const struct caller *c, enum node_kind kind, const char *name, struct node *out)
{
    struct sandbox *sb = node_find_sandbox(s, c, name);
    if (sb) {
        *out = (struct node){.kind = kind, .sandbox = sandbox_ref(sb)};
        return 0;
    }
    struct snapshot *orphan = kind == NODE_SNAPSHOTS_OF ? find_orphans(s, c, name) : NULL;
    if (!orphan)
        return -ENOENT;
    *out = (struct node){.kind = kind, .orphan = (uint64_t)orphan->row.sandbox};
    return 0;
}

static uint64_t snapshots_owner(const struct node *dir)
{
    return dir->sandbox ? (uint64_t)dir->sandbox->row.id : dir->orphan;
}

static int lookup_snapshot(struct space *s, const struct caller *c, const struct node *dir, const char *name, struct node *out)
{
    uint64_t id, owner = snapshots_owner(dir);
    struct snapshot *sn;
    if (name[0] == '#')
        sn = str_parse_id(name + 1, strlen(name + 1), &id) == 0 ? snapshot_by_id(s, id) : NULL;
    else
        sn = snapshot_by_name(s, owner, name);
    if (!sn || (uint64_t)sn->row.sandbox != owner || !may_see_snapshot(sn, c))
        return -ENOENT;
    node_copy(out, dir);
    out->kind = NODE_SNAPSHOT;
    out->snapshot = snapshot_ref(sn);
    return 0;
}

/* What was used or completed is no target any more, and that can be found out without opening. The open decides again. */
static int lookup_copy(const struct node *dir, struct node *out)
{
    if (dir->kind == NODE_SANDBOX && dir->sandbox->row.touched)
        return -EBUSY;
    if (dir->kind == NODE_TEMPLATE && dir->template->row.state == ARTIFACT_READY)
        return -EBUSY;
    node_copy(out, dir);
    out->kind = NODE_COPY;
    return 0;
}

static int lookup_help(const char *name, struct node *out)
{
    char buf[NAME_LEN_MAX * 2];
    const char *n;
    for (unsigned i = 0; help_text(i, &n, buf, sizeof buf); i++)
        if (!strcmp(n, name)) {
            *out = (struct node){.kind = NODE_HELP_FILE, .index = (uint8_t)i};
            return 0;
        }
    return -ENOENT;
}

static int lookup_port(const struct node *dir, const char *name, struct node *out)
{
    uint16_t port = ports_parse(name);
    if (!port)
        return -ENOENT;
    node_copy(out, dir);
    out->kind = NODE_PORT;
    out->port = port;
    return 0;
}

static int parent_of(const struct node *n, struct node *out)
{
    static const enum node_kind up[NODE_KIND_COUNT] = {
        [NODE_TEMPLATE] = NODE_TEMPLATES,
        [NODE_SANDBOX] = NODE_SANDBOXES,
        [NODE_SNAPSHOTS_OF] = NODE_SNAPSHOTS,
        [NODE_SNAPSHOT] = NODE_SNAPSHOTS_OF,
        [NODE_GUEST] = NODE_GUESTS,
        [NODE_PROC] = NODE_PROCS,
        [NODE_JOB] = NODE_PROC,
        [NODE_PORTS_OF] = NODE_PORTS,
        [NODE_SCOPE] = NODE_CREDENTIALS,
        [NODE_CREDENTIAL] = NODE_SCOPE,
        [NODE_NODE] = NODE_NODES,
    };
    if (n->kind == NODE_FILES) {
        node_copy(out, n);
        out->kind = NODE_SNAPSHOT;
        return 0;
    }
    if (n->kind == NODE_CREDENTIAL) {
        *out = (struct node){.kind = NODE_SCOPE, .scope = scope_ref(n->scope), .sandbox = n->sandbox ? sandbox_ref(n->sandbox) : NULL};
        return 0;
    }
    *out = (struct node){.kind = up[n->kind] ? up[n->kind] : NODE_ROOT};
    if (out->kind == NODE_SNAPSHOTS_OF || out->kind == NODE_PROC) {
        out->sandbox = n->sandbox ? sandbox_ref(n->sandbox) : NULL;
        out->orphan = n->orphan;
    }
    return 0;
}

int node_lookup(struct space *s, const struct caller *c, const struct node *dir, const char *name, struct node *out)
{
    if (!node_is_dir(dir))
        return -ENOTDIR;
    if (!strcmp(name, ".."))
        return parent_of(dir, out);
    if (!strcmp(name, ".")) { /* diodls -l walks every name that readdir gave */
        node_copy(out, dir);
        return 0;
    }
    if (node_gone(dir) || !node_visible(dir, c))
        return -ENOENT;
    if (!strcmp(name, "#copy") && (dir->kind == NODE_SANDBOX || dir->kind == NODE_TEMPLATE || dir->kind == NODE_SNAPSHOT))
        return lookup_copy(dir, out);
    switch (dir->kind) {
    case NODE_ROOT: return lookup_root(name, out);
    case NODE_HELP: return lookup_help(name, out);
    case NODE_SANDBOXES: return lookup_in_sandbox_tree(s, c, NODE_SANDBOX, name, out);
    case NODE_SNAPSHOTS: return lookup_in_sandbox_tree(s, c, NODE_SNAPSHOTS_OF, name, out);
    case NODE_GUESTS: return lookup_in_sandbox_tree(s, c, NODE_GUEST, name, out);
    case NODE_PROCS: return lookup_in_sandbox_tree(s, c, NODE_PROC, name, out);
    case NODE_PORTS: return lookup_in_sandbox_tree(s, c, NODE_PORTS_OF, name, out);
    case NODE_PORTS_OF: return lookup_port(dir, name, out);
    case NODE_CREDENTIALS: {
        int rc = lookup_attr(dir, name, out);
        return rc == 0 ? 0 : credentials_lookup_scope(s, c, name, out);
    }
    case NODE_SCOPE: {
        int rc = lookup_attr(dir, name, out);
        return rc == 0 ? 0 : credentials_lookup(s, dir, name, out);
    }
    case NODE_SNAPSHOTS_OF: return lookup_snapshot(s, c, dir, name, out);
    case NODE_SNAPSHOT:
        if (strcmp(name, "files") != 0)
            return lookup_attr(dir, name, out);
        node_copy(out, dir); /* not listed: a copy of the snapshot is not to go down there */
        out->kind = NODE_FILES;
        return 0;
    case NODE_TEMPLATES: {
        struct template *t = find_template(s, c, name);
        if (!t)
            return -ENOENT;
        *out = (struct node){.kind = NODE_TEMPLATE, .template = template_ref(t)};
        return 0;
    }
    case NODE_NODES: {
        struct node_entry *entry = cluster_node_named(s, name);
        if (!entry)
            return -ENOENT;
        *out = (struct node){.kind = NODE_NODE, .entry = entry};
        return 0;
    }
    case NODE_PROC: {
        struct job *j = job_by_name(dir->sandbox, name);
        if (!j)
            return -ENOENT;
        node_copy(out, dir);
        out->kind = NODE_JOB;
        out->job = job_ref(j);
        return 0;
    }
    default: return lookup_attr(dir, name, out);
    }
}

/* ---- listing ---- */

/* The name under which the caller sees an object of `owner`. */
static void seen_as(const struct caller *c, int64_t owner, const char *name, char *out, size_t size)
{
    char user[33];
    if (c->uid == (uint32_t)owner)
        str_copy(out, size, name);
    else
        snprintf(out, size, "%s:%s", caller_user_name((uint32_t)owner, user), name);
}

static void list_sandboxes(struct space *s, const struct caller *c, enum node_kind kind, node_emit *emit, void *user)
{
    char name[2 * NAME_LEN_MAX];
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        if (!may_see_sandbox(sb, c))
            continue;
        struct node child = {.kind = kind, .sandbox = sb};
        seen_as(c, sb->row.owner, sb->row.name, name, sizeof name);
        emit(user, name, &child);
    }
}

static bool first_of_orphans(struct space *s, const struct snapshot *sn)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        const struct snapshot *other = hmap_entry(n, struct snapshot, by_id);
        if (other->row.sandbox == sn->row.sandbox)
            return other == sn;
    }
    return false;
}

static void list_orphans(struct space *s, const struct caller *c, node_emit *emit, void *user)
{
    char name[2 * NAME_LEN_MAX];
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        struct sandbox *sb = sandbox_by_id(s, (uint64_t)sn->row.sandbox);
        if ((sb && sb->named) || !may_see_snapshot(sn, c) || !first_of_orphans(s, sn))
            continue;
        struct node child = {.kind = NODE_SNAPSHOTS_OF, .orphan = (uint64_t)sn->row.sandbox};
        snprintf(name, sizeof name, "%s~%012" PRIx64, sn->row.sandbox_name, (uint64_t)sn->row.sandbox);
        emit(user, name, &child);
    }
}

static void list_snapshots(struct space *s, const struct caller *c, const struct node *dir, node_emit *emit, void *user)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        struct node child = *dir;
        if ((uint64_t)sn->row.sandbox != snapshots_owner(dir) || !may_see_snapshot(sn, c))
            continue;
        child.kind = NODE_SNAPSHOT;
        child.snapshot = sn;
        emit(user, sn->row.name, &child);
    }
}

static void list_templates(struct space *s, const struct caller *c, node_emit *emit, void *user)
{
    char name[2 * NAME_LEN_MAX];
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->templates, n));) {
        struct template *t = hmap_entry(n, struct template, by_id);
        if (t->row.deleted || !template_may_use(t, c))
            continue;
        struct node child = {.kind = NODE_TEMPLATE, .template = t};
        if (t->row.owner == 0) /* root's shared templates go by their plain names, unless one's own hides them */
            str_copy(name, sizeof name, c->uid && template_by_name(s, c->uid, t->row.name) ? "" : t->row.name);
        else
            seen_as(c, t->row.owner, t->row.name, name, sizeof name);
        if (name[0])
            emit(user, name, &child);
    }
}

static void list_attrs(const struct node *dir, node_emit *emit, void *user)
{
    const struct attr *table = attr_table(dir->kind);
    struct node child = *dir;
    child.kind = (enum node_kind)(dir->kind + 1);
    for (uint8_t i = 0; table && table[i].name; i++) {
        child.index = i;
        if (attr_present(dir, &table[i]))
            emit(user, table[i].name, &child);
    }
}

static void list_help(node_emit *emit, void *user)
{
    char buf[NAME_LEN_MAX * 2];
    const char *name;
    for (unsigned i = 0; help_text(i, &name, buf, sizeof buf); i++) {
        struct node child = {.kind = NODE_HELP_FILE, .index = (uint8_t)i};
        emit(user, name, &child);
    }
}

void node_list(struct space *s, const struct caller *c, const struct node *dir, node_emit *emit, void *user)
{
    switch (dir->kind) {
    case NODE_ROOT:
        list_attrs(dir, emit, user);
        for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++) {
            struct node child = {.kind = trees[i].kind};
            emit(user, trees[i].name, &child);
        }
        break;
    case NODE_HELP: list_help(emit, user); break;
    case NODE_TEMPLATES: list_templates(s, c, emit, user); break;
    case NODE_SANDBOXES: list_sandboxes(s, c, NODE_SANDBOX, emit, user); break;
    case NODE_GUESTS: list_sandboxes(s, c, NODE_GUEST, emit, user); break;
    case NODE_PROCS: list_sandboxes(s, c, NODE_PROC, emit, user); break;
    case NODE_PORTS: list_sandboxes(s, c, NODE_PORTS_OF, emit, user); break;
    case NODE_SNAPSHOTS:
        list_sandboxes(s, c, NODE_SNAPSHOTS_OF, emit, user);
        list_orphans(s, c, emit, user);
        break;
    case NODE_CREDENTIALS:
        list_attrs(dir, emit, user);
        credentials_list_scopes(s, c, emit, user);
        break;
    case NODE_SCOPE:
        list_attrs(dir, emit, user);
        credentials_list(s, dir, emit, user);
        break;
    case NODE_NODES:
        for (struct node_entry *entry = s->nodes; entry; entry = entry->next) {
            struct node child = {.kind = NODE_NODE, .entry = entry};
            if (!entry->gone && cluster_node_named(s, entry->row.name) == entry)
                emit(user, entry->row.name, &child);
        }
        break;
    case NODE_SNAPSHOTS_OF: list_snapshots(s, c, dir, emit, user); break;
    case NODE_PROC:
        for (struct job *j = dir->sandbox->jobs; j; j = j->next) {
            struct node child = *dir;
            child.kind = NODE_JOB;
            child.job = j;
            emit(user, j->row.name, &child);
        }
        break;
    default: list_attrs(dir, emit, user);
    }
}
