// SPDX-License-Identifier: Apache-2.0
// The CA of a tenant, and its certificates.
#include "hostd/credd/ca.h"
#include "unit/check.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#define NOW 1800000000 /* in epoch 115 */

static const uint8_t secret[CA_SECRET_BYTES] = "a secret of thirty-two bytes ...";

static struct ca *make(const uint8_t *from, uint32_t tenant, uint64_t epoch)
{
    struct ca *ca = NULL;
    struct err e = {0};
    CHECK_EQ(ca_create(from, tenant, epoch, &ca, &e), 0);
    return ca;
}

static X509 *read_certificate(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *cert = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    CHECK(cert != NULL);
    return cert;
}

static X509 *issue(const struct ca *ca, const char *name, int64_t now)
{
    char *pem = NULL;
    struct err e = {0};
    CHECK_EQ(ca_issue(ca, name, now, &pem, &e), 0);
    CHECK(strstr(pem, "PRIVATE KEY") && !strstr(pem, "\n\n"));
    X509 *cert = read_certificate(pem);
    free(pem);
    return cert;
}

/* As a client does it, at that time. */
static int verifies(const struct ca *ca, X509 *cert, const char *name, int64_t now)
{
    X509 *root = read_certificate(ca_certificate(ca));
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    X509_STORE_add_cert(store, root);
    X509_STORE_CTX_init(ctx, store, cert, NULL);
    X509_VERIFY_PARAM *p = X509_STORE_CTX_get0_param(ctx);
    X509_VERIFY_PARAM_set_time(p, now);
    X509_VERIFY_PARAM_set_flags(p, X509_V_FLAG_X509_STRICT);
    X509_VERIFY_PARAM_set_purpose(p, X509_PURPOSE_SSL_SERVER);
    X509_VERIFY_PARAM_set1_host(p, name, 0);
    int good = X509_verify_cert(ctx) > 0;
    X509_STORE_CTX_free(ctx);
    X509_STORE_free(store);
    X509_free(root);
    return good;
}

static int same_key(const struct ca *a, const struct ca *b)
{
    X509 *x = read_certificate(ca_certificate(a)), *y = read_certificate(ca_certificate(b));
    int same = EVP_PKEY_eq(X509_get0_pubkey(x), X509_get0_pubkey(y)) > 0;
    X509_free(x);
    X509_free(y);
    return same;
}

static void the_same_secret_tenant_and_epoch_give_the_same_ca(void)
{
    uint8_t other[CA_SECRET_BYTES] = "another secret of that many byte";
    struct ca *a = make(secret, 1000, 7), *b = make(secret, 1000, 7), *c = make(secret, 1001, 7), *d = make(secret, 1000, 8),
              *e = make(other, 1000, 7);
    CHECK(same_key(a, b));
    CHECK(!same_key(a, c) && !same_key(a, d) && !same_key(a, e));
    X509 *leaf = issue(a, "api.test", 7ll * CA_EPOCH_SEC + 5);
    CHECK(verifies(b, leaf, "api.test", 7ll * CA_EPOCH_SEC + 5)); /* another node's */
    CHECK(!verifies(c, leaf, "api.test", 7ll * CA_EPOCH_SEC + 5));
    X509_free(leaf);
    ca_destroy(a), ca_destroy(b), ca_destroy(c), ca_destroy(d), ca_destroy(e);
}

static void a_certificate_is_for_its_name_alone_however_long(void)
{
    char name[254];
    struct ca *ca = make(secret, 1, ca_epoch(NOW));
    for (size_t i = 0; i < sizeof name - 1; i++)
        name[i] = i % 60 == 59 ? '.' : 'a';
    name[sizeof name - 1] = 0;
    X509 *leaf = issue(ca, name, NOW), *plain = issue(ca, "api.test", NOW);
    CHECK(verifies(ca, leaf, name, NOW) && !verifies(ca, leaf, "api.test", NOW));
    CHECK(verifies(ca, plain, "api.test", NOW) && !verifies(ca, plain, "x.api.test", NOW));
    X509_free(leaf);
    X509_free(plain);
    char *pem = NULL;
    CHECK(ca_issue(ca, "a.test,DNS:b.test", NOW, &pem, NULL) < 0 && !pem);
    ca_destroy(ca);
}

static void a_certificate_is_good_until_it_is_renewed_and_an_epochs_end_leaves_time(void)
{
    int64_t last = (int64_t)(ca_epoch(NOW) + 1) * CA_EPOCH_SEC - 1; /* of the epoch */
    struct ca *ca = make(secret, 1, ca_epoch(NOW)), *next = make(secret, 1, ca_epoch(NOW) + 1);
    X509 *leaf = issue(ca, "api.test", last);
    CHECK(verifies(ca, leaf, "api.test", last + CA_LEAF_SEC - 1));
    CHECK(!verifies(ca, leaf, "api.test", last + CA_LEAF_SEC + 1));
    CHECK(verifies(ca, leaf, "api.test", last - 3600)); /* a clock that is behind */
    X509 *newer = issue(next, "api.test", last + 1);
    CHECK(verifies(next, newer, "api.test", last + 1));
    X509_free(leaf);
    X509_free(newer);
    ca_destroy(ca);
    ca_destroy(next);
}

int main(int argc, char **argv)
{
    static const struct check_test tests[] = {TEST(the_same_secret_tenant_and_epoch_give_the_same_ca),
                                              TEST(a_certificate_is_for_its_name_alone_however_long),
                                              TEST(a_certificate_is_good_until_it_is_renewed_and_an_epochs_end_leaves_time)};
    return check_run(tests, sizeof tests / sizeof *tests, argc, argv);
}
