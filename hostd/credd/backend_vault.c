// SPDX-License-Identifier: Apache-2.0
// Values in a KV version 2 engine of HashiCorp Vault or OpenBao: https://developer.hashicorp.com/vault/api-docs/secret/kv/kv-v2.
//
// Theory of operation. PUT and GET of MOUNT/data/PATH, DELETE of MOUNT/metadata/PATH (all versions). PATH is PREFIX/SCOPE.../NAME, so that an operator finds and
// writes values there himself. A value that was got, or put, is kept for `cache` seconds, encrypted as the local back end does it; then it is asked for
// again, so that one that was changed or removed there is used no longer than that. Each exchange is one try: what fails is refused, and the next request tries again.
#include "hostd/credd/backend_vault.h"

#include "base/hmap.h"
#include "base/str.h"
#include "hostd/credd/json.h"
#include "hostd/volumed/backend/http.h"
#include "hostd/volumed/secret_file.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLIGHT     8u
#define STALL_S    10u
#define CACHE_S    30u
#define CACHE_MAX  3600u
#define BODY_SIZE  (6u * CREDD_VALUE_MAX + 64u)
#define ANSWER_BOX "vault" /* what the record keeps: that there is a value */

struct settings {
    char url[256], mount[65], prefix[129], token[300], ca[300], name_space[129];
    unsigned cache_s;
};

struct vault {
    struct backend b;
    struct settings s;
    struct http *http;
    struct backend *local; /* for what is kept for a while */
    struct hmap kept;
    uv_loop_t *loop;
    char *value; /* CREDD_VALUE_MAX, locked */
};

struct kept {
    struct hmap_node by_id;
    uint8_t box[BACKEND_BOX_MAX];
    size_t len;
    uint64_t until; /* uv_now */
};

/* One exchange. */
struct exchange {
    struct vault *v;
    struct credd_record rec;
    struct http_exchange x;
    struct iovec body;
    char url[1024];
    char *text;       /* the body, locked; NULL: none */
    const char *verb; /* for sentences */
    void (*came)(struct exchange *ex, struct backend_result *r);
    backend_done *done;
    void *user;
};

/* ---- what is kept ---- */

static struct kept *kept_of(const struct vault *v, uint64_t id)
{
    struct hmap_node *n = hmap_find(&v->kept, id);
    return n ? hmap_entry(n, struct kept, by_id) : NULL;
}

static void forget(struct vault *v, uint64_t id)
{
    struct kept *k = kept_of(v, id);
    if (!k)
        return;
    hmap_remove(&v->kept, &k->by_id);
    free(k);
}

static void keep_box(void *user, const struct backend_result *r)
{
    struct kept *k = user;
    memcpy(k->box, r->bytes, r->len);
    k->len = r->len;
}

static void keep(struct vault *v, const struct credd_record *rec, const void *value, size_t len)
{
    forget(v, rec->id);
    struct kept *k = v->s.cache_s ? calloc(1, sizeof *k) : NULL;
    if (!k)
        return;
    v->local->ops->put(v->local, rec, value, len, keep_box, k);
    k->until = uv_now(v->loop) + v->s.cache_s * 1000ull;
    hmap_insert(&v->kept, &k->by_id, rec->id);
}

/* ---- exchanges ---- */

/* Everything but letters, digits and a few as %XX. */
static void add_escaped(char *out, size_t size, size_t *pos, const char *text)
{
    for (; *text; text++) {
        bool plain = (*text >= '0' && *text <= '9') || (*text >= 'A' && *text <= 'Z') || (*text >= 'a' && *text <= 'z') || strchr("-._/", *text);
        str_append(out, size, pos, plain ? "%c" : "%%%02X", (unsigned char)*text);
    }
}

static void make_url(const struct vault *v, const char *kind, const struct credd_record *rec, char out[1024])
{
    char path[512];
    size_t pos = 0;
    const struct credd_scope *s = &rec->scope;
    switch (s->kind) {
    case CREDD_PLATFORM: snprintf(path, sizeof path, "platform"); break;
    case CREDD_TENANT: snprintf(path, sizeof path, "tenant/%u", s->tenant); break;
    case CREDD_LABELLED: snprintf(path, sizeof path, "label/%u/%s", s->tenant, s->label); break;
    default: snprintf(path, sizeof path, "sandbox/%012" PRIx64, s->sandbox);
    }
    str_append(out, 1024, &pos, "%s/v1/", v->s.url);
    add_escaped(out, 1024, &pos, v->s.mount);
    str_append(out, 1024, &pos, "/%s/", kind);
    add_escaped(out, 1024, &pos, v->s.prefix);
    str_append(out, 1024, &pos, "/");
    add_escaped(out, 1024, &pos, path);
    str_append(out, 1024, &pos, "/%s", rec->name);
}

static void wipe_headers(struct curl_slist *l)
{
    for (struct curl_slist *h = l; h; h = h->next)
        sodium_memzero(h->data, strlen(h->data));
    curl_slist_free_all(l);
}

/* The token is read for each exchange: an agent may renew it. */
static struct curl_slist *make_headers(const struct vault *v, struct err *e)
{
    char *text, line[512];
    struct curl_slist *l = NULL, *more;
    if (secret_file_read(v->s.token, &text, e) < 0)
        return NULL;
    snprintf(line, sizeof line, "X-Vault-Token: %.400s", str_trim(text));
    sodium_free(text);
    l = curl_slist_append(NULL, line);
    sodium_memzero(line, sizeof line);
    if (l && v->s.name_space[0]) {
        snprintf(line, sizeof line, "X-Vault-Namespace: %s", v->s.name_space);
        if ((more = curl_slist_append(l, line)))
            l = more;
    }
    if (l && (more = curl_slist_append(l, "X-Vault-Request: true")))
        l = more;
    if (!l)
        err_set(e, ENOMEM, "out of memory");
    return l;
}

static void judge(const struct exchange *ex, struct backend_result *r)
{
    const struct http_exchange *x = &ex->x;
    if (x->code != CURLE_OK)
        r->rc = err_set(&r->e, EAGAIN, "Vault cannot be asked to %s the value of %s: %.200s", ex->verb, ex->rec.name,
                        x->error[0] ? x->error : curl_easy_strerror(x->code));
    else if (x->status == 403)
        r->rc = err_set(&r->e, EACCES, "Vault does not let this token %s the value of %s (403)", ex->verb, ex->rec.name);
    else if (x->status == 404)
        r->rc = err_set(&r->e, ENOENT, "Vault has no value of %s (404)", ex->rec.name);
    else if (x->status / 100 != 2)
        r->rc = err_set(&r->e, EAGAIN, "Vault answered %d when asked to %s the value of %s", x->status, ex->verb, ex->rec.name);
}

static void finish(struct exchange *ex, struct backend_result *r)
{
    ex->done(ex->user, r);
    wipe_headers(ex->x.headers);
    if (ex->x.text) {
        sodium_memzero(ex->x.text, ex->x.text_len);
        free(ex->x.text);
    }
    if (ex->text)
        sodium_free(ex->text);
    free(ex);
}

static void exchanged(void *user)
{
    struct exchange *ex = user;
    struct backend_result r = {0};
    judge(ex, &r);
    if (ex->came)
        ex->came(ex, &r);
    finish(ex, &r);
    /* what `came` gave is wiped by it or lies in v->value */
}

static void start(struct vault *v, const char *method, const char *verb, const char *kind, const struct credd_record *rec, char *text, size_t len,
                  void (*came)(struct exchange *ex, struct backend_result *r), backend_done *done, void *user)
{
    struct exchange *ex = calloc(1, sizeof *ex);
    struct backend_result r = {0};
    if (!ex)
        abort(); /* a new process starts with less */
    *ex = (struct exchange){.v = v, .rec = *rec, .text = text, .body = {text, len}, .verb = verb, .came = came, .done = done, .user = user};
    make_url(v, kind, rec, ex->url);
    ex->x = (struct http_exchange){
        .method = method, .url = ex->url, .body = text ? &ex->body : NULL, .body_count = text ? 1 : 0, .length = len, .done = exchanged, .user = ex};
    ex->x.headers = make_headers(v, &r.e);
    if (!ex->x.headers)
        r.rc = -r.e.code;
    else if (!http_start(v->http, &ex->x))
        r.rc = err_set(&r.e, EAGAIN, "Vault cannot be asked now: no more exchanges can be begun");
    if (r.rc < 0)
        finish(ex, &r);
}

/* ---- the operations ---- */

/* Kept from the answer on; what was asked to be put is still in the body. */
static void was_put(struct exchange *ex, struct backend_result *r)
{
    static const char *const path[] = {"data", "value", NULL};
    struct vault *v = ex->v;
    size_t len;
    forget(v, ex->rec.id);
    r->bytes = ANSWER_BOX;
    r->len = strlen(ANSWER_BOX);
    if (r->rc == 0 && json_text_at(ex->text, path, v->value, CREDD_VALUE_MAX, &len))
        keep(v, &ex->rec, v->value, len);
    sodium_memzero(v->value, CREDD_VALUE_MAX);
}

static void put(struct backend *b, const struct credd_record *rec, const void *value, size_t len, backend_done *done, void *user)
{
    struct vault *v = (struct vault *)(void *)b;
    struct backend_result r = {0};
    char *text = secret_alloc(BODY_SIZE);
    if (!text) {
        r.rc = err_set(&r.e, ENOMEM, "no memory that can be locked");
        done(user, &r);
        return;
    }
    size_t n = (size_t)sprintf(text, "{\"data\":{\"value\":");
    n += json_quote(value, len, text + n);
    n += (size_t)sprintf(text + n, "}}");
    start(v, "PUT", "write", "data", rec, text, n, was_put, done, user);
}

static void was_got(struct exchange *ex, struct backend_result *r)
{
    static const char *const path[] = {"data", "data", "value", NULL};
    struct vault *v = ex->v;
    if (r->rc < 0)
        return;
    if (!ex->x.text || !json_text_at(ex->x.text, path, v->value, CREDD_VALUE_MAX, &r->len) || r->len == 0) {
        r->rc = err_set(&r->e, EBADMSG, "what Vault has of %s holds no text `value` of 1 to %u bytes", ex->rec.name, CREDD_VALUE_MAX);
        return;
    }
    r->bytes = v->value;
    keep(v, &ex->rec, v->value, r->len);
}

/* For that which lies in v->value only as long as it is told. */
struct telling {
    backend_done *done;
    void *user;
    struct vault *v;
};

static void tell(void *user, const struct backend_result *r)
{
    struct telling *t = user;
    t->done(t->user, r);
    sodium_memzero(t->v->value, CREDD_VALUE_MAX);
    free(t);
}

static void get(struct backend *b, const struct credd_record *rec, const void *box, size_t len, backend_done *done, void *user)
{
    struct vault *v = (struct vault *)(void *)b;
    const struct kept *k = kept_of(v, rec->id);
    (void)box, (void)len;
    if (k && k->until > uv_now(v->loop)) {
        v->local->ops->get(v->local, rec, k->box, k->len, done, user);
        return;
    }
    struct telling *t = malloc(sizeof *t);
    if (!t)
        abort();
    *t = (struct telling){done, user, v};
    start(v, "GET", "read", "data", rec, NULL, 0, was_got, tell, t);
}

static void remove_(struct backend *b, const struct credd_record *rec, backend_done *done, void *user)
{
    struct vault *v = (struct vault *)(void *)b;
    forget(v, rec->id);
    start(v, "DELETE", "remove", "metadata", rec, NULL, 0, NULL, done, user);
}

/* ---- settings ---- */

static int set_text(char *out, size_t size, const char *value)
{
    if (!*value || strlen(value) >= size)
        return -EINVAL;
    str_copy(out, size, value);
    return 0;
}

static int set_path(char *out, size_t size, const char *file, const char *value)
{
    const char *slash = strrchr(file, '/');
    int n = value[0] == '/' ? snprintf(out, size, "%s", value) : snprintf(out, size, "%.*s/%s", (int)(slash - file), file, value);
    return *value && n < (int)size ? 0 : -EINVAL;
}

static int set_cache(unsigned *out, const char *value)
{
    uint64_t seconds;
    if (str_parse_duration(value, &seconds) < 0 || seconds > CACHE_MAX)
        return -EINVAL;
    *out = (unsigned)seconds;
    return 0;
}

static int set_line(struct settings *s, const char *file, const char *key, const char *value)
{
    if (!strcmp(key, "url"))
        return strncmp(value, "https://", 8) && strncmp(value, "http://127.0.0.1:", 17) ? -EINVAL : set_text(s->url, sizeof s->url, value);
    if (!strcmp(key, "mount"))
        return set_text(s->mount, sizeof s->mount, value);
    if (!strcmp(key, "prefix"))
        return set_text(s->prefix, sizeof s->prefix, value);
    if (!strcmp(key, "namespace"))
        return set_text(s->name_space, sizeof s->name_space, value);
    if (!strcmp(key, "token"))
        return set_path(s->token, sizeof s->token, file, value);
    if (!strcmp(key, "ca"))
        return set_path(s->ca, sizeof s->ca, file, value);
    return !strcmp(key, "cache") ? set_cache(&s->cache_s, value) : -EINVAL;
}

static int load(const char *file, struct settings *s, struct err *e)
{
    char *text, *at, *key, *value;
    int rc = secret_file_read(file, &text, e);
    if (rc < 0)
        return rc;
    *s = (struct settings){.mount = "secret", .prefix = "space", .cache_s = CACHE_S};
    for (at = text; (rc = secret_file_next(&at, &key, &value)) == 1;)
        if (set_line(s, file, key, value) < 0) {
            rc = err_set(e, EINVAL, "%s: '%.40s' is no key of such a file, or has no such value", file, key);
            break;
        }
    sodium_free(text);
    if (rc == -EINVAL && !e->msg[0])
        return err_set(e, EINVAL, "%s: lines are `key = value`", file);
    if (rc == 0 && (!s->url[0] || !s->token[0]))
        return err_set(e, EINVAL, "%s needs url = https://... and token = FILE", file);
    return rc;
}

struct backend *backend_vault_create(uv_loop_t *loop, const char *file, const struct master_keys *keys, struct err *e)
{
    static const struct backend_ops ops = {"vault", put, get, remove_};
    struct vault *v = calloc(1, sizeof *v);
    if (!v || !(v->value = secret_alloc(CREDD_VALUE_MAX))) {
        err_set(e, ENOMEM, "no memory that can be locked for values (see RLIMIT_MEMLOCK)");
        free(v);
        return NULL;
    }
    v->b.ops = &ops;
    v->loop = loop;
    int rc = load(file, &v->s, e);
    const struct http_options o = {.ca = v->s.ca[0] ? v->s.ca : NULL, .flight = FLIGHT, .stall_s = STALL_S};
    if (rc == 0 && (v->local = backend_local_create(keys, e)))
        v->http = http_create(loop, &o, e);
    if (!v->http) {
        sodium_free(v->value);
        free(v); /* the process ends */
        return NULL;
    }
    return &v->b;
}
