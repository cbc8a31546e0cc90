// SPDX-License-Identifier: Apache-2.0
// Fuzz target: what an S3 server answers. The first byte says as what the rest is read: a list, an error, an upload, a completed one, or lines of
// headers. What is reported must be within its bounds.
#include "fuzz/target.h"
#include "hostd/volumed/backend/http_reply.h"
#include "hostd/volumed/backend/s3_xml.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void must_hold(int holds)
{
    if (!holds)
        abort();
}

static int entry(void *user, const struct s3_entry *e)
{
    int *left = user;
    must_hold(e->key[0] && memchr(e->key, 0, sizeof e->key) && memchr(e->upload, 0, sizeof e->upload));
    must_hold(e->size <= INT64_MAX);
    return (*left)-- ? 0 : -ECANCELED;
}

static void read_list(const char *text, size_t len)
{
    int left = 50;
    struct s3_listing l = {.entry = entry, .user = &left};
    int rc = s3_xml_list(text, len, &l);
    must_hold(rc == 0 || rc == -EBADMSG || rc == -ECANCELED || rc == -ENOMEM);
    must_hold(memchr(l.next_key, 0, sizeof l.next_key) && memchr(l.next_upload, 0, sizeof l.next_upload));
}

static void read_headers(const char *text, size_t len)
{
    struct http_reply r;
    http_reply_init(&r);
    while (len) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) + 1 : len;
        http_reply_line(&r, text, n);
        text += n;
        len -= n;
    }
    must_hold(memchr(r.etag, 0, sizeof r.etag) && memchr(r.sha256, 0, sizeof r.sha256) && memchr(r.put, 0, sizeof r.put));
    must_hold(r.first == HTTP_UNKNOWN || (r.first <= r.last && (r.total == HTTP_UNKNOWN || r.last < r.total)));
    must_hold(r.retry_after <= 3600 && (!r.sha256[0] || strlen(r.sha256) == 64) && !strpbrk(r.etag, "<>&"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char id[S3_KEY_MAX + 1];
    struct s3_error e;
    if (!size)
        return 0;
    const char *text = (const char *)data + 1;
    size_t len = size - 1;
    switch (data[0] % 5) {
    case 0: read_list(text, len); break;
    case 1:
        if (s3_xml_error(text, len, &e))
            must_hold(e.code[0] && memchr(e.message, 0, sizeof e.message));
        break;
    case 2: must_hold(!s3_xml_upload_id(text, len, id) || id[0]); break;
    case 3: s3_xml_completed(text, len); break;
    default: read_headers(text, len);
    }
    return 0;
}
