// SPDX-License-Identifier: Apache-2.0
// What root of a guest can do to the host's channel. The agent holds the ports; so its descriptors are taken over.
//
//   hostile garbage PORT   random bytes into the session
//   hostile flood PORT     waits until the host hung up, then writes without end what is no echo of a preamble
//   hostile mute PORT      the process that serves PORT stands still
//   hostile lie PORT       answers each request with a reply of its tag that is none
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

static char block[1 << 16];

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* "/dev/vport0p1" of "space.0". */
static void find_device(const char *name, char out[300])
{
    DIR *d = opendir("/sys/class/virtio-ports");
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[300], text[64] = "";
        snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", e->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(text, sizeof text, f) && !strcmp(strtok(text, "\n"), name)) {
            snprintf(out, 300, "/dev/%s", e->d_name);
            return;
        }
        if (f)
            fclose(f);
    }
    die("find the port");
}

/* The descriptor of `pid` that is open on `device`, or -1. */
static int descriptor_of(const char *pid, const char *device)
{
    char path[300], target[300];
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *d = opendir(path);
    int found = -1;
    for (struct dirent *e; d && found < 0 && (e = readdir(d));) {
        ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
        if (!strcmp(target, device))
            found = atoi(e->d_name);
    }
    if (d)
        closedir(d);
    return found;
}

/* Takes the port over from the process that serves it. */
static int take(const char *name, pid_t *ret_holder)
{
    char device[300];
    find_device(name, device);
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        int theirs = atoi(e->d_name) > 0 ? descriptor_of(e->d_name, device) : -1;
        if (theirs < 0)
            continue;
        *ret_holder = atoi(e->d_name);
        int pidfd = (int)syscall(SYS_pidfd_open, *ret_holder, 0);
        int mine = (int)syscall(SYS_pidfd_getfd, pidfd, theirs, 0);
        if (mine < 0)
            die("take the port over");
        return mine;
    }
    die("find who serves the port");
    return -1;
}

static void wait_for(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    while (poll(&p, 1, -1) < 0)
        ;
}

static void hung_up(int fd, int wanted)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        poll(&p, 1, 0);
        if (!!(p.revents & POLLHUP) == wanted)
            return;
        usleep(1000);
    }
}

static void put(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t done = write(fd, p, n);
        if (done > 0) {
            p += done;
            n -= (size_t)done;
        } else {
            wait_for(fd, POLLOUT);
        }
    }
}

/* A reply that has the tag of the request and says it brings more than it does. */
static void lie(int fd)
{
    for (;;) {
        unsigned char m[7];
        size_t have = 0;
        while (have < sizeof m) {
            ssize_t n = read(fd, m + have, sizeof m - have);
            if (n > 0)
                have += (size_t)n;
            else
                wait_for(fd, POLLIN);
        }
        unsigned char reply[13] = {13, 0, 0, 0, (unsigned char)(m[4] + 1), m[5], m[6], 0xff, 0xff, 0xff, 0x7f, 1, 2};
        put(fd, (const char *)reply, sizeof reply);
    }
}

int main(int argc, char **argv)
{
    pid_t holder;
    if (argc != 3)
        return 2;
    int fd = take(argv[2], &holder);
    if (strcmp(argv[1], "garbage") && holder != 1)
        kill(holder, SIGSTOP);
    puts("begun");
    fflush(stdout);
    if (!strcmp(argv[1], "garbage")) {
        getrandom(block, sizeof block, 0);
        put(fd, block, sizeof block);
    } else if (!strcmp(argv[1], "flood")) {
        hung_up(fd, 1);
        hung_up(fd, 0);
        for (;;)
            put(fd, block, sizeof block);
    } else if (!strcmp(argv[1], "lie")) {
        lie(fd);
    }
    pause();
}
