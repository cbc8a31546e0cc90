// SPDX-License-Identifier: Apache-2.0
// A connection to space-volumed: see volumed.h.
#include "spacectl/volumed.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int open_connection(const struct config *c, struct err *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/volumed.sock", c->run);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return err_sys(e, "connect to space-volumed on %s (spacectl doctor says more)", address.sun_path);
    return steal_fd(&fd);
}

static ssize_t receive(int fd, struct volumed_reply *rep, int *file)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {rep, sizeof *rep};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *h = got > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
        memcpy(file, CMSG_DATA(h), sizeof *file);
    return got;
}

int volumed_ask(int fd, uint32_t op, const char *tenant, uint32_t flags, struct volumed_reply *rep, int *file, struct err *e)
{
    struct volumed_request q = {.version = VOLUMED_VERSION, .op = op, .tag = op, .flags = flags};
    int ignored = -1;
    if (tenant)
        str_copy(q.object.tenant, sizeof q.object.tenant, tenant);
    if (send(fd, &q, sizeof q, MSG_NOSIGNAL) != (ssize_t)sizeof q)
        return err_sys(e, "ask space-volumed");
    do {
        ssize_t got = receive(fd, rep, file ? file : &ignored);
        if (got != (ssize_t)sizeof *rep)
            return got < 0 ? err_sys(e, "wait for space-volumed") : err_set(e, ECONNRESET, "space-volumed hung up (spacectl doctor says more)");
    } while (rep->event != VOLUMED_REPLY);
    if (ignored >= 0)
        close(ignored);
    rep->sentence[sizeof rep->sentence - 1] = 0;
    return 0;
}

char *volumed_text(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = size < 0 ? NULL : calloc(1, (size_t)size + 1);
    if (text && pread(fd, text, (size_t)size, 0) != size) {
        free(text);
        return NULL;
    }
    return text;
}

int volumed_config(const char *config_path, struct config *out, struct err *e)
{
    const char *env = getenv("SPACE_CONFIG");
    return config_load(config_path ? config_path : env && *env ? env : CONFIG_PATH_DEFAULT, out, e);
}

int volumed_open(const char *config_path, struct volumed_reply *ret_hello, struct err *e)
{
    struct config config;
    int rc = volumed_config(config_path, &config, e);
    AUTO_CLOSE int fd = rc < 0 ? -1 : open_connection(&config, e);
    if (fd < 0)
        return -1;
    rc = volumed_ask(fd, VOLUMED_HELLO, NULL, 0, ret_hello, NULL, e);
    if (rc == 0 && ret_hello->error < 0)
        rc = err_set(e, -ret_hello->error, "%s", ret_hello->sentence);
    return rc < 0 ? -1 : steal_fd(&fd);
}
