// SPDX-License-Identifier: Apache-2.0
// The configuration file: defaults, every kind of value, and sentences that name file and line.
#include "base/config.h"
#include "unit/check.h"

#include <errno.h>
#include <unistd.h>

struct loaded {
    int rc;
    struct config config;
    struct err e;
};

static struct loaded load(const char *text)
{
    struct loaded l = {0};
    char path[] = "/tmp/config-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    l.rc = config_load(path, &l.config, &l.e);
    unlink(path);
    return l;
}

static void an_empty_file_gives_the_defaults(void)
{
    struct loaded l = load("");
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    CHECK_EQ(l.rc, 0);
    CHECK_STR(l.config.pool, "/var/lib/space/pool");
    CHECK_STR(l.config.run, "/run/space");
    CHECK_STR(l.config.user, "space");
    CHECK_STR(l.config.template_, "debian");
    CHECK_STR(l.config.accel, "auto");
    CHECK_STR(l.config.node, host);
    CHECK_EQ(l.config.memory, 256 << 20);
    CHECK_EQ(l.config.disk, 10ll << 30);
    CHECK_EQ(l.config.uid_base, 610000);
    CHECK_EQ(l.config.overcommit_percent, 200);
}

static void what_is_newer_than_the_file_lies_beside_what_it_names(void)
{
    struct loaded l = load("state = /srv/two/state\n");
    CHECK_EQ(l.rc, 0);
    CHECK_STR(l.config.store, "/srv/two/store");
    CHECK_STR(l.config.store_cache, "/srv/two/volumes");
    CHECK_STR(l.config.keys, "/tmp/keys"); /* beside the file */
    CHECK_STR(l.config.store_credentials, "/tmp/store.credentials");
    l = load("");
    CHECK_STR(l.config.store, "/var/lib/space/store");
    CHECK_STR(l.config.store_cache, "/var/lib/space/volumes");
    l = load("state = /srv/two/state\nstore = https://host/bucket\nstore_cache = /cache\nkeys = /etc/k\n");
    CHECK_STR(l.config.store, "https://host/bucket");
    CHECK_STR(l.config.store_cache, "/cache");
    CHECK_STR(l.config.keys, "/etc/k");
}

static void values_comments_and_blanks_are_read(void)
{
    struct loaded l = load("# a comment\n\n  pool =  /data/space pool \nmemory=1G\n\tvcpus\t= 4\ntemplate = "
                           "tiny\naccel = tcg\nnode = a.b-c\n"
                           "libvirt = qemu:///session\nreserve_percent = 0"); /* no newline at the end */
    CHECK_EQ(l.rc, 0);
    CHECK_STR(l.config.pool, "/data/space pool");
    CHECK_EQ(l.config.memory, 1ll << 30);
    CHECK_EQ(l.config.vcpus, 4);
    CHECK_STR(l.config.template_, "tiny");
    CHECK_STR(l.config.accel, "tcg");
    CHECK_STR(l.config.node, "a.b-c");
    CHECK_STR(l.config.libvirt, "qemu:///session");
    CHECK_EQ(l.config.reserve_percent, 0);
}

static void bad_lines_are_refused(void)
{
    static const struct {
        const char *text;
        int rc;
    } bad[] = {
        {"nonsense\n", -EINVAL},
        {"colour = blue\n", -EINVAL},
        {"pool = relative\n", -EINVAL},
        {"pool =\n", -EINVAL},
        {"pool = /a\npool = /b\n", -EINVAL},
        {"pool = /a\001b\n", -EINVAL},
        {"vcpus = 0\n", -ERANGE},
        {"vcpus = 65\n", -ERANGE},
        {"vcpus = -1\n", -EINVAL},
        {"vcpus = 1 2\n", -EINVAL},
        {"vcpus = 99999999999999999999\n", -ERANGE},
        {"memory = 12Q\n", -EINVAL},
        {"memory = 0\n", -ERANGE},
        {"memory = 1025G\n", -ERANGE},
        {"accel = fast\n", -EINVAL},
        {"user = ../root\n", -EINVAL},
        {"node = \xc3\xa9\n", -EINVAL},
        {"uid_base = 0\n", -ERANGE},
        {"uid_base = 2147483647\nuid_count = 2\n", -ERANGE},
        {"run = /0123456789012345678901234567890123456789012345678901234567890123\n", -ENAMETOOLONG},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct loaded l = load(bad[i].text);
        if (l.rc != bad[i].rc)
            fprintf(stderr, "for: %s", bad[i].text);
        CHECK_EQ(l.rc, bad[i].rc);
        CHECK_EQ(l.e.code, -bad[i].rc);
        CHECK(strstr(l.e.msg, "/tmp/config-test-"));
    }
}

static void the_sentence_names_the_line(void)
{
    struct loaded l = load("pool = /a\n\nvcpus = x\n");
    CHECK(strstr(l.e.msg, ":3: "));
    CHECK(strstr(l.e.msg, "vcpus must be a number, not 'x'"));
}

static void an_overlong_line_is_refused(void)
{
    char text[3000];
    memset(text, 'x', sizeof text);
    memcpy(text, "pool = /", 8);
    text[sizeof text - 1] = 0;
    CHECK_EQ(load(text).rc, -EINVAL);
}

static void a_missing_file_is_an_error(void)
{
    struct config c;
    struct err e = {0};
    CHECK_EQ(config_load("/nonexistent/space.conf", &c, &e), -ENOENT);
    CHECK(strstr(e.msg, "/nonexistent/space.conf"));
    CHECK_EQ(config_load("/nonexistent/space.conf", &c, NULL), -ENOENT);
}

static const struct check_test tests[] = {
    TEST(an_empty_file_gives_the_defaults),    TEST(what_is_newer_than_the_file_lies_beside_what_it_names),
    TEST(values_comments_and_blanks_are_read), TEST(bad_lines_are_refused),
    TEST(the_sentence_names_the_line),         TEST(an_overlong_line_is_refused),
    TEST(a_missing_file_is_an_error),
};

CHECK_MAIN(tests)
