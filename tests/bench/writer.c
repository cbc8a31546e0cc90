// SPDX-License-Identifier: Apache-2.0
// What a writer in a guest feels: writes 4 KiB every millisecond, and says which writes took long. Runs in the guest, static.
//
//   writer FILE SECONDS      prints "REALTIME_USEC LATENCY_USEC" of each write of more than a millisecond
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LONG_USEC 1000

static int64_t usec(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
    static char block[4096];
    int fd = argc == 3 ? open(argv[1], O_WRONLY | O_CREAT, 0600) : -1;
    if (fd < 0)
        return 1;
    int64_t end = usec(CLOCK_MONOTONIC) + atoll(argv[2]) * 1000000;
    for (off_t i = 0; usec(CLOCK_MONOTONIC) < end; i++) {
        int64_t real = usec(CLOCK_REALTIME), began = usec(CLOCK_MONOTONIC);
        if (pwrite(fd, block, sizeof block, i % 256 * (off_t)sizeof block) != (ssize_t)sizeof block)
            return 2;
        int64_t took = usec(CLOCK_MONOTONIC) - began;
        if (took > LONG_USEC)
            printf("%lld %lld\n", (long long)real, (long long)took);
        fflush(stdout);
        usleep(1000);
    }
    return 0;
}
