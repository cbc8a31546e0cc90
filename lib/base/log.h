// SPDX-License-Identifier: Apache-2.0
// Log lines on standard error, one per event; the service manager adds the time.
#ifndef SPACE_BASE_LOG_H
#define SPACE_BASE_LOG_H

enum log_level { LOG_L_ERROR, LOG_L_WARN, LOG_L_INFO, LOG_L_DEBUG };

/* Messages above `level` are dropped. Default LOG_L_INFO. Set by main() only. */
void log_set_level(enum log_level level);

/* Writes "level: message\n" in one write(2). Control characters in the message become '?'. */
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_L_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_L_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_L_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_L_DEBUG, __VA_ARGS__)

#endif
