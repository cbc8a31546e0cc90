// SPDX-License-Identifier: Apache-2.0
// The texts of a credential's files: hosts, methods, times and rates. No I/O, no memory of its own.
#ifndef SPACE_CREDD_RULES_H
#define SPACE_CREDD_RULES_H

#include "base/err.h"
#include "ipc/credd.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RULES_HOST_MAX 253u

enum method_kind {
    METHOD_HEADER,   /* header NAME [FORMAT]; FORMAT holds {} where the value goes */
    METHOD_BASIC,    /* basic USER: Authorization: Basic ... */
    METHOD_QUERY,    /* query NAME */
    METHOD_AUTOFILL, /* autofill USER: never injected, told to a browser's agent */
};

#define METHOD_DEFAULT "header Authorization Bearer {}"

struct method {
    enum method_kind kind;
    char name[CREDD_METHOD_SIZE];   /* of the header or parameter, or the user */
    char before[CREDD_METHOD_SIZE]; /* the format's two ends */
    char after[CREDD_METHOD_SIZE];
};

/* One line, as above; `text` need not be normalised. `normal` (may be NULL) gets the text that is kept. -EINVAL with a sentence. */
int method_parse(const char *text, struct method *out, char normal[CREDD_METHOD_SIZE], struct err *e);

/*
 * HOST[:PORT] or *.DOMAIN[:PORT] each line; port 443 when none is given. Normalised: lower case, no blank lines, ports only when they are others than 443, a newline
 * after each. -EINVAL with the line's number; -E2BIG.
 */
int hosts_parse(const char *text, char out[CREDD_HOSTS_SIZE], struct err *e);

enum host_match { HOST_NONE, HOST_WILD, HOST_EXACT };
/* How does one of the normalised `hosts` match? `host` in lower case. *.DOMAIN matches all names below DOMAIN, not DOMAIN. */
enum host_match hosts_match(const char *hosts, const char *host, uint16_t port);
/* Is every line of `narrow` covered by a line of `wide`? Both normalised. */
bool hosts_cover(const char *wide, const char *narrow);

/* `never`, a time (2026-12-31T23:59:59Z), or a duration from `now` (30d). Nanoseconds, 0: never. -EINVAL with a sentence. */
int expires_parse(const char *text, int64_t now, int64_t *out, struct err *e);
/* `never`, or the time. */
void expires_format(int64_t expires, char out[32]);

/* `none`, or USES/DURATION such as 100/1m. */
int rate_parse(const char *text, uint32_t *uses, uint32_t *seconds, struct err *e);
void rate_format(uint32_t uses, uint32_t seconds, char out[32]);

/* KEY=VALUE with a key below `admin.`; what a label's scope is called. */
bool label_valid(const char *label);
/* May this value be sent so? No NUL, CR, LF or other control character in what goes to a header. -EINVAL with a sentence that does not quote it. */
int value_check(const struct method *m, const char *value, size_t len, struct err *e);

#endif
