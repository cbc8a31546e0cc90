// SPDX-License-Identifier: Apache-2.0
// Self-isolation: see isolate.h. Capabilities first, then no_new_privs, which the rest needs,
// Landlock, and the system call filter, which keeps all of it as it is.
#include "hostd/noded/isolate.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the filter knows x86_64 only, as do the guests"
#endif
#define ARCH 0xc000003eu /* AUDIT_ARCH_X86_64 */
#define X32  0x40000000u

static const int kept[] = {CAP_SYS_ADMIN, CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER};

/* CAP_SYS_ADMIN opens many doors that btrfs does not need. EPERM instead of a signal: a library
 * that tries one goes on without. */
static const uint32_t forbidden[] = {
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_kcmp,
    SYS_mount,
    SYS_umount2,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_pivot_root,
    SYS_chroot,
    SYS_setns,
    SYS_unshare,
    SYS_swapon,
    SYS_swapoff,
    SYS_reboot,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_open_by_handle_at,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_iopl,
    SYS_ioperm,
    SYS_syslog,
    SYS_acct,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_mknod,
    SYS_mknodat,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_fanotify_init,
    SYS_io_uring_setup,
    SYS_settimeofday,
    SYS_clock_settime,
};
#define FORBIDDEN (sizeof forbidden / sizeof forbidden[0])

static int drop_capabilities(void)
{
    uint64_t keep = 0;
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        keep |= 1ull << kept[i];
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            return -errno;
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {
        {.effective = (uint32_t)keep, .permitted = (uint32_t)keep},
        {.effective = (uint32_t)(keep >> 32), .permitted = (uint32_t)(keep >> 32)},
    };
    if (syscall(SYS_capset, &head, data) < 0 || prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        return -errno;
    return 0;
}

static int allow_below(int rules, const char *path, uint64_t access)
{
    AUTO_CLOSE int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    struct landlock_path_beneath_attr below = {.allowed_access = access, .parent_fd = fd};
    return syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0) < 0 ? -errno : 0;
}

/* Reading is left alone: libvirt's client reads its configuration, and NSS what it likes. */
static int restrict_writing(const char *const writable[])
{
    const struct landlock_ruleset_attr all = {
        .handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                             LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |
                             LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM};
    AUTO_CLOSE int rules = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    if (rules < 0 && (errno == ENOSYS || errno == EOPNOTSUPP)) {
        log_info("this kernel has no Landlock: space-noded could write anywhere");
        return 0;
    }
    if (rules < 0)
        return -errno;
    int rc = allow_below(rules, "/dev/null", LANDLOCK_ACCESS_FS_WRITE_FILE);
    for (; *writable && rc == 0; writable++)
        rc = allow_below(rules, *writable, all.handled_access_fs);
    if (rc == 0 && syscall(SYS_landlock_restrict_self, rules, 0) < 0)
        rc = -errno;
    return rc;
}

static int install_filter(void)
{
    enum { HEAD = 5, SIZE = HEAD + (int)FORBIDDEN + 2 };
    struct sock_filter f[SIZE] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32, (uint8_t)(FORBIDDEN + 1), 0),
    };
    for (size_t i = 0; i < FORBIDDEN; i++)
        f[HEAD + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, forbidden[i], (uint8_t)(FORBIDDEN - i), 0);
    f[SIZE - 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    f[SIZE - 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    struct sock_fprog prog = {SIZE, f};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0 ? -errno : 0;
}

int isolate(const char *const writable[], struct err *e)
{
    const struct rlimit none = {0, 0};
    if (drop_capabilities() < 0)
        return err_sys(e, "drop capabilities");
    if (setrlimit(RLIMIT_CORE, &none) < 0)
        return err_sys(e, "turn core dumps off");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_sys(e, "set no_new_privs");
    if (restrict_writing(writable) < 0)
        return err_sys(e, "restrict writing to the pool");
    if (install_filter() < 0)
        return err_sys(e, "install the system call filter");
    return 0;
}
