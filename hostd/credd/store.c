// SPDX-License-Identifier: Apache-2.0
// Credentials in memory and on the disk: see store.h.
#include "hostd/credd/store.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "hostd/credd/file.h"
#include "hostd/credd/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct store {
    char folder[256];
    const struct master_keys *keys;
    struct hmap by_id;
    struct hmap by_scope; /* those that were not removed */
    struct hmap gone;     /* those that were, by their sandbox */
};

/* ---- scopes ---- */

static uint64_t scope_key(const struct credd_scope *s)
{
    uint64_t h = 14695981039346656037ull; /* FNV-1a; compared in full after */
    const uint64_t parts[] = {s->kind, s->tenant, s->sandbox};
    for (size_t i = 0; i < 3; i++)
        h = (h ^ parts[i]) * 1099511628211ull;
    for (const char *c = s->label; *c; c++)
        h = (h ^ (unsigned char)*c) * 1099511628211ull;
    return h;
}

bool scope_equal(const struct credd_scope *a, const struct credd_scope *b)
{
    return a->kind == b->kind && a->tenant == b->tenant && a->sandbox == b->sandbox && !strcmp(a->label, b->label);
}

bool scope_valid(const struct credd_scope *s)
{
    if (!memchr(s->label, 0, sizeof s->label))
        return false;
    bool label = s->kind == CREDD_LABELLED ? label_valid(s->label) : !s->label[0];
    bool sandbox = (s->kind == CREDD_SANDBOX) == (s->sandbox != 0);
    return label && sandbox && s->kind >= CREDD_PLATFORM && s->kind <= CREDD_SANDBOX && (s->kind != CREDD_PLATFORM || s->tenant == 0);
}

/* ---- look-ups ---- */

struct credential *store_find_any(const struct store *s, uint64_t id)
{
    struct hmap_node *n = hmap_find(&s->by_id, id);
    return n ? hmap_entry(n, struct credential, by_id) : NULL;
}

struct credential *store_find(const struct store *s, uint64_t id)
{
    struct credential *c = store_find_any(s, id);
    return c && !c->rec.removed ? c : NULL;
}

struct credential *store_next(const struct store *s, const struct credd_scope *scope, const struct credential *after)
{
    struct hmap_node *n = after ? hmap_find_next(&after->by_scope) : hmap_find(&s->by_scope, scope_key(scope));
    for (; n; n = hmap_find_next(n)) {
        struct credential *c = hmap_entry(n, struct credential, by_scope);
        if (scope_equal(&c->rec.scope, scope))
            return c;
    }
    return NULL;
}

struct credential *store_find_name(const struct store *s, const struct credd_scope *scope, const char *name)
{
    for (struct credential *c = NULL; (c = store_next(s, scope, c));)
        if (!strcmp(c->rec.name, name))
            return c;
    return NULL;
}

void store_each(const struct store *s, void (*each)(void *user, const struct credential *c), void *user)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->by_id, n));)
        each(user, hmap_entry(n, struct credential, by_id));
}

uint32_t store_count(const struct store *s)
{
    return (uint32_t)s->by_scope.count;
}

struct credential *store_of_sandbox(const struct store *s, uint64_t sandbox)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->by_id, n));) {
        struct credential *c = hmap_entry(n, struct credential, by_id);
        if (c->rec.scope.kind == CREDD_SANDBOX && c->rec.scope.sandbox == sandbox)
            return c;
    }
    return NULL;
}

/* ---- in memory ---- */

static void free_credential(struct credential *c)
{
    for (unsigned i = 0; c->uses && i < STORE_USES; i++)
        free(c->uses[i]);
    free(c->uses);
    free(c->box);
    free(c);
}

static void insert(struct store *s, struct credential *c)
{
    hmap_insert(&s->by_id, &c->by_id, c->rec.id);
    if (c->rec.removed)
        hmap_insert(&s->gone, &c->by_scope, c->rec.scope.sandbox);
    else
        hmap_insert(&s->by_scope, &c->by_scope, scope_key(&c->rec.scope));
}

static void take_out(struct store *s, struct credential *c)
{
    hmap_remove(&s->by_id, &c->by_id);
    hmap_remove(c->rec.removed ? &s->gone : &s->by_scope, &c->by_scope);
}

void store_used(struct credential *c, const char *line)
{
    if (!c->uses)
        c->uses = calloc(STORE_USES, sizeof *c->uses);
    if (!c->uses)
        return;
    free(c->uses[c->next_use]);
    c->uses[c->next_use] = strdup(line);
    c->next_use = (c->next_use + 1) % STORE_USES;
}

/* ---- on the disk ---- */

static void path_of(const struct store *s, uint64_t id, char out[300])
{
    snprintf(out, 300, "%s/%012" PRIx64 ".cred", s->folder, id);
}

static int write_record(const struct store *s, const struct credd_record *rec, const void *box, size_t len, struct err *e)
{
    char path[300];
    AUTO_FREE uint8_t *file = malloc(RECORD_MAX);
    if (!file)
        return err_set(e, ENOMEM, "write credential %s: out of memory", rec->name);
    path_of(s, rec->id, path);
    return file_replace(path, file, record_encode(s->keys, rec, box, len, file), 0600, e);
}

static int decode(const struct store *s, const uint8_t *bytes, size_t size, struct credential *c)
{
    const uint8_t *box = NULL;
    size_t len = 0;
    int rc = record_decode(s->keys, bytes, size, &c->rec, &box, &len);
    if (rc < 0)
        return rc;
    if (method_parse(c->rec.method, &c->method, NULL, NULL) < 0)
        return -EBADMSG;
    c->box = len ? malloc(len) : NULL;
    if (len && !c->box)
        return -ENOMEM;
    if (len)
        memcpy(c->box, box, len);
    c->box_len = len;
    return 0;
}

static int load_one(struct store *s, const char *name, struct err *e)
{
    uint64_t id;
    char path[300];
    AUTO_FREE uint8_t *file = malloc(RECORD_MAX + 1);
    struct credential *c = calloc(1, sizeof *c);
    int rc = -ENOMEM;
    if (file && c && str_parse_id(name, 12, &id) == 0) {
        path_of(s, id, path);
        AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        ssize_t n = fd < 0 ? -1 : read(fd, file, RECORD_MAX + 1);
        rc = n < 0 ? -errno : decode(s, file, (size_t)n, c);
        if (rc == 0 && c->rec.id != id)
            rc = -EBADMSG;
    }
    if (rc == 0) {
        insert(s, c);
        return 0;
    }
    if (c)
        free_credential(c);
    return err_set(e, -rc, "%s/%.40s cannot be read (%s): bring it back from a copy, or remove it, and with it this credential", s->folder, name,
                   rc == -EBADMSG  ? "it is damaged, or of another master key"
                   : rc == -ENOKEY ? "it is of another master key"
                                   : strerror(-rc));
}

/* What a crash left of a replacement goes. */
static int load_all(struct store *s, struct err *e)
{
    char path[300];
    DIR *d = opendir(s->folder);
    int rc = 0;
    if (!d)
        return err_sys(e, "open %s", s->folder);
    for (const struct dirent *ent; rc == 0 && (ent = readdir(d));) {
        const char *dot = strchr(ent->d_name, '.');
        if (dot && !strcmp(dot, ".cred.new")) {
            snprintf(path, sizeof path, "%s/%.40s", s->folder, ent->d_name);
            unlink(path);
        } else if (dot == ent->d_name + 12 && !strcmp(dot, ".cred")) {
            rc = load_one(s, ent->d_name, e);
        }
    }
    closedir(d);
    return rc;
}

int store_open(const char *state, const struct master_keys *keys, struct store **out, struct err *e)
{
    struct store *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ENOMEM, "open the store: out of memory");
    snprintf(s->folder, sizeof s->folder, "%s/store", state);
    s->keys = keys;
    int rc = mkdir(s->folder, 0700) < 0 && errno != EEXIST ? err_sys(e, "make %s", s->folder) : load_all(s, e);
    if (rc < 0)
        store_close(s);
    else
        *out = s;
    return rc;
}

void store_close(struct store *s)
{
    for (struct hmap_node *n; (n = hmap_iterate(&s->by_id, NULL));) {
        hmap_remove(&s->by_id, n);
        free_credential(hmap_entry(n, struct credential, by_id));
    }
    hmap_finish(&s->by_id);
    hmap_finish(&s->by_scope);
    hmap_finish(&s->gone);
    free(s);
}

/* ---- changes ---- */

static unsigned count_in(const struct store *s, const struct credd_scope *scope)
{
    unsigned n = 0;
    for (const struct credential *c = NULL; (c = store_next(s, scope, c));)
        n++;
    return n;
}

static uint64_t fresh_id(const struct store *s)
{
    uint64_t id = 0;
    while (!id || store_find_any(s, id)) {
        randombytes_buf(&id, sizeof id);
        id &= (1ull << 48) - 1;
    }
    return id;
}

/* The time, so that what two nodes did to one record does not get one number; and more than the last, whatever clocks do. */
static uint64_t number_after(uint64_t last)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t at = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    return at > last ? at : last + 1;
}

static int check_room(const struct store *s, const struct credd_scope *scope, struct err *e)
{
    if (s->by_scope.count >= STORE_MAX || count_in(s, scope) >= STORE_SCOPE_MAX)
        return err_set(e, EMFILE, "there are %u credentials in this scope, or %u in all: no more", STORE_SCOPE_MAX, STORE_MAX);
    return 0;
}

int store_make(struct store *s, const struct credd_record *rec, struct credential **out, struct err *e)
{
    if (!scope_valid(&rec->scope) || !str_name_valid(rec->name, strnlen(rec->name, sizeof rec->name)))
        return err_set(e, EINVAL, "a credential's name has 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'");
    if (store_find_name(s, &rec->scope, rec->name))
        return err_set(e, EEXIST, "there is a credential %s in this scope", rec->name);
    if (check_room(s, &rec->scope, e) < 0)
        return -EMFILE;
    struct credential *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ENOMEM, "make credential %s: out of memory", rec->name);
    c->rec = *rec;
    c->rec.id = fresh_id(s);
    c->rec.number = number_after(0);
    c->rec.created = (int64_t)c->rec.number;
    c->rec.has_value = c->rec.removed = 0;
    int rc = method_parse(c->rec.method[0] ? c->rec.method : METHOD_DEFAULT, &c->method, c->rec.method, e);
    if (rc == 0)
        rc = write_record(s, &c->rec, NULL, 0, e);
    if (rc < 0) {
        free_credential(c);
        return rc;
    }
    insert(s, c);
    *out = c;
    return 0;
}

int store_save(struct store *s, struct credential *c, const struct credd_record *rec, const void *box, size_t len, struct err *e)
{
    struct credd_record next = *rec;
    struct method method;
    next.id = c->rec.id;
    next.scope = c->rec.scope;
    next.number = number_after(c->rec.number);
    memcpy(next.name, c->rec.name, sizeof next.name);
    uint8_t *copy = box && len ? malloc(len) : NULL;
    int rc = box && len && !copy ? err_set(e, ENOMEM, "write credential %s: out of memory", next.name) : method_parse(next.method, &method, NULL, e);
    if (rc == 0)
        rc = write_record(s, &next, box ? box : c->box, box ? len : c->box_len, e);
    if (rc < 0) {
        free(copy);
        return rc;
    }
    if (copy)
        memcpy(copy, box, len);
    if (box) {
        free(c->box);
        c->box = copy;
        c->box_len = len;
    }
    c->rec = next;
    c->method = method;
    return 0;
}

int store_drop(struct store *s, struct credential *c, struct err *e)
{
    char path[300];
    path_of(s, c->rec.id, path);
    int rc = file_remove(path, e);
    if (rc < 0)
        return rc;
    take_out(s, c);
    free_credential(c);
    return 0;
}

/* Of a sandbox no more are remembered than so many. */
static void forget_oldest(struct store *s, uint64_t sandbox)
{
    for (;;) {
        struct credential *oldest = NULL;
        unsigned count = 0;
        for (struct hmap_node *n = hmap_find(&s->gone, sandbox); n; n = hmap_find_next(n), count++) {
            struct credential *c = hmap_entry(n, struct credential, by_scope);
            oldest = !oldest || c->rec.number < oldest->rec.number ? c : oldest;
        }
        if (count <= CREDD_REMOVED_MAX || store_drop(s, oldest, NULL) < 0)
            return; /* what fails is done with the next */
    }
}

/* In place of what it was, on the disk first. */
static int become_removed(struct store *s, struct credential *c, uint64_t number, struct err *e)
{
    struct credd_record next = c->rec;
    memset(next.hosts, 0, sizeof next.hosts);
    next.removed = 1;
    next.has_value = 0;
    next.number = number;
    int rc = write_record(s, &next, NULL, 0, e);
    if (rc < 0)
        return rc;
    take_out(s, c);
    c->rec = next;
    free(c->box);
    c->box = NULL;
    c->box_len = 0;
    insert(s, c);
    forget_oldest(s, next.scope.sandbox);
    return 0;
}

int store_remove(struct store *s, struct credential *c, struct err *e)
{
    return c->rec.scope.kind == CREDD_SANDBOX ? become_removed(s, c, number_after(c->rec.number), e) : store_drop(s, c, e);
}

/* ---- between nodes ---- */

_Static_assert(sodium_base64_ENCODED_LEN(RECORD_MAX, sodium_base64_VARIANT_ORIGINAL) <= CREDD_PACKED_SIZE, "a packed record");

void store_pack(const struct store *s, const struct credential *c, char out[CREDD_PACKED_SIZE])
{
    uint8_t bytes[RECORD_MAX];
    size_t size = record_encode(s->keys, &c->rec, c->box, c->box_len, bytes);
    sodium_bin2base64(out, CREDD_PACKED_SIZE, bytes, size, sodium_base64_VARIANT_ORIGINAL);
}

static int unpack(const struct store *s, uint64_t sandbox, const char *text, struct credential *c, struct err *e)
{
    uint8_t bytes[RECORD_MAX];
    size_t size = 0;
    int rc = sodium_base642bin(bytes, sizeof bytes, text, strlen(text), NULL, &size, NULL, sodium_base64_VARIANT_ORIGINAL) < 0
                 ? -EBADMSG
                 : decode(s, bytes, size, c);
    if (rc == -ENOKEY)
        return err_set(e, ENOKEY,
                       "a credential of sandbox %012" PRIx64 " was kept under another master key: nodes that share sandboxes share `master`",
                       sandbox);
    if (rc < 0)
        return err_set(e, -rc, "what came as a credential of sandbox %012" PRIx64 " cannot be read: %s", sandbox, strerror(-rc));
    if (c->rec.scope.kind != CREDD_SANDBOX || c->rec.scope.sandbox != sandbox)
        return err_set(e, EINVAL, "credential %s is not of sandbox %012" PRIx64, c->rec.name, sandbox);
    return 0;
}

/* Two nodes made one of the same name (the first was taken for dead, and came back): the younger one counts. */
static int settle_name(struct store *s, struct credential *c, struct err *e)
{
    struct credential *other = c->rec.removed ? NULL : store_find_name(s, &c->rec.scope, c->rec.name);
    if (!other || other->rec.id == c->rec.id)
        return 0;
    if (other->rec.number < c->rec.number)
        return store_remove(s, other, e);
    c->rec.removed = 1;
    c->rec.has_value = 0;
    c->rec.number++;
    c->box_len = 0;
    return 0;
}

/* `c` is in the store when this is 0, else nowhere. */
static int adopt(struct store *s, struct credential *c, struct credential *before, struct err *e)
{
    int rc = settle_name(s, c, e);
    if (rc == 0 && !c->rec.removed && (!before || before->rec.removed))
        rc = check_room(s, &c->rec.scope, e);
    if (rc == 0)
        rc = write_record(s, &c->rec, c->box, c->box_len, e);
    if (rc < 0)
        return rc;
    if (before) {
        take_out(s, before);
        free_credential(before);
    }
    insert(s, c);
    return 0;
}

int store_take(struct store *s, uint64_t sandbox, const char *text, struct credential **out, bool *ret_changed, struct err *e)
{
    struct credential *c = calloc(1, sizeof *c);
    int rc = c ? unpack(s, sandbox, text, c, e) : err_set(e, ENOMEM, "take a credential: out of memory");
    struct credential *before = rc < 0 ? NULL : store_find_any(s, c->rec.id);
    *ret_changed = rc == 0 && !(before && before->rec.number >= c->rec.number);
    if (*ret_changed)
        rc = adopt(s, c, before, e);
    if ((rc < 0 || !*ret_changed) && c)
        free_credential(c);
    *out = rc < 0 ? NULL : *ret_changed ? c : before;
    return rc;
}
