// SPDX-License-Identifier: Apache-2.0
// A credential as bytes: what is read back, which bytes are refused and why, and version 1.
#include "hostd/credd/record.h"
#include "hostd/credd/master.h"
#include "unit/check.h"

#include <errno.h>

#define OLD_RECORD offsetof(struct credd_record, number)

static struct master_keys keys, others;
static const char box[] = "what the back end keeps";

static struct credd_record record(void)
{
    struct credd_record rec = {
        .id = 0xabc, .scope = {.kind = CREDD_SANDBOX, .tenant = 1000, .sandbox = 0xa1}, .maker = 1000, .has_value = 1, .created = 5, .number = 7};
    strcpy(rec.name, "api");
    strcpy(rec.method, "basic ann");
    strcpy(rec.hosts, "api.example:443\n");
    return rec;
}

static int decode(const uint8_t *bytes, size_t size, struct credd_record *out)
{
    const uint8_t *found = NULL;
    size_t len = 0;
    int rc = record_decode(&keys, bytes, size, out, &found, &len);
    if (rc == 0 && len)
        CHECK_MEM(found, len, box, sizeof box);
    return rc;
}

static void what_was_written_is_read(void)
{
    static uint8_t bytes[RECORD_MAX];
    struct credd_record rec = record(), back;
    CHECK_EQ(decode(bytes, record_encode(&keys, &rec, box, sizeof box, bytes), &back), 0);
    CHECK_MEM(&back, sizeof back, &rec, sizeof rec);
    CHECK_EQ(decode(bytes, record_encode(&keys, &rec, NULL, 0, bytes), &back), 0);
}

static void every_byte_counts(void)
{
    static uint8_t bytes[RECORD_MAX];
    struct credd_record rec = record(), back;
    size_t size = record_encode(&keys, &rec, box, sizeof box, bytes);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 1;
        CHECK_EQ(decode(bytes, size, &back), i >= 24 && i < 32 ? -ENOKEY : -EBADMSG);
        bytes[i] ^= 1;
    }
    for (size_t less = 1; less <= size; less++)
        CHECK(decode(bytes, size - less, &back) == -EBADMSG);
    CHECK_EQ(decode(bytes, size + 1, &back), -EBADMSG);
}

/* A version that has a value with the box of another one. */
static void a_value_belongs_to_one_version(void)
{
    static uint8_t older[RECORD_MAX], newer[RECORD_MAX];
    struct credd_record rec = record(), back;
    size_t size = record_encode(&keys, &rec, "the value of before.....", sizeof box, older);
    rec.number++;
    CHECK_EQ(record_encode(&keys, &rec, box, sizeof box, newer), size);
    memcpy(newer + RECORD_HEAD + RECORD_NONCE, older + RECORD_HEAD + RECORD_NONCE, sizeof box);
    CHECK_EQ(decode(newer, size, &back), -EBADMSG);
}

static void another_master_key_is_named_as_the_reason(void)
{
    static uint8_t bytes[RECORD_MAX];
    struct credd_record rec = record(), back;
    CHECK_EQ(decode(bytes, record_encode(&others, &rec, box, sizeof box, bytes), &back), -ENOKEY);
}

static void version_1_is_read_and_is_older_than_all_that_follows(void)
{
    static uint8_t bytes[RECORD_MAX];
    struct credd_record rec = record(), back;
    const uint32_t numbers[] = {1, sizeof box};
    unsigned long long size;
    memcpy(bytes, "spccred\n", 8);
    memcpy(bytes + 8, numbers, 8);
    memcpy(bytes + 16, &rec.id, 8);
    randombytes_buf(bytes + 24, 24);
    crypto_aead_xchacha20poly1305_ietf_encrypt(bytes + 48, &size, (const uint8_t *)&rec, OLD_RECORD, bytes, 24, NULL, bytes + 24, keys.record);
    CHECK_EQ(size, 4632u);
    memcpy(bytes + 48 + size, box, sizeof box);
    CHECK_EQ(decode(bytes, 48 + size + sizeof box, &back), 0);
    CHECK_EQ(back.number, 5u);
    CHECK_EQ(back.removed, 0u);
    CHECK_STR(back.hosts, rec.hosts);
    CHECK_EQ(decode(bytes, 48 + size + sizeof box - 1, &back), -EBADMSG);
    CHECK_EQ(decode(bytes, 47 + size, &back), -EBADMSG);
    bytes[60] ^= 1;
    CHECK_EQ(decode(bytes, 48 + size + sizeof box, &back), -EBADMSG);
}

int main(int argc, char **argv)
{
    static const struct check_test tests[] = {TEST(what_was_written_is_read), TEST(every_byte_counts), TEST(a_value_belongs_to_one_version),
                                              TEST(another_master_key_is_named_as_the_reason),
                                              TEST(version_1_is_read_and_is_older_than_all_that_follows)};
    if (sodium_init() < 0)
        return 1;
    randombytes_buf(&keys, sizeof keys);
    randombytes_buf(&others, sizeof others);
    return check_run(tests, sizeof tests / sizeof *tests, argc, argv);
}
