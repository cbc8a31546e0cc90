// SPDX-License-Identifier: Apache-2.0
// The keys of the bucket: see s3_sign.h.
#include "base/str.h"
#include "hostd/volumed/backend/s3_sign.h"
#include "hostd/volumed/secret_file.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

static bool text_valid(const char *s, size_t size)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] <= ' ' || (unsigned char)s[i] > '~')
            return false;
    return n && n < size;
}

static int parse(char *text, struct s3_credentials *c, const char *path, struct err *e)
{
    char *key, *value;
    int rc;
    while ((rc = secret_file_next(&text, &key, &value)) == 1) {
        char *to = strcmp(key, "access_key") == 0 ? c->access : strcmp(key, "secret_key") == 0 ? c->secret : NULL;
        if (!to || !text_valid(value, sizeof c->secret))
            return err_set(e, EINVAL, "%s: lines are access_key = … and secret_key = …, values at most %zu printable characters", path,
                           sizeof c->secret - 1);
        str_copy(to, sizeof c->secret, value);
    }
    if (rc < 0 || !c->access[0] || !c->secret[0])
        return err_set(e, EINVAL, "%s must have a line access_key = … and a line secret_key = …", path);
    return 0;
}

int s3_credentials_load(const char *path, struct s3_credentials **out, struct err *e)
{
    char *text;
    if (sodium_init() < 0)
        return err_set(e, EIO, "libsodium does not start");
    int rc = secret_file_read(path, &text, e);
    if (rc < 0)
        return rc;
    struct s3_credentials *c = secret_alloc(sizeof *c);
    if (!c) {
        sodium_free(text);
        return err_set(e, ENOMEM, "no memory that can be locked for the keys of the bucket (see RLIMIT_MEMLOCK)");
    }
    rc = parse(text, c, path, e);
    sodium_free(text);
    if (rc < 0) {
        sodium_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void s3_credentials_free(struct s3_credentials *c)
{
    sodium_free(c);
}
