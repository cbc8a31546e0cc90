// SPDX-License-Identifier: Apache-2.0
// The XML that S3 servers answer with, parsed by expat. All of it is hostile input: no document types, bounded depth and text.
#ifndef SPACE_VOLUMED_S3_XML_H
#define SPACE_VOLUMED_S3_XML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define S3_XML_TEXT_MAX 4096u
#define S3_KEY_MAX      1024u /* S3's own limit */

/* <Error>. What is missing is "". */
struct s3_error {
    char code[64], message[256], region[64];
};
/* False when it is no such document. */
bool s3_xml_error(const char *xml, size_t len, struct s3_error *out);

/* One <Contents> of a ListBucketResult, or one <Upload> of a ListMultipartUploadsResult. */
struct s3_entry {
    char key[S3_KEY_MAX + 1]; /* percent-decoded */
    char upload[S3_KEY_MAX + 1];
    uint64_t size;
    int64_t when; /* LastModified or Initiated, Unix seconds */
};

struct s3_listing {
    /* For each entry, in their order; not 0 ends it, with that result. */
    int (*entry)(void *user, const struct s3_entry *entry);
    void *user;
    bool truncated;
    char next_key[S3_KEY_MAX + 1], next_upload[S3_KEY_MAX + 1]; /* markers of a list of uploads */
};
/* 0, -EBADMSG when it is no such document, or what `entry` returned. */
int s3_xml_list(const char *xml, size_t len, struct s3_listing *l);

/* The UploadId of an InitiateMultipartUploadResult; false when there is none. */
bool s3_xml_upload_id(const char *xml, size_t len, char out[S3_KEY_MAX + 1]);

/* True for a CompleteMultipartUploadResult: the answer of a server that began with 200 and may still have failed. */
bool s3_xml_completed(const char *xml, size_t len);

#endif
