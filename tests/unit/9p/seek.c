// SPDX-License-Identifier: Apache-2.0
// Names and values of the attributes that answer lseek.
#include "9p/seek.h"
#include "unit/check.h"

#include <unistd.h>

static bool parse(const char *name, int *whence, uint64_t *offset)
{
    return p9_seek_parse(p9_str_of(name), whence, offset);
}

static void what_is_made_is_understood(void)
{
    const uint64_t offsets[] = {0, 1, 4096, 1ULL << 40, INT64_MAX};
    const int whences[] = {SEEK_DATA, SEEK_HOLE};
    for (size_t i = 0; i < 2 * sizeof offsets / sizeof *offsets; i++) {
        char name[P9_SEEK_TEXT_MAX];
        int whence = -1;
        uint64_t offset = 77;
        p9_seek_name(name, whences[i % 2], offsets[i / 2]);
        CHECK(parse(name, &whence, &offset));
        CHECK_EQ(whence, whences[i % 2]);
        CHECK_EQ(offset, offsets[i / 2]);
    }
    int whence;
    uint64_t offset;
    CHECK(parse("space.seek.hole.12", &whence, &offset) && whence == SEEK_HOLE && offset == 12);
}

static void other_names_are_not(void)
{
    const char *const names[] = {"",
                                 "user.x",
                                 "space.seek.data",
                                 "space.seek.data.",
                                 "space.seek.data.-1",
                                 "space.seek.data.+1",
                                 "space.seek.data.1x",
                                 "space.seek.data. 1",
                                 "space.seek.Data.1",
                                 "space.seek.ends.1",
                                 "space.seek.data.9223372036854775808",
                                 "space.seek.hole.99999999999999999999"};
    int whence;
    uint64_t offset;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK(!parse(names[i], &whence, &offset));
}

static void values(void)
{
    uint64_t offset;
    CHECK(p9_seek_value((struct p9_data){"4096", 4}, &offset) && offset == 4096);
    CHECK(p9_seek_value((struct p9_data){"40961", 4}, &offset) && offset == 4096);
    CHECK(!p9_seek_value((struct p9_data){"", 0}, &offset));
    CHECK(!p9_seek_value((struct p9_data){"12\n", 3}, &offset));
    CHECK(!p9_seek_value((struct p9_data){"9223372036854775808", 19}, &offset));
}

int main(int argc, char **argv)
{
    static const struct check_test tests[] = {TEST(what_is_made_is_understood), TEST(other_names_are_not), TEST(values)};
    return check_run(tests, sizeof tests / sizeof *tests, argc, argv);
}
