// SPDX-License-Identifier: Apache-2.0
// Parsers of small values, error sentences, and the hash map.
#include "base/str.h"
#include "base/err.h"
#include "base/hmap.h"
#include "unit/check.h"

#include <errno.h>

static void names_are_checked_whole(void)
{
    char longest[65];
    memset(longest, 'a', 65);
    CHECK(str_name_valid("a", 1));
    CHECK(str_name_valid("9a._-Z", 6));
    CHECK(str_name_valid(longest, 64));
    CHECK(!str_name_valid(longest, 65));
    CHECK(!str_name_valid("", 0));
    CHECK(!str_name_valid(".a", 2));
    CHECK(!str_name_valid("-a", 2));
    CHECK(!str_name_valid("..", 2));
    CHECK(!str_name_valid("a/b", 3));
    CHECK(!str_name_valid("a\0b", 3));
    CHECK(!str_name_valid("\xc3\xa9", 2));
    CHECK(!str_name_valid("a b", 3));
}

static void numbers_have_no_signs_and_no_overflow(void)
{
    uint64_t v = 0;
    CHECK_EQ(str_parse_u64("0", 10, &v), 0);
    CHECK_EQ(str_parse_u64("18446744073709551615", UINT64_MAX, &v), 0);
    CHECK(v == UINT64_MAX);
    CHECK_EQ(str_parse_u64("18446744073709551616", UINT64_MAX, &v), -ERANGE);
    CHECK_EQ(str_parse_u64("11", 10, &v), -ERANGE);
    CHECK_EQ(str_parse_u64("", 10, &v), -EINVAL);
    CHECK_EQ(str_parse_u64("-1", 10, &v), -EINVAL);
    CHECK_EQ(str_parse_u64("+1", 10, &v), -EINVAL);
    CHECK_EQ(str_parse_u64(" 1", 10, &v), -EINVAL);
    CHECK_EQ(str_parse_u64("1 ", 10, &v), -EINVAL);
    CHECK_EQ(str_parse_u64("0x1", 10, &v), -EINVAL);
}

static void ids_are_twelve_lower_case_digits(void)
{
    uint64_t v = 0;
    CHECK_EQ(str_parse_id("0123456789ab", 12, &v), 0);
    CHECK_EQ(v, 0x0123456789abll);
    CHECK_EQ(str_parse_id("0123456789aB", 12, &v), -EINVAL);
    CHECK_EQ(str_parse_id("0123456789a", 11, &v), -EINVAL);
    CHECK_EQ(str_parse_id("0123456789abc", 13, &v), -EINVAL);
}

static void sizes_read_back_what_they_print(void)
{
    static const char *const sizes[] = {"0", "1", "1023", "1K", "128M", "3G", "1025M", "7T", "4097"};
    uint64_t v = 0;
    char text[24];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK_EQ(str_parse_size(sizes[i], &v), 0);
        CHECK_STR(str_format_size(v, text), sizes[i]);
    }
    CHECK_EQ(str_parse_size("12Q", &v), -EINVAL);
    CHECK_EQ(str_parse_size("12MB", &v), -EINVAL);
    CHECK_EQ(str_parse_size("M", &v), -EINVAL);
    CHECK_EQ(str_parse_size("16777216T", &v), -ERANGE);
}

static void durations_know_their_units(void)
{
    uint64_t v = 0;
    CHECK_EQ(str_parse_duration("90", &v), 0);
    CHECK_EQ(v, 90);
    CHECK_EQ(str_parse_duration("5m", &v), 0);
    CHECK_EQ(v, 300);
    CHECK_EQ(str_parse_duration("2d", &v), 0);
    CHECK_EQ(v, 172800);
    CHECK_EQ(str_parse_duration("1w", &v), -EINVAL);
    CHECK_EQ(str_parse_duration("999999999999999999d", &v), -ERANGE);
}

static void trim_and_append_stay_inside(void)
{
    char text[] = "  value\t\n", empty[] = "\n", small[8];
    size_t pos = 0;
    CHECK_STR(str_trim(text), "value");
    CHECK_STR(str_trim(empty), "");
    CHECK(str_append(small, sizeof small, &pos, "%s", "1234"));
    CHECK(!str_append(small, sizeof small, &pos, "%s", "5678"));
    CHECK_STR(small, "1234");
    CHECK(str_append(small, sizeof small, &pos, "%s", "567"));
    CHECK_STR(small, "1234567");
    str_copy(small, sizeof small, "longer than eight");
    CHECK_STR(small, "longer ");
}

static void errors_grow_from_the_front_and_are_cut(void)
{
    struct err e = {0};
    char big[600];
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = 0;
    CHECK_EQ(err_set(&e, ENOENT, "no file %d", 7), -ENOENT);
    CHECK_EQ(err_wrap(&e, "reading"), -ENOENT);
    CHECK_STR(e.msg, "reading: no file 7");
    errno = EACCES;
    CHECK_EQ(err_sys(&e, "open"), -EACCES);
    CHECK_STR(e.msg, "open: Permission denied");
    err_set(&e, EIO, "%s", big);
    CHECK_EQ(strlen(e.msg), ERR_MAX - 1);
    CHECK_EQ(err_wrap(&e, "more"), -EIO);
    CHECK_EQ(strlen(e.msg), ERR_MAX - 1);
    CHECK_EQ(err_wrap(&e, "%s", big), -EIO);
    CHECK_EQ(strlen(e.msg), ERR_MAX - 1);
    CHECK_EQ(err_set(NULL, EIO, "nobody listens"), -EIO);
}

struct item {
    struct hmap_node node;
    unsigned value;
};

static void the_map_finds_what_is_in_it(void)
{
    enum { N = 1000 };
    static struct item items[N];
    struct hmap map = {0};
    CHECK(!hmap_find(&map, 1));
    for (unsigned i = 0; i < N; i++) {
        items[i].value = i;
        hmap_insert(&map, &items[i].node, i / 2); /* two under each key */
    }
    CHECK_EQ(map.count, N);
    for (unsigned i = 0; i < N; i += 4)
        hmap_remove(&map, &items[i].node);
    for (unsigned key = 0; key < N / 2; key++) {
        unsigned found = 0;
        for (struct hmap_node *n = hmap_find(&map, key); n; n = hmap_find_next(n)) {
            CHECK_EQ(hmap_entry(n, struct item, node)->value / 2, key);
            found++;
        }
        CHECK_EQ(found, key % 2 ? 2 : 1);
    }
    size_t seen = 0;
    for (struct hmap_node *n = hmap_iterate(&map, NULL); n; n = hmap_iterate(&map, n))
        seen++;
    CHECK_EQ(seen, map.count);
    hmap_finish(&map);
}

static const struct check_test tests[] = {
    TEST(names_are_checked_whole),
    TEST(numbers_have_no_signs_and_no_overflow),
    TEST(ids_are_twelve_lower_case_digits),
    TEST(sizes_read_back_what_they_print),
    TEST(durations_know_their_units),
    TEST(trim_and_append_stay_inside),
    TEST(errors_grow_from_the_front_and_are_cut),
    TEST(the_map_finds_what_is_in_it),
};

CHECK_MAIN(tests)
