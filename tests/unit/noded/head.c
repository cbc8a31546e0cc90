// SPDX-License-Identifier: Apache-2.0
// The bytes of `meta` are those of docs/protocol/head.md, whoever wrote them.
#include "hostd/noded/head.h"
#include "unit/check.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MEMORY (4ull << 20)
#define PAGES  (MEMORY / HEAD_PAGE)

static int file(void)
{
    int fd = memfd_create("meta", MFD_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static uint64_t entry(int meta, uint64_t page)
{
    uint64_t value = 77;
    CHECK(pread(meta, &value, 8, (off_t)(4096 + 8 * page)) == 8);
    return value;
}

static void a_table_without_base_is_zeros(void)
{
    struct err e = {0};
    int meta = file();
    CHECK(ftruncate(meta, 10) == 0);
    CHECK_EQ(head_start_table(meta, -1, MEMORY, &e), 0);
    CHECK_EQ(lseek(meta, 0, SEEK_END), 4096 + 8 * PAGES);
    CHECK_EQ(entry(meta, 0), 0);
    CHECK_EQ(entry(meta, PAGES - 1), 0);
    CHECK(head_id_of(meta).bytes[0] == 0);
    close(meta);
}

static void a_table_takes_the_bases_entries_without_flags(void)
{
    struct err e = {0};
    int base = file(), meta = file();
    const uint64_t entries[] = {0, 6, 9 | HEAD_CHANGED, 0xfffffffffffffffeull | HEAD_CHANGED};
    CHECK_EQ(head_start_table(base, -1, MEMORY, &e), 0);
    CHECK(pwrite(base, entries, sizeof entries, 4096) == (ssize_t)sizeof entries);
    CHECK_EQ(head_start_table(meta, base, MEMORY, &e), 0);
    for (uint64_t i = 0; i < 4; i++)
        CHECK(entry(meta, i) == (entries[i] & ~1ull));
    CHECK(ftruncate(base, 4096 + 8) == 0);
    CHECK(head_start_table(meta, base, MEMORY, &e) < 0);
    close(base);
    close(meta);
}

static void entries_tell_zeros_pages_and_flags_apart(void)
{
    CHECK(head_entry(0) == 2);
    CHECK(head_entry(1) == 2);
    CHECK(head_entry(7) == 6);
    CHECK(!(head_entry(~0ull) & HEAD_CHANGED));
}

static void check_sum(const unsigned char *at, const void *bytes, size_t len)
{
    XXH128_canonical_t want;
    XXH128_canonicalFromHash(&want, XXH3_128bits(bytes, len));
    CHECK(memcmp(at, want.digest, 16) == 0);
}

static void a_header_has_its_fields_where_the_document_says(void)
{
    static unsigned char b[4096 + PAGES * 8];
    struct err e = {0};
    int meta = file();
    struct head_meta m = {.id = {{1, 2, 3}},
                          .base = {{4, 5, 6}},
                          .created = 0x1122334455667788ull,
                          .memory = MEMORY,
                          .vcpus = 3,
                          .accel = 2,
                          .state_bytes = 5,
                          .disk_bytes = 6,
                          .machine = "pc-q35-7.2",
                          .cpu = "Nehalem",
                          .devices = "1 blk",
                          .qemu = "7.2.22"};
    m.state = head_sum_of("state", 5);
    CHECK_EQ(head_start_table(meta, -1, MEMORY, &e), 0);
    CHECK_EQ(head_finish_meta(meta, &m, &e), 0);
    CHECK(pread(meta, b, sizeof b, 0) == (ssize_t)sizeof b);
    CHECK(memcmp(b, "spchead\n\1\0\0\0\0\20\0\0\1\2\3", 19) == 0);
    CHECK(memcmp(b + 32, "\4\5\6", 3) == 0);
    CHECK(memcmp(b + 48, "\x88\x77\x66\x55\x44\x33\x22\x11\0\0\x40\0\0\0\0\0\3\0\0\0\2\0\0\0", 24) == 0);
    CHECK(memcmp(b + 72, "\0\x20\0\0\0\0\0\0\5\0\0\0\0\0\0\0\6", 17) == 0);
    check_sum(b + 96, b + 4096, PAGES * 8);
    check_sum(b + 112, "state", 5);
    CHECK(strcmp((char *)b + 128, "pc-q35-7.2") == 0 && strcmp((char *)b + 160, "Nehalem") == 0);
    CHECK(strcmp((char *)b + 192, "1 blk") == 0 && strcmp((char *)b + 256, "7.2.22") == 0);
    check_sum(b + 4080, b, 4080);
    struct head_id id = head_id_of(meta);
    CHECK(head_id_equal(&id, &m.id) && !head_id_none(&id));
    close(meta);
}

static const struct check_test tests[] = {
    TEST(a_table_without_base_is_zeros),
    TEST(a_table_takes_the_bases_entries_without_flags),
    TEST(entries_tell_zeros_pages_and_flags_apart),
    TEST(a_header_has_its_fields_where_the_document_says),
};

CHECK_MAIN(tests)
