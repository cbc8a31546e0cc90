// SPDX-License-Identifier: Apache-2.0
// Key services behind a PKCS#11 module (an HSM, SoftHSM): a secret AES-256 key on the token wraps by AES-GCM and never leaves it.
//
// Theory of operation. A module is loaded and initialised once and stays; for each request a session is opened, logged in, used and closed, so that
// nothing is kept that a restarted token has forgotten, and a PIN that was changed or a key that was deleted shows at the next request. Logging in is
// a matter of the whole program to PKCS#11: one lock is around it all.
#include "hostd/volumed/keys/keys_service.h"
#include "hostd/volumed/secret_file.h"

#include <dlfcn.h>
#include <errno.h>
#include <p11-kit/pkcs11.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define MODULES_MAX  8u
#define SLOTS_MAX    64u
#define GCM_TAG_BITS 128u

#ifndef CKR_AEAD_DECRYPT_FAILED /* PKCS#11 3.0 */
#define CKR_AEAD_DECRYPT_FAILED 0x42ul
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *path;
    CK_FUNCTION_LIST *p11;
} modules[MODULES_MAX];

struct session {
    CK_FUNCTION_LIST *p11;
    CK_SESSION_HANDLE handle;
    CK_OBJECT_HANDLE key;
};

/* ---- errors ---- */

static const struct {
    CK_RV rv;
    int code;
    const char *meaning;
} meanings[] = {
    {CKR_PIN_INCORRECT, EKEYREVOKED, "the PIN is wrong"},
    {CKR_PIN_EXPIRED, EKEYREVOKED, "the PIN has expired"},
    {CKR_PIN_LOCKED, EKEYREVOKED, "the PIN is locked"},
    {CKR_USER_PIN_NOT_INITIALIZED, EKEYREVOKED, "the token has no PIN"},
    {CKR_KEY_FUNCTION_NOT_PERMITTED, EKEYREVOKED, "the key may not be used for that"},
    {CKR_KEY_HANDLE_INVALID, EKEYREVOKED, "the key is gone"},
    {CKR_OBJECT_HANDLE_INVALID, EKEYREVOKED, "the key is gone"},
    {CKR_KEY_TYPE_INCONSISTENT, EINVAL, "the key is not an AES key"},
    {CKR_MECHANISM_INVALID, EINVAL, "the token cannot do AES-GCM"},
    {CKR_MECHANISM_PARAM_INVALID, EINVAL, "the token does not take these parameters of AES-GCM"},
};

static int fail(const struct key_config *c, const struct blob *b, const char *what, CK_RV rv, struct err *e)
{
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
        if (meanings[i].rv == rv)
            return err_set(e, meanings[i].code, "%s '%s' of tenant %s on token '%s': %s", what, b->wrapping_key, b->tenant, c->token,
                           meanings[i].meaning);
    return err_set(e, EAGAIN, "%s '%s' of tenant %s on token '%s': the key service fails with 0x%lx", what, b->wrapping_key, b->tenant, c->token, rv);
}

/* ---- modules and sessions ---- */

static CK_FUNCTION_LIST *load(const char *path, struct err *e)
{
    size_t i = 0;
    while (i < MODULES_MAX && modules[i].path && strcmp(modules[i].path, path) != 0)
        i++;
    if (i == MODULES_MAX) {
        err_set(e, EAGAIN, "more than %u PKCS#11 modules are in use", MODULES_MAX);
        return NULL;
    }
    if (modules[i].path)
        return modules[i].p11;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = so ? dlsym(so, "C_GetFunctionList") : NULL;
    CK_C_GetFunctionList get;
    CK_FUNCTION_LIST *p11;
    CK_C_INITIALIZE_ARGS args = {.flags = CKF_OS_LOCKING_OK};
    memcpy(&get, &symbol, sizeof get);
    CK_RV rv = get ? get(&p11) : CKR_FUNCTION_FAILED;
    if (rv == CKR_OK)
        rv = p11->C_Initialize(&args);
    if (rv != CKR_OK && rv != CKR_CRYPTOKI_ALREADY_INITIALIZED) {
        err_set(e, EAGAIN, "load the PKCS#11 module %s: %s", path, so ? "it does not start" : dlerror());
        if (so)
            dlclose(so);
        return NULL;
    }
    if (!(modules[i].path = strdup(path))) {
        err_set(e, ENOMEM, "load the PKCS#11 module %s: out of memory", path);
        return NULL;
    }
    return modules[i].p11 = p11;
}

/* Labels are padded with blanks. */
static bool has_label(const CK_TOKEN_INFO *t, const char *label)
{
    size_t n = strlen(label);
    if (n > sizeof t->label || memcmp(t->label, label, n) != 0)
        return false;
    for (size_t i = n; i < sizeof t->label; i++)
        if (t->label[i] != ' ')
            return false;
    return true;
}

static int find_token(CK_FUNCTION_LIST *p11, const struct key_config *c, CK_SLOT_ID *out, struct err *e)
{
    CK_SLOT_ID slots[SLOTS_MAX];
    CK_ULONG n = SLOTS_MAX;
    CK_RV rv = p11->C_GetSlotList(CK_TRUE, slots, &n);
    for (CK_ULONG i = 0; rv == CKR_OK && i < n; i++) {
        CK_TOKEN_INFO t;
        if (p11->C_GetTokenInfo(slots[i], &t) == CKR_OK && has_label(&t, c->token)) {
            *out = slots[i];
            return 0;
        }
    }
    return err_set(e, EAGAIN, "there is no token '%s' behind %s now", c->token, c->module);
}

static int log_in(struct session *s, const struct key_config *c, const struct blob *b, struct err *e)
{
    char *pin;
    int rc = secret_file_read(c->pin, &pin, e);
    if (rc == -ENOENT)
        return err_set(e, EKEYREVOKED, "the PIN of the key of tenant %s is gone: %s", b->tenant, c->pin);
    if (rc < 0)
        return rc;
    pin[strcspn(pin, "\r\n")] = 0;
    CK_RV rv = s->p11->C_Login(s->handle, CKU_USER, (CK_UTF8CHAR *)pin, strlen(pin));
    sodium_free(pin);
    return rv == CKR_OK || rv == CKR_USER_ALREADY_LOGGED_IN ? 0 : fail(c, b, "log in for key", rv, e);
}

static int find_key(struct session *s, const struct key_config *c, const struct blob *b, struct err *e)
{
    CK_OBJECT_CLASS secret = CKO_SECRET_KEY;
    char label[sizeof b->wrapping_key];
    memcpy(label, b->wrapping_key, sizeof label);
    CK_ATTRIBUTE want[] = {{CKA_CLASS, &secret, sizeof secret}, {CKA_LABEL, label, strlen(label)}};
    CK_ULONG found = 0;
    CK_RV rv = s->p11->C_FindObjectsInit(s->handle, want, 2);
    if (rv == CKR_OK) {
        rv = s->p11->C_FindObjects(s->handle, &s->key, 1, &found);
        s->p11->C_FindObjectsFinal(s->handle);
    }
    if (rv != CKR_OK)
        return fail(c, b, "find key", rv, e);
    return found ? 0
                 : err_set(e, EKEYREVOKED, "the wrapping key '%s' of tenant %s is not on token '%s' any more", b->wrapping_key, b->tenant, c->token);
}

static void close_session(struct session *s)
{
    s->p11->C_Logout(s->handle);
    s->p11->C_CloseSession(s->handle);
}

static int open_session(struct session *s, const struct key_config *c, const struct blob *b, struct err *e)
{
    CK_SLOT_ID slot;
    if (!c->module[0])
        return err_set(e, EKEYREVOKED, "the key of tenant %s was wrapped by PKCS#11, but its configuration names no module any more", b->tenant);
    s->p11 = load(c->module, e);
    if (!s->p11)
        return -e->code;
    int rc = find_token(s->p11, c, &slot, e);
    if (rc < 0)
        return rc;
    CK_RV rv = s->p11->C_OpenSession(slot, CKF_SERIAL_SESSION, NULL, NULL, &s->handle);
    if (rv != CKR_OK)
        return fail(c, b, "open a session for key", rv, e);
    rc = log_in(s, c, b, e);
    if (rc == 0)
        rc = find_key(s, c, b, e);
    if (rc < 0)
        close_session(s);
    return rc;
}

/* ---- the two operations ---- */

static int seal(struct session *s, const struct key_config *c, struct blob *b, const uint8_t *key, uint8_t *aad, struct err *e)
{
    CK_GCM_PARAMS gcm = {b->nonce, BLOB_GCM_NONCE_SIZE, BLOB_GCM_NONCE_SIZE * 8, aad, BLOB_AAD_SIZE, GCM_TAG_BITS};
    CK_MECHANISM m = {CKM_AES_GCM, &gcm, sizeof gcm};
    CK_ULONG len = BLOB_SEALED_SIZE;
    CK_RV rv = s->p11->C_EncryptInit(s->handle, &m, s->key);
    if (rv == CKR_OK)
        rv = s->p11->C_Encrypt(s->handle, (CK_BYTE *)(uintptr_t)key, KEYS_BYTES, b->sealed, &len);
    if (rv == CKR_OK && len == BLOB_SEALED_SIZE)
        return 0;
    return fail(c, b, "wrap by key", rv == CKR_OK ? CKR_GENERAL_ERROR : rv, e);
}

/* Modules answer a seal that does not fit with one of several errors, a general one among them. */
static int unseal(struct session *s, const struct key_config *c, const struct blob *b, uint8_t *key, uint8_t *aad, struct err *e)
{
    struct blob copy = *b;
    CK_GCM_PARAMS gcm = {copy.nonce, BLOB_GCM_NONCE_SIZE, BLOB_GCM_NONCE_SIZE * 8, aad, BLOB_AAD_SIZE, GCM_TAG_BITS};
    CK_MECHANISM m = {CKM_AES_GCM, &gcm, sizeof gcm};
    CK_ULONG len = BLOB_SEALED_SIZE; /* some modules want room for the tag, too */
    CK_RV rv = s->p11->C_DecryptInit(s->handle, &m, s->key);
    if (rv != CKR_OK)
        return fail(c, b, "unwrap by key", rv, e);
    uint8_t *room = secret_alloc(BLOB_SEALED_SIZE);
    if (!room)
        return err_set(e, ENOMEM, "no memory that can be locked (see RLIMIT_MEMLOCK)");
    rv = s->p11->C_Decrypt(s->handle, copy.sealed, BLOB_SEALED_SIZE, room, &len);
    if (rv == CKR_OK && len == KEYS_BYTES)
        memcpy(key, room, KEYS_BYTES);
    sodium_free(room);
    if (rv == CKR_OK && len == KEYS_BYTES)
        return 0;
    if (rv == CKR_OK || rv == CKR_GENERAL_ERROR || rv == CKR_ENCRYPTED_DATA_INVALID || rv == CKR_ENCRYPTED_DATA_LEN_RANGE ||
        rv == CKR_AEAD_DECRYPT_FAILED)
        return err_set(e, EBADMSG, "the wrapped key of tenant %s is damaged, or '%s' on token '%s' is not the key that it was wrapped by", b->tenant,
                       b->wrapping_key, c->token);
    return fail(c, b, "unwrap by key", rv, e);
}

int key_pkcs11_wrap(const struct key_config *c, struct blob *b, const uint8_t *key, struct err *e)
{
    uint8_t aad[BLOB_AAD_SIZE];
    struct session s;
    memset(b->nonce, 0, sizeof b->nonce);
    randombytes_buf(b->nonce, BLOB_GCM_NONCE_SIZE);
    blob_write_head(b, aad);
    pthread_mutex_lock(&lock);
    int rc = open_session(&s, c, b, e);
    if (rc == 0) {
        rc = seal(&s, c, b, key, aad, e);
        close_session(&s);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int key_pkcs11_unwrap(const struct key_config *c, const struct blob *b, uint8_t *key, struct err *e)
{
    uint8_t aad[BLOB_AAD_SIZE];
    struct session s;
    blob_write_head(b, aad);
    pthread_mutex_lock(&lock);
    int rc = open_session(&s, c, b, e);
    if (rc == 0) {
        rc = unseal(&s, c, b, key, aad, e);
        close_session(&s);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}
