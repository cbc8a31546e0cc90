// SPDX-License-Identifier: Apache-2.0
// Signature Version 4: see s3_sign.h.
#include "hostd/volumed/backend/s3_sign.h"

#include "base/str.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sodium.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define CANONICAL_SIZE 8192u
#define SHA256_BYTES   32u

static void hex(const uint8_t *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = 0;
}

static void mac(const void *key, size_t key_len, const char *text, uint8_t out[SHA256_BYTES])
{
    unsigned len = SHA256_BYTES;
    HMAC(EVP_sha256(), key, (int)key_len, (const uint8_t *)text, strlen(text), out, &len);
}

/* Headers merged with host and the two x-amz ones, in the order of their names. */
static size_t all_headers(const struct s3_signing *s, const char *date, struct s3_header out[S3_HEADERS_MAX + 3])
{
    const struct s3_header own[] = {{"host", s->host}, {"x-amz-content-sha256", s->payload_sha256}, {"x-amz-date", date}};
    size_t n = 0, i = 0, j = 0;
    while (i < 3 || j < s->headers_count) {
        bool take_own = j == s->headers_count || (i < 3 && strcmp(own[i].name, s->headers[j].name) < 0);
        out[n++] = take_own ? own[i++] : s->headers[j++];
    }
    return n;
}

static bool canonical_request(const struct s3_signing *s, const char *date, char *out, char *signed_names, size_t names_size)
{
    struct s3_header h[S3_HEADERS_MAX + 3];
    size_t n = all_headers(s, date, h), at = 0, names = 0;
    bool fits = str_append(out, CANONICAL_SIZE, &at, "%s\n%s\n%s\n", s->method, s->path, s->query);
    for (size_t i = 0; fits && i < n; i++)
        fits = str_append(out, CANONICAL_SIZE, &at, "%s:%s\n", h[i].name, h[i].value) &&
               str_append(signed_names, names_size, &names, "%s%s", i ? ";" : "", h[i].name);
    return fits && str_append(out, CANONICAL_SIZE, &at, "\n%s\n%s", signed_names, s->payload_sha256);
}

/* date, then region, service, and the constant that ends it. */
static void signing_key(const struct s3_signing *s, const struct s3_credentials *c, const char day[9], uint8_t out[SHA256_BYTES])
{
    char first[sizeof c->secret + 4];
    uint8_t k[SHA256_BYTES];
    snprintf(first, sizeof first, "AWS4%s", c->secret);
    mac(first, strlen(first), day, k);
    mac(k, sizeof k, s->region, k);
    mac(k, sizeof k, "s3", k);
    mac(k, sizeof k, "aws4_request", out);
    sodium_memzero(first, sizeof first);
    sodium_memzero(k, sizeof k);
}

int s3_sign(const struct s3_signing *s, const struct s3_credentials *c, char authorization[512], char date[S3_DATE_SIZE])
{
    char canonical[CANONICAL_SIZE], names[256], to_sign[512], day[9], digest[S3_SHA256_SIZE], signature[S3_SHA256_SIZE];
    uint8_t sum[SHA256_BYTES], key[SHA256_BYTES];
    struct tm tm;
    if (!gmtime_r(&s->now, &tm) || strftime(date, S3_DATE_SIZE, "%Y%m%dT%H%M%SZ", &tm) != S3_DATE_SIZE - 1)
        return -EINVAL;
    str_copy(day, sizeof day, date);
    if (s->headers_count > S3_HEADERS_MAX || !canonical_request(s, date, canonical, names, sizeof names))
        return -EINVAL;
    if (!EVP_Digest(canonical, strlen(canonical), sum, NULL, EVP_sha256(), NULL))
        return -EINVAL;
    hex(sum, sizeof sum, digest);
    snprintf(to_sign, sizeof to_sign, "AWS4-HMAC-SHA256\n%s\n%s/%s/s3/aws4_request\n%s", date, day, s->region, digest);
    signing_key(s, c, day, key);
    mac(key, sizeof key, to_sign, sum);
    sodium_memzero(key, sizeof key);
    hex(sum, sizeof sum, signature);
    int n = snprintf(authorization, 512, "AWS4-HMAC-SHA256 Credential=%s/%s/%s/s3/aws4_request,SignedHeaders=%s,Signature=%s", c->access, day,
                     s->region, names, signature);
    return n > 0 && n < 512 ? 0 : -EINVAL;
}

int s3_encode(const char *text, enum s3_encoding how, char *out, size_t size)
{
    size_t at = 0;
    for (const char *p = text; *p; p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || strchr("-_.~", *p) ||
                     (how == S3_ENCODE_PATH && *p == '/');
        if (!str_append(out, size, &at, plain ? "%c" : "%%%02X", (unsigned char)*p))
            return -ENAMETOOLONG;
    }
    if (at >= size)
        return -ENAMETOOLONG;
    out[at] = 0;
    return 0;
}
