// SPDX-License-Identifier: Apache-2.0
// Pages of a bucket, and what uploads that never ended left in it.
#include "hostd/volumed/backend/s3_impl.h"

#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 10000u /* pages of nothing but names that are not ours */

/* ---- list ---- */

struct listing {
    struct backend_op *op;
    const char *prefix; /* of the backend: cut off */
    struct page page;
    char last[S3_KEY_MAX + 1]; /* key of the page before */
    char seen[S3_KEY_MAX + 1]; /* last key of this page */
    size_t entries;
    bool own; /* lists what the backend itself made, instead */
    bool truncated;
};

static int take_object(void *user, const struct s3_entry *entry)
{
    struct listing *l = user;
    size_t n = strlen(l->prefix);
    if (strcmp(entry->key, l->seen) <= 0 || strncmp(entry->key, l->prefix, n) != 0)
        return -EBADMSG; /* not in order, or not asked for */
    str_copy(l->seen, sizeof l->seen, entry->key);
    l->entries++;
    const char *name = entry->key + n;
    bool take = l->own ? strncmp(name, BACKEND_OWN_PREFIX, strlen(BACKEND_OWN_PREFIX)) == 0 && backend_name_valid(name, true)
                       : backend_name_valid(name, false);
    return take ? page_add(&l->page, name, entry->size, entry->when) : 0;
}

static int check_page(struct s3 *s, struct s3_call *c, struct err *e)
{
    struct listing *l = c->user;
    struct s3_listing parsed = {.entry = take_object, .user = l};
    page_free(&l->page);
    l->entries = 0;
    strcpy(l->seen, l->last);
    int rc = s3_xml_list(c->x.text ? c->x.text : "", c->x.text_len, &parsed);
    l->truncated = parsed.truncated;
    if (rc == 0 && (!l->truncated || l->entries))
        return 0;
    return err_set(e, rc == -ENOMEM ? ENOMEM : EBADMSG, "%s in %s: the answer is not a list of what was asked for", c->what, s->base.description);
}

static int make_query(const struct s3 *s, const struct listing *l, const char *name, unsigned max, char query[S3_QUERY_MAX])
{
    char full[S3_PREFIX_MAX + BACKEND_NAME_MAX + 1], prefix[3 * sizeof full], after[3 * S3_KEY_MAX + 1];
    size_t at = 0;
    snprintf(full, sizeof full, "%s%s", s->prefix, name);
    if (s3_encode(full, S3_ENCODE_ALL, prefix, sizeof prefix) < 0 || s3_encode(l->last, S3_ENCODE_ALL, after, sizeof after) < 0)
        return -ENAMETOOLONG;
    bool ok = str_append(query, S3_QUERY_MAX, &at, "encoding-type=url&list-type=2&max-keys=%u&prefix=%s", max, prefix) &&
              (!after[0] || str_append(query, S3_QUERY_MAX, &at, "&start-after=%s", after));
    return ok ? 0 : -ENAMETOOLONG;
}

static int one_page(struct s3 *s, struct listing *l, const char *name, unsigned max, struct err *e)
{
    char *query = malloc(S3_QUERY_MAX), what[BACKEND_NAME_MAX + 16];
    int rc = query ? make_query(s, l, name, max, query) : -ENOMEM;
    snprintf(what, sizeof what, "list %s*", name);
    struct s3_call c = {.what = what, .method = "GET", .query = query, .check = check_page, .user = l, .urgent = l->op->r.flags & BACKEND_URGENT};
    rc = rc < 0 ? err_set(e, -rc, "%s: %s", what, strerror(-rc)) : s3_call(s, &c, e);
    s3_call_end(&c);
    free(query);
    strcpy(l->last, l->seen);
    if (rc == -ENOENT)
        rc = err_set(e, ENODEV, "there is no %s", s->base.description);
    return rc;
}

void s3_list(struct s3 *s, struct backend_op *op)
{
    struct err e = {0};
    int rc = 0;
    struct listing *l = calloc(1, sizeof *l);
    if (!l) {
        op_fail(op, EIO, "list: out of memory");
        return;
    }
    l->op = op;
    l->prefix = s->prefix;
    if (op->r.after[0])
        snprintf(l->last, sizeof l->last, "%s%s", s->prefix, op->r.after);
    for (unsigned i = 0; rc == 0 && (i == 0 || (l->truncated && !l->page.count)); i++)
        rc = i < ROUNDS_MAX ? one_page(s, l, op->r.name, op->r.max, &e) : err_set(&e, EIO, "list %s: too much is there that is not ours", op->r.name);
    s3_answer(op, rc, &e);
    op->result.more = l->truncated;
    if (rc == 0)
        page_end(&l->page, op);
    page_free(&l->page);
    free(l);
}

/* ---- sweep ---- */

struct upload {
    char key[S3_KEY_MAX + 1], id[S3_KEY_MAX + 1];
};

struct sweeping {
    struct s3 *s;
    struct upload *uploads;
    size_t count, size;
    int64_t before; /* initiated by then */
    char next_key[S3_KEY_MAX + 1], next_upload[S3_KEY_MAX + 1];
    bool truncated;
};

static int take_upload(void *user, const struct s3_entry *entry)
{
    struct sweeping *w = user;
    size_t n = strlen(w->s->prefix);
    if (strncmp(entry->key, w->s->prefix, n) != 0 || !entry->upload[0])
        return -EBADMSG;
    if (entry->when > w->before || !backend_name_valid(entry->key + n, false))
        return 0;
    if (w->count == w->size) {
        size_t size = w->size ? w->size * 2 : 16;
        struct upload *u = reallocarray(w->uploads, size, sizeof *u);
        if (!u)
            return -ENOMEM;
        w->uploads = u;
        w->size = size;
    }
    strcpy(w->uploads[w->count].key, entry->key + n);
    strcpy(w->uploads[w->count++].id, entry->upload);
    return 0;
}

static int check_uploads(struct s3 *s, struct s3_call *c, struct err *e)
{
    struct sweeping *w = c->user;
    struct s3_listing l = {.entry = take_upload, .user = w};
    w->count = 0;
    int rc = s3_xml_list(c->x.text ? c->x.text : "", c->x.text_len, &l);
    w->truncated = l.truncated;
    bool moved = strcmp(l.next_key, w->next_key) != 0 || strcmp(l.next_upload, w->next_upload) != 0;
    if (rc == 0 && (!l.truncated || moved)) {
        strcpy(w->next_key, l.next_key);
        strcpy(w->next_upload, l.next_upload);
        return 0;
    }
    return err_set(e, EBADMSG, "%s in %s: the answer is not a list of uploads", c->what, s->base.description);
}

static int list_uploads(struct s3 *s, struct sweeping *w, struct err *e)
{
    char *query = malloc(S3_QUERY_MAX), *key = malloc(3 * S3_KEY_MAX + 1), *id = malloc(3 * S3_KEY_MAX + 1), prefix[3 * S3_PREFIX_MAX + 1];
    size_t at = 0;
    int rc = -ENOMEM;
    if (query && key && id && s3_encode(w->next_key, S3_ENCODE_ALL, key, 3 * S3_KEY_MAX + 1) == 0 &&
        s3_encode(w->next_upload, S3_ENCODE_ALL, id, 3 * S3_KEY_MAX + 1) == 0 && s3_encode(s->prefix, S3_ENCODE_ALL, prefix, sizeof prefix) == 0 &&
        str_append(query, S3_QUERY_MAX, &at, "encoding-type=url&key-marker=%s&max-uploads=1000&prefix=%s&upload-id-marker=%s&uploads=", key, prefix,
                   id)) {
        struct s3_call c = {.what = "list unfinished uploads", .method = "GET", .query = query, .check = check_uploads, .user = w};
        rc = s3_call(s, &c, e);
        s3_call_end(&c);
    } else {
        err_set(e, ENOMEM, "list unfinished uploads: out of memory");
    }
    free(query);
    free(key);
    free(id);
    return rc;
}

static int sweep_uploads(struct s3 *s, struct backend_op *op, int64_t before, struct err *e)
{
    struct sweeping w = {.s = s, .before = before};
    int rc;
    do {
        rc = list_uploads(s, &w, e);
        for (size_t i = 0; rc == 0 && i < w.count; i++) {
            rc = s3_abort_upload(s, w.uploads[i].key, w.uploads[i].id, e);
            op->result.count += rc == 0;
        }
    } while (rc == 0 && w.truncated);
    free(w.uploads);
    return rc;
}

/* Probes of a check that was killed. A page is enough: the next sweep takes the next. */
static int sweep_probes(struct s3 *s, struct backend_op *op, int64_t before, struct err *e)
{
    struct listing *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ENOMEM, "sweep: out of memory");
    l->op = op;
    l->prefix = s->prefix;
    l->own = true;
    int rc = one_page(s, l, BACKEND_OWN_PREFIX, BACKEND_PAGE_MAX, e);
    for (size_t i = 0; rc == 0 && i < l->page.count; i++) {
        const struct backend_object *o = &l->page.objects[i];
        if (o->modified > before)
            continue;
        struct s3_call c = {.what = "delete a probe", .method = "DELETE", .name = l->page.names + (uintptr_t)o->name};
        rc = s3_call(s, &c, e);
        s3_call_end(&c);
        op->result.count += rc == 0;
    }
    page_free(&l->page);
    free(l);
    return rc;
}

void s3_sweep(struct s3 *s, struct backend_op *op)
{
    struct err e = {0};
    int64_t older = op->r.older > INT32_MAX ? INT32_MAX : (int64_t)op->r.older;
    int64_t before = time(NULL) + s->base.stats.clock_offset_ms / 1000 - older;
    int rc = sweep_uploads(s, op, before, &e);
    if (rc == 0)
        rc = sweep_probes(s, op, before, &e);
    s3_answer(op, rc, &e);
}
