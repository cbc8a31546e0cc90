// SPDX-License-Identifier: Apache-2.0
// Clock, name, identity, entropy: see identity.h.
#include "guest/identity.h"

#include "base/cleanup.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

long identity_from_hex(const char *hex, void *out, size_t max)
{
    size_t n = strlen(hex);
    if (n == 0 || n % 2 || n / 2 > max)
        return -EINVAL;
    for (size_t i = 0; i < n / 2; i++) {
        int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return -EINVAL;
        ((uint8_t *)out)[i] = (uint8_t)(high << 4 | low);
    }
    return (long)(n / 2);
}

int identity_set_clock(int64_t nsec)
{
    struct timespec ts = {.tv_sec = nsec / 1000000000, .tv_nsec = nsec % 1000000000};
    return clock_settime(CLOCK_REALTIME, &ts) < 0 ? -errno : 0;
}

int identity_set_hostname(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > 64)
        return -EINVAL;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
            return -EINVAL;
    return sethostname(name, n) < 0 ? -errno : 0;
}

int identity_add_entropy(int random, const void *bytes, size_t len)
{
    struct {
        struct rand_pool_info info;
        uint8_t bytes[IDENTITY_ENTROPY_MAX];
    } pool = {.info = {.entropy_count = (int)len * 8, .buf_size = (int)len}};
    if (len > sizeof pool.bytes)
        return -EINVAL;
    memcpy(pool.bytes, bytes, len);
    if (ioctl(random, RNDADDENTROPY, &pool) < 0 || ioctl(random, RNDRESEEDCRNG) < 0)
        return -errno;
    return 0;
}

/* Replaces the file's content; what is there may be a link, but never a FIFO that would block. */
static int write_line(const char *path, const char *line, mode_t mode)
{
    struct stat st;
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, mode);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -ENXIO;
    size_t n = strlen(line);
    if (ftruncate(fd, 0) < 0)
        return -errno;
    if (write(fd, line, n) != (ssize_t)n || write(fd, "\n", 1) != 1)
        return -EIO;
    return 0;
}

int identity_write_machine_id(const char *hex)
{
    return write_line("/etc/machine-id", hex, 0444);
}

int identity_write_hostname(const char *name)
{
    return write_line("/etc/hostname", name, 0644);
}
