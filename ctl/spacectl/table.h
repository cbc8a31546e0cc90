// SPDX-License-Identifier: Apache-2.0
// A list of rows that is printed either as an aligned table for people or as a JSON array for
// programs.
#ifndef SPACE_CTL_TABLE_H
#define SPACE_CTL_TABLE_H

#include <stdbool.h>
#include <stdio.h>

#define TABLE_COLUMNS_MAX 12

struct table;

enum column_kind {
    COLUMN_TEXT,
    COLUMN_NUMBER, /* in JSON not quoted, when it is one */
    COLUMN_SIZE,   /* bytes: a number in JSON, 10G for people */
    COLUMN_AGE,    /* a time (2026-11-29T17:14:51Z): for people how long ago, 1h05m */
    COLUMN_UNTIL,  /* the same: for people in how long */
};

struct column {
    const char *name; /* JSON key; in capitals the heading */
    enum column_kind kind;
    const char *heading; /* another one, or NULL */
};

/* `columns` ends with a NULL name and must outlive the table. Never NULL: out of memory ends the
 * program, as in table_add. */
struct table *table_create(const struct column *columns);

/* One row: a string per column, copied; NULL is printed as "-" and null. */
void table_add(struct table *t, const char *const *cells);

/* Rows in the order they came. Control characters are shown as '?' in text and escaped in JSON. */
void table_print(const struct table *t, bool json, FILE *out);

void table_destroy(struct table *t);

/* A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD. */
void json_string(FILE *out, const char *s);

#endif
