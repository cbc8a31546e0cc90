// SPDX-License-Identifier: Apache-2.0
// S3's answers: see s3_xml.h. One reader calls a function at the end of each element, with its path and its text.
#include "hostd/volumed/backend/s3_xml.h"

#include "base/str.h"

#include <errno.h>
#include <expat.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEPTH_MAX 8u
#define PATH_SIZE 256u

struct reader {
    XML_Parser parser;
    char path[PATH_SIZE];
    size_t ends[DEPTH_MAX]; /* of the path, before each open element */
    unsigned depth;
    char text[S3_XML_TEXT_MAX + 1];
    size_t len;
    int rc;
    int (*element)(void *user, const char *path, const char *text); /* not 0 ends it */
    void *user;
};

static void stop(struct reader *r, int rc)
{
    if (r->rc == 0)
        r->rc = rc;
    XML_StopParser(r->parser, XML_FALSE);
}

static void on_start(void *user, const XML_Char *name, const XML_Char **attributes)
{
    struct reader *r = user;
    size_t at = strlen(r->path);
    (void)attributes;
    if (r->rc)
        return;
    if (r->depth == DEPTH_MAX || at + strlen(name) + 2 > sizeof r->path) {
        stop(r, -EBADMSG);
        return;
    }
    r->ends[r->depth++] = at;
    if (at)
        r->path[at++] = '/';
    strcpy(r->path + at, name);
    r->len = 0;
}

static void on_end(void *user, const XML_Char *name)
{
    struct reader *r = user;
    (void)name;
    if (r->rc)
        return;
    r->text[r->len] = 0;
    int rc = r->element(r->user, r->path, r->text);
    r->path[r->ends[--r->depth]] = 0;
    r->len = 0;
    if (rc)
        stop(r, rc);
}

static void on_text(void *user, const XML_Char *text, int len)
{
    struct reader *r = user;
    if (r->rc)
        return;
    if ((size_t)len > S3_XML_TEXT_MAX - r->len) {
        stop(r, -EBADMSG);
        return;
    }
    memcpy(r->text + r->len, text, (size_t)len);
    r->len += (size_t)len;
}

static void on_doctype(void *user, const XML_Char *name, const XML_Char *system_id, const XML_Char *public_id, int internal)
{
    (void)name, (void)system_id, (void)public_id, (void)internal;
    stop(user, -EBADMSG);
}

static int read_xml(const char *xml, size_t len, int (*element)(void *, const char *, const char *), void *user)
{
    struct reader *r = len > INT32_MAX ? NULL : calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->element = element;
    r->user = user;
    r->parser = XML_ParserCreate(NULL);
    if (r->parser) {
        XML_SetUserData(r->parser, r);
        XML_SetElementHandler(r->parser, on_start, on_end);
        XML_SetCharacterDataHandler(r->parser, on_text);
        XML_SetStartDoctypeDeclHandler(r->parser, on_doctype);
        if (XML_Parse(r->parser, xml, (int)len, XML_TRUE) != XML_STATUS_OK && r->rc == 0)
            r->rc = -EBADMSG;
        XML_ParserFree(r->parser);
    } else {
        r->rc = -ENOMEM;
    }
    int rc = r->rc;
    free(r);
    return rc;
}

/* ---- errors ---- */

static int error_element(void *user, const char *path, const char *text)
{
    struct s3_error *out = user;
    if (strcmp(path, "Error/Code") == 0)
        str_copy(out->code, sizeof out->code, text);
    else if (strcmp(path, "Error/Message") == 0)
        str_copy(out->message, sizeof out->message, text);
    else if (strcmp(path, "Error/Region") == 0)
        str_copy(out->region, sizeof out->region, text);
    return 0;
}

bool s3_xml_error(const char *xml, size_t len, struct s3_error *out)
{
    *out = (struct s3_error){0};
    return read_xml(xml, len, error_element, out) == 0 && out->code[0];
}

/* ---- lists ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Keys come percent-encoded, since we ask for it. */
static int decode(const char *text, char out[S3_KEY_MAX + 1])
{
    size_t n = 0;
    for (const char *p = text; *p; n++) {
        if (n == S3_KEY_MAX)
            return -EBADMSG;
        int hi = *p == '%' ? hex_digit(p[1]) : -1, lo = hi >= 0 ? hex_digit(p[2]) : -1;
        if (lo >= 0 && (hi || lo)) {
            out[n] = (char)(hi << 4 | lo);
            p += 3;
        } else {
            out[n] = *p++;
        }
    }
    out[n] = 0;
    return 0;
}

/* "2026-11-30T00:00:00.000Z" */
static int parse_time(const char *text, int64_t *out)
{
    struct tm tm = {0};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!end || (*end && *end != '.' && *end != 'Z'))
        return -EBADMSG;
    *out = timegm(&tm);
    return 0;
}

static int copy_text(char *to, size_t size, const char *text)
{
    if (strlen(text) >= size)
        return -EBADMSG;
    strcpy(to, text);
    return 0;
}

struct list_state {
    struct s3_listing *list;
    struct s3_entry entry;
    bool is_list;
};

static int end_entry(struct list_state *s)
{
    int rc = s->entry.key[0] ? s->list->entry(s->list->user, &s->entry) : -EBADMSG;
    s->entry = (struct s3_entry){0};
    return rc;
}

static int entry_field(struct list_state *s, const char *field, const char *text)
{
    struct s3_entry *t = &s->entry;
    if (strcmp(field, "Key") == 0)
        return decode(text, t->key);
    if (strcmp(field, "UploadId") == 0)
        return copy_text(t->upload, sizeof t->upload, text);
    if (strcmp(field, "Size") == 0)
        return str_parse_u64(text, INT64_MAX, &t->size) < 0 ? -EBADMSG : 0;
    if (strcmp(field, "LastModified") == 0 || strcmp(field, "Initiated") == 0)
        return parse_time(text, &t->when);
    return 0;
}

static int list_field(struct list_state *s, const char *field, const char *text)
{
    if (strcmp(field, "IsTruncated") == 0)
        s->list->truncated = strcmp(text, "true") == 0;
    if (strcmp(field, "NextKeyMarker") == 0)
        return decode(text, s->list->next_key);
    if (strcmp(field, "NextUploadIdMarker") == 0)
        return copy_text(s->list->next_upload, sizeof s->list->next_upload, text);
    return 0;
}

static int list_element(void *user, const char *path, const char *text)
{
    static const char *const roots[] = {"ListBucketResult", "ListMultipartUploadsResult"};
    static const char *const entries[] = {"Contents", "Upload"};
    struct list_state *s = user;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(roots[i]), m = strlen(entries[i]);
        if (strncmp(path, roots[i], n) != 0)
            continue;
        if (!path[n]) {
            s->is_list = true;
            return 0;
        }
        const char *field = path + n + 1;
        if (path[n] != '/')
            continue;
        if (strncmp(field, entries[i], m) != 0 || (field[m] && field[m] != '/'))
            return list_field(s, field, text);
        return field[m] ? entry_field(s, field + m + 1, text) : end_entry(s);
    }
    return 0;
}

int s3_xml_list(const char *xml, size_t len, struct s3_listing *l)
{
    struct list_state s = {.list = l};
    l->truncated = false;
    l->next_key[0] = l->next_upload[0] = 0;
    int rc = read_xml(xml, len, list_element, &s);
    return rc == 0 && !s.is_list ? -EBADMSG : rc;
}

/* ---- multipart ---- */

static int upload_element(void *user, const char *path, const char *text)
{
    return strcmp(path, "InitiateMultipartUploadResult/UploadId") == 0 ? copy_text(user, S3_KEY_MAX + 1, text) : 0;
}

bool s3_xml_upload_id(const char *xml, size_t len, char out[S3_KEY_MAX + 1])
{
    out[0] = 0;
    return read_xml(xml, len, upload_element, out) == 0 && out[0];
}

static int completed_element(void *user, const char *path, const char *text)
{
    (void)text;
    if (strcmp(path, "CompleteMultipartUploadResult") == 0)
        *(bool *)user = true;
    return 0;
}

bool s3_xml_completed(const char *xml, size_t len)
{
    bool completed = false;
    return read_xml(xml, len, completed_element, &completed) == 0 && completed;
}
