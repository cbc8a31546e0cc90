// SPDX-License-Identifier: Apache-2.0
// What credd.h promises to whoever injects: which credential a request gets, in which form, and when it is refused. On a store of its own, without a loop.
#include "unit/check.h"

#include "hostd/credd/audit_tally.h"
#include "hostd/credd/find.h"
#include "hostd/credd/master.h"
#include "hostd/volumed/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OWNER   1000u
#define SANDBOX 0xa1u

static struct credd credd;
static char folder[64] = "/tmp/credd-find-XXXXXX";
static char got[4096]; /* VERDICT [PLACE NAME VALUE] */

static void answered(void *user, const struct cred_answer *a)
{
    static const char *const verdicts[] = {"found", "none", "no-value", "expired", "rate", "no-sandbox", "away", "no-audit"};
    (void)user;
    if (a->verdict == CRED_FOUND)
        snprintf(got, sizeof got, "found %s %s %.*s", a->place == CRED_QUERY ? "query" : "header", a->name, (int)a->len, a->value);
    else
        snprintf(got, sizeof got, "%s%s", verdicts[a->verdict], a->credential ? " of one" : "");
}

static const char *ask(const char *host, uint16_t port)
{
    const struct cred_query q = {.sandbox = SANDBOX, .host = host, .port = port, .what = "GET"};
    got[0] = 0;
    cred_inject(&credd, &q, answered, NULL);
    return got;
}

#define ASKED(host, port, want)                                                                                                                      \
    do {                                                                                                                                             \
        ask(host, port);                                                                                                                             \
        CHECK_STR(got, want);                                                                                                                        \
    } while (0)

struct boxed {
    struct credential *c;
    struct credd_record rec;
};

static void put(void *user, const struct backend_result *r)
{
    struct boxed *b = user;
    b->rec.has_value = 1;
    CHECK_EQ(store_save(credd.store, b->c, &b->rec, r->bytes, r->len, NULL), 0);
}

static struct credential *add(enum credd_scope_kind kind, const char *name, const char *hosts, const char *method, const char *value)
{
    struct credd_record rec = {.scope = {.kind = kind, .tenant = kind == CREDD_PLATFORM ? 0 : OWNER, .sandbox = kind == CREDD_SANDBOX ? SANDBOX : 0},
                               .maker = OWNER};
    struct boxed b = {0};
    struct backend *back = finder_backend(credd.finder);
    snprintf(rec.name, sizeof rec.name, "%s", name);
    snprintf(rec.method, sizeof rec.method, "%s", method);
    snprintf(rec.hosts, sizeof rec.hosts, "%s\n", hosts);
    CHECK_EQ(store_make(credd.store, &rec, &b.c, NULL), 0);
    b.rec = b.c->rec;
    if (value)
        back->ops->put(back, &b.c->rec, value, strlen(value), put, &b);
    return b.c;
}

static void drop(struct credential *c)
{
    CHECK_EQ(store_remove(credd.store, c, NULL), 0);
}

static void each_method_has_its_form(void)
{
    static const struct {
        const char *method, *value, *want;
    } cases[] = {
        {"header Authorization Bearer {}", "abc", "found header Authorization Bearer abc"},
        {"header X-Key", "abc", "found header X-Key abc"},
        {"header X-Key a{}b", "{}", "found header X-Key a{}b"},
        {"basic aladdin", "opensesame", "found header Authorization Basic YWxhZGRpbjpvcGVuc2VzYW1l"},
        {"query key", "a b&c/\xc3\xa9~", "found query key a%20b%26c%2F%C3%A9~"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct credential *c = add(CREDD_SANDBOX, "m", "m.example", cases[i].method, cases[i].value);
        ASKED("m.example", 443, cases[i].want);
        drop(c);
    }
    char *longest = malloc(CREDD_VALUE_MAX + 1);
    memset(longest, '%', CREDD_VALUE_MAX);
    longest[CREDD_VALUE_MAX] = 0;
    struct credential *c = add(CREDD_SANDBOX, "long", "m.example", "query key", longest);
    ask("m.example", 443);
    CHECK(!strncmp(got, "found query key %25%25", 22));
    drop(c);
    c = add(CREDD_SANDBOX, "long", "m.example", "basic u", longest);
    ask("m.example", 443);
    CHECK(!strncmp(got, "found header Authorization Basic dTolJSUl", 40));
    drop(c);
    free(longest);
}

static void hosts_and_ports_are_matched(void)
{
    struct credential *c = add(CREDD_TENANT, "h", "a.example\n*.b.example\nc.example:8443", "header X", "v");
    ASKED("a.example", 443, "found header X v");
    ASKED("a.example", 80, "none");
    ASKED("x.a.example", 443, "none");
    ASKED("x.y.b.example", 443, "found header X v");
    ASKED("b.example", 443, "none");
    ASKED("xb.example", 443, "none");
    ASKED("*.b.example", 443, "none");
    ASKED("c.example", 443, "none");
    ASKED("c.example", 8443, "found header X v");
    CHECK(cred_wants(&credd, SANDBOX, "a.example", 443));
    CHECK(!cred_wants(&credd, SANDBOX, "a.example", 444));
    CHECK(!cred_wants(&credd, SANDBOX + 1, "a.example", 443));
    drop(c);
}

static void the_closest_decides_alone(void)
{
    struct credential *platform = add(CREDD_PLATFORM, "p", "*.example", "header X", "platform");
    struct credential *tenant = add(CREDD_TENANT, "t", "*.example", "header X", "tenant");
    struct credential *exact = add(CREDD_TENANT, "z", "a.example", "header X", "exact");
    ASKED("a.example", 443, "found header X exact");
    ASKED("b.example", 443, "found header X tenant");
    struct credential *own = add(CREDD_SANDBOX, "s", "*.example", "header X", NULL);
    ASKED("a.example", 443, "no-value of one");
    drop(own);
    own = add(CREDD_SANDBOX, "s", "*.example", "autofill me", "secret");
    ASKED("a.example", 443, "found header X exact"); /* a login is for agents only */
    drop(own);
    drop(exact);
    drop(tenant);
    ASKED("a.example", 443, "found header X platform");
    drop(platform);
    ASKED("a.example", 443, "none");
}

static void limits_hold_and_come_back(void)
{
    struct credential *c = add(CREDD_TENANT, "r", "a.example", "header X", "v");
    struct credd_record rec = c->rec;
    rec.rate_uses = 2;
    rec.rate_seconds = 1;
    CHECK_EQ(store_save(credd.store, c, &rec, NULL, 0, NULL), 0);
    ASKED("a.example", 443, "found header X v");
    ASKED("a.example", 443, "found header X v");
    ASKED("a.example", 443, "rate of one");
    c->tokens_at -= 600000000; /* 0.6 s later */
    ASKED("a.example", 443, "found header X v");
    ASKED("a.example", 443, "rate of one");
    rec.rate_uses = 0;
    rec.expires = 1;
    CHECK_EQ(store_save(credd.store, c, &rec, NULL, 0, NULL), 0);
    ASKED("a.example", 443, "expired of one");
    drop(c);
}

static void who_is_not_known_gets_nothing(void)
{
    struct credential *c = add(CREDD_PLATFORM, "p", "a.example", "header X", "v");
    finder_forget(credd.finder, SANDBOX);
    ASKED("a.example", 443, "no-sandbox");
    CHECK_EQ(finder_know(credd.finder, SANDBOX, OWNER, ""), 0);
    ASKED("a.example", 443, "found header X v");
    drop(c);
}

/* As on a full disk: no file grows any more. */
static void what_cannot_be_logged_is_refused(void)
{
    struct credential *c = add(CREDD_PLATFORM, "p", "a.example", "header X", "v");
    struct rlimit old, none;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    none = old;
    none.rlim_cur = 1;
    signal(SIGXFSZ, SIG_IGN);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    ASKED("a.example", 443, "no-audit of one");
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    ASKED("a.example", 443, "found header X v");
    drop(c);
}

static void every_line_is_in_the_chain(void)
{
    struct audit_end end;
    struct err e = {0};
    char path[100];
    snprintf(path, sizeof path, "%s/audit", folder);
    audit_sync(credd.audit);
    CHECK_EQ(audit_verify(path, &end, &e), 0);
    CHECK(end.lines > 20);
    CHECK_EQ((int)end.lines, (int)audit_end(credd.audit).lines);
    CHECK(!memcmp(end.hash, audit_end(credd.audit).hash, AUDIT_HASH));
    CHECK_EQ(end.first, 1);
    /* an odd text neither breaks a line nor passes for members of it */
    CHECK_EQ(audit_note(credd.audit, "test", 0, 0, 0, 1, "\",\"hash\":\"\n\\\x01\xff"), 0);
    CHECK_EQ(audit_verify(path, &end, &e), 0);
    audit_close(credd.audit);
    CHECK_EQ(audit_open(NULL, path, 0, &credd.audit, &e), 0);
    CHECK_EQ((int)audit_end(credd.audit).lines, (int)end.lines);
    CHECK_EQ(audit_note(credd.audit, "test", 0, 0, 0, 1, "goes on"), 0);
    CHECK_EQ(audit_verify(path, &end, &e), 0);
}

/* The chain goes on in it; and without the first, which was moved away. */
static void a_long_log_goes_on_in_another_file(void)
{
    struct audit_end end;
    struct err e = {0};
    char path[100], first[140], text[AUDIT_TEXT_MAX];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    snprintf(path, sizeof path, "%s/audit", folder);
    uint64_t number = audit_end(credd.audit).lines, last = number + (70u << 20) / 800;
    while (number++ < last)
        CHECK_EQ(audit_note(credd.audit, "test", 0, 0, 0, 1, text), 0);
    CHECK_EQ(audit_verify(path, &end, &e), 0);
    CHECK_EQ(end.lines, last);
    snprintf(first, sizeof first, "%s/0000000000000001.jsonl", path);
    CHECK_EQ(unlink(first), 0);
    CHECK_EQ(audit_verify(path, &end, &e), 0);
    CHECK(end.first > 1000 && end.lines == last);
    audit_close(credd.audit);
    CHECK_EQ(audit_open(NULL, path, 0, &credd.audit, &e), 0);
    CHECK_EQ(audit_end(credd.audit).lines, last);
}

struct sum {
    unsigned lines, counting;
    uint64_t uses, others;
};

static void add_up(void *user, const char *line)
{
    struct sum *s = user;
    char kind[16], count[24], text[AUDIT_TEXT_MAX];
    if (!audit_member(line, "kind", kind, sizeof kind) || !audit_member(line, "count", count, sizeof count) ||
        !audit_member(line, "text", text, sizeof text))
        return;
    s->lines++;
    s->counting += strcmp(kind, "counting") == 0;
    if (strcmp(kind, "use") == 0)
        *(strcmp(text, "others") == 0 ? &s->others : &s->uses) += strtoull(count, NULL, 10);
}

/* Whatever a tenant's guests do, it is few lines, and the counts add up; another tenant does not notice. */
static void a_tenant_fills_only_its_share(void)
{
    struct audit *a;
    struct audit_tally *t;
    struct audit_end end;
    struct sum sum = {0};
    struct err e = {0};
    char path[100], text[40];
    snprintf(path, sizeof path, "%s/share", folder);
    CHECK_EQ(audit_open(NULL, path, 0, &a, &e), 0);
    CHECK_EQ(audit_tally_create(NULL, a, 10, &t, &e), 0);
    for (unsigned i = 0; i < 10000; i++) {
        snprintf(text, sizeof text, "n%u.example:443", i % 40);
        CHECK_EQ(audit_tally_note(t, "use", 1, SANDBOX, OWNER, 2, text), 0);
    }
    for (unsigned i = 0; i < 100; i++)
        CHECK_EQ(audit_tally_change(t, OWNER), i < 10 ? 0 : -EAGAIN); /* uses leave those as they are */
    uint64_t before = audit_end(a).lines;
    for (unsigned i = 0; i < 10; i++)
        CHECK_EQ(audit_tally_note(t, "use", 1, SANDBOX, OWNER + 1, 1, "other.example:443"), 0);
    CHECK_EQ(audit_end(a).lines, before + 10);
    audit_tally_close(t);
    CHECK_EQ(audit_verify(path, &end, &e), 0);
    CHECK_EQ(audit_tail(path, 1u << 20, add_up, &sum, &e), 0);
    CHECK_EQ(sum.uses + sum.others, 20010);
    CHECK(sum.others > 0 && sum.counting > 0);
    CHECK(sum.lines <= 2 * (10 + 1 + 16 + 4) + 10); /* a minute may have ended meanwhile */
    audit_close(a);
}

static void make_older(const char *path, uint64_t number, unsigned days)
{
    char name[140];
    struct timespec t[2] = {{.tv_sec = time(NULL) - days * 86400}, {.tv_sec = time(NULL) - days * 86400}};
    snprintf(name, sizeof name, "%s/%016llu.jsonl", path, (unsigned long long)number);
    CHECK_EQ(utimensat(AT_FDCWD, name, t, 0), 0);
}

static void reopen(const char *path, struct audit **a, unsigned days)
{
    struct err e = {0};
    if (*a)
        audit_close(*a);
    CHECK_EQ(audit_open(NULL, path, days, a, &e), 0);
}

/* Days pass: files begin, old ones go when the administrator wants it, and the chain tells of them. */
static void old_lines_go_when_they_should(void)
{
    struct audit *a = NULL;
    struct audit_end end;
    struct err e = {0};
    char path[100], first[140];
    snprintf(path, sizeof path, "%s/days", folder);
    reopen(path, &a, 0);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(audit_note(a, "test", 0, 0, 0, 1, "of the first day"), 0);
    make_older(path, 1, 9);
    reopen(path, &a, 0);
    CHECK_EQ(audit_note(a, "test", 0, 0, 0, 1, "of the second day"), 0);
    make_older(path, 4, 5);
    reopen(path, &a, 7);
    CHECK_EQ(audit_verify(path, &end, &e), 0);
    CHECK(end.first == 1 && end.lines == 4); /* nothing goes before something is written */
    CHECK_EQ(audit_note(a, "test", 0, 0, 0, 1, "of the third day"), 0);
    CHECK_EQ(audit_verify(path, &end, &e), 0);
    CHECK(end.first == 4 && end.lines == 6 && end.dropped);
    /* somebody else removes more */
    snprintf(first, sizeof first, "%s/0000000000000004.jsonl", path);
    CHECK_EQ(unlink(first), 0);
    CHECK_EQ(audit_verify(path, &end, &e), 0);
    CHECK(end.first == 5 && !end.dropped);
    audit_close(a);
}

static void open_all(void)
{
    static struct master_keys keys;
    char path[100];
    struct err e = {0};
    CHECK(sodium_init() >= 0 && mkdtemp(folder));
    randombytes_buf(&keys, sizeof keys);
    snprintf(path, sizeof path, "%s/audit", folder);
    CHECK_EQ(audit_open(NULL, path, 0, &credd.audit, &e), 0);
    CHECK_EQ(audit_tally_create(NULL, credd.audit, UINT32_MAX, &credd.tally, &e), 0);
    CHECK_EQ(store_open(folder, &keys, &credd.store, &e), 0);
    CHECK_EQ(finder_create(&credd, backend_local_create(&keys, &e), &credd.finder, &e), 0);
    CHECK_EQ(finder_know(credd.finder, SANDBOX, OWNER, "team=x\nadmin.team=red"), 0);
}

static void remove_all(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK_EQ(system(command), 0);
}

static const struct check_test tests[] = {TEST(open_all),
                                          TEST(each_method_has_its_form),
                                          TEST(hosts_and_ports_are_matched),
                                          TEST(the_closest_decides_alone),
                                          TEST(limits_hold_and_come_back),
                                          TEST(who_is_not_known_gets_nothing),
                                          TEST(what_cannot_be_logged_is_refused),
                                          TEST(every_line_is_in_the_chain),
                                          TEST(a_long_log_goes_on_in_another_file),
                                          TEST(a_tenant_fills_only_its_share),
                                          TEST(old_lines_go_when_they_should),
                                          TEST(remove_all)};

CHECK_MAIN(tests)
