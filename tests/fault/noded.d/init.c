// SPDX-License-Identifier: Apache-2.0
// A guest for the tests of space-noded: /init that does what a line on space.0 says, also what a
// real agent never would.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* /modules lists them, one a line, in the order to load. */
static void load_modules(void)
{
    char line[256];
    FILE *f = fopen("/modules", "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        int fd = open(line, O_RDONLY);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST))
            fprintf(stderr, "%s: %s\n", line, strerror(errno));
        close(fd);
    }
}

/* Ports appear a moment after their module was loaded; 0 gives up. */
static int open_port(const char *want)
{
    for (int tries = 5000; tries > 0; tries--, usleep(1000))
        for (int i = 1; i < 4; i++) {
            char path[64], name[64] = "";
            for (int bus = 0; bus < 8; bus++) {
                snprintf(path, sizeof path, "/sys/class/virtio-ports/vport%dp%d/name", bus, i);
                FILE *f = fopen(path, "r");
                if (!f)
                    continue;
                if (!fgets(name, sizeof name, f))
                    name[0] = 0;
                fclose(f);
                name[strcspn(name, "\n")] = 0;
                snprintf(path, sizeof path, "/dev/vport%dp%d", bus, i);
                if (strcmp(name, want) == 0)
                    return open(path, O_RDWR);
            }
        }
    return -1;
}

static void answer(int port, const char *text)
{
    if (write(port, text, strlen(text)) < 0)
        reboot(RB_POWER_OFF);
}

/* Writes megabytes to the disk, past every cache. */
static void fill(int port, int megabytes)
{
    static char block[1 << 20];
    int fd = open("/dev/vda", O_RDWR), error = fd < 0 ? errno : 0;
    for (int i = 0; i < megabytes && !error; i++) {
        memset(block, i + 1, sizeof block);
        for (size_t at = 0; at < sizeof block; at += 4096)
            *(int *)(block + at) = rand();
        if (pwrite(fd, block, sizeof block, (off_t)i << 20) != (ssize_t)sizeof block || fdatasync(fd) < 0)
            error = errno;
    }
    char text[32];
    snprintf(text, sizeof text, "filled %d\n", error);
    answer(port, text);
    close(fd);
}

static void disk_size(int port)
{
    char text[64] = "0\n";
    FILE *f = fopen("/sys/block/vda/size", "r");
    if (f && fgets(text, sizeof text, f))
        fclose(f);
    answer(port, text);
}

/* What must survive in memory: a process that counts, and megabytes that nobody could guess. */
static volatile unsigned long *count;
static pid_t counter;
static unsigned char *held;
static size_t held_bytes;

static void start_counter(int port)
{
    char text[64];
    if (!counter) {
        count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        counter = fork();
        for (; counter == 0; usleep(1000))
            ++*count;
    }
    snprintf(text, sizeof text, "%d %lu\n", (int)counter, *count);
    answer(port, text);
}

static unsigned long hash_held(void)
{
    unsigned long h = 14695981039346656037ul;
    for (size_t i = 0; i < held_bytes; i += 8)
        h = (h ^ *(unsigned long *)(held + i)) * 1099511628211ul;
    return h;
}

static void hold(int port, size_t megabytes)
{
    char text[64];
    unsigned long x = 88172645463325252ul ^ (unsigned long)getpid() ^ hash_held();
    if (megabytes) {
        munmap(held, held_bytes);
        held_bytes = megabytes << 20;
        held = mmap(NULL, held_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    for (size_t i = 0; megabytes && i < held_bytes; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        *(unsigned long *)(held + i) = x;
    }
    snprintf(text, sizeof text, "%lx\n", hash_held());
    answer(port, text);
}

/* The first bytes of a megabyte of the disk; with something, writes them first. */
static void word(int port, int megabyte, const char *text)
{
    static char block[4096] __attribute__((aligned(4096)));
    char out[64];
    int fd = open("/dev/vda", O_RDWR | O_DIRECT);
    memset(block, 0, sizeof block);
    snprintf(block, sizeof block, "%.30s", text ? text : "");
    if (text)
        (void)!pwrite(fd, block, sizeof block, (off_t)megabyte << 20);
    memset(block, 0, sizeof block);
    (void)!pread(fd, block, sizeof block, (off_t)megabyte << 20);
    close(fd);
    snprintf(out, sizeof out, "%.30s\n", block);
    answer(port, out);
}

static void obey(int port, const char *line)
{
    if (strcmp(line, "hello") == 0)
        answer(port, "hello\n");
    else if (strcmp(line, "size") == 0)
        disk_size(port);
    else if (strncmp(line, "fill ", 5) == 0)
        fill(port, atoi(line + 5));
    else if (strcmp(line, "count") == 0)
        start_counter(port);
    else if (strncmp(line, "hold ", 5) == 0)
        hold(port, (size_t)atoi(line + 5));
    else if (strncmp(line, "write ", 6) == 0)
        word(port, atoi(line + 6), strchr(line + 6, ' ') ? strchr(line + 6, ' ') + 1 : "");
    else if (strncmp(line, "read ", 5) == 0)
        word(port, atoi(line + 5), NULL);
    else if (strcmp(line, "poweroff") == 0)
        reboot(RB_POWER_OFF);
    else if (strcmp(line, "reboot") == 0)
        reboot(RB_AUTOBOOT);
    else if (strcmp(line, "panic") == 0)
        _exit(1);
    else
        answer(port, "what?\n");
}

int main(void)
{
    char line[64];
    size_t len = 0;
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    load_modules();
    int port = open_port("space.0");
    while (port >= 0) {
        ssize_t n = read(port, line + len, 1);
        if (n <= 0) {
            usleep(10000); /* nobody is connected */
            continue;
        }
        if (line[len] != '\n' && len < sizeof line - 1) {
            len++;
            continue;
        }
        line[len] = 0;
        len = 0;
        obey(port, line);
    }
    return 1;
}
