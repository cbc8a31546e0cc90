// SPDX-License-Identifier: Apache-2.0
// Packets with descriptors: see packet.h.
#include "ipc/packet.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

union control {
    struct cmsghdr head;
    char space[CMSG_SPACE(PACKET_FDS * sizeof(int))];
};

int packet_connect(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof addr.sun_path)
        return -ENAMETOOLONG;
    memcpy(addr.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&addr, sizeof addr) < 0) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

int packet_send(int sock, const struct iovec *parts, unsigned part_count, const int *fds, unsigned fd_count)
{
    union control control = {.space = {0}};
    struct msghdr msg = {.msg_iov = (void *)(uintptr_t)parts, .msg_iovlen = part_count};
    if (fd_count > PACKET_FDS)
        return -EINVAL;
    if (fd_count) {
        control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(fd_count * sizeof(int))};
        memcpy(CMSG_DATA(&control.head), fds, fd_count * sizeof(int));
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    }
    if (sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return 1;
    return errno == EAGAIN || errno == ENOBUFS || errno == EINTR || errno == ETOOMANYREFS ? 0 : -errno;
}

ssize_t packet_receive(int sock, void *buf, size_t size, int *fd)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {buf, size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd) { /* without room for it the kernel drops it */
        *fd = -1;
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
    }
    ssize_t got = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    const struct cmsghdr *h = fd ? CMSG_FIRSTHDR(&msg) : NULL;
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(h), sizeof *fd);
    if (got > 0 && !(msg.msg_flags & MSG_TRUNC) && !(fd && (msg.msg_flags & MSG_CTRUNC)))
        return got;
    if (fd && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return got ? -EMSGSIZE : -ECONNRESET;
}
