// SPDX-License-Identifier: Apache-2.0
// For a program that it is loaded into (LD_PRELOAD) the date is as many seconds later as the 8 bytes of the file CLOCK_AHEAD say, which may change meanwhile.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CLOCK_AHEAD");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        abort();
    ahead = at;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, id, out);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) && ahead)
        out->tv_sec += *ahead;
    return rc;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}
