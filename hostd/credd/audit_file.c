// SPDX-License-Identifier: Apache-2.0
// Reading the audit log, and checking its chain: see audit.h.
#include "hostd/credd/audit_file.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "hostd/credd/audit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_DIGITS 16u
#define FILES_MAX   100000u

/* ---- files ---- */

static bool number_of(const char *name, uint64_t *out)
{
    char digits[NAME_DIGITS + 1];
    if (strlen(name) != NAME_DIGITS + 6 || strcmp(name + NAME_DIGITS, ".jsonl") != 0)
        return false;
    memcpy(digits, name, NAME_DIGITS);
    digits[NAME_DIGITS] = 0;
    return str_parse_u64(digits, UINT64_MAX, out) == 0;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int audit_file_list(const char *folder, uint64_t **out, size_t *ret_count, struct err *e)
{
    DIR *d = opendir(folder);
    size_t count = 0;
    uint64_t *numbers = NULL, n;
    if (!d)
        return err_sys(e, "open %s", folder);
    for (const struct dirent *ent; (ent = readdir(d)) && count < FILES_MAX;) {
        if (!number_of(ent->d_name, &n))
            continue;
        uint64_t *more = realloc(numbers, (count + 1) * sizeof *more);
        if (!more)
            break;
        numbers = more;
        numbers[count++] = n;
    }
    closedir(d);
    if (count)
        qsort(numbers, count, sizeof *numbers, compare);
    *out = numbers;
    *ret_count = count;
    return 0;
}

int audit_file_last(const char *folder, uint64_t *out, struct err *e)
{
    AUTO_FREE uint64_t *numbers = NULL;
    size_t count = 0;
    int rc = audit_file_list(folder, &numbers, &count, e);
    *out = rc == 0 && count ? numbers[count - 1] : 0;
    return rc;
}

void audit_file_path(char out[AUDIT_PATH_MAX], const char *folder, uint64_t number)
{
    snprintf(out, AUDIT_PATH_MAX, "%s/%016" PRIu64 ".jsonl", folder, number);
}

static FILE *open_number(const char *folder, uint64_t number, char path[AUDIT_PATH_MAX])
{
    audit_file_path(path, folder, number);
    return fopen(path, "re");
}

/* The last lines of one file. */
static int tail(const char *folder, uint64_t number, size_t bytes, void (*each)(void *user, const char *line), void *user, struct err *e)
{
    char path[AUDIT_PATH_MAX], line[AUDIT_LINE_MAX];
    FILE *f = open_number(folder, number, path);
    if (!f)
        return err_sys(e, "open %s", path);
    bool cut = fseek(f, -(long)bytes, SEEK_END) == 0; /* the first line is a part of one */
    if (!cut)
        rewind(f);
    if (cut && !fgets(line, sizeof line, f))
        line[0] = 0;
    while (fgets(line, sizeof line, f)) {
        char *end = strchr(line, '\n');
        if (!end)
            continue;
        *end = 0;
        each(user, line);
    }
    fclose(f);
    return 0;
}

static size_t size_of(const char *folder, uint64_t number)
{
    char path[AUDIT_PATH_MAX];
    struct stat st;
    audit_file_path(path, folder, number);
    return stat(path, &st) < 0 ? 0 : (size_t)st.st_size;
}

int audit_tail(const char *folder, size_t bytes, void (*each)(void *user, const char *line), void *user, struct err *e)
{
    AUTO_FREE uint64_t *numbers = NULL;
    size_t count = 0, newer = 0; /* bytes behind the file at hand */
    int rc = audit_file_list(folder, &numbers, &count, e);
    size_t i = count;
    while (i > 0 && newer < bytes)
        newer += size_of(folder, numbers[--i]);
    for (; rc == 0 && i < count; i++) {
        size_t size = size_of(folder, numbers[i]);
        newer -= size < newer ? size : newer;
        rc = tail(folder, numbers[i], bytes - newer, each, user, e);
    }
    return rc;
}

static void take_line(void *user, const char *line)
{
    struct audit_end *end = user;
    char text[AUDIT_HASH * 2 + 1];
    uint64_t seq;
    size_t len;
    if (audit_member(line, "seq", text, sizeof text) && str_parse_u64(text, UINT64_MAX, &seq) == 0)
        end->lines = seq;
    if (audit_member(line, "hash", text, sizeof text) && sodium_hex2bin(end->hash, AUDIT_HASH, text, strlen(text), NULL, &len, NULL) < 0)
        memset(end->hash, 0, AUDIT_HASH);
}

int audit_file_end(const char *folder, uint64_t number, struct audit_end *out, struct err *e)
{
    *out = (struct audit_end){0};
    return tail(folder, number, AUDIT_LINE_MAX * 2, take_line, out, e);
}

bool audit_member(const char *line, const char *name, char *out, size_t size)
{
    char key[40];
    size_t n = 0;
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(line, key);
    if (!at)
        return false;
    at += strlen(key);
    bool text = *at == '"';
    for (at += text; *at && n + 1 < size && (text ? *at != '"' : *at >= '0' && *at <= '9'); at++) {
        if (*at == '\\' && at[1])
            at++;
        out[n++] = *at;
    }
    out[n] = 0;
    return true;
}

/* ---- the chain ---- */

struct chain {
    struct audit_end *end;
    char prev[AUDIT_HASH * 2 + 1];
    char before[AUDIT_HASH * 2 + 1]; /* what the first line says of the one before it */
};

/* Does it tell that what was before the first line was removed as it should? */
static void look_for_drop(struct chain *c, const char *line)
{
    char kind[16], text[AUDIT_TEXT_MAX], want[AUDIT_TEXT_MAX];
    if (!audit_member(line, "kind", kind, sizeof kind) || strcmp(kind, "drop") != 0 || !audit_member(line, "text", text, sizeof text))
        return;
    snprintf(want, sizeof want, AUDIT_DROP_TEXT, c->end->first - 1, c->before);
    c->end->dropped = c->end->dropped || strcmp(text, want) == 0;
}

/* NULL: it is as it should be, and the chain goes on behind it. Else what is wrong. */
static const char *check_line(struct chain *c, const char *line)
{
    char seq[24], prev[AUDIT_HASH * 2 + 1], hash[AUDIT_HASH * 2 + 1], real[AUDIT_HASH * 2 + 1];
    uint8_t bytes[AUDIT_HASH];
    uint64_t n;
    const char *tail = NULL;
    for (const char *at = line; (at = strstr(at, ",\"hash\":\"")); at++)
        tail = at;
    if (!tail || strlen(tail) != 9 + AUDIT_HASH * 2 + 2 || strcmp(tail + 9 + AUDIT_HASH * 2, "\"}") != 0)
        return "it is no line of the log";
    memcpy(hash, tail + 9, AUDIT_HASH * 2);
    hash[AUDIT_HASH * 2] = 0;
    crypto_hash_sha256(bytes, (const unsigned char *)line, (size_t)(tail - line));
    sodium_bin2hex(real, sizeof real, bytes, sizeof bytes);
    if (strcmp(real, hash) != 0)
        return "it was changed: its hash is another";
    /* `prev` is the last member before the hash: what a text says before it does not count */
    const char *p = tail - (AUDIT_HASH * 2 + 1 + 9);
    if (p < line || strncmp(p, ",\"prev\":\"", 9) != 0)
        return "it is no line of the log";
    memcpy(prev, p + 9, AUDIT_HASH * 2);
    prev[AUDIT_HASH * 2] = 0;
    if (!audit_member(line, "seq", seq, sizeof seq) || str_parse_u64(seq, UINT64_MAX, &n) < 0 || n != c->end->lines + 1)
        return "its number does not follow: lines were removed or inserted before it";
    if (c->prev[0] && strcmp(prev, c->prev) != 0)
        return "it does not follow the line before it: that one was changed, or others were removed or inserted";
    if (!c->before[0])
        memcpy(c->before, prev, sizeof prev);
    c->end->lines = n;
    memcpy(c->end->hash, bytes, sizeof bytes);
    memcpy(c->prev, real, sizeof real);
    look_for_drop(c, line);
    return NULL;
}

static int check_file(struct chain *c, FILE *f, const char *path, struct err *e)
{
    char line[AUDIT_LINE_MAX];
    for (unsigned number = 1; fgets(line, sizeof line, f); number++) {
        char *end = strchr(line, '\n');
        if (end)
            *end = 0;
        const char *wrong = end ? check_line(c, line) : "it is not whole";
        if (wrong)
            return err_set(e, EBADMSG, "%s, line %u (number %" PRIu64 "): %s", path, number, c->end->lines + 1, wrong);
    }
    return ferror(f) ? err_sys(e, "read %s", path) : 0;
}

int audit_verify(const char *folder, struct audit_end *out, struct err *e)
{
    AUTO_FREE uint64_t *numbers = NULL;
    struct chain c = {.end = out};
    char path[AUDIT_PATH_MAX];
    size_t count = 0;
    *out = (struct audit_end){0};
    int rc = audit_file_list(folder, &numbers, &count, e);
    out->first = rc == 0 && count ? numbers[0] : 1;
    out->lines = out->first - 1;
    if (out->first == 1) /* else the first line's word for what was before it is taken */
        sodium_bin2hex(c.prev, sizeof c.prev, out->hash, AUDIT_HASH);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (numbers[i] != out->lines + 1)
            return err_set(e, EBADMSG, "%s: the file with number %" PRIu64 " is missing", folder, out->lines + 1);
        FILE *f = open_number(folder, numbers[i], path);
        rc = f ? check_file(&c, f, path, e) : err_sys(e, "open %s", path);
        if (f)
            fclose(f);
    }
    return rc;
}
