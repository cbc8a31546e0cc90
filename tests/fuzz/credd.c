// SPDX-License-Identifier: Apache-2.0
// Fuzz target: what space-credd reads from users (hosts, methods, times, rates), from Vault (JSON), and from its own log. The first byte chooses.
#include "fuzz/target.h"
#include "hostd/credd/audit.h"
#include "hostd/credd/json.h"
#include "hostd/credd/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must_hold(int holds)
{
    if (!holds)
        abort();
}

/* What is normal stays as it is, and covers itself. */
static void try_hosts(const char *text)
{
    char once[CREDD_HOSTS_SIZE], twice[CREDD_HOSTS_SIZE];
    struct err e = {0};
    if (hosts_parse(text, once, &e) < 0) {
        must_hold(e.msg[0]);
        return;
    }
    must_hold(hosts_parse(once, twice, NULL) == 0 && !strcmp(once, twice));
    must_hold(hosts_cover(once, once) && hosts_cover(once, ""));
    must_hold(once[0] ? !hosts_cover("", once) : 1);
    hosts_match(once, "a.example", 443);
}

static void try_method(const char *text)
{
    struct method m, again;
    char once[CREDD_METHOD_SIZE] = "", twice[CREDD_METHOD_SIZE] = "";
    struct err e = {0};
    if (method_parse(text, &m, once, &e) < 0) {
        must_hold(e.msg[0]);
        return;
    }
    must_hold(method_parse(once, &again, twice, NULL) == 0 && !strcmp(once, twice));
    must_hold(m.kind == again.kind && !strcmp(m.name, again.name) && !strcmp(m.before, again.before) && !strcmp(m.after, again.after));
    must_hold(!strpbrk(m.name, "\r\n") && !strpbrk(m.before, "\r\n") && !strpbrk(m.after, "\r\n"));
}

static void try_small(const char *text)
{
    int64_t at, same;
    uint32_t uses, seconds, uses2, seconds2;
    char out[32];
    if (expires_parse(text, 1000000000, &at, NULL) == 0) {
        expires_format(at, out);
        must_hold(at >= 0 && expires_parse(out, 0, &same, NULL) == 0 && same == at);
    }
    if (rate_parse(text, &uses, &seconds, NULL) == 0) {
        rate_format(uses, seconds, out);
        must_hold(rate_parse(out, &uses2, &seconds2, NULL) == 0 && uses2 == uses && seconds2 == seconds && (uses == 0) == (seconds == 0));
    }
    label_valid(text);
}

/* What is found can be quoted, and is found again. */
static void try_json(const char *text)
{
    static const char *const path[] = {"data", "data", "value", NULL}, *const own[] = {"v", NULL};
    char out[512], back[512], quoted[16 + sizeof out * 6];
    size_t len, again;
    if (!json_text_at(text, path, out, sizeof out, &len))
        return;
    must_hold(len <= sizeof out);
    size_t n = (size_t)sprintf(quoted, "{\"v\":");
    n += json_quote(out, len, quoted + n);
    quoted[n++] = '}';
    quoted[n] = 0;
    if (!memchr(out, 0, len)) /* ends the document */
        must_hold(json_text_at(quoted, own, back, sizeof back, &again) && again == len && !memcmp(out, back, len));
}

static void try_line(const char *text)
{
    char out[32];
    audit_member(text, "seq", out, sizeof out);
    audit_member(text, "text", out, sizeof out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const tries[])(const char *text) = {try_hosts, try_method, try_small, try_json, try_line};
    if (size < 1)
        return 0;
    char *text = malloc(size);
    if (!text)
        abort();
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    tries[data[0] % (sizeof tries / sizeof tries[0])](text);
    free(text);
    return 0;
}
