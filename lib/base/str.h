// SPDX-License-Identifier: Apache-2.0
// Parsing and checking of the small values that users, guests and databases hand us.
#ifndef SPACE_BASE_STR_H
#define SPACE_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Longest name of a sandbox, template, snapshot or job (bytes, without NUL). */
#define NAME_LEN_MAX 64

/* True for 1 to 64 of [A-Za-z0-9._-], the first alphanumeric. `s` need not end in NUL. */
bool str_name_valid(const char *s, size_t len);

/* A whole decimal number, no sign, no blanks. Returns 0, -EINVAL, or -ERANGE above `max`. */
int str_parse_u64(const char *s, uint64_t max, uint64_t *out);

/* Exactly 12 lower-case hex digits: the id of a sandbox, template or snapshot. 0 or -EINVAL. */
int str_parse_id(const char *s, size_t len, uint64_t *out);

/* Bytes from "128M", "2G", "4096": a number and an optional K, M, G or T (powers of 1024). 0, -EINVAL, -ERANGE. */
int str_parse_size(const char *s, uint64_t *out);

/* Seconds from "90", "90s", "5m", "1h", "2d". 0, -EINVAL, -ERANGE. */
int str_parse_duration(const char *s, uint64_t *out);

/* Bytes as the shortest exact form that str_parse_size reads back ("128M"). `out` holds 24 bytes. Returns out. */
char *str_format_size(uint64_t bytes, char out[24]);

/* Cuts one trailing newline and blanks on both ends, in place; returns the start. */
char *str_trim(char *s);

/* Appends printf output at *pos in a buffer of `size`; false (and no change) when it does not fit. */
bool str_append(char *buf, size_t size, size_t *pos, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Copies with truncation; always NUL-ends. */
void str_copy(char *dst, size_t size, const char *src);

#endif
