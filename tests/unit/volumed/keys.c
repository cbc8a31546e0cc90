// SPDX-License-Identifier: Apache-2.0
// Tenants' keys, with the two services: files, and SoftHSM as a PKCS#11 token.
#include "hostd/volumed/keys/keys.h"

#include "hostd/volumed/keys/keys_blob.h"
#include "hostd/volumed/keys/tenant_key.h"
#include "unit/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE "/usr/lib/softhsm/libsofthsm2.so"
#define ONE    "1111111111111111111111111111111111111111111111111111111111111111"
#define TWO    "2222222222222222222222222222222222222222222222222222222222222222"

/* What libcrypto keeps for each of SoftHSM's callers until the process ends. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcrypto.so\nleak:libsofthsm2.so\n";
}

static uv_loop_t loop;
static struct keys *keys;
static char folder[64];
static char *hang_module;

/* ---- requests, one at a time ---- */

struct reply {
    bool done;
    int rc;
    char text[ERR_MAX];
    struct tenant_key *key;
    uint8_t blob[KEYS_BLOB_MAX];
    size_t blob_len;
};

static void take(void *user, const struct keys_result *r)
{
    struct reply *out = user;
    out->done = true;
    out->rc = r->rc;
    memcpy(out->text, r->e.msg, sizeof out->text);
    out->key = r->key;
    out->blob_len = r->blob_len;
    if (r->blob_len)
        memcpy(out->blob, r->blob, r->blob_len);
}

static struct reply ask(enum keys_verb verb, const char *tenant, const struct reply *blob)
{
    struct reply out = {0};
    const struct keys_request r = {
        .verb = verb, .tenant = tenant, .blob = blob ? blob->blob : NULL, .blob_len = blob ? blob->blob_len : 0, .done = take, .user = &out};
    keys_start(keys, &r);
    CHECK(!out.done);
    while (!out.done)
        uv_run(&loop, UV_RUN_ONCE);
    if (out.rc < 0)
        CHECK(out.text[0]);
    return out;
}

#define CHECK_RC(reply, want)                                                                                                                        \
    do {                                                                                                                                             \
        if ((reply).rc != (want))                                                                                                                    \
            fprintf(stderr, "%s\n", (reply).text);                                                                                                   \
        CHECK_EQ((reply).rc, want);                                                                                                                  \
    } while (0)

static struct reply must(enum keys_verb verb, const char *tenant, const struct reply *blob)
{
    struct reply r = ask(verb, tenant, blob);
    CHECK_RC(r, 0);
    return r;
}

static void must_fail(int code, enum keys_verb verb, const char *tenant, const struct reply *blob)
{
    struct reply r = ask(verb, tenant, blob);
    CHECK_RC(r, -code);
    CHECK(!r.key);
}

/* ---- a folder of keys, made anew for each test ---- */

static void write_file(const char *name, mode_t mode, const char *fmt, ...)
{
    char path[128];
    va_list ap;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fclose(f);
    CHECK_EQ(chmod(path, mode), 0);
}

static void shell(const char *fmt, ...)
{
    char command[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    int status = system(command);
    if (status)
        fprintf(stderr, "%s\n", command);
    CHECK_EQ(status, 0);
}

static void closed(void *user)
{
    *(bool *)user = true;
}

static void restart(void)
{
    struct err e = {0};
    bool gone = !keys;
    if (keys)
        keys_destroy(keys, closed, &gone);
    while (!gone)
        uv_run(&loop, UV_RUN_ONCE);
    keys = keys_create(&loop, folder, &e);
    CHECK(keys != NULL);
}

static void fresh(void)
{
    if (folder[0])
        shell("rm -rf %s", folder);
    strcpy(folder, "/tmp/test-keys-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    restart();
    write_file("local", 0600, "# wrapping keys\none = " ONE "\ntwo = " TWO "\n");
    write_file("default.key", 0600, "service = file\nfile = local\nkey = one\n");
}

static struct tenant_subkeys copy_of(struct tenant_key *key)
{
    struct tenant_subkeys copy;
    const struct tenant_subkeys *s = tenant_key_enter(key);
    CHECK(s != NULL);
    copy = *s;
    tenant_key_leave(key);
    return copy;
}

static void check_same_keys(struct tenant_key *a, struct tenant_key *b)
{
    struct tenant_subkeys x = copy_of(a), y = copy_of(b);
    CHECK_MEM((const char *)&x, sizeof x, (const char *)&y, sizeof y);
    CHECK_MEM((const char *)tenant_key_id(a), BLOB_ID_SIZE, (const char *)tenant_key_id(b), BLOB_ID_SIZE);
}

/* ---- formats ---- */

static void check_hex(const uint8_t *bytes, size_t n, const char *want)
{
    char hex[513];
    for (size_t i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    CHECK_STR(hex, want);
}

static void derived_keys_are_those_of_the_document(void)
{
    uint8_t data_key[KEYS_BYTES], id[BLOB_ID_SIZE];
    struct tenant_subkeys s;
    for (unsigned i = 0; i < sizeof data_key; i++)
        data_key[i] = (uint8_t)i;
    for (unsigned i = 0; i < sizeof id; i++)
        id[i] = (uint8_t)(0xa0 + i);
    tenant_key_derive(data_key, id, &s);
    check_hex(s.chunk_id, KEYS_BYTES, "16d788839c1ae76bd61d7eac2537d2b49e223a5b88570b516a6d33e3266af007");
    check_hex(s.chunk, KEYS_BYTES, "7d211e5e1e40645f55c5f04d3a613a270faf012b0d94e7fa011a30eef3eafebe");
    check_hex(s.index, KEYS_BYTES, "f07620136b074398f1c727c6829d7c70ae24bc487691916db9e9dd0ed5396246");
    check_hex(s.manifest, KEYS_BYTES, "9ee4c552e450075458ec4503fb6955aada58154aa1fd97f610bd64c8340bdb01");
}

static void every_byte_of_a_wrapped_key_counts(void)
{
    fresh();
    struct reply made = must(KEYS_MAKE, "ann", NULL);
    CHECK_EQ(made.blob_len, BLOB_SIZE);
    tenant_key_unref(made.key);
    restart();
    for (size_t i = 0; i < made.blob_len; i++) {
        struct reply bad = made;
        bad.blob[i] ^= 1;
        struct reply r = ask(KEYS_OPEN, "ann", &bad);
        if (r.rc >= 0)
            fprintf(stderr, "byte %zu\n", i);
        CHECK(r.rc == -EBADMSG || r.rc == -EKEYREVOKED);
    }
    for (size_t len = 0; len < made.blob_len; len += 7) {
        struct reply bad = made;
        bad.blob_len = len;
        must_fail(EBADMSG, KEYS_OPEN, "ann", &bad);
    }
}

/* ---- the file service ---- */

static void a_key_is_the_same_in_another_process(void)
{
    fresh();
    struct reply made = must(KEYS_MAKE, "ann", NULL), opened = must(KEYS_OPEN, "ann", &made);
    check_same_keys(made.key, opened.key);
    struct tenant_subkeys before = copy_of(made.key);
    tenant_key_unref(opened.key);
    restart();
    CHECK(tenant_key_enter(made.key) == NULL); /* its keeper is gone */
    opened = must(KEYS_OPEN, "ann", &made);
    struct tenant_subkeys after = copy_of(opened.key);
    CHECK_MEM((const char *)&before, sizeof before, (const char *)&after, sizeof after);
    struct reply other = must(KEYS_MAKE, "ann", NULL);
    struct tenant_subkeys others = copy_of(other.key);
    CHECK(memcmp(&others, &after, sizeof after) != 0);
    tenant_key_unref(made.key);
    tenant_key_unref(opened.key);
    tenant_key_unref(other.key);
}

static void another_tenants_key_does_not_open(void)
{
    fresh();
    struct reply ann = must(KEYS_MAKE, "ann", NULL);
    must_fail(EBADMSG, KEYS_OPEN, "bob", &ann);
    must_fail(EINVAL, KEYS_MAKE, "../bob", NULL);
    tenant_key_unref(ann.key);
}

static void rotation_wraps_anew_and_leaves_the_data_key(void)
{
    fresh();
    struct reply made = must(KEYS_MAKE, "ann", NULL);
    write_file("default.key", 0600, "service = file\nfile = local\nkey = two\n");
    struct reply wrapped = must(KEYS_WRAP, "ann", &made);
    CHECK(!wrapped.key);
    write_file("local", 0600, "two = " TWO "\n");
    restart();
    must_fail(EKEYREVOKED, KEYS_OPEN, "ann", &made);
    struct reply opened = must(KEYS_OPEN, "ann", &wrapped);
    CHECK_MEM((const char *)tenant_key_id(opened.key), BLOB_ID_SIZE, (const char *)tenant_key_id(made.key), BLOB_ID_SIZE);
    write_file("local", 0600, "two = " ONE "\n");
    restart();
    must_fail(EBADMSG, KEYS_OPEN, "ann", &wrapped); /* another key under the same name */
    unlink("local");
    tenant_key_unref(made.key);
    tenant_key_unref(opened.key);
}

static void a_tenants_own_file_comes_before_the_default(void)
{
    fresh();
    write_file("bob.key", 0600, "service = file\nfile = bobs\nkey = mine\nrevoked = kill\n");
    write_file("bobs", 0600, "mine = " TWO "\n");
    struct reply bob = must(KEYS_MAKE, "bob", NULL);
    tenant_key_unref(bob.key);
    CHECK_EQ(keys_policy(keys, "bob"), KEYS_KILL);
    CHECK_EQ(keys_policy(keys, "ann"), KEYS_PAUSE);
    restart();
    shell("rm %s/bobs", folder);
    must_fail(EKEYREVOKED, KEYS_OPEN, "bob", &bob);
    struct reply ann = must(KEYS_MAKE, "ann", NULL);
    tenant_key_unref(ann.key);
}

static void files_that_others_can_read_or_make_no_sense_are_refused(void)
{
    fresh();
    write_file("local", 0640, "one = " ONE "\n");
    must_fail(EACCES, KEYS_MAKE, "ann", NULL);
    static const char *const bad[] = {"one = 11\n", "one = " ONE "11\n", "one = zz\n", "one\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_file("local", 0600, "%s", bad[i]);
        must_fail(EINVAL, KEYS_MAKE, "ann", NULL);
    }
    write_file("local", 0600, "one = " ONE "\n");
    write_file("default.key", 0644, "service = file\nfile = local\nkey = one\n");
    must_fail(EACCES, KEYS_MAKE, "ann", NULL);
    static const char *const configs[] = {"service = vault\n",
                                          "service = file\nkey = one\n",
                                          "key = one\nfile = local\n",
                                          "service = file\nfile = local\nkey = one\ncache = 301\n",
                                          "service = pkcs11\nkey = one\ntoken = t\nmodule = m\n",
                                          "service = file\nfile = local\nkey = one\nrevoked = maybe\n"};
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        write_file("default.key", 0600, "%s", configs[i]);
        must_fail(EINVAL, KEYS_MAKE, "ann", NULL);
    }
    shell("rm %s/default.key", folder);
    must_fail(ENOKEY, KEYS_MAKE, "ann", NULL);
}

/* ---- the cache, revocation ---- */

static void a_revoked_key_is_good_until_it_expires_and_no_longer(void)
{
    fresh();
    write_file("default.key", 0600, "service = file\nfile = local\nkey = one\ncache = 2\n");
    struct reply made = must(KEYS_MAKE, "ann", NULL);
    shell("rm %s/local", folder);
    struct reply opened = must(KEYS_OPEN, "ann", &made); /* from the cache */
    check_same_keys(made.key, opened.key);
    uint64_t end = tenant_key_expires(made.key);
    CHECK_EQ(tenant_key_expires(opened.key), end); /* use does not prolong it */
    while (tenant_key_clock() < end)
        uv_run(&loop, UV_RUN_ONCE);
    CHECK(tenant_key_enter(made.key) == NULL);
    CHECK(tenant_key_enter(opened.key) == NULL);
    must_fail(EKEYREVOKED, KEYS_OPEN, "ann", &made);
    tenant_key_unref(made.key);
    tenant_key_unref(opened.key);
}

static void a_key_that_is_renewed_lasts_and_one_that_is_refused_ends_with_its_time(void)
{
    fresh();
    write_file("default.key", 0600, "service = file\nfile = local\nkey = one\ncache = 3\n");
    struct reply made = must(KEYS_MAKE, "ann", NULL);
    uint64_t end = tenant_key_expires(made.key);
    while (tenant_key_clock() + 3 <= end)
        uv_run(&loop, UV_RUN_ONCE);
    struct reply renewed = must(KEYS_RENEW, "ann", &made);
    CHECK(renewed.key == made.key);
    CHECK(tenant_key_expires(made.key) > end);
    shell("rm %s/local", folder);
    end = tenant_key_expires(made.key);
    must_fail(EKEYREVOKED, KEYS_RENEW, "ann", &made);
    CHECK_EQ(tenant_key_expires(made.key), end);
    struct reply opened = must(KEYS_OPEN, "ann", &made); /* what was encrypted goes on */
    CHECK(opened.key == made.key);
    while (tenant_key_clock() < end)
        uv_run(&loop, UV_RUN_ONCE);
    must_fail(EKEYREVOKED, KEYS_OPEN, "ann", &made);
    tenant_key_unref(opened.key);
    tenant_key_unref(renewed.key);
    tenant_key_unref(made.key);
}

static void a_blob_that_says_revoked_counts_at_once(void)
{
    fresh();
    struct reply made = must(KEYS_MAKE, "ann", NULL), revoked = {0};
    keys_revoked_blob("ann", revoked.blob, &revoked.blob_len);
    must_fail(EKEYREVOKED, KEYS_OPEN, "ann", &revoked);
    must_fail(EKEYREVOKED, KEYS_WRAP, "ann", &revoked);
    must_fail(EBADMSG, KEYS_OPEN, "bob", &revoked);
    tenant_key_unref(made.key);
}

static void a_key_that_is_forgotten_ends_for_those_that_hold_it(void)
{
    fresh();
    struct reply made = must(KEYS_MAKE, "ann", NULL), other = must(KEYS_MAKE, "bob", NULL);
    const struct tenant_subkeys *inside = tenant_key_enter(made.key);
    uint8_t first = inside->chunk[0];
    keys_forget(keys, "ann");
    CHECK(tenant_key_enter(made.key) == NULL);
    CHECK_EQ(inside->chunk[0], first); /* until it leaves */
    tenant_key_leave(made.key);
    CHECK(tenant_key_enter(other.key) != NULL);
    tenant_key_leave(other.key);
    struct reply again = must(KEYS_OPEN, "ann", &made);
    CHECK(tenant_key_enter(again.key) != NULL);
    tenant_key_leave(again.key);
    tenant_key_unref(made.key);
    tenant_key_unref(again.key);
    tenant_key_unref(other.key);
}

static void a_key_forgotten_while_it_is_fetched_is_not_given_out(void)
{
    fresh();
    struct reply made = must(KEYS_MAKE, "ann", NULL), late = {0};
    restart();
    const struct keys_request r = {.verb = KEYS_OPEN, .tenant = "ann", .blob = made.blob, .blob_len = made.blob_len, .done = take, .user = &late};
    keys_start(keys, &r);
    keys_forget(keys, "ann");
    while (!late.done)
        uv_run(&loop, UV_RUN_ONCE);
    CHECK_RC(late, -EAGAIN);
    tenant_key_unref(made.key);
}

static void a_cancelled_request_ends_at_once(void)
{
    fresh();
    struct reply late = {0};
    const struct keys_request r = {.verb = KEYS_MAKE, .tenant = "ann", .done = take, .user = &late};
    struct keys_op *op = keys_start(keys, &r);
    keys_cancel(op);
    keys_cancel(op);
    CHECK(!late.done);
    while (!late.done)
        uv_run(&loop, UV_RUN_ONCE);
    CHECK_RC(late, -ECANCELED);
    keys_start(keys, &r);
    late.done = false;
    restart(); /* destroys it meanwhile */
    CHECK(late.done);
}

/* ---- memory ---- */

/* The permissions and flags of the mapping that holds `p`. */
static void mapping_of(const void *p, char perms[8], char flags[256])
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long from, to, at = (unsigned long)(uintptr_t)p;
    bool here = false;
    perms[0] = flags[0] = 0;
    while (fgets(line, sizeof line, f)) {
        char mode[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && strchr(line, '-')) {
            here = from <= at && at < to;
            if (here)
                strcpy(perms, mode);
        }
        if (here && strncmp(line, "VmFlags:", 8) == 0)
            snprintf(flags, 256, "%.255s", line + 8);
    }
    fclose(f);
}

static void keys_lie_in_locked_memory_that_no_dump_shows(void)
{
    char perms[8], flags[256];
    fresh();
    struct reply made = must(KEYS_MAKE, "ann", NULL);
    const struct tenant_subkeys *s = tenant_key_enter(made.key);
    mapping_of(s, perms, flags);
    CHECK_STR(perms, "r--p");
#ifndef __SANITIZE_ADDRESS__              /* which makes mlock do nothing */
    CHECK(strstr(flags, " lo ") != NULL); /* locked */
#endif
    CHECK(strstr(flags, " dd ") != NULL); /* not dumped */
    tenant_key_leave(made.key);
    mapping_of(s, perms, flags);
    CHECK_STR(perms, "---p");
    tenant_key_unref(made.key);
}

/* ---- PKCS#11 ---- */

static void hsm(const char *fmt, ...)
{
    char command[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    shell("pkcs11-tool --module " MODULE " --token-label byok --login --pin 5678 %s >/dev/null 2>&1", command);
}

static void use_hsm(const char *key)
{
    write_file("default.key", 0600, "service = pkcs11\nmodule = " MODULE "\ntoken = byok\nkey = %s\npin = pin\nfile = local\n", key);
    write_file("pin", 0600, "5678\n");
}

static void a_token_wraps_rotates_and_revokes(void)
{
    fresh();
    use_hsm("kek1");
    struct reply made = must(KEYS_MAKE, "ann", NULL);
    restart();
    struct reply opened = must(KEYS_OPEN, "ann", &made);
    tenant_key_unref(opened.key);
    restart();

    struct reply bad = made;
    bad.blob[BLOB_SIZE - 1] ^= 1;
    must_fail(EBADMSG, KEYS_OPEN, "ann", &bad);
    bad = made;
    bad.blob[40] ^= 1; /* when it was wrapped: sealed with it */
    must_fail(EBADMSG, KEYS_OPEN, "ann", &bad);

    hsm("--keygen --key-type AES:32 --label kek2 --id 02 --sensitive");
    use_hsm("kek2");
    struct reply wrapped = must(KEYS_WRAP, "ann", &made);
    hsm("--delete-object --type secrkey --label kek1");
    must_fail(EKEYREVOKED, KEYS_OPEN, "ann", &made);
    opened = must(KEYS_OPEN, "ann", &wrapped);
    CHECK_MEM((const char *)tenant_key_id(opened.key), BLOB_ID_SIZE, (const char *)tenant_key_id(made.key), BLOB_ID_SIZE);
    tenant_key_unref(opened.key);
    restart();

    write_file("pin", 0600, "9999\n");
    must_fail(EKEYREVOKED, KEYS_OPEN, "ann", &wrapped);
    write_file("pin", 0600, "5678\n");
    write_file("default.key", 0600, "service = pkcs11\nmodule = " MODULE "\ntoken = none\nkey = kek2\npin = pin\n");
    must_fail(EAGAIN, KEYS_OPEN, "ann", &wrapped);
    write_file("default.key", 0600, "service = pkcs11\nmodule = /nowhere.so\ntoken = byok\nkey = kek2\npin = pin\n");
    must_fail(EAGAIN, KEYS_OPEN, "ann", &wrapped);
    tenant_key_unref(made.key);
}

static void a_key_moves_from_a_file_to_a_token(void)
{
    fresh();
    struct reply made = must(KEYS_MAKE, "ann", NULL);
    use_hsm("kek2");
    struct reply moved = must(KEYS_WRAP, "ann", &made);
    shell("rm %s/local", folder);
    restart();
    must_fail(EKEYREVOKED, KEYS_OPEN, "ann", &made);
    struct reply opened = must(KEYS_OPEN, "ann", &moved);
    tenant_key_unref(made.key);
    tenant_key_unref(opened.key);
}

/* Many requests of its tenant wait for a token that hangs; others are served, whatever the size of the thread pool. */
static void a_token_that_hangs_keeps_nobody_else_waiting(void)
{
    char hang[96];
    struct reply late[8] = {0};
    fresh();
    snprintf(hang, sizeof hang, "%s/hang", folder);
    setenv("HANG", hang, 1);
    write_file("hang", 0600, "");
    write_file("bob.key", 0600, "service = pkcs11\nmodule = %s\ntoken = byok\nkey = kek2\npin = pin\npatience = 2\n", hang_module);
    write_file("pin", 0600, "5678\n");
    uint64_t began = tenant_key_clock();
    for (int i = 0; i < 8; i++) {
        const struct keys_request r = {.verb = KEYS_MAKE, .tenant = "bob", .done = take, .user = &late[i]};
        keys_start(keys, &r);
    }
    struct reply ann = must(KEYS_MAKE, "ann", NULL);
    tenant_key_unref(ann.key);
    for (int i = 0; i < 8; i++)
        CHECK_STR(late[i].text, "");
    for (int i = 0; i < 8; i++) {
        while (!late[i].done)
            uv_run(&loop, UV_RUN_ONCE);
        CHECK_RC(late[i], -EAGAIN);
        CHECK_STR(late[i].text, "the key of tenant bob: the key service does not answer");
    }
    CHECK(tenant_key_clock() - began < 10); /* all after the same time, not one after the other */
    shell("rm %s", hang);
    struct reply again = ask(KEYS_MAKE, "bob", NULL);
    CHECK(strstr(again.text, "there is no token") != NULL); /* it answers again */
}

static const struct check_test tests[] = {
    TEST(derived_keys_are_those_of_the_document),
    TEST(every_byte_of_a_wrapped_key_counts),
    TEST(a_key_is_the_same_in_another_process),
    TEST(another_tenants_key_does_not_open),
    TEST(rotation_wraps_anew_and_leaves_the_data_key),
    TEST(a_tenants_own_file_comes_before_the_default),
    TEST(files_that_others_can_read_or_make_no_sense_are_refused),
    TEST(a_revoked_key_is_good_until_it_expires_and_no_longer),
    TEST(a_key_that_is_renewed_lasts_and_one_that_is_refused_ends_with_its_time),
    TEST(a_blob_that_says_revoked_counts_at_once),
    TEST(a_key_that_is_forgotten_ends_for_those_that_hold_it),
    TEST(a_key_forgotten_while_it_is_fetched_is_not_given_out),
    TEST(a_cancelled_request_ends_at_once),
    TEST(keys_lie_in_locked_memory_that_no_dump_shows),
    TEST(a_token_wraps_rotates_and_revokes),
    TEST(a_key_moves_from_a_file_to_a_token),
    TEST(a_token_that_hangs_keeps_nobody_else_waiting),
};

int main(int argc, char **argv)
{
    char tokens[] = "/tmp/test-tokens-XXXXXX", conf[64];
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODULE-THAT-HANGS [TEST]\n", argv[0]);
        return 2;
    }
    hang_module = realpath(argv[1], NULL);
    CHECK(hang_module != NULL);
    CHECK(mkdtemp(tokens) != NULL);
    snprintf(conf, sizeof conf, "%s/conf", tokens);
    setenv("SOFTHSM2_CONF", conf, 1);
    shell("printf 'directories.tokendir = %s\\nobjectstore.backend = file\\nlog.level = ERROR\\n' >%s", tokens, conf);
    shell("softhsm2-util --init-token --free --label byok --so-pin 1234 --pin 5678 >/dev/null");
    hsm("--keygen --key-type AES:32 --label kek1 --id 01 --sensitive");
    uv_loop_init(&loop);
    int rc = check_run(tests, sizeof tests / sizeof tests[0], argc - 1, argv + 1);
    bool gone = !keys;
    if (keys)
        keys_destroy(keys, closed, &gone);
    while (!gone)
        uv_run(&loop, UV_RUN_ONCE);
    CHECK_EQ(uv_loop_close(&loop), 0);
    free(hang_module);
    shell("rm -rf %s %s", tokens, folder);
    return rc;
}
