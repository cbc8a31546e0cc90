// SPDX-License-Identifier: Apache-2.0
// AWS Signature Version 4 of one request, all of whose headers are given; and the file with the two keys.
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
#ifndef SPACE_VOLUMED_S3_SIGN_H
#define SPACE_VOLUMED_S3_SIGN_H

#include "base/err.h"

#include <stddef.h>
#include <time.h>

#define S3_DATE_SIZE    17 /* 20261130T000000Z */
#define S3_SHA256_SIZE  65 /* hex */
#define S3_HEADERS_MAX  8u
#define S3_EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* In locked memory, left out of core dumps. */
struct s3_credentials {
    char access[129], secret[129];
};

/* "access_key = …", "secret_key = …", '#' comments. A regular file of this process's user or root that no other user may read, at most 4096
 * bytes. -ENOENT, -EACCES, -EINVAL with a sentence, which never quotes the file. */
int s3_credentials_load(const char *path, struct s3_credentials **out, struct err *e);
void s3_credentials_free(struct s3_credentials *c); /* wipes; NULL is fine */

struct s3_header {
    const char *name, *value; /* lower case; printable ASCII, no blanks at the ends */
};

struct s3_signing {
    const char *method, *host, *region;
    const char *path;  /* from '/', percent-encoded as it goes out */
    const char *query; /* parameters in order, encoded, each with '='; "" when there are none */
    const char *payload_sha256;
    const struct s3_header *headers; /* the others that are sent and signed, in the order of their names */
    size_t headers_count;            /* at most S3_HEADERS_MAX */
    time_t now;
};

/* The values of the headers Authorization and x-amz-date. 0, or -EINVAL when it does not fit. */
int s3_sign(const struct s3_signing *s, const struct s3_credentials *c, char authorization[512], char date[S3_DATE_SIZE]);

/* Percent-encodes all but A-Z a-z 0-9 - _ . ~, and '/' when `slash` is given. False when it does not fit. */
enum s3_encoding { S3_ENCODE_ALL, S3_ENCODE_PATH };
int s3_encode(const char *text, enum s3_encoding how, char *out, size_t size);

#endif
