// SPDX-License-Identifier: Apache-2.0
// The headers of an answer that we look at.
#ifndef SPACE_VOLUMED_HTTP_REPLY_H
#define SPACE_VOLUMED_HTTP_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_UNKNOWN UINT64_MAX

struct http_reply {
    uint64_t length;             /* Content-Length; HTTP_UNKNOWN */
    uint64_t first, last, total; /* Content-Range; each HTTP_UNKNOWN when it is not said */
    int64_t date, modified;      /* Date, Last-Modified: Unix seconds; -1 */
    uint32_t retry_after;        /* seconds, at most 3600; 0 */
    char etag[80];               /* as it came, quotes included; "" */
    char sha256[65];             /* x-amz-meta-space-sha256, 64 lower-case hex digits; "" */
    char put[33];                /* x-amz-meta-space-put, 32 lower-case hex digits; "" */
};

void http_reply_init(struct http_reply *r);

/* One line as curl gives it: with or without its line end, not ended by NUL. A status line begins anew (100, then 200). What does not parse is as if it
 * were not there. */
void http_reply_line(struct http_reply *r, const char *line, size_t len);

#endif
