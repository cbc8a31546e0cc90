// SPDX-License-Identifier: Apache-2.0
// Starts a process: the record that describes it, and the child's way from fork to exec.
#ifndef SPACE_GUEST_SPAWN_H
#define SPACE_GUEST_SPAWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SPAWN_RECORD_MAX 65536u
#define SPAWN_ID_MAX     ((uint64_t)1 << 48)

struct spawn {
    uint64_t id;
    const char *user, *cwd; /* cwd NULL: the user's home */
    unsigned short columns, rows;
    bool terminal;
    char **argv, **env; /* NULL-ended; in one allocation with the strings */
    void *memory;
};

/* The parent's ends; with a terminal `output[0]` and `input` are its master, and output[1] is -1.
 * All close-on-exec and non-blocking. */
struct spawned {
    pid_t pid;
    int input, output[2];
    int status; /* readable: nothing when exec succeeded, else an int errno */
};

/* Takes a record apart. 0, -EINVAL or -ENOMEM. */
int spawn_parse(const void *record, size_t len, struct spawn *out);
void spawn_finish(struct spawn *s);

/* Columns and rows of "80x24"; 0 or -EINVAL. `text` need not end in NUL. */
int spawn_parse_size(const char *text, size_t len, unsigned short *columns, unsigned short *rows);

/* Forks into the cgroup behind `cgroup` (-1: none); `pts` is the devpts mount. Never waits for the
 * child. 0 or -errno. */
int spawn_start(const struct spawn *s, int cgroup, int pts, struct spawned *out);

#endif
