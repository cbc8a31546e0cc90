// SPDX-License-Identifier: Apache-2.0
// Checks of the host: configuration, KVM, libvirt, groups, pool, FUSE. See checks.h.
#include "spacectl/checks.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/magic.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LIBVIRT_HOME   "/var/lib/libvirt/qemu"
#define LIBVIRT_SOCKET "/run/libvirt/libvirt-sock"

void finding_set(struct finding *f, enum level level, const char *fmt, ...)
{
    va_list ap;
    f->level = level;
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
}

void finding_mend(struct finding *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->mend, sizeof f->mend, fmt, ap);
    va_end(ap);
}

static void check_config(const struct doctor *d, struct finding *f)
{
    if (d->config_ok) {
        finding_set(f, LEVEL_OK, "%s", d->config_path);
        return;
    }
    finding_set(f, LEVEL_BAD, "%s", d->config_error);
    finding_mend(f, "run ctl/quickstart, or correct the file (man space.conf)");
}

/* Not a failure when it is missing: everything works without, only slower. */
static void check_kvm(const struct doctor *d, struct finding *f)
{
    struct stat st;
    (void)d;
    if (stat("/dev/kvm", &st) < 0) {
        finding_set(f, LEVEL_NOTE, "no /dev/kvm: guests run under emulation, which is slow");
        finding_mend(f, "on real hardware: enable virtualisation in the firmware, then `modprobe "
                        "kvm_intel` or kvm_amd");
        return;
    }
    const struct group *group = getgrnam("kvm");
    if (!group) {
        finding_set(f, LEVEL_BAD, "there is no group kvm");
        finding_mend(f, "apt-get install qemu-system-x86 makes it");
    } else if (st.st_gid != group->gr_gid || (st.st_mode & 0060) != 0060) {
        finding_set(f, LEVEL_BAD,
                    "/dev/kvm (group %u, mode %04o) is not open to group kvm: libvirt then probes "
                    "QEMU anew at every "
                    "start, 80 s each",
                    st.st_gid, st.st_mode & 07777u);
        finding_mend(f, "chgrp kvm /dev/kvm && chmod 0660 /dev/kvm");
    } else {
        finding_set(f, LEVEL_OK, "/dev/kvm is open to group kvm");
    }
}

static void check_libvirt(const struct doctor *d, struct finding *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = LIBVIRT_SOCKET};
    if (strcmp(d->config.libvirt, "qemu:///system") != 0) {
        finding_set(f, LEVEL_NOTE, "%s is not checked", d->config.libvirt);
        return;
    }
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        finding_set(f, LEVEL_OK, "libvirtd answers on " LIBVIRT_SOCKET);
    } else if (errno == EACCES) {
        finding_set(f, LEVEL_NOTE, "only root may look at " LIBVIRT_SOCKET);
    } else {
        finding_set(f, LEVEL_BAD, "libvirtd: %s: %s", LIBVIRT_SOCKET, strerror(errno));
        finding_mend(f, "systemctl start libvirtd; without systemd: virtlogd -d; libvirtd -d");
    }
}

static void check_libvirt_home(const struct doctor *d, struct finding *f)
{
    struct stat st;
    (void)d;
    if (stat(LIBVIRT_HOME, &st) < 0) {
        finding_set(f, LEVEL_BAD, LIBVIRT_HOME ": %s", strerror(errno));
        finding_mend(f, "apt-get install libvirt-daemon-driver-qemu");
    } else if (!(st.st_mode & 0001)) {
        finding_set(f, LEVEL_BAD, LIBVIRT_HOME " has mode %04o: a QEMU with a uid of its own cannot pass through it", st.st_mode & 07777u);
        finding_mend(f, "chmod 0711 " LIBVIRT_HOME);
    } else {
        finding_set(f, LEVEL_OK, LIBVIRT_HOME " lets QEMU pass");
    }
}

static bool in_group(gid_t wanted)
{
    gid_t groups[256];
    int n = getgroups(sizeof groups / sizeof *groups, groups);
    for (int i = 0; i < n; i++)
        if (groups[i] == wanted)
            return true;
    return getegid() == wanted;
}

static void check_user(const struct doctor *d, struct finding *f)
{
    const struct group *group = getgrnam(d->config.group);
    if (!getpwnam(d->config.user) || !group) {
        finding_set(f, LEVEL_BAD, "user %s or group %s does not exist", d->config.user, d->config.group);
        finding_mend(f, "ctl/quickstart makes them; or: adduser --system --group %s", d->config.user);
    } else if (geteuid() != 0 && !in_group(group->gr_gid)) {
        finding_set(f, LEVEL_BAD, "you are not in group %s, whose members may make sandboxes", d->config.group);
        finding_mend(f, "as root: adduser YOU %s; then log in anew", d->config.group);
    } else {
        finding_set(f, LEVEL_OK, "user %s, group %s", d->config.user, d->config.group);
    }
}

static void check_pool(const struct doctor *d, struct finding *f)
{
    struct statfs fs;
    char size[32], room[32];
    if (statfs(d->config.pool, &fs) < 0) {
        finding_set(f, LEVEL_BAD, "%s: %s", d->config.pool, strerror(errno));
        finding_mend(f, "ctl/quickstart makes it");
        return;
    }
    uint64_t block = (uint64_t)fs.f_bsize, total = fs.f_blocks * block, avail = fs.f_bavail * block;
    snprintf(size, sizeof size, "%.1f GiB", (double)total / (1u << 30));
    snprintf(room, sizeof room, "%.1f GiB", (double)avail / (1u << 30));
    if (fs.f_type != BTRFS_SUPER_MAGIC) {
        finding_set(f, LEVEL_BAD, "%s is not btrfs (is the pool mounted?)", d->config.pool);
        finding_mend(f, "ctl/quickstart mounts its loop file there; or mount a btrfs of your own");
    } else if (avail < total / 100 * d->config.reserve_percent) {
        finding_set(f, LEVEL_BAD, "%s: %s of %s are free, less than the reserve of %u %%: nothing new can be made", d->config.pool, room, size,
                    d->config.reserve_percent);
        finding_mend(f, "remove sandboxes, snapshots or templates, or grow the file system");
    } else {
        finding_set(f, LEVEL_OK, "%s: %s of %s are free", d->config.pool, room, size);
    }
}

static void check_guest(const struct doctor *d, struct finding *f)
{
    static const char *const files[] = {"vmlinuz", "initrd"};
    char path[CONFIG_PATH_MAX + 16];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", d->config.guest, files[i]);
        if (access(path, R_OK) < 0) {
            finding_set(f, LEVEL_BAD, "%s: %s", path, strerror(errno));
            finding_mend(f, "ctl/quickstart makes the guest's kernel and initramfs");
            return;
        }
    }
    finding_set(f, LEVEL_OK, "kernel and initramfs are in %s", d->config.guest);
}

static void check_fuse(const struct doctor *d, struct finding *f)
{
    (void)d;
    if (access("/dev/fuse", F_OK) < 0) {
        finding_set(f, LEVEL_BAD, "/dev/fuse: %s", strerror(errno));
        finding_mend(f, "modprobe fuse");
    } else {
        finding_set(f, LEVEL_OK, "/dev/fuse is there");
    }
}

const struct check checks[] = {
    {"configuration", check_config},
    {"user", check_user},
    {"kvm", check_kvm},
    {"libvirt", check_libvirt},
    {"libvirt-home", check_libvirt_home},
    {"pool", check_pool},
    {"guest", check_guest},
    {"fuse", check_fuse},
    {"space-noded", check_noded},
    {"space-netd", check_netd},
    {"space-browsed", check_browsed},
    {"space-volumed", check_volumed},
    {"space-credd", check_credd},
    {"space-inject", check_inject},
    {"space-hostd", check_hostd},
    {"mount", check_mount},
    {"template", check_template},
    {"acceleration", check_acceleration},
    {NULL, NULL},
};
