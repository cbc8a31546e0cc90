// SPDX-License-Identifier: Apache-2.0
// Tables and JSON arrays: see table.h.
#include "spacectl/table.h"

#include "base/str.h"

#include <ctype.h>
#include <err.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct table {
    const struct column *columns;
    int column_count;
    char **cells; /* row by row */
    size_t cell_count, cell_room;
};

static void *must(void *p)
{
    if (!p)
        err(1, "out of memory");
    return p;
}

struct table *table_create(const struct column *columns)
{
    struct table *t = must(calloc(1, sizeof *t));
    t->columns = columns;
    while (t->column_count < TABLE_COLUMNS_MAX && columns[t->column_count].name)
        t->column_count++;
    return t;
}

void table_add(struct table *t, const char *const *cells)
{
    if (t->cell_count + TABLE_COLUMNS_MAX > t->cell_room) {
        t->cell_room = t->cell_room * 2 + TABLE_COLUMNS_MAX * 16;
        t->cells = must(reallocarray(t->cells, t->cell_room, sizeof *t->cells));
    }
    for (int i = 0; i < t->column_count; i++)
        t->cells[t->cell_count++] = cells[i] ? must(strdup(cells[i])) : NULL;
}

void table_destroy(struct table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->cell_count; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t);
}

/* Length of the UTF-8 sequence at `s`, 0 when it is none (overlong forms, surrogates and cut
 * sequences are none). */
static int utf8_length(const unsigned char *s)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int n = s[0] < 0x80 ? 1 : s[0] >= 0xf0 && s[0] < 0xf8 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 0;
    if (n <= 1)
        return n;
    if (s[0] >= 0xf8)
        return 0;
    uint32_t code = s[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3fu);
    }
    return code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : n;
}

void json_string(FILE *out, const char *s)
{
    putc('"', out);
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        int n = utf8_length(p);
        if (n == 0) {
            fputs("\\ufffd", out);
            p++;
            continue;
        }
        if (*p == '"' || *p == '\\')
            fprintf(out, "\\%c", *p);
        else if (*p < 0x20 || *p == 0x7f)
            fprintf(out, "\\u%04x", *p);
        else
            fwrite(p, 1, (size_t)n, out);
        p += n;
    }
    putc('"', out);
}

static void json_cell(FILE *out, enum column_kind kind, const char *cell)
{
    uint64_t number;
    if (!cell)
        fputs("null", out);
    else if ((kind == COLUMN_NUMBER || kind == COLUMN_SIZE) && str_parse_u64(cell, UINT64_MAX, &number) == 0)
        fprintf(out, "%llu", (unsigned long long)number);
    else
        json_string(out, cell);
}

static void print_json(const struct table *t, FILE *out)
{
    putc('[', out);
    for (size_t i = 0; i < t->cell_count; i++) {
        size_t column = i % (size_t)t->column_count;
        if (column == 0)
            fputs(i ? ",\n {" : "\n {", out);
        else
            fputs(", ", out);
        json_string(out, t->columns[column].name);
        fputs(": ", out);
        json_cell(out, t->columns[column].kind, t->cells[i]);
        if (column + 1 == (size_t)t->column_count)
            putc('}', out);
    }
    fputs(t->cell_count ? "\n]\n" : "]\n", out);
}

/* The two largest units. */
static const char *duration(int64_t s, char buf[24])
{
    s = s < 0 ? 0 : s;
    if (s < 60)
        snprintf(buf, 24, "%ds", (int)s);
    else if (s < 3600)
        snprintf(buf, 24, "%dm", (int)(s / 60));
    else if (s < 86400)
        snprintf(buf, 24, "%dh%02dm", (int)(s / 3600), (int)(s / 60 % 60));
    else
        snprintf(buf, 24, "%lldd%02dh", (long long)(s / 86400), (int)(s / 3600 % 24));
    return buf;
}

/* A time as the tree writes it, against now. What is none is shown as it is. */
static const char *distance(enum column_kind kind, const char *cell, char buf[24])
{
    struct tm tm = {0};
    const char *end = strptime(cell, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (!end || *end)
        return cell;
    int64_t ago = (int64_t)time(NULL) - (int64_t)timegm(&tm);
    return duration(kind == COLUMN_AGE ? ago : -ago, buf);
}

/* What people see of a cell; may be in `buf`. */
static const char *shown(enum column_kind kind, const char *cell, char buf[24])
{
    uint64_t bytes;
    if (!cell || !*cell)
        return "-";
    if (kind == COLUMN_AGE || kind == COLUMN_UNTIL)
        return distance(kind, cell, buf);
    return kind == COLUMN_SIZE && str_parse_u64(cell, UINT64_MAX, &bytes) == 0 ? str_format_size(bytes, buf) : cell;
}

/* Padded to `width`, unless that is 0: nothing follows then. */
static void print_cell(FILE *out, const char *text, int width, bool capitals)
{
    int n = 0;
    for (const char *p = text; *p; p++, n++) {
        unsigned char c = (unsigned char)*p;
        putc(capitals ? toupper(c) : c < 0x20 || c == 0x7f ? '?' : c, out);
    }
    if (width)
        fprintf(out, "%*s", width - n + 2, "");
}

static const char *heading(const struct column *c)
{
    return c->heading ? c->heading : c->name;
}

static void measure(const struct table *t, int width[TABLE_COLUMNS_MAX])
{
    char buf[24];
    size_t columns = (size_t)t->column_count;
    for (size_t i = 0; i < columns; i++)
        width[i] = (int)strlen(heading(&t->columns[i]));
    for (size_t i = 0; i < t->cell_count; i++) {
        int len = (int)strlen(shown(t->columns[i % columns].kind, t->cells[i], buf));
        if (len > width[i % columns])
            width[i % columns] = len;
    }
    width[columns - 1] = 0;
}

static void print_text(const struct table *t, FILE *out)
{
    int width[TABLE_COLUMNS_MAX] = {0};
    char buf[24];
    size_t columns = (size_t)t->column_count;
    measure(t, width);
    for (size_t i = 0; i < columns; i++)
        print_cell(out, heading(&t->columns[i]), width[i], true);
    putc('\n', out);
    for (size_t i = 0; i < t->cell_count; i++) {
        print_cell(out, shown(t->columns[i % columns].kind, t->cells[i], buf), width[i % columns], false);
        if (i % columns + 1 == columns)
            putc('\n', out);
    }
}

void table_print(const struct table *t, bool json, FILE *out)
{
    if (json)
        print_json(t, out);
    else
        print_text(t, out);
}
