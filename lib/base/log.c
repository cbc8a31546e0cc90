// SPDX-License-Identifier: Apache-2.0
// Log lines: see log.h.
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static enum log_level threshold = LOG_L_INFO;

void log_set_level(enum log_level level)
{
    threshold = level;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    char line[1024];
    if (level > threshold)
        return;
    int n = snprintf(line, sizeof line, "%s: ", names[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[len++] = '\n';
    if (write(STDERR_FILENO, line, len) < 0)
        return; /* nobody is left to tell */
}
