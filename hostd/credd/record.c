// SPDX-License-Identifier: Apache-2.0
// Credentials as bytes: see record.h.
//
// The box lies between the nonce and what is encrypted, so that all that is before the latter is its associated data: who has two versions of a record cannot give
// the newer one the value of the older. In version 1 the box was behind, and had nothing but its id in common with the record.
#include "hostd/credd/record.h"

#include "base/str.h"
#include "hostd/credd/master.h"
#include "hostd/credd/store.h"

#include <errno.h>
#include <string.h>

#define MAGIC   "spccred\n"
#define VERSION 2u
/* Of version 1. */
#define OLD_HEAD   24u
#define OLD_RECORD offsetof(struct credd_record, number)

struct head {
    char magic[8];
    uint32_t version, box_len;
    uint64_t id;
    uint8_t key[8]; /* how the public key begins: which master it is of. From version 2 on */
};
_Static_assert(sizeof(struct head) == RECORD_HEAD, "the format");

size_t record_encode(const struct master_keys *keys, const struct credd_record *rec, const void *box, size_t len, uint8_t *out)
{
    struct head head = {.version = VERSION, .box_len = (uint32_t)len, .id = rec->id};
    size_t before = RECORD_HEAD + RECORD_NONCE + len;
    unsigned long long size = 0;
    memcpy(head.magic, MAGIC, sizeof head.magic);
    memcpy(head.key, keys->box_public, sizeof head.key);
    memcpy(out, &head, sizeof head);
    randombytes_buf(out + RECORD_HEAD, RECORD_NONCE);
    if (len)
        memcpy(out + RECORD_HEAD + RECORD_NONCE, box, len);
    crypto_aead_xchacha20poly1305_ietf_encrypt(out + before, &size, (const uint8_t *)rec, sizeof *rec, out, before, NULL, out + RECORD_HEAD,
                                               keys->record);
    return before + (size_t)size;
}

static bool ended(const char *text, size_t size)
{
    return memchr(text, 0, size) != NULL;
}

static bool record_valid(const struct credd_record *r)
{
    return r->id && scope_valid(&r->scope) && ended(r->name, sizeof r->name) && ended(r->method, sizeof r->method) &&
           ended(r->hosts, sizeof r->hosts) && str_name_valid(r->name, strlen(r->name)) && (!r->removed || r->scope.kind == CREDD_SANDBOX);
}

static bool decrypt_old(const struct master_keys *keys, const uint8_t *bytes, size_t size, struct credd_record *out, const uint8_t **ret_box)
{
    size_t before = OLD_HEAD + RECORD_NONCE, cipher = OLD_RECORD + RECORD_TAG;
    if (size < before + cipher || crypto_aead_xchacha20poly1305_ietf_decrypt((uint8_t *)out, NULL, NULL, bytes + before, cipher, bytes, OLD_HEAD,
                                                                             bytes + OLD_HEAD, keys->record) < 0)
        return false;
    out->number = (uint64_t)out->created; /* of a time before there were numbers: lower than any that follows */
    *ret_box = bytes + before + cipher;
    return true;
}

static bool decrypt(const struct master_keys *keys, const uint8_t *bytes, size_t size, size_t box_len, struct credd_record *out,
                    const uint8_t **ret_box)
{
    size_t before = RECORD_HEAD + RECORD_NONCE + box_len, cipher = sizeof *out + RECORD_TAG;
    *ret_box = bytes + RECORD_HEAD + RECORD_NONCE;
    return size == before + cipher && crypto_aead_xchacha20poly1305_ietf_decrypt((uint8_t *)out, NULL, NULL, bytes + before, cipher, bytes, before,
                                                                                 bytes + RECORD_HEAD, keys->record) == 0;
}

int record_decode(const struct master_keys *keys, const uint8_t *bytes, size_t size, struct credd_record *out, const uint8_t **ret_box,
                  size_t *ret_len)
{
    struct head head = {0};
    *out = (struct credd_record){0};
    if (size < RECORD_HEAD + RECORD_NONCE || size > RECORD_MAX)
        return -EBADMSG;
    memcpy(&head, bytes, sizeof head);
    if (memcmp(head.magic, MAGIC, sizeof head.magic) != 0 || head.box_len > BACKEND_BOX_MAX || head.version == 0 || head.version > VERSION)
        return -EBADMSG;
    if (head.version == VERSION && memcmp(head.key, keys->box_public, sizeof head.key) != 0)
        return -ENOKEY;
    bool good = head.version == VERSION ? decrypt(keys, bytes, size, head.box_len, out, ret_box)
                                        : decrypt_old(keys, bytes, size, out, ret_box) && (size_t)(bytes + size - *ret_box) == head.box_len;
    *ret_len = head.box_len;
    return good && out->id == head.id && record_valid(out) ? 0 : -EBADMSG;
}
