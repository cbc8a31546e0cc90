// SPDX-License-Identifier: Apache-2.0
// What root of a guest can do to the host's channel. The agent holds the ports; so its descriptors are taken over.
//
//   hostile garbage PORT   random bytes into the session
//   hostile flood PORT     waits until the host hung up, then writes without end what is no echo of a preamble
//   hostile mute PORT      the process that serves PORT stands still
//   hostile lie PORT       answers each request with a reply of its tag that is none
//   hostile tcp PORT       waits until /go is there, stops the agent, makes /stopped, and is it
//                          itself: an agent that knows nothing but /tcp, and lies there (lie_of)
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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

/* ---- an agent of our own ---- */

#define FIDS 65536u

static unsigned char in[1 << 20], out[1 << 20];
static uint16_t port_of[FIDS]; /* of fids of /tcp/PORT */

static uint32_t get32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void take_message(int fd)
{
    size_t have = 0, want = 4;
    while (have < want) {
        ssize_t n = read(fd, in + have, want - have);
        if (n > 0)
            have += (size_t)n;
        else
            wait_for(fd, POLLIN);
        if (have == 4)
            want = get32(in);
        if (want > sizeof in)
            die("a request that is too long");
    }
}

/* The body is at out + 7. */
static void answer(int fd, unsigned type, const unsigned char *tag, size_t body)
{
    uint32_t size = (uint32_t)(7 + body);
    memcpy(out, &size, 4);
    out[4] = (unsigned char)type;
    memcpy(out + 5, tag, 2);
    put(fd, (const char *)out, size);
}

static void answer32(int fd, unsigned type, const unsigned char *tag, uint32_t value)
{
    memcpy(out + 7, &value, 4);
    answer(fd, type, tag, 4);
}

static void answer_walk(int fd, const unsigned char *m)
{
    uint32_t newfid = get32(m + 11);
    unsigned names = m[15], first = m[17];
    char number[8] = "";
    if (names != 2 || first != 3 || memcmp(m + 19, "tcp", 3) || m[22] >= sizeof number) {
        answer32(fd, 7, m + 5, ENOENT);
        return;
    }
    memcpy(number, m + 24, m[22]);
    port_of[newfid % FIDS] = (uint16_t)atoi(number);
    memset(out + 7, 0, 28);
    out[7] = 2;
    answer(fd, 111, m + 5, 28);
}

static void answer_read(int fd, const unsigned char *m, size_t bytes)
{
    uint32_t n = (uint32_t)bytes;
    memcpy(out + 7, &n, 4);
    answer(fd, 117, m + 5, 4 + bytes);
}

/*
 * What this agent does at each port:
 *   1 opening is error 0, 2 error 0xffffffff, 3 sends without end, 4 takes nothing, 5 reading is
 *   error 0x80000000, 6 is at its end, 7 gives a byte more than it was asked for, 8 is silent
 */
static void lie_of(int fd, const unsigned char *m)
{
    uint16_t port = port_of[get32(m + 7) % FIDS];
    switch (m[4]) {
    case 12: /* Tlopen */
        memset(out + 7, 0, 17);
        if (port <= 2)
            answer32(fd, 7, m + 5, port == 1 ? 0 : UINT32_MAX);
        else
            answer(fd, 13, m + 5, 17);
        return;
    case 116: /* Tread */
        if (port == 5)
            answer32(fd, 7, m + 5, 1u << 31);
        else if (port == 3 || port == 7)
            answer_read(fd, m, get32(m + 19) + (port == 7));
        else if (port == 6)
            answer_read(fd, m, 0);
        return; /* the others never */
    case 118: /* Twrite */ answer32(fd, 119, m + 5, port == 4 ? 0 : get32(m + 19)); return;
    case 26: /* Tsetattr */ answer(fd, 27, m + 5, 0); return;
    default: answer32(fd, 7, m + 5, EIO);
    }
}

static void be_the_agent(int fd)
{
    for (;;) {
        take_message(fd);
        if (in[4] == 108 || in[4] == 120) /* Tflush, Tclunk */
            answer(fd, in[4] + 1u, in + 5, 0);
        else if (in[4] == 110)
            answer_walk(fd, in);
        else
            lie_of(fd, in);
    }
}

/* PID 1 takes no signals. */
static void stop_agent(pid_t pid)
{
    while (access("/go", F_OK) < 0)
        usleep(10000);
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0 || ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) < 0 || waitpid(pid, NULL, __WALL) != pid)
        die("stop the agent");
    close(open("/stopped", O_CREAT, 0600));
}

int main(int argc, char **argv)
{
    pid_t holder;
    if (argc != 3)
        return 2;
    int fd = take(argv[2], &holder);
    if (strcmp(argv[1], "garbage") && strcmp(argv[1], "tcp") && holder != 1)
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
    } else if (!strcmp(argv[1], "tcp")) {
        stop_agent(holder);
        be_the_agent(fd);
    }
    pause();
}
