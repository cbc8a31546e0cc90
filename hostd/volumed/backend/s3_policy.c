// SPDX-License-Identifier: Apache-2.0
// What is worth another try: see s3_policy.h. Two tables: one for answers, one for curl's reasons why there is none.
#include "hostd/volumed/backend/s3_policy.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#define BACKOFF_FIRST_MS 100u
#define BACKOFF_MOST_MS  8000u
#define BACKOFF_LEAST_MS 20u
#define RETRY_AFTER_MOST 30u /* seconds; what a server asks for beyond that is not granted */

static const struct {
    int status;       /* 0: any */
    const char *code; /* of <Error>; NULL: any */
    struct s3_verdict verdict;
} answers[] = {
    {400, "BadDigest", {S3_BAD, EBADMSG, "the bytes were damaged on the way"}},
    {400, "InvalidDigest", {S3_BAD, EBADMSG, "the bytes were damaged on the way"}},
    {400, "XAmzContentSHA256Mismatch", {S3_BAD, EBADMSG, "the bytes were damaged on the way"}},
    {400, "IncompleteBody", {S3_RETRY, EIO, ""}},
    {400, "RequestTimeout", {S3_RETRY, ETIMEDOUT, ""}},
    {400, "ExpiredToken", {S3_FAIL, EACCES, "the keys in the credentials file have expired"}},
    {400, "AuthorizationHeaderMalformed", {S3_FAIL, EACCES, "the region is probably another one: see `region`"}},
    {400, "EntityTooLarge", {S3_FAIL, EFBIG, ""}},
    {401, NULL, {S3_FAIL, EACCES, ""}},
    {403, "RequestTimeTooSkewed", {S3_CLOCK, EACCES, "the clocks of this host and of the server differ too much"}},
    {403, "RequestExpired", {S3_CLOCK, EACCES, "the clocks of this host and of the server differ too much"}},
    {403, "SignatureDoesNotMatch", {S3_FAIL, EACCES, "the secret key in the credentials file is wrong, or belongs to another access key"}},
    {403, "InvalidAccessKeyId", {S3_FAIL, EACCES, "the server does not know the access key of the credentials file"}},
    {403, "QuotaExceeded", {S3_FAIL, ENOSPC, "raise the quota of the bucket or its user"}},
    {403, NULL, {S3_FAIL, EACCES, "these keys may not do that"}},
    {404, "NoSuchBucket", {S3_FAIL, ENODEV, "make the bucket, or name another one"}},
    {404, NULL, {S3_FAIL, ENOENT, ""}},
    {408, NULL, {S3_RETRY, ETIMEDOUT, ""}},
    {409, NULL, {S3_RETRY, EIO, ""}}, /* OperationAborted, ConditionalRequestConflict: somebody else was at it */
    {412, NULL, {S3_FAIL, EEXIST, ""}},
    {425, NULL, {S3_RETRY, EIO, ""}},
    {429, NULL, {S3_SLOW, ETIMEDOUT, ""}},
    {500, NULL, {S3_RETRY, EIO, ""}},
    {501, NULL, {S3_FAIL, EOPNOTSUPP, "the server cannot do that"}},
    {502, NULL, {S3_RETRY, EIO, ""}},
    {503, NULL, {S3_SLOW, ETIMEDOUT, ""}},
    {504, NULL, {S3_RETRY, ETIMEDOUT, ""}},
    {507, NULL, {S3_FAIL, ENOSPC, ""}},
};

/* What is not here is worth another try: connections that were refused, broke, stalled, and answers that make no sense. */
static const struct {
    CURLcode code;
    struct s3_verdict verdict;
} failures[] = {
    {CURLE_UNSUPPORTED_PROTOCOL, {S3_FAIL, EIO, ""}},
    {CURLE_URL_MALFORMAT, {S3_FAIL, EIO, ""}},
    {CURLE_OUT_OF_MEMORY, {S3_FAIL, ENOMEM, ""}},
    {CURLE_PEER_FAILED_VERIFICATION, {S3_FAIL, EIO, "the server's certificate is not one that the authority in `ca` (or the system's) vouches for"}},
    {CURLE_SSL_CACERT_BADFILE, {S3_FAIL, EIO, "the file `ca` holds no certificates"}},
    {CURLE_SSL_ISSUER_ERROR, {S3_FAIL, EIO, "the server's certificate is not one that the authority in `ca` (or the system's) vouches for"}},
    {CURLE_SSL_CIPHER, {S3_FAIL, EIO, ""}},
    {CURLE_OPERATION_TIMEDOUT, {S3_RETRY, ETIMEDOUT, "the server does not answer, or too slowly"}},
    {CURLE_COULDNT_CONNECT, {S3_RETRY, ETIMEDOUT, "nothing answers there"}},
    {CURLE_COULDNT_RESOLVE_HOST, {S3_RETRY, ETIMEDOUT, "there is no such host, or no name server"}},
    {CURLE_PARTIAL_FILE, {S3_BAD, EBADMSG, "the answer was shorter than announced"}},
    {CURLE_WRITE_ERROR, {S3_BAD, EBADMSG, "the answer was longer than asked for"}},
};

static struct s3_verdict judge_failure(CURLcode code)
{
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++)
        if (failures[i].code == code)
            return failures[i].verdict;
    return (struct s3_verdict){S3_RETRY, EIO, ""};
}

struct s3_verdict s3_judge(const struct http_exchange *x, const struct s3_error *error)
{
    if (x->code != CURLE_OK)
        return judge_failure(x->code);
    if (x->status >= 200 && x->status <= 299)
        return (struct s3_verdict){S3_DONE, 0, ""};
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++)
        if (answers[i].status == x->status && (!answers[i].code || strcmp(answers[i].code, error->code) == 0))
            return answers[i].verdict;
    if (x->status >= 300 && x->status <= 399)
        return (struct s3_verdict){S3_FAIL, EIO, "it sends us elsewhere: the endpoint, or the region, is probably another one"};
    return (struct s3_verdict){x->status >= 500 ? S3_RETRY : S3_FAIL, EIO, ""};
}

uint64_t s3_backoff_msec(unsigned tries, uint32_t retry_after_s)
{
    uint64_t bound = BACKOFF_FIRST_MS << (tries < 8 ? tries : 8), least = BACKOFF_LEAST_MS, random = 0;
    if (bound > BACKOFF_MOST_MS)
        bound = BACKOFF_MOST_MS;
    if (retry_after_s)
        least = 1000ull * (retry_after_s < RETRY_AFTER_MOST ? retry_after_s : RETRY_AFTER_MOST);
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        random = bound;
    uint64_t wait = random % (bound + 1);
    return wait > least ? wait : least;
}

void s3_window_ok(struct s3_window *w)
{
    w->limit += 1 / w->limit;
    if (w->limit > w->most)
        w->limit = w->most;
}

void s3_window_slow(struct s3_window *w, uint64_t now, uint64_t sent)
{
    if (sent < w->cut)
        return;
    w->cut = now;
    w->limit = w->limit / 2 < 1 ? 1 : w->limit / 2;
}
