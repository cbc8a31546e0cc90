// SPDX-License-Identifier: Apache-2.0
// A connection to space-volumed (lib/ipc/volumed.h), one request at a time. For root.
#ifndef SPACE_CTL_VOLUMED_H
#define SPACE_CTL_VOLUMED_H

#include "base/config.h"
#include "base/err.h"
#include "ipc/volumed.h"

#define VOLUMED_CONFIG_HELP "the instance's configuration (default $SPACE_CONFIG, else " CONFIG_PATH_DEFAULT ")"

/* Loads it: NULL means the default. */
int volumed_config(const char *config_path, struct config *out, struct err *e);

/* Connects to the instance of a configuration (NULL: the default) and greets; `hello` of the reply is set. A descriptor, or -1 with a sentence. */
int volumed_open(const char *config_path, struct volumed_reply *ret_hello, struct err *e);

/* 0 when there is an answer: its own error is in rep->error, with rep->sentence. `tenant` may be NULL. `file` (may be NULL) gets a descriptor that came
 * along, the caller's. -errno with a sentence. */
int volumed_ask(int fd, uint32_t op, const char *tenant, uint32_t flags, struct volumed_reply *rep, int *file, struct err *e);

/* All of such a file as text, malloc'ed. NULL: it cannot be read. */
char *volumed_text(int fd);

#endif
