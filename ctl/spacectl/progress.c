// SPDX-License-Identifier: Apache-2.0
// Progress: see progress.h. A child, since the write that it tells of blocks the program.
#include "spacectl/progress.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define STATS_MAX 4096
#define LOOK_MSEC 150
#define WIDTH     30

static int number(const char *stats, const char *key, uint64_t *out)
{
    const char *at = strstr(stats, key);
    return at && sscanf(at + strlen(key), " %" SCNu64, out) == 1;
}

int progress_line(const char *stats, const char *name, char *out, size_t size)
{
    char bar[WIDTH + 1];
    uint64_t done = 0, total = 0;
    int up = number(stats, "upload_bytes", &done) && number(stats, "upload_total", &total);
    int down = !up && number(stats, "download_bytes", &done) && number(stats, "download_total", &total);
    if (!(up || down) || !total)
        return 0;
    done = done > total ? total : done;
    size_t filled = (size_t)((double)done / (double)total * WIDTH);
    memset(bar, '-', WIDTH);
    memset(bar, '#', filled);
    bar[WIDTH] = 0;
    return snprintf(out, size, "%.64s: %s [%s] %3u %% of %" PRIu64 " MiB", name, up ? "storing" : "fetching", bar,
                    (unsigned)((double)done / (double)total * 100), total >> 20);
}

static void draw(const struct tree *t, const char *name)
{
    char path[TREE_PATH_MAX], stats[STATS_MAX], line[256];
    struct err ignored = {0};
    if (tree_path(path, &ignored, "sandboxes/%s/stats", name) < 0)
        return;
    while (poll(NULL, 0, LOOK_MSEC) == 0 && tree_read(t, path, stats, sizeof stats, &ignored) >= 0)
        if (progress_line(stats, name, line, sizeof line) > 0)
            fprintf(stderr, "\r\033[K%s", line);
}

pid_t progress_start(const struct tree *t, const char *name)
{
    if (!isatty(STDERR_FILENO))
        return 0;
    pid_t child = fork();
    if (child != 0)
        return child > 0 ? child : 0;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    draw(t, name);
    _exit(0);
}

void progress_stop(pid_t child)
{
    if (child <= 0)
        return;
    kill(child, SIGTERM);
    waitpid(child, NULL, 0);
    fprintf(stderr, "\r\033[K");
}
