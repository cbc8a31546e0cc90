// SPDX-License-Identifier: Apache-2.0
// The parts of the S3 backend that need no server: signatures, what answers mean, the XML, headers.
#include "unit/check.h"

#include "hostd/volumed/backend/http_reply.h"
#include "hostd/volumed/backend/s3_policy.h"
#include "hostd/volumed/backend/s3_sign.h"
#include "hostd/volumed/backend/s3_xml.h"

#include <errno.h>
#include <stdbool.h>

/* ---- signatures: the examples of AWS's document "Signature Calculations for the Authorization Header" ---- */

static const struct s3_credentials example = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};

static void check_signature(const struct s3_signing *s, const char *names, const char *signature)
{
    char authorization[512], date[S3_DATE_SIZE], want[512];
    CHECK_EQ(s3_sign(s, &example, authorization, date), 0);
    CHECK_STR(date, "20130524T000000Z");
    snprintf(want, sizeof want, "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=%s,Signature=%s",
             names, signature);
    CHECK_STR(authorization, want);
}

#define MAY_24 1369353600

static void signatures_are_those_of_the_document(void)
{
    const struct s3_header range = {"range", "bytes=0-9"};
    const struct s3_header put[] = {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
    struct s3_signing s = {.method = "GET",
                           .host = "examplebucket.s3.amazonaws.com",
                           .region = "us-east-1",
                           .path = "/test.txt",
                           .query = "",
                           .payload_sha256 = S3_EMPTY_SHA256,
                           .headers = &range,
                           .headers_count = 1,
                           .now = MAY_24};
    check_signature(&s, "host;range;x-amz-content-sha256;x-amz-date", "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");

    s = (struct s3_signing){.method = "PUT",
                            .host = "examplebucket.s3.amazonaws.com",
                            .region = "us-east-1",
                            .path = "/test%24file.text",
                            .query = "",
                            .payload_sha256 = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
                            .headers = put,
                            .headers_count = 2,
                            .now = MAY_24};
    check_signature(&s, "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                    "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");

    s = (struct s3_signing){.method = "GET",
                            .host = "examplebucket.s3.amazonaws.com",
                            .region = "us-east-1",
                            .path = "/",
                            .query = "max-keys=2&prefix=J",
                            .payload_sha256 = S3_EMPTY_SHA256,
                            .now = MAY_24};
    check_signature(&s, "host;x-amz-content-sha256;x-amz-date", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

static void text_is_percent_encoded_or_does_not_fit(void)
{
    char out[16];
    CHECK_EQ(s3_encode("a/b c+~", S3_ENCODE_ALL, out, sizeof out), 0);
    CHECK_STR(out, "a%2Fb%20c%2B~");
    CHECK_EQ(s3_encode("a/b", S3_ENCODE_PATH, out, sizeof out), 0);
    CHECK_STR(out, "a/b");
    CHECK_EQ(s3_encode("\xc3\xa4", S3_ENCODE_ALL, out, sizeof out), 0);
    CHECK_STR(out, "%C3%A4");
    CHECK_EQ(s3_encode("123456789012345", S3_ENCODE_ALL, out, sizeof out), 0);
    CHECK_EQ(s3_encode("1234567890123456", S3_ENCODE_ALL, out, sizeof out), -ENAMETOOLONG);
    CHECK_EQ(s3_encode("++++++", S3_ENCODE_ALL, out, sizeof out), -ENAMETOOLONG);
}

/* ---- what answers mean ---- */

static void check_verdict(int status, const char *code, enum s3_action action, int number)
{
    struct http_exchange x = {.code = CURLE_OK, .status = status};
    struct s3_error e = {0};
    snprintf(e.code, sizeof e.code, "%s", code);
    struct s3_verdict v = s3_judge(&x, &e);
    if ((int)v.action != (int)action || v.code != number)
        fprintf(stderr, "%d %s\n", status, code);
    CHECK_EQ(v.action, action);
    CHECK_EQ(v.code, number);
}

static void answers_mean_what_the_table_says(void)
{
    check_verdict(200, "", S3_DONE, 0);
    check_verdict(206, "", S3_DONE, 0);
    check_verdict(301, "PermanentRedirect", S3_FAIL, EIO);
    check_verdict(400, "BadDigest", S3_BAD, EBADMSG);
    check_verdict(400, "InvalidRequest", S3_FAIL, EIO);
    check_verdict(403, "RequestTimeTooSkewed", S3_CLOCK, EACCES);
    check_verdict(403, "SignatureDoesNotMatch", S3_FAIL, EACCES);
    check_verdict(403, "", S3_FAIL, EACCES);
    check_verdict(404, "NoSuchBucket", S3_FAIL, ENODEV);
    check_verdict(404, "NoSuchKey", S3_FAIL, ENOENT);
    check_verdict(405, "", S3_FAIL, EIO);
    check_verdict(409, "OperationAborted", S3_RETRY, EIO);
    check_verdict(412, "", S3_FAIL, EEXIST);
    check_verdict(429, "", S3_SLOW, ETIMEDOUT);
    check_verdict(500, "InternalError", S3_RETRY, EIO);
    check_verdict(501, "NotImplemented", S3_FAIL, EOPNOTSUPP);
    check_verdict(503, "SlowDown", S3_SLOW, ETIMEDOUT);
    check_verdict(599, "", S3_RETRY, EIO);
    struct s3_error none = {0};
    CHECK_EQ(s3_judge(&(struct http_exchange){.code = CURLE_COULDNT_CONNECT}, &none).action, S3_RETRY);
    CHECK_EQ(s3_judge(&(struct http_exchange){.code = CURLE_GOT_NOTHING}, &none).action, S3_RETRY);
    CHECK_EQ(s3_judge(&(struct http_exchange){.code = CURLE_PARTIAL_FILE}, &none).action, S3_BAD);
    CHECK_EQ(s3_judge(&(struct http_exchange){.code = CURLE_PEER_FAILED_VERIFICATION}, &none).action, S3_FAIL);
}

static void pauses_grow_to_a_bound_and_differ(void)
{
    uint64_t most = 0, sum = 0;
    for (unsigned tries = 0; tries < 40; tries++)
        for (int i = 0; i < 50; i++) {
            uint64_t wait = s3_backoff_msec(tries, 0), bound = tries < 7 ? 100ull << tries : 8000;
            CHECK(wait >= 20 && wait <= bound);
            most = wait > most ? wait : most;
            sum += wait;
        }
    CHECK(most > 6000);
    CHECK(sum / 2000 > 2000 && sum / 2000 < 5000); /* spread over all of it */
    CHECK(s3_backoff_msec(0, 3) >= 3000);
    CHECK(s3_backoff_msec(0, 3000) <= 30000);
}

static void the_window_halves_once_for_what_was_sent_before_and_grows_back(void)
{
    struct s3_window w = {.limit = 16, .most = 16};
    s3_window_slow(&w, 1000, 900);
    CHECK_EQ((int)w.limit, 8);
    for (int i = 0; i < 15; i++)
        s3_window_slow(&w, 1010, 950);
    CHECK_EQ((int)w.limit, 8);
    s3_window_slow(&w, 1100, 1050);
    CHECK_EQ((int)w.limit, 4);
    for (uint64_t t = 2000; t < 20000; t += 1000)
        s3_window_slow(&w, t, t - 1);
    CHECK_EQ((int)w.limit, 1);
    int n = 0;
    for (; w.limit < 16; n++)
        s3_window_ok(&w);
    CHECK(n > 100 && n < 140); /* about half the square */
    s3_window_ok(&w);
    CHECK_EQ((int)w.limit, 16);
}

/* ---- XML ---- */

struct seen {
    int count, stop;
    struct s3_entry last;
};

static int see(void *user, const struct s3_entry *e)
{
    struct seen *s = user;
    s->last = *e;
    s->count++;
    return s->stop;
}

static int parse(const char *xml, struct seen *s, struct s3_listing *l)
{
    *l = (struct s3_listing){.entry = see, .user = s};
    return s3_xml_list(xml, strlen(xml), l);
}

static void lists_are_read(void)
{
    struct seen s = {0};
    struct s3_listing l;
    CHECK_EQ(parse("<?xml version='1.0'?><ListBucketResult "
                   "xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Name>b</Name><Prefix>p/</Prefix><IsTruncated>true</IsTruncated>"
                   "<Contents><Key>p/a%20%C3%A4</Key><LastModified>2026-11-30T00:00:01.000Z</LastModified><Size>12345678901</Size><Owner><ID>x</ID></"
                   "Owner></Contents>"
                   "<Contents><Key>p/b</Key><Size>1</Size></Contents><CommonPrefixes><Prefix>q</Prefix></CommonPrefixes></ListBucketResult>",
                   &s, &l),
             0);
    CHECK_EQ(s.count, 2);
    CHECK_STR(s.last.key, "p/b");
    CHECK_EQ(s.last.size, 1);
    CHECK(l.truncated);
    s.stop = -7;
    CHECK_EQ(parse("<ListBucketResult><Contents><Key>a%20%C3%A4</Key><LastModified>2026-11-30T00:00:01.000Z</LastModified><Size>12345678901</Size></"
                   "Contents></ListBucketResult>",
                   &s, &l),
             -7);
    CHECK_STR(s.last.key, "a \xc3\xa4");
    CHECK_EQ(s.last.size, 12345678901ll);
    CHECK_EQ(s.last.when, 1795996801);
    s.stop = 0;
    CHECK_EQ(parse("<ListMultipartUploadsResult><NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>i</NextUploadIdMarker><Upload><Key>a</"
                   "Key><UploadId>2~x</UploadId>"
                   "<Initiated>2026-11-30T00:00:01Z</Initiated></Upload></ListMultipartUploadsResult>",
                   &s, &l),
             0);
    CHECK_STR(s.last.upload, "2~x");
    CHECK_STR(l.next_key, "k");
    CHECK_STR(l.next_upload, "i");
}

static void what_is_no_list_is_refused(void)
{
    static const char *const bad[] = {"",
                                      "x",
                                      "<html>portal</html>",
                                      "<ListBucketResult><Contents><Key>a</Key></Contents>",
                                      "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
                                      "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
                                      "<ListBucketResult><Contents><Key>a</Key><LastModified>x</LastModified></Contents></ListBucketResult>",
                                      "<!DOCTYPE a [<!ENTITY e 'eeee'>]><ListBucketResult>&e;</ListBucketResult>",
                                      "<a><b><c><d><e><f><g><h><i/></h></g></f></e></d></c></b></a>",
                                      "<Error><Code>SlowDown</Code></Error>"};
    struct seen s = {0};
    struct s3_listing l;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse(bad[i], &s, &l) != -EBADMSG)
            fprintf(stderr, "%s\n", bad[i]);
        CHECK_EQ(parse(bad[i], &s, &l), -EBADMSG);
    }
    CHECK_EQ(s.count, 2); /* of the one that is cut, asked twice */
    char *huge = malloc(20000);
    CHECK(huge);
    size_t at = (size_t)sprintf(huge, "<ListBucketResult><Contents><Key>");
    memset(huge + at, 'k', 10000);
    strcpy(huge + at + 10000, "</Key></Contents></ListBucketResult>");
    CHECK_EQ(parse(huge, &s, &l), -EBADMSG);
    free(huge);
}

static void errors_and_uploads_are_read(void)
{
    struct s3_error e;
    char id[S3_KEY_MAX + 1];
    const char *error = "<Error><Code>NoSuchKey</Code><Message>it &lt;is&gt; gone</Message><Region>eu</Region></Error>",
               *upload = "<InitiateMultipartUploadResult><UploadId>2~abc</UploadId></InitiateMultipartUploadResult>",
               *complete = "<CompleteMultipartUploadResult><Key>x</Key></CompleteMultipartUploadResult>";
    CHECK(s3_xml_error(error, strlen(error), &e));
    CHECK_STR(e.code, "NoSuchKey");
    CHECK_STR(e.message, "it <is> gone");
    CHECK_STR(e.region, "eu");
    CHECK(!s3_xml_error("<html/>", 7, &e));
    CHECK(s3_xml_upload_id(upload, strlen(upload), id));
    CHECK_STR(id, "2~abc");
    CHECK(!s3_xml_upload_id(error, strlen(error), id));
    CHECK(s3_xml_completed(complete, strlen(complete)));
    CHECK(!s3_xml_completed(error, strlen(error)));
}

/* ---- headers ---- */

static void headers_are_read_and_nonsense_is_not(void)
{
    struct http_reply r;
    static const char *const lines[] = {"HTTP/1.1 100 Continue\r\n",
                                        "Content-Length: 7\r\n",
                                        "HTTP/1.1 206 Partial Content\r\n",
                                        "Content-Range: bytes 5-9/100\r\n",
                                        "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
                                        "ETag: \"abc\"\r\n",
                                        "retry-after: 99999\r\n",
                                        "x-amz-meta-space-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\n",
                                        "\r\n"};
    http_reply_init(&r);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        http_reply_line(&r, lines[i], strlen(lines[i]));
    CHECK(r.length == HTTP_UNKNOWN); /* of the 100 */
    CHECK_EQ(r.first, 5);
    CHECK_EQ(r.last, 9);
    CHECK_EQ(r.total, 100);
    CHECK_EQ(r.date, 784111777);
    CHECK_EQ(r.retry_after, 3600);
    CHECK_STR(r.etag, "\"abc\"");
    CHECK_STR(r.sha256, S3_EMPTY_SHA256);
    static const char *const bad[] = {"Content-Range: bytes 9-5/100",
                                      "Content-Range: bytes 5-100/100",
                                      "Content-Range: 5-9/100",
                                      "Content-Range: bytes -9/100",
                                      "Content-Length: -1",
                                      "Content-Length: 99999999999999999999",
                                      "ETag: <x>",
                                      "x-amz-meta-space-sha256: E3",
                                      "no colon",
                                      "Retry-After: soon"};
    http_reply_init(&r);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        http_reply_line(&r, bad[i], strlen(bad[i]));
    CHECK(r.length == HTTP_UNKNOWN && r.first == HTTP_UNKNOWN && r.total == HTTP_UNKNOWN && !r.etag[0] && !r.sha256[0] && !r.retry_after);
    http_reply_line(&r, "Content-Range: bytes */100", 26);
    CHECK_EQ(r.total, 100);
    CHECK(r.first == HTTP_UNKNOWN);
}

static const struct check_test tests[] = {
    TEST(signatures_are_those_of_the_document),
    TEST(text_is_percent_encoded_or_does_not_fit),
    TEST(answers_mean_what_the_table_says),
    TEST(pauses_grow_to_a_bound_and_differ),
    TEST(the_window_halves_once_for_what_was_sent_before_and_grows_back),
    TEST(lists_are_read),
    TEST(what_is_no_list_is_refused),
    TEST(errors_and_uploads_are_read),
    TEST(headers_are_read_and_nonsense_is_not),
};

CHECK_MAIN(tests)
