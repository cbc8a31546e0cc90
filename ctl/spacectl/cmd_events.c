// SPDX-License-Identifier: Apache-2.0
// spacectl events: what happened to the caller's sandboxes, a line of JSON each.
#include "spacectl/command.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

enum { OPT_FOLLOW, OPT_SINCE };

static const struct option_def options[] = {
    [OPT_FOLLOW] = {'f', "follow", NULL, "print what happens from now on, until interrupted"},
    [OPT_SINCE] = {0, "since", "SEQ", "only events behind this sequence number"},
    {0, NULL, NULL, NULL},
};

static int select_since(const struct tree *t, int fd, const char *since, struct err *e)
{
    char line[32];
    uint64_t seq;
    if (str_parse_u64(since, UINT64_MAX, &seq) < 0)
        return err_set(e, EINVAL, "--since takes an event's sequence number, not \"%.40s\"", since);
    int n = snprintf(line, sizeof line, "since %llu\n", (unsigned long long)seq);
    return write(fd, line, (size_t)n) == n ? 0 : tree_fail(t, errno, "write", "events", e);
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    bool follow = args_value(a, OPT_FOLLOW) != NULL;
    const char *since = args_value(a, OPT_SINCE);
    int flags = follow ? 0 : O_NONBLOCK;
    char buf[65536];
    (void)self;
    if (!since && !follow)
        since = "0"; /* a reader starts at what is to come, unless it says otherwise */
    AUTO_CLOSE int fd = tree_file(t, "events", flags | (since ? O_RDWR : O_RDONLY), e);
    if (fd < 0)
        return fd;
    int rc = since ? select_since(t, fd, since, e) : 0;
    if (rc < 0)
        return rc;
    for (;;) {
        ssize_t n = read(fd, buf, sizeof buf);
        if (n == 0 || (n < 0 && errno == EAGAIN))
            return 0;
        if (n < 0)
            return tree_fail(t, errno, "read", "events", e);
        if (fwrite(buf, 1, (size_t)n, stdout) != (size_t)n || fflush(stdout) != 0)
            return err_sys(e, "writing events");
    }
}

const struct command command_events = {
    .name = "events",
    .usage = "[-f] [--since SEQ]",
    .summary = "print events, a line of JSON each",
    .help = "Without -f, those that are kept. With -f, those that come, after those since SEQ if "
            "given.\n",
    .options = options,
    .run = run,
};
