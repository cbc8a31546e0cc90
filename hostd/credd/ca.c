// SPDX-License-Identifier: Apache-2.0
// The certificate authority of a tenant: see ca.h.
#include "hostd/credd/ca.h"

#include "base/cleanup.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DAY          86400
#define BEFORE_SEC   (60 * DAY) /* a certificate is good that long before its epoch begins */
#define AFTER_SEC    (60 * DAY) /* and after it ends */
#define SCALAR_BYTES 32
#define POINT_BYTES  65
#define SERIAL_BYTES 16

struct ca {
    EVP_PKEY *key;
    X509 *certificate;
    char *pem;
};

#define DEFINE_FREE(name, type, free_it)                                                                                                             \
    static inline void cleanup_##name(type **p)                                                                                                      \
    {                                                                                                                                                \
        free_it(*p);                                                                                                                                 \
    }
DEFINE_FREE(x509, X509, X509_free)
DEFINE_FREE(pkey, EVP_PKEY, EVP_PKEY_free)
DEFINE_FREE(bio, BIO, BIO_free_all)
DEFINE_FREE(name, X509_NAME, X509_NAME_free)
#define AUTO_X509 __attribute__((cleanup(cleanup_x509))) X509
#define AUTO_PKEY __attribute__((cleanup(cleanup_pkey))) EVP_PKEY
#define AUTO_BIO  __attribute__((cleanup(cleanup_bio))) BIO
#define AUTO_NAME __attribute__((cleanup(cleanup_name))) X509_NAME

uint64_t ca_epoch(int64_t now_sec)
{
    return now_sec < 0 ? 0 : (uint64_t)now_sec / CA_EPOCH_SEC;
}

/* ---- keys ---- */

static bool derive(const uint8_t *secret, uint32_t tenant, uint64_t epoch, const char *what, unsigned round, uint8_t out[SCALAR_BYTES])
{
    char text[96];
    unsigned len = 0;
    int n = snprintf(text, sizeof text, "spacefs tenant ca 1 %s %" PRIu32 " %" PRIu64 " %u", what, tenant, epoch, round);
    return HMAC(EVP_sha256(), secret, CA_SECRET_BYTES, (const unsigned char *)text, (size_t)n, out, &len) && len == SCALAR_BYTES;
}

/* The public point of a private number; false: it is none. */
static bool point_of(const BIGNUM *scalar, uint8_t out[POINT_BYTES])
{
    EC_GROUP *group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
    EC_POINT *point = group ? EC_POINT_new(group) : NULL;
    bool good = point && !BN_is_zero(scalar) && BN_cmp(scalar, EC_GROUP_get0_order(group)) < 0 &&
                EC_POINT_mul(group, point, scalar, NULL, NULL, NULL) &&
                EC_POINT_point2oct(group, point, POINT_CONVERSION_UNCOMPRESSED, out, POINT_BYTES, NULL) == POINT_BYTES;
    EC_POINT_free(point);
    EC_GROUP_free(group);
    return good;
}

static EVP_PKEY *key_of(const BIGNUM *scalar)
{
    uint8_t point[POINT_BYTES];
    EVP_PKEY *key = NULL;
    OSSL_PARAM *params = NULL;
    OSSL_PARAM_BLD *build = OSSL_PARAM_BLD_new();
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    if (build && ctx && point_of(scalar, point) && OSSL_PARAM_BLD_push_utf8_string(build, OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) &&
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_PRIV_KEY, scalar) &&
        OSSL_PARAM_BLD_push_octet_string(build, OSSL_PKEY_PARAM_PUB_KEY, point, sizeof point) && (params = OSSL_PARAM_BLD_to_param(build)) &&
        EVP_PKEY_fromdata_init(ctx) > 0 && EVP_PKEY_fromdata(ctx, &key, EVP_PKEY_KEYPAIR, params) <= 0)
        key = NULL;
    OSSL_PARAM_free(params);
    OSSL_PARAM_BLD_free(build);
    EVP_PKEY_CTX_free(ctx);
    return key;
}

/* Of a number that is none of the curve's (one in 2^32), the next one. */
static EVP_PKEY *derive_key(const uint8_t *secret, uint32_t tenant, uint64_t epoch)
{
    uint8_t bytes[SCALAR_BYTES];
    EVP_PKEY *key = NULL;
    for (unsigned round = 0; !key && round < 8 && derive(secret, tenant, epoch, "key", round, bytes); round++) {
        BIGNUM *scalar = BN_secure_new();
        if (scalar && BN_bin2bn(bytes, sizeof bytes, scalar))
            key = key_of(scalar);
        BN_clear_free(scalar);
    }
    OPENSSL_cleanse(bytes, sizeof bytes);
    return key;
}

/* ---- certificates ---- */

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool good = ext && X509_add_ext(cert, ext, -1);
    X509_EXTENSION_free(ext);
    return good;
}

static bool set_serial(X509 *cert, uint8_t bytes[SERIAL_BYTES])
{
    bytes[0] = (bytes[0] & 0x7f) | 0x40; /* positive, and always as long */
    BIGNUM *number = BN_bin2bn(bytes, SERIAL_BYTES, NULL);
    bool good = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert));
    BN_free(number);
    return good;
}

static bool set_times(X509 *cert, int64_t from, int64_t to)
{
    return ASN1_TIME_set(X509_getm_notBefore(cert), from) && ASN1_TIME_set(X509_getm_notAfter(cert), to);
}

static bool add_entry(X509_NAME *name, const char *field, const char *value)
{
    return X509_NAME_add_entry_by_txt(name, field, MBSTRING_ASC, (const unsigned char *)value, -1, -1, 0);
}

static bool name_ca(X509 *cert, uint32_t tenant, uint64_t epoch)
{
    char text[64];
    AUTO_NAME *name = X509_NAME_new();
    snprintf(text, sizeof text, "spacefs tenant %" PRIu32 " CA %" PRIu64, tenant, epoch);
    return name && add_entry(name, "O", "spacefs") && add_entry(name, "CN", text) && X509_set_subject_name(cert, name) &&
           X509_set_issuer_name(cert, name);
}

static X509 *make_ca(const uint8_t *secret, EVP_PKEY *key, uint32_t tenant, uint64_t epoch)
{
    uint8_t serial[SCALAR_BYTES];
    int64_t from = (int64_t)epoch * CA_EPOCH_SEC;
    X509 *cert = X509_new();
    if (cert && derive(secret, tenant, epoch, "serial", 0, serial) && X509_set_version(cert, X509_VERSION_3) && set_serial(cert, serial) &&
        set_times(cert, from < BEFORE_SEC ? 0 : from - BEFORE_SEC, from + CA_EPOCH_SEC + AFTER_SEC) && name_ca(cert, tenant, epoch) &&
        X509_set_pubkey(cert, key) && add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
        add_extension(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign") && add_extension(cert, cert, NID_subject_key_identifier, "hash") &&
        X509_sign(cert, key, EVP_sha256()) > 0)
        return cert;
    X509_free(cert);
    return NULL;
}

/* A malloc'ed copy of what is in a memory BIO, which is wiped. */
static char *text_of(BIO *bio)
{
    char *data;
    long len = BIO_get_mem_data(bio, &data);
    char *text = len > 0 ? strndup(data, (size_t)len) : NULL;
    if (len > 0)
        OPENSSL_cleanse(data, (size_t)len);
    return text;
}

int ca_create(const uint8_t secret[CA_SECRET_BYTES], uint32_t tenant, uint64_t epoch, struct ca **out, struct err *e)
{
    struct ca *ca = calloc(1, sizeof *ca);
    AUTO_BIO *bio = BIO_new(BIO_s_mem());
    if (ca)
        ca->key = derive_key(secret, tenant, epoch);
    if (ca && ca->key)
        ca->certificate = make_ca(secret, ca->key, tenant, epoch);
    if (ca && ca->certificate && bio && PEM_write_bio_X509(bio, ca->certificate))
        ca->pem = text_of(bio);
    if (!ca || !ca->pem) {
        ca_destroy(ca);
        return err_set(e, EIO, "the CA of tenant %" PRIu32 " cannot be made", tenant);
    }
    *out = ca;
    return 0;
}

void ca_destroy(struct ca *ca)
{
    if (!ca)
        return;
    EVP_PKEY_free(ca->key);
    X509_free(ca->certificate);
    free(ca->pem);
    free(ca);
}

const char *ca_certificate(const struct ca *ca)
{
    return ca->pem;
}

uint32_t ca_name_hash(const struct ca *ca)
{
    return (uint32_t)X509_subject_name_hash(ca->certificate);
}

/* The subject has no name of a host: those are limited to 64 bytes there, and nobody looks at it. */
static bool describe_leaf(const struct ca *ca, X509 *cert, const char *host)
{
    char names[300];
    uint8_t serial[SERIAL_BYTES];
    AUTO_NAME *name = X509_NAME_new();
    int n = snprintf(names, sizeof names, "DNS:%s", host);
    return name && n > 0 && (size_t)n < sizeof names && !strpbrk(host, ",: ") && RAND_bytes(serial, sizeof serial) > 0 && set_serial(cert, serial) &&
           add_entry(name, "O", "spacefs") && X509_set_subject_name(cert, name) &&
           X509_set_issuer_name(cert, X509_get_subject_name(ca->certificate)) && add_extension(cert, ca->certificate, NID_subject_alt_name, names) &&
           add_extension(cert, ca->certificate, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(cert, ca->certificate, NID_key_usage, "critical,digitalSignature") &&
           add_extension(cert, ca->certificate, NID_ext_key_usage, "serverAuth") &&
           add_extension(cert, ca->certificate, NID_authority_key_identifier, "keyid");
}

int ca_issue(const struct ca *ca, const char *name, int64_t now_sec, char **out, struct err *e)
{
    AUTO_PKEY *key = EVP_EC_gen("P-256");
    AUTO_X509 *cert = X509_new();
    AUTO_BIO *bio = BIO_new(BIO_s_secmem());
    *out = NULL;
    if (key && cert && bio && X509_set_version(cert, X509_VERSION_3) && set_times(cert, now_sec - DAY, now_sec + CA_LEAF_SEC) &&
        X509_set_pubkey(cert, key) && describe_leaf(ca, cert, name) && X509_sign(cert, ca->key, EVP_sha256()) > 0 && PEM_write_bio_X509(bio, cert) &&
        PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL))
        *out = text_of(bio);
    return *out ? 0 : err_set(e, EIO, "a certificate for %.100s cannot be made", name);
}
