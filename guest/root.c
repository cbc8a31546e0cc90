// SPDX-License-Identifier: Apache-2.0
// The guest's root file system: see root.h.
//
// The daemon's text and data lie in the initramfs (a ramfs, never given up), so that it runs on
// when the root file system is frozen or broken. Clones of mounts (open_tree) cannot be reached,
// covered or unmounted by anything in the guest that has not root's rights over this process.
#include "guest/root.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "guest/identity.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DISK         "/dev/vda"
#define NEW_ROOT     "/root"
#define JOBS_GROUP   "/sys/fs/cgroup/jobs"
#define DEVICE_MSEC  10000
#define VIRTIO_BLOCK "0x0002" /* device type, virtio 1.2, section 5 */

struct mount_spec {
    const char *source, *target, *type, *options;
    unsigned long flags;
    mode_t mode; /* of the directory if it has to be made */
};

static int mount_one(const struct mount_spec *m)
{
    mkdir(m->target, m->mode);
    if (mount(m->source, m->target, m->type, m->flags, m->options) == 0 || errno == EBUSY)
        return 0;
    return -errno;
}

int root_prepare(struct err *e)
{
    static const struct mount_spec first[] = {
        {"proc", "/proc", "proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555},
        {"sysfs", "/sys", "sysfs", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555},
        {"devtmpfs", "/dev", "devtmpfs", "mode=0755", MS_NOSUID, 0755},
    };
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        int rc = mount_one(&first[i]);
        if (rc < 0)
            return err_set(e, -rc, "mount %s: %s", first[i].target, strerror(-rc));
    }
    return 0;
}

static bool is_disk(int bus, const char *device)
{
    char path[300], type[16] = "";
    snprintf(path, sizeof path, "%s/device", device);
    AUTO_CLOSE int fd = openat(bus, path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, type, sizeof type - 1) > 0 && !strncmp(type, VIRTIO_BLOCK, strlen(VIRTIO_BLOCK));
}

/* The bus has found its devices when its module is loaded, whatever their drivers do. */
static bool has_disk(void)
{
    bool found = false;
    DIR *d = opendir("/sys/bus/virtio/devices");
    for (struct dirent *e; d && !found && (e = readdir(d));)
        found = e->d_name[0] != '.' && is_disk(dirfd(d), e->d_name);
    if (d)
        closedir(d);
    return found;
}

/* Drivers may find their devices after their module was loaded. */
static int wait_for_disk(void)
{
    int fd = inotify_init1(IN_CLOEXEC), rc = 0;
    if (fd < 0 || inotify_add_watch(fd, "/dev", IN_CREATE) < 0)
        return -errno;
    while (rc == 0 && access(DISK, F_OK) < 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char buf[4096];
        int n = poll(&p, 1, DEVICE_MSEC);
        if (n == 0)
            rc = -ENODEV;
        else if (n > 0 && read(fd, buf, sizeof buf) < 0)
            rc = -errno;
    }
    close(fd);
    return rc;
}

static int clone_mount(const char *path)
{
    return (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
}

static void restrict_mount(int tree)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC};
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
        log_warn("restrict the served mount: %s", strerror(errno));
}

/* What programs expect; a root that is read-only or lacks a directory gets what it can hold. */
static void mount_rest(void)
{
    static const struct mount_spec rest[] = {
        {"proc", "proc", "proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555},
        {"sysfs", "sys", "sysfs", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555},
        {"devtmpfs", "dev", "devtmpfs", "mode=0755", MS_NOSUID, 0755},
        {"devpts", "dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666", MS_NOSUID | MS_NOEXEC, 0755},
        {"tmpfs", "dev/shm", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV, 01777},
        {"tmpfs", "run", "tmpfs", "mode=0755", MS_NOSUID | MS_NODEV, 0755},
        {"cgroup2", "sys/fs/cgroup", "cgroup2", "nsdelegate", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0755},
    };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        int rc = mount_one(&rest[i]);
        if (rc < 0)
            log_warn("mount /%s: %s", rest[i].target, strerror(-rc));
    }
    static const char *const links[][2] = {
        {"/proc/self/fd", "dev/fd"}, {"/proc/self/fd/0", "dev/stdin"}, {"/proc/self/fd/1", "dev/stdout"}, {"/proc/self/fd/2", "dev/stderr"}};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][0], links[i][1]) < 0 && errno != EEXIST)
            log_warn("make /%s: %s", links[i][1], strerror(errno));
    mkdir("run/lock", 01777);
    chmod("run/lock", 01777);
}

/* ---- files over files: what a load changes, without a write to the disk ---- */

#define MACHINE_ID     "/etc/machine-id"
#define BUS_MACHINE_ID "/var/lib/dbus/machine-id"
#define HOSTNAME       "/etc/hostname"
#define OUR_MACHINE_ID "/machine-id" /* in the initramfs */

struct covers {
    int machine_id, bus, hostname; /* mounts that are nowhere yet */
};

/* Until the host gives another one it is that of the disk. */
static void make_machine_id(struct root *out)
{
    char text[IDENTITY_MACHINE_ID];
    AUTO_CLOSE int old = open(MACHINE_ID + 1, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    out->machine_id = open(OUR_MACHINE_ID, O_RDWR | O_CREAT | O_CLOEXEC, 0444);
    if (out->machine_id < 0)
        return;
    if (old >= 0 && read(old, text, sizeof text) == (ssize_t)sizeof text)
        (void)!write(out->machine_id, text, sizeof text);
    void *map = mmap(NULL, sizeof text, PROT_READ | PROT_WRITE, MAP_SHARED, out->machine_id, 0);
    out->machine_id_map = map == MAP_FAILED ? NULL : map;
}

/* In the initramfs still, in the new root's directory. */
static void covers_prepare(struct covers *c, struct root *out)
{
    int made = open(MACHINE_ID + 1, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
    if (made >= 0) /* something to mount over; no host name is needed where there is none */
        close(made);
    make_machine_id(out);
    c->machine_id = clone_mount(OUR_MACHINE_ID);
    c->bus = clone_mount(OUR_MACHINE_ID);
    c->hostname = clone_mount("/proc/sys/kernel/hostname");
}

/* Takes the mount; without it when the root has no such file. */
static void cover(int mount, const char *path, bool links)
{
    struct stat st;
    if ((links ? stat(path, &st) : lstat(path, &st)) == 0 && S_ISREG(st.st_mode) &&
        syscall(SYS_move_mount, mount, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_SYMLINKS) < 0)
        log_warn("mount over %s: %s", path, strerror(errno));
    close(mount);
}

static void covers_place(const struct covers *c)
{
    cover(c->machine_id, MACHINE_ID, true);
    cover(c->bus, BUS_MACHINE_ID, false); /* most have a link to the other */
    cover(c->hostname, HOSTNAME, true);
}

static int enter(void)
{
    if (mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        return -errno;
    return 0;
}

static int open_common(struct root *out, struct err *e)
{
    out->top = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out->tree < 0 || out->top < 0)
        return err_sys(e, "hold on to the root file system");
    return 0;
}

static void open_rest(struct root *out)
{
    out->proc = clone_mount("/proc");
    out->pts = clone_mount("/dev/pts");
    mkdir(JOBS_GROUP, 0755);
    out->cgroup = clone_mount(JOBS_GROUP);
    out->jobs_cpu = openat(out->cgroup, "cpu.stat", O_RDONLY | O_CLOEXEC);
    out->stat = open("/proc/stat", O_RDONLY | O_CLOEXEC);
    out->memory = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    out->random = open("/dev/urandom", O_RDWR | O_CLOEXEC);
}

static int stay(struct root *out, struct err *e)
{
    out->tree = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int rc = chdir("/") < 0 ? err_sys(e, "enter /") : open_common(out, e);
    if (rc == 0)
        open_rest(out);
    return rc;
}

int root_switch(struct root *out, struct err *e)
{
    struct covers covers;
    *out = (struct root){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, NULL};
    if (!has_disk())
        return stay(out, e);
    int rc = wait_for_disk();
    if (rc < 0)
        return err_set(e, -rc, "wait for " DISK ": %s", strerror(-rc));
    mkdir(NEW_ROOT, 0755);
    if (mount(DISK, NEW_ROOT, "ext4", MS_NOATIME, NULL) < 0 || chdir(NEW_ROOT) < 0)
        return err_sys(e, "mount " DISK);
    out->disk = open(DISK, O_RDONLY | O_CLOEXEC);
    out->tree = clone_mount(".");
    if (out->disk < 0)
        return err_sys(e, "open " DISK);
    rc = open_common(out, e);
    if (rc < 0)
        return rc;
    restrict_mount(out->tree);
    mount_rest();
    covers_prepare(&covers, out);
    rc = enter();
    if (rc < 0)
        return err_set(e, -rc, "switch to the root file system: %s", strerror(-rc));
    covers_place(&covers);
    open_rest(out);
    return 0;
}

void root_protect(const struct root *r)
{
    int fd = openat(r->proc, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "-1000", 5) != 5)
        log_warn("protect from running out of memory: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
}
