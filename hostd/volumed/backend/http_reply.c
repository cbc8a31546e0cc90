// SPDX-License-Identifier: Apache-2.0
// Headers of an answer: see http_reply.h.
#include "hostd/volumed/backend/http_reply.h"

#include "base/str.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LINE_MAX_ 1024u

void http_reply_init(struct http_reply *r)
{
    *r = (struct http_reply){.length = HTTP_UNKNOWN, .first = HTTP_UNKNOWN, .last = HTTP_UNKNOWN, .total = HTTP_UNKNOWN, .date = -1, .modified = -1};
}

static uint64_t number(const char *text)
{
    uint64_t n;
    return str_parse_u64(text, INT64_MAX, &n) < 0 ? HTTP_UNKNOWN : n;
}

/* "bytes 5-9/100", "bytes 5-9" and an asterisk for what is not known, on either side. */
static void take_range(struct http_reply *r, char *value)
{
    char *slash = strchr(value, '/'), *range = value + 6, *dash;
    r->first = r->last = r->total = HTTP_UNKNOWN; /* of two such lines the last one counts, whole */
    if (strncasecmp(value, "bytes ", 6) != 0 || !slash)
        return;
    *slash = 0;
    uint64_t total = number(slash + 1);
    if (strcmp(range, "*") == 0) {
        r->total = total;
        return;
    }
    if (!(dash = strchr(range, '-')))
        return;
    *dash = 0;
    uint64_t first = number(range), last = number(dash + 1);
    if (first == HTTP_UNKNOWN || last == HTTP_UNKNOWN || first > last || (total != HTTP_UNKNOWN && last >= total))
        return;
    r->first = first;
    r->last = last;
    r->total = total;
}

static void take_length(struct http_reply *r, char *value)
{
    r->length = number(value);
}

static void take_date(struct http_reply *r, char *value)
{
    r->date = curl_getdate(value, NULL);
}

static void take_modified(struct http_reply *r, char *value)
{
    r->modified = curl_getdate(value, NULL);
}

/* Seconds; the form with a date is not used by S3 servers. */
static void take_retry_after(struct http_reply *r, char *value)
{
    uint64_t n;
    r->retry_after = str_parse_u64(value, UINT32_MAX, &n) < 0 ? 0 : n > 3600 ? 3600 : (uint32_t)n;
}

static void take_etag(struct http_reply *r, char *value)
{
    for (const char *p = value; *p; p++)
        if (*p < 0x20 || *p > 0x7e || strchr("<>&", *p))
            return;
    if (strlen(value) < sizeof r->etag)
        strcpy(r->etag, value);
}

static void take_hex(char *to, size_t digits, const char *value)
{
    if (strlen(value) == digits && strspn(value, "0123456789abcdef") == digits)
        strcpy(to, value);
}

static void take_sha256(struct http_reply *r, char *value)
{
    take_hex(r->sha256, sizeof r->sha256 - 1, value);
}

static void take_put(struct http_reply *r, char *value)
{
    take_hex(r->put, sizeof r->put - 1, value);
}

void http_reply_line(struct http_reply *r, const char *line, size_t len)
{
    static const struct {
        const char *name;
        void (*take)(struct http_reply *r, char *value);
    } headers[] = {
        {"content-length", take_length},          {"content-range", take_range},      {"date", take_date},
        {"last-modified", take_modified},         {"retry-after", take_retry_after},  {"etag", take_etag},
        {"x-amz-meta-space-sha256", take_sha256}, {"x-amz-meta-space-put", take_put},
    };
    char copy[LINE_MAX_];
    if (len >= sizeof copy || memchr(line, 0, len))
        return;
    memcpy(copy, line, len);
    copy[len] = 0;
    copy[strcspn(copy, "\r\n")] = 0;
    if (strncmp(copy, "HTTP/", 5) == 0) {
        http_reply_init(r);
        return;
    }
    char *colon = strchr(copy, ':');
    if (!colon)
        return;
    *colon = 0;
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        if (strcasecmp(copy, headers[i].name) == 0)
            headers[i].take(r, str_trim(colon + 1));
}
