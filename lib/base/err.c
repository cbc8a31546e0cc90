// SPDX-License-Identifier: Apache-2.0
// Error objects: see err.h.
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        e->code = code;
        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
    }
    return -code;
}

int err_sys(struct err *e, const char *fmt, ...)
{
    int code = errno;
    if (e) {
        va_list ap;
        e->code = code;
        va_start(ap, fmt);
        int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
        size_t len = n < 0 ? 0 : (size_t)n;
        if (len < sizeof e->msg)
            snprintf(e->msg + len, sizeof e->msg - len, ": %s", strerror(code));
    }
    return -code;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    if (!e)
        return -EIO;
    char old[ERR_MAX];
    memcpy(old, e->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n;
    if (len < sizeof e->msg)
        snprintf(e->msg + len, sizeof e->msg - len, ": %.*s", (int)(sizeof e->msg - len), old);
    return -e->code;
}
