// SPDX-License-Identifier: Apache-2.0
// Host set-up and facts: see host.h.
#include "hostd/noded/host.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#define KVM_NODE      "/dev/kvm"
#define HOST_LIBRARY  "space-qemu-ram.so"
#define LIBVIRT_STATE "/var/lib/libvirt/qemu"

static gid_t kvm_group(void)
{
    const struct group *g = getgrnam("kvm");
    return g ? g->gr_gid : 0;
}

static void prepare_kvm(void)
{
    struct stat st;
    gid_t gid = kvm_group();
    AUTO_CLOSE int fd = open(KVM_NODE, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode))
        return; /* no KVM on this host: TCG */
    if ((st.st_mode & 0006) == 0006 || (st.st_gid == gid && (st.st_mode & 0060) == 0060))
        return;
    if (!gid) {
        log_warn("%s is not open to QEMU and there is no group `kvm` to give it to: make the group", KVM_NODE);
        return;
    }
    if (fchownat(fd, "", (uid_t)-1, gid, AT_EMPTY_PATH) < 0 || fchmodat(AT_FDCWD, KVM_NODE, 0660, 0) < 0)
        log_warn("give %s to group kvm, mode 0660: %s; libvirt may need a minute for every start", KVM_NODE, strerror(errno));
    else
        log_info("%s now belongs to group kvm, mode 0660", KVM_NODE);
}

static void prepare_libvirt_state(void)
{
    struct stat st;
    AUTO_CLOSE int fd = open(LIBVIRT_STATE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        log_warn("open %s: %s; is libvirt installed?", LIBVIRT_STATE, strerror(errno));
        return;
    }
    if ((st.st_mode & 0111) == 0111)
        return;
    if (fchmod(fd, (st.st_mode & 07777) | 0111) < 0)
        log_warn("make %s traversable (0711), which every QEMU needs: %s", LIBVIRT_STATE, strerror(errno));
    else
        log_info("%s is now traversable, as a QEMU under its own uid needs", LIBVIRT_STATE);
}

void host_prepare(void)
{
    prepare_kvm();
    prepare_libvirt_state();
}

/* Every directory on the way can be traversed, and the file be read, by all. */
static bool open_to_all(const char *path)
{
    char part[PATH_MAX];
    struct stat st;
    str_copy(part, sizeof part, path);
    if (stat(part, &st) < 0 || !(st.st_mode & 0004))
        return false;
    for (char *slash; (slash = strrchr(part, '/')) && slash != part;) {
        *slash = 0;
        if (stat(part, &st) < 0 || !(st.st_mode & 0001))
            return false;
    }
    return true;
}

void host_find_library(char out[PATH_MAX])
{
    char self[PATH_MAX] = "";
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || !strrchr(self, '/'))
        str_copy(self, sizeof self, "/");
    *strrchr(self, '/') = 0;
    snprintf(out, PATH_MAX, "%.*s/%s", PATH_MAX - 32, self, HOST_LIBRARY);
    if (!open_to_all(out))
        log_warn("%s is not there, or not to be read by every user: no virtual machine will start", out);
}

static bool kvm_usable(gid_t gid)
{
    struct stat st;
    AUTO_CLOSE int fd = open(KVM_NODE, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || ioctl(fd, KVM_GET_API_VERSION, 0) != KVM_API_VERSION)
        return false;
    return (st.st_mode & 0006) == 0006 || (gid && st.st_gid == gid && (st.st_mode & 0060) == 0060);
}

static bool has_memory_controller(void)
{
    char line[256] = "";
    if (access("/sys/fs/cgroup/memory/memory.limit_in_bytes", F_OK) == 0)
        return true; /* version 1 */
    FILE *f = fopen("/sys/fs/cgroup/cgroup.controllers", "re");
    if (!f)
        return false;
    bool found = fgets(line, sizeof line, f) && strstr(line, "memory");
    fclose(f);
    return found;
}

void host_remove_qemu_log(const char *domain)
{
    static const char *const ends[] = {"", ".0", ".1", ".2"}; /* virtlogd.conf: max_backups = 3 */
    char path[128];
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        snprintf(path, sizeof path, "%s/qemu/%.64s.log%s", HOST_LIBVIRT_LOGS, domain, ends[i]);
        unlink(path);
    }
}

static void read_cpu_model(char *out, size_t size)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (value && strncmp(line, "model name", 10) == 0) {
            str_copy(out, size, str_trim(value + 1));
            break;
        }
    }
    if (f)
        fclose(f);
}

void host_read_facts(struct host_facts *out)
{
    struct utsname uts;
    *out = (struct host_facts){0};
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE), cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (pages > 0 && page > 0)
        out->memory = (uint64_t)pages * (uint64_t)page;
    if (cpus > 0)
        out->cpus = (uint32_t)cpus;
    out->kvm_gid = kvm_group();
    out->kvm = kvm_usable(out->kvm_gid);
    out->memory_limits = has_memory_controller();
    if (uname(&uts) == 0)
        str_copy(out->kernel, sizeof out->kernel, uts.release);
    read_cpu_model(out->cpu_model, sizeof out->cpu_model);
}
