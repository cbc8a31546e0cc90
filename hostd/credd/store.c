// SPDX-License-Identifier: Apache-2.0
// Credentials in memory and on the disk: see store.h.
#include "hostd/credd/store.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "hostd/credd/backend.h"
#include "hostd/credd/file.h"
#include "hostd/credd/master.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NONCE    crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
#define TAG      crypto_aead_xchacha20poly1305_ietf_ABYTES
#define VERSION  1u
#define HEAD     24u /* magic, version, bytes of the box, id */
#define FILE_MIN (HEAD + NONCE + sizeof(struct credd_record) + TAG)
#define FILE_MAX (FILE_MIN + BACKEND_BOX_MAX)

struct store {
    char folder[256];
    const struct master_keys *keys;
    struct hmap by_id, by_scope;
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

struct credential *store_find(const struct store *s, uint64_t id)
{
    struct hmap_node *n = hmap_find(&s->by_id, id);
    return n ? hmap_entry(n, struct credential, by_id) : NULL;
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
    return (uint32_t)s->by_id.count;
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
    hmap_insert(&s->by_scope, &c->by_scope, scope_key(&c->rec.scope));
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

static void write_head(uint8_t head[HEAD], uint64_t id, uint32_t box_len)
{
    const uint32_t numbers[] = {VERSION, box_len};
    memcpy(head, "spccred\n", 8);
    memcpy(head + 8, numbers, sizeof numbers);
    memcpy(head + 16, &id, sizeof id);
}

static int write_record(const struct store *s, const struct credd_record *rec, const void *box, size_t len, struct err *e)
{
    char path[300];
    AUTO_FREE uint8_t *file = malloc(FILE_MAX);
    unsigned long long size;
    if (!file)
        return err_set(e, ENOMEM, "write credential %s: out of memory", rec->name);
    write_head(file, rec->id, (uint32_t)len);
    randombytes_buf(file + HEAD, NONCE);
    crypto_aead_xchacha20poly1305_ietf_encrypt(file + HEAD + NONCE, &size, (const uint8_t *)rec, sizeof *rec, file, HEAD, NULL, file + HEAD,
                                               s->keys->record);
    if (len)
        memcpy(file + FILE_MIN, box, len);
    path_of(s, rec->id, path);
    return file_replace(path, file, FILE_MIN + len, 0600, e);
}

static bool ended(const char *text, size_t size)
{
    return memchr(text, 0, size) != NULL;
}

static bool record_valid(const struct credd_record *r)
{
    return r->id && scope_valid(&r->scope) && ended(r->name, sizeof r->name) && ended(r->method, sizeof r->method) &&
           ended(r->hosts, sizeof r->hosts) && str_name_valid(r->name, strlen(r->name));
}

static int decode(const struct store *s, uint64_t id, const uint8_t *file, size_t size, struct credential *c)
{
    uint8_t head[HEAD];
    size_t len = size - FILE_MIN;
    write_head(head, id, (uint32_t)len);
    if (memcmp(head, file, HEAD) != 0 ||
        crypto_aead_xchacha20poly1305_ietf_decrypt((uint8_t *)&c->rec, NULL, NULL, file + HEAD + NONCE, sizeof c->rec + TAG, file, HEAD, file + HEAD,
                                                   s->keys->record) < 0)
        return -EBADMSG;
    if (c->rec.id != id || !record_valid(&c->rec) || method_parse(c->rec.method, &c->method, NULL, NULL) < 0)
        return -EBADMSG;
    c->box = len ? malloc(len) : NULL;
    if (len && !c->box)
        return -ENOMEM;
    if (len)
        memcpy(c->box, file + FILE_MIN, len);
    c->box_len = len;
    return 0;
}

static int load_one(struct store *s, const char *name, struct err *e)
{
    uint64_t id;
    char path[300];
    AUTO_FREE uint8_t *file = malloc(FILE_MAX + 1);
    struct credential *c = calloc(1, sizeof *c);
    int rc = -ENOMEM;
    if (file && c && str_parse_id(name, 12, &id) == 0) {
        path_of(s, id, path);
        AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        ssize_t n = fd < 0 ? -1 : read(fd, file, FILE_MAX + 1);
        rc = n < 0 ? -errno : n < (ssize_t)FILE_MIN || n > (ssize_t)FILE_MAX ? -EBADMSG : decode(s, id, file, (size_t)n, c);
    }
    if (rc == 0) {
        insert(s, c);
        return 0;
    }
    if (c)
        free_credential(c);
    return err_set(e, -rc, "%s/%.40s cannot be read (%s): bring it back from a copy, or remove it, and with it this credential", s->folder, name,
                   rc == -EBADMSG ? "it is damaged, or of another master key" : strerror(-rc));
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
    while (!id || store_find(s, id)) {
        randombytes_buf(&id, sizeof id);
        id &= (1ull << 48) - 1;
    }
    return id;
}

int store_make(struct store *s, const struct credd_record *rec, struct credential **out, struct err *e)
{
    struct timespec now;
    if (!scope_valid(&rec->scope) || !str_name_valid(rec->name, strnlen(rec->name, sizeof rec->name)))
        return err_set(e, EINVAL, "a credential's name has 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'");
    if (store_find_name(s, &rec->scope, rec->name))
        return err_set(e, EEXIST, "there is a credential %s in this scope", rec->name);
    if (s->by_id.count >= STORE_MAX || count_in(s, &rec->scope) >= STORE_SCOPE_MAX)
        return err_set(e, EMFILE, "there are %u credentials in this scope, or %u in all: no more", STORE_SCOPE_MAX, STORE_MAX);
    struct credential *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ENOMEM, "make credential %s: out of memory", rec->name);
    clock_gettime(CLOCK_REALTIME, &now);
    c->rec = *rec;
    c->rec.id = fresh_id(s);
    c->rec.created = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    c->rec.has_value = 0;
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

int store_remove(struct store *s, struct credential *c, struct err *e)
{
    char path[300];
    path_of(s, c->rec.id, path);
    int rc = file_remove(path, e);
    if (rc < 0)
        return rc;
    hmap_remove(&s->by_id, &c->by_id);
    hmap_remove(&s->by_scope, &c->by_scope);
    free_credential(c);
    return 0;
}
