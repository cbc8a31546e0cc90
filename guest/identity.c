// SPDX-License-Identifier: Apache-2.0
// Clock, name, identity, entropy: see identity.h.
#include "guest/identity.h"

#include <ctype.h>
#include <errno.h>
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

bool identity_hostname_valid(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > IDENTITY_HOSTNAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
            return false;
    return true;
}

int identity_set_hostname(const char *name)
{
    if (!identity_hostname_valid(name))
        return -EINVAL;
    return sethostname(name, strlen(name)) < 0 ? -errno : 0;
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

int identity_set_machine_id(int fd, char *map, const char *hex)
{
    struct stat st;
    char text[IDENTITY_MACHINE_ID + 1];
    if (fd < 0)
        return 0;
    memcpy(text, hex, IDENTITY_MACHINE_ID - 1);
    text[IDENTITY_MACHINE_ID - 1] = '\n';
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size == IDENTITY_MACHINE_ID && map) {
        memcpy(map, text, IDENTITY_MACHINE_ID);
        return 0;
    }
    if (pwrite(fd, text, IDENTITY_MACHINE_ID, 0) != IDENTITY_MACHINE_ID || ftruncate(fd, IDENTITY_MACHINE_ID) < 0)
        return -errno;
    return 0;
}
