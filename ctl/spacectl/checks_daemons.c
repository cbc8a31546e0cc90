// SPDX-License-Identifier: Apache-2.0
// Checks of the daemons and of the mounted tree. See checks.h.
#include "spacectl/checks.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "ipc/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUSE_MAGIC  0x65735546
#define PATIENCE_MS 3000

/* Connects, and asks the kernel who listens. */
static void check_socket(const struct doctor *d, const char *name, int type, const char *user, struct finding *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t len = sizeof peer;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s.sock", d->config.run, name);
    AUTO_CLOSE int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        if (errno == EACCES) {
            finding_set(f, LEVEL_NOTE, "only root may look at %s", address.sun_path);
            return;
        }
        finding_set(f, LEVEL_BAD, "space-%s does not answer on %s: %s", name, address.sun_path, strerror(errno));
        finding_mend(f, "systemctl restart space-%s, or ctl/quickstart; its log says why", name);
        return;
    }
    const struct passwd *expected = getpwnam(user);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0) {
        finding_set(f, LEVEL_BAD, "%s: %s", address.sun_path, strerror(errno));
    } else if (expected && peer.uid != expected->pw_uid && peer.uid != 0) {
        finding_set(f, LEVEL_BAD, "%s is served by uid %u, pid %d, not by %s", address.sun_path, peer.uid, peer.pid, user);
        finding_mend(f, "find out what process %d is: it stands where space-%s belongs", peer.pid, name);
    } else {
        finding_set(f, LEVEL_OK, "pid %d, user %s, on %s", peer.pid, expected && peer.uid == expected->pw_uid ? user : "root", address.sun_path);
    }
}

void check_noded(const struct doctor *d, struct finding *f)
{
    check_socket(d, "noded", SOCK_SEQPACKET, "root", f);
}

void check_browsed(const struct doctor *d, struct finding *f)
{
    check_socket(d, "browsed", SOCK_STREAM, d->config.user, f);
}

void check_volumed(const struct doctor *d, struct finding *f)
{
    check_socket(d, "volumed", SOCK_SEQPACKET, d->config.volume_user, f);
}

void check_credd(const struct doctor *d, struct finding *f)
{
    check_socket(d, "credd", SOCK_SEQPACKET, d->config.cred_user, f);
}

/* HAProxy's runtime API, which only space-credd and root may open. */
void check_inject(const struct doctor *d, struct finding *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!d->config.inject) {
        finding_set(f, LEVEL_OK, "off: nothing is injected (config `inject`)");
        return;
    }
    snprintf(address.sun_path, sizeof address.sun_path, "%s/" INJECT_DIR "/" INJECT_ADMIN, d->config.run);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        finding_set(f, LEVEL_BAD, "HAProxy does not answer on %s: %s", address.sun_path, strerror(errno));
        finding_mend(f, "systemctl restart space-inject, or ctl/quickstart; /usr/sbin/haproxy -c -f %s/" INJECT_DIR "/haproxy.cfg says what is wrong",
                     d->config.run);
        return;
    }
    finding_set(f, LEVEL_OK, "HAProxy on %s", address.sun_path);
}

void check_netd(const struct doctor *d, struct finding *f)
{
    check_socket(d, "netd", SOCK_SEQPACKET, d->config.net_user, f);
}

void check_hostd(const struct doctor *d, struct finding *f)
{
    check_socket(d, "hostd", SOCK_STREAM, d->config.user, f);
}

static void read_in_child(const char *path, int to)
{
    char buf[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof buf);
    _exit(n < 0 ? errno : write(to, buf, (size_t)n) != n);
}

/*
 * Reads a file of the mount in a child, because a mount whose server hangs would hang us too. 0 or
 * -errno (-ETIMEDOUT); what was read is NUL-ended, without its last newline.
 */
static int read_with_deadline(const char *path, char *out, size_t size)
{
    int pipe_fds[2], status;
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        read_in_child(path, pipe_fds[1]);
    close(pipe_fds[1]);
    struct pollfd p = {.fd = pipe_fds[0], .events = POLLIN};
    bool in_time = pid > 0 && poll(&p, 1, PATIENCE_MS) == 1;
    ssize_t n = in_time ? read(pipe_fds[0], out, size - 1) : 0;
    close(pipe_fds[0]);
    if (pid < 0)
        return -EAGAIN;
    if (!in_time)
        kill(pid, SIGKILL);
    if (waitpid(pid, &status, in_time ? 0 : WNOHANG) != pid || !WIFEXITED(status))
        return -ETIMEDOUT;
    out[n < 0 ? 0 : n] = 0;
    return -WEXITSTATUS(status);
}

void check_mount(const struct doctor *d, struct finding *f)
{
    char path[CONFIG_PATH_MAX + 32], version[512];
    snprintf(path, sizeof path, "%s/version", d->mount);
    int rc = read_with_deadline(path, version, sizeof version);
    struct statfs fs;
    if (rc == 0 && statfs(d->mount, &fs) == 0 && fs.f_type == FUSE_MAGIC) {
        finding_set(f, LEVEL_OK, "%s answers: %.*s", d->mount, (int)strcspn(version, "\n"), version);
        return;
    }
    finding_set(f, LEVEL_BAD, "%s: %s", d->mount,
                rc == 0            ? "is not a mount of spacefs"
                : rc == -ETIMEDOUT ? "does not answer: space-hostd is away or stuck"
                : rc == -ENOENT    ? "spacefs is not mounted there"
                                   : strerror(-rc));
    finding_mend(f, "systemctl restart spacefs, or ctl/quickstart; its log says why");
}

void check_template(const struct doctor *d, struct finding *f)
{
    char path[CONFIG_PATH_MAX + 128], state[64] = "";
    snprintf(path, sizeof path, "%s/templates/%s/state", d->mount, d->config.template_);
    int rc = read_with_deadline(path, state, sizeof state);
    state[strcspn(state, "\n")] = 0;
    if (rc == 0 && !strcmp(state, "ready")) {
        finding_set(f, LEVEL_OK, "the default template %s is ready", d->config.template_);
    } else {
        finding_set(f, LEVEL_BAD, "the default template %s: %s", d->config.template_, rc < 0 ? strerror(-rc) : state);
        finding_mend(f, "ctl/quickstart makes it; or spacectl template build %s --from DIR", d->config.template_);
    }
}

/* space-hostd decides it by booting a guest before the first sandbox runs, and says so in
 * `version`. */
void check_acceleration(const struct doctor *d, struct finding *f)
{
    char path[CONFIG_PATH_MAX + 32], text[512];
    snprintf(path, sizeof path, "%s/version", d->mount);
    int rc = read_with_deadline(path, text, sizeof text);
    if (rc < 0)
        finding_set(f, LEVEL_NOTE, "not known: %s: %s", path, strerror(-rc));
    else if (strstr(text, "\nacceleration kvm\n"))
        finding_set(f, LEVEL_OK, "KVM");
    else if (strstr(text, "\nacceleration tcg\n"))
        finding_set(f, LEVEL_NOTE, "emulation (TCG): guests boot, but run several times slower than under KVM");
    else
        finding_set(f, LEVEL_NOTE, "not known yet: it is found out when the first sandbox boots");
}
