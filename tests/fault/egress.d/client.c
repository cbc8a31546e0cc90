// SPDX-License-Identifier: Apache-2.0
// What a hostile program in a guest does to its network. Static, run in the guest.
//
//   client tcp ADDRESS PORT [HEX [PAUSE]]  connects, sends the bytes (with a pause of milliseconds
//                                          after each), prints "ok" and what came back, or why not
//   client tcp6 ADDRESS PORT               connects by IPv6, prints "connected" or why not
//   client loris ADDRESS PORT COUNT SEC    so many connections, a byte of a request on each every
//                                          half second, until all are closed; prints how many are
//                                          open after SEC seconds
//   client wait ADDRESS PORT HEX           the same, prints "ready" first, then waits for the end
//   client dns NAME TYPE [SERVER]          prints the code, and each address
//   client dnstcp NAME TYPE                the same by TCP
//   client udp ADDRESS PORT                prints "silence", or "answer"
//   client frame HEX [COUNT]               sends a frame as it is; of several, of TCP, each from
//                                          the next source port
//   client flood ADDRESS PORT COUNT        so many connections at once, a byte on each; prints on
//   how
//                                          many an answer came
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static size_t from_hex(const char *hex, uint8_t *out, size_t max)
{
    size_t n = 0;
    for (unsigned v; n < max && sscanf(hex + 2 * n, "%2x", &v) == 1; n++)
        out[n] = (uint8_t)v;
    return n;
}

static struct sockaddr_in address(const char *text, const char *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (!inet_aton(text, &a.sin_addr)) /* takes hex, octal and short forms, as programs do */
        exit(2);
    return a;
}

static int wait_for(int fd, short what, int msec)
{
    struct pollfd p = {fd, what, 0};
    return poll(&p, 1, msec);
}

static int open_tcp(const char *to, const char *port)
{
    struct sockaddr_in a = address(to, port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
    socklen_t size = sizeof error;
    if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0 && errno != EINPROGRESS)
        error = errno;
    else if (wait_for(fd, POLLOUT, 5000) <= 0)
        error = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    fcntl(fd, F_SETFL, 0);
    if (error) {
        printf("%s\n", strerror(error));
        exit(0);
    }
    return fd;
}

#define FIRST_MSEC 3000 /* for the first byte */
#define MORE_MSEC  150  /* and for more */

/* What comes until the end, or nothing for a while. */
static void print_rest(int fd)
{
    char in[4096];
    size_t n = 0;
    ssize_t got = 1;
    while (n < sizeof in && wait_for(fd, POLLIN, n ? MORE_MSEC : FIRST_MSEC) > 0 && (got = recv(fd, in + n, sizeof in - n, 0)) > 0)
        n += (size_t)got;
    if (got < 0)
        printf("%s\n", strerror(errno));
    else
        printf("ok %.*s%s\n", (int)n, in, got ? " open" : "");
}

static void tcp(int argc, char **argv)
{
    uint8_t out[8192];
    int fd = open_tcp(argv[2], argv[3]);
    size_t n = argc > 4 ? from_hex(argv[4], out, sizeof out) : 0;
    int pause = argc > 5 ? atoi(argv[5]) : 0;
    struct timespec t = {pause / 1000, pause % 1000 * 1000000L};
    for (size_t at = 0; at < n; at += pause ? 1 : n) {
        if (send(fd, out + at, pause ? 1 : n, MSG_NOSIGNAL) < 0) { /* which takes the error away */
            printf("%s\n", errno == EPIPE ? strerror(ECONNRESET) : strerror(errno));
            return;
        }
        if (pause)
            nanosleep(&t, NULL);
    }
    print_rest(fd);
}

static void wait_open(char **argv)
{
    uint8_t out[4096], in[64];
    int fd = open_tcp(argv[2], argv[3]);
    size_t n = from_hex(argv[4], out, sizeof out);
    send(fd, out, n, MSG_NOSIGNAL);
    recv(fd, in, sizeof in, 0);
    printf("ready\n");
    fflush(stdout);
    ssize_t got = recv(fd, in, sizeof in, 0);
    printf("%s\n", got < 0 ? strerror(errno) : got ? "data" : "end");
}

static size_t question(uint8_t *p, const char *name, int type)
{
    static const uint8_t head[12] = {7, 7, 1, 0, 0, 1};
    memcpy(p, head, 12);
    size_t at = 12;
    while (*name) {
        size_t n = strcspn(name, ".");
        p[at++] = (uint8_t)n;
        memcpy(p + at, name, n);
        at += n;
        name += n + (name[n] == '.');
    }
    const uint8_t tail[5] = {0, (uint8_t)(type >> 8), (uint8_t)type, 0, 1};
    memcpy(p + at, tail, 5);
    return at + 5;
}

static void print_answer(const uint8_t *p, ssize_t n, size_t asked)
{
    printf("%d", n < 12 ? -1 : p[3] & 15);
    for (size_t at = asked; at + 16 <= (size_t)n; at += 16)
        printf(" %u.%u.%u.%u", p[at + 12], p[at + 13], p[at + 14], p[at + 15]);
    printf("\n");
}

static void dns(int argc, char **argv)
{
    uint8_t p[512];
    struct sockaddr_in a = address(argc > 4 ? argv[4] : "192.0.0.1", "53");
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    size_t n = question(p, argv[2], atoi(argv[3]));
    connect(fd, (struct sockaddr *)&a, sizeof a);
    send(fd, p, n, 0);
    print_answer(p, wait_for(fd, POLLIN, 5000) > 0 ? recv(fd, p, sizeof p, 0) : 0, n);
}

static void dns_tcp(char **argv)
{
    uint8_t p[514];
    int fd = open_tcp("9.9.9.9", "53");
    size_t n = question(p + 2, argv[2], atoi(argv[3]));
    p[0] = (uint8_t)(n >> 8);
    p[1] = (uint8_t)n;
    send(fd, p, 1, 0);
    send(fd, p + 1, n + 1, 0);
    print_answer(p + 2, wait_for(fd, POLLIN, 5000) > 0 ? recv(fd, p, sizeof p, 0) - 2 : 0, n);
}

static void udp(char **argv)
{
    uint8_t p[64] = {0xc0};
    struct sockaddr_in a = address(argv[2], argv[3]);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    connect(fd, (struct sockaddr *)&a, sizeof a);
    send(fd, p, sizeof p, 0);
    printf("%s\n", wait_for(fd, POLLIN, 1000) <= 0 ? "silence" : "answer");
}

/* One more, and one less in the sum's complement (RFC 1624). */
static void next_port(uint8_t *p)
{
    unsigned port = (unsigned)(p[34] << 8 | p[35]) + 1, sum = (unsigned)(p[50] << 8 | p[51]);
    sum = sum ? sum - 1 : 0xfffe;
    if (port > 65535) {
        port = 1024; /* 64512 less */
        sum += 64512;
        sum = (sum & 0xffff) + (sum >> 16);
    }
    p[34] = (uint8_t)(port >> 8);
    p[35] = (uint8_t)port;
    p[50] = (uint8_t)(sum >> 8);
    p[51] = (uint8_t)sum;
}

static void frame(int argc, char **argv)
{
    uint8_t p[1514];
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex("eth0"), .sll_halen = 6};
    int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    size_t n = from_hex(argv[2], p, sizeof p);
    memcpy(to.sll_addr, p, 6);
    for (int i = argc > 3 ? atoi(argv[3]) : 1; i; i--) {
        if (sendto(fd, p, n, 0, (struct sockaddr *)&to, sizeof to) < 0)
            perror("send");
        if (i > 1)
            next_port(p);
    }
    printf("sent\n");
}

/* Those that an answer came on; each is counted once. */
static int answered(int *fds, int count)
{
    int n = 0;
    for (int i = 0; i < count; i++) {
        char c[16];
        if (fds[i] < 0 || recv(fds[i], c, sizeof c, 0) <= 0)
            continue;
        n++;
        fds[i] = -1; /* stays open, so that it makes no room for another one */
    }
    return n;
}

/* The guest's kernel may take many for connected that nobody has (its host answers with cookies):
 * what counts is who serves them. */
static void flood(char **argv)
{
    struct sockaddr_in a = address(argv[2], argv[3]);
    int count = atoi(argv[4]), served = 0, quiet = 0;
    int *fds = calloc((size_t)count, sizeof *fds);
    struct rlimit r = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &r);
    for (int i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fds[i], (struct sockaddr *)&a, sizeof a);
    }
    sleep(1);
    for (int i = 0; i < count; i++)
        send(fds[i], "\x01", 1, MSG_NOSIGNAL);
    for (int turn = 0; quiet < 3 && turn < 60; turn++) {
        sleep(1);
        int more = answered(fds, count);
        served += more;
        quiet = served && !more ? quiet + 1 : 0;
    }
    printf("%d\n", served);
}

static void tcp6(char **argv)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(argv[3]))};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
    socklen_t size = sizeof error;
    char c;
    if (inet_pton(AF_INET6, argv[2], &a.sin6_addr) != 1)
        exit(2);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&a, sizeof a) < 0 && errno != EINPROGRESS))
        error = errno;
    else if (wait_for(fd, POLLOUT, 3000) <= 0)
        error = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (!error && wait_for(fd, POLLIN, 1000) > 0 && recv(fd, &c, 1, 0) < 0)
        error = errno; /* refused behind the handshake */
    printf("%s\n", error ? strerror(error) : "connected");
}

static int count_open(const int *fds, int count)
{
    int open = 0;
    char c;
    for (int i = 0; i < count; i++)
        open += recv(fds[i], &c, 1, 0) < 0 && errno == EAGAIN;
    return open;
}

static void loris(char **argv)
{
    static const char head[] = "GET / HTTP/1.1\r\nX-Slow: ";
    struct sockaddr_in a = address(argv[2], argv[3]);
    int count = atoi(argv[4]), turns = atoi(argv[5]) * 2, open = count;
    int *fds = calloc((size_t)count, sizeof *fds);
    for (int i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fds[i], (struct sockaddr *)&a, sizeof a);
    }
    for (int turn = 0; open && turn < turns; turn++) {
        for (int i = 0; i < count; i++)
            send(fds[i], turn < (int)strlen(head) ? head + turn : "a", 1, MSG_NOSIGNAL);
        usleep(500000);
        open = count_open(fds, count);
    }
    printf("%d\n", open);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    if (!strcmp(argv[1], "tcp"))
        tcp(argc, argv);
    else if (!strcmp(argv[1], "tcp6"))
        tcp6(argv);
    else if (!strcmp(argv[1], "loris"))
        loris(argv);
    else if (!strcmp(argv[1], "wait"))
        wait_open(argv);
    else if (!strcmp(argv[1], "dns"))
        dns(argc, argv);
    else if (!strcmp(argv[1], "dnstcp"))
        dns_tcp(argv);
    else if (!strcmp(argv[1], "udp"))
        udp(argv);
    else if (!strcmp(argv[1], "frame"))
        frame(argc, argv);
    else if (!strcmp(argv[1], "flood"))
        flood(argv);
    return 0;
}
