// SPDX-License-Identifier: Apache-2.0
// The network helper of space-noded: makes network namespaces, and sockets in them. See net.h.
//
// Theory of operation. The process lives in an empty network namespace of its own; it is never in
// the host's. For a new guest it moves into a fresh namespace, makes the tap, gives it its address,
// loads the rules, and goes back. Two layers of rules: `netdev` at the tap's ingress lets pass only
// frames from the guest's own hardware address with the guest's own IPv4 address that are TCP or
// DNS; `ip` redirects those. There is no second interface and no forwarding, so what slips through
// both has nowhere to go.
//
// A packet of a connection that this namespace has not seen begin (a guest that was loaded from a
// head) counts as new for the kernel's connection tracking, is redirected, finds no connection, and
// is answered with a reset: that is meant.
//
// Rights: CAP_SYS_ADMIN and CAP_NET_ADMIN for namespaces, taps and rules, CAP_SYS_PTRACE
// and CAP_DAC_READ_SEARCH to open the namespace that a QEMU of another uid holds. Its root
// directory is /proc. What a QEMU holds is compared with the number of the namespace that it was
// given, before this process enters it: one that was broken into could offer the host's.
#include "hostd/noded/net.h"

#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/if_tun.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <nftables/libnftables.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define STRING(x)  #x
#define TO_TEXT(x) STRING(x)

#define BACKLOG     512
#define CONNECTIONS "2048" /* tracked at once, half-open ones included */

struct helper {
    int sock;
    int tun;  /* O_PATH of /dev/net/tun */
    int home; /* its own namespace */
};

/* ---- the rules ---- */

static const char rules[] =
    "table netdev guest {\n"
    " chain input {\n"
    "  type filter hook ingress device \"" NET_INTERFACE "\" priority -500; policy drop;\n"
    "  ether saddr != " NET_GUEST_MAC " drop\n"
    "  arp operation { request, reply } arp saddr ip " NET_GUEST " accept\n"
    "  ip saddr != " NET_GUEST " drop\n"
    "  ip frag-off & 0x3fff != 0 drop\n"
    "  ip protocol tcp accept\n"
    "  udp dport 53 accept\n"
    " }\n"
    "}\n"
    "table ip guest {\n"
    " chain to_netd {\n"
    "  type nat hook prerouting priority dstnat; policy accept;\n"
    "  meta l4proto tcp redirect to :" TO_TEXT(
        NET_TCP_PORT) "\n"
                      "  udp dport 53 redirect to :" TO_TEXT(
                          NET_DNS_PORT) "\n"
                                        " }\n"
                                        " chain input {\n"
                                        "  type filter hook input priority filter; policy drop;\n"
                                        "  iifname != \"" NET_INTERFACE "\" drop\n"
                                        "  ct state established accept\n"
                                        "  ct state new ct count over " CONNECTIONS " drop\n"
                                        "  tcp dport " TO_TEXT(NET_TCP_PORT) " accept\n"
                                                                             "  udp dport " TO_TEXT(NET_DNS_PORT) " accept\n"
                                                                                                                  " }\n"
                                                                                                                  " chain forward {\n"
                                                                                                                  "  type filter hook "
                                                                                                                  "forward priority "
                                                                                                                  "filter; policy drop;\n"
                                                                                                                  " }\n"
                                                                                                                  "}\n";

static int load_rules(void)
{
    struct nft_ctx *nft = nft_ctx_new(NFT_CTX_DEFAULT);
    if (!nft)
        return -ENOMEM;
    nft_ctx_buffer_error(nft);
    nft_ctx_buffer_output(nft);
    int rc = nft_run_cmd_from_buffer(nft, rules) == 0 ? 0 : -EIO;
    if (rc < 0)
        fprintf(stderr, "noded-net: %s\n", nft_ctx_get_error_buffer(nft));
    nft_ctx_free(nft);
    return rc;
}

/* ---- the interface ---- */

/* Of this namespace: /proc/sys/net shows the one that its reader is in. */
static void set_knob(const char *path, char value)
{
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, &value, 1) < 0)
        return; /* a kernel without IPv6; and there is a rule for each */
}

static int open_tap(const struct helper *h)
{
    struct ifreq r = {.ifr_name = NET_INTERFACE, .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    char path[32];
    snprintf(path, sizeof path, "/self/fd/%d", h->tun);
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r) < 0)
        return -errno;
    return steal_fd(&fd);
}

static void set_address(struct sockaddr *a, const char *text)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    inet_pton(AF_INET, text, &in.sin_addr);
    memcpy(a, &in, sizeof in);
}

static void set_hardware(struct sockaddr *a, const char *text)
{
    unsigned v[6] = {0};
    sscanf(text, "%x:%x:%x:%x:%x:%x", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5]);
    a->sa_family = ARPHRD_ETHER;
    for (int i = 0; i < 6; i++)
        a->sa_data[i] = (char)v[i];
}

/* The guest's hardware address is told, not asked for: a guest cannot change it. */
static int configure(void)
{
    struct ifreq r = {.ifr_name = NET_INTERFACE}, lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct arpreq guest = {.arp_flags = ATF_PERM | ATF_COM, .arp_dev = NET_INTERFACE};
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    set_hardware(&r.ifr_hwaddr, NET_GATEWAY_MAC);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo) < 0 || ioctl(fd, SIOCSIFHWADDR, &r) < 0)
        return -errno;
    set_address(&r.ifr_addr, NET_GATEWAY);
    if (ioctl(fd, SIOCSIFADDR, &r) < 0)
        return -errno;
    set_address(&r.ifr_netmask, NET_MASK);
    if (ioctl(fd, SIOCSIFNETMASK, &r) < 0)
        return -errno;
    r.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(fd, SIOCSIFFLAGS, &r) < 0)
        return -errno;
    set_address(&guest.arp_pa, NET_GUEST);
    set_hardware(&guest.arp_ha, NET_GUEST_MAC);
    return ioctl(fd, SIOCSARP, &guest) < 0 ? -errno : 0;
}

/* ---- the operations ---- */

static int fail(struct net_reply *rep, int rc, const char *what)
{
    rep->error = rc;
    snprintf(rep->what, sizeof rep->what, "%s", what);
    return rc;
}

static int number_of(int fd, uint64_t *out)
{
    struct stat st;
    struct statfs fs;
    if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
        return -errno;
    *out = st.st_ino;
    return fs.f_type == NSFS_MAGIC ? 0 : -ESRCH;
}

static int create(const struct helper *h, struct net_reply *rep, int fds[NET_FDS])
{
    if (unshare(CLONE_NEWNET) < 0)
        return fail(rep, -errno, "make a namespace");
    set_knob("/sys/net/ipv4/ip_forward", '0');
    set_knob("/sys/net/ipv6/conf/all/disable_ipv6", '1');
    set_knob("/sys/net/ipv6/conf/default/disable_ipv6", '1');
    fds[0] = open_tap(h);
    if (fds[0] < 0)
        return fail(rep, fds[0], "make its tap");
    int rc = load_rules();
    if (rc < 0)
        return fail(rep, rc, "load its rules");
    rc = configure();
    if (rc < 0)
        return fail(rep, rc, "set its address");
    fds[1] = open("/self/ns/net", O_RDONLY | O_CLOEXEC);
    rc = fds[1] < 0 ? -errno : number_of(fds[1], &rep->number);
    rep->fds = 2;
    return rc < 0 ? fail(rep, rc, "hold it") : 0;
}

static int enter(const struct net_request *q)
{
    char path[48];
    uint64_t number = 0;
    snprintf(path, sizeof path, "/%d/fd/%d", (int)q->pid, NET_QEMU_NS);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    int rc = number_of(fd, &number);
    if (rc == 0 && number != q->number)
        rc = -ESRCH;
    return rc < 0 ? rc : setns(fd, CLONE_NEWNET) < 0 ? -errno : 0;
}

/* The option lets a listener come back while old connections wind down; for UDP it would let two
 * have the port at once. */
static int bind_socket(int type, uint16_t port)
{
    const int on = type == SOCK_STREAM;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    AUTO_CLOSE int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) < 0)
        return -errno;
    if (type == SOCK_STREAM && listen(fd, BACKLOG) < 0)
        return -errno;
    return steal_fd(&fd);
}

static int open_socket(const struct net_request *q, struct net_reply *rep, int fds[NET_FDS])
{
    int rc = enter(q);
    if (rc < 0)
        return fail(rep, rc, "enter the namespace of a virtual machine");
    fds[0] = q->port ? bind_socket(SOCK_DGRAM, NET_DNS_PORT) : bind_socket(SOCK_STREAM, NET_TCP_PORT);
    if (fds[0] < 0)
        return fail(rep, fds[0], q->port ? "take its DNS" : "take its TCP");
    rep->fds = 1;
    return 0;
}

static bool answer(int sock, const struct net_reply *rep, const int fds[NET_FDS])
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(NET_FDS * sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)rep, sizeof *rep};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (rep->error == 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(rep->fds * sizeof(int));
        msg.msg_controllen = CMSG_SPACE(rep->fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, rep->fds * sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof *rep;
}

static void serve(const struct helper *h)
{
    struct net_request q;
    struct net_reply rep = {0};
    int fds[NET_FDS] = {-1, -1};
    ssize_t n = recv(h->sock, &q, sizeof q, 0);
    if (n < 0 && errno == EINTR)
        return;
    if (n != (ssize_t)sizeof q)
        _exit(0);
    if (q.op == NET_CREATE)
        create(h, &rep, fds);
    else if (q.op == NET_SOCKET)
        open_socket(&q, &rep, fds);
    else
        fail(&rep, -EOPNOTSUPP, "understand the request");
    if (setns(h->home, CLONE_NEWNET) < 0 || !answer(h->sock, &rep, fds))
        _exit(1);
    cleanup_close(&fds[0]);
    cleanup_close(&fds[1]);
}

/* ---- isolation ---- */

static bool keep_capabilities(void)
{
    const uint32_t keep = 1u << CAP_SYS_ADMIN | 1u << CAP_NET_ADMIN | 1u << CAP_SYS_PTRACE | 1u << CAP_DAC_READ_SEARCH;
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = keep, .permitted = keep}, {0}};
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if ((cap > 31 || !(keep >> cap & 1)) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            return false;
    return syscall(SYS_capset, &head, data) == 0;
}

/* Of what the program and libnftables use. What is not in here is EPERM. */
static bool install_filter(void)
{
    static const uint32_t allowed[] = {
        SYS_read,
        SYS_write,
        SYS_openat,
        SYS_close,
        SYS_fstat,
        SYS_newfstatat,
        SYS_fstatfs,
        SYS_lseek,
        SYS_ioctl,
        SYS_fcntl,
        SYS_mmap,
        SYS_munmap,
        SYS_mremap,
        SYS_brk,
        SYS_madvise,
        SYS_socket,
        SYS_bind,
        SYS_listen,
        SYS_setsockopt,
        SYS_getsockopt,
        SYS_getsockname,
        SYS_sendto,
        SYS_sendmsg,
        SYS_recvfrom,
        SYS_recvmsg,
        SYS_poll,
        SYS_select,
        SYS_pselect6,
        SYS_getpid,
        SYS_gettid,
        SYS_getrandom,
        SYS_clock_gettime,
        SYS_gettimeofday,
        SYS_time,
        SYS_futex,
        SYS_unshare,
        SYS_setns,
        SYS_rt_sigreturn,
        SYS_rt_sigprocmask,
        SYS_rt_sigaction,
        SYS_restart_syscall,
        SYS_sigaltstack,
        SYS_exit,
        SYS_exit_group,
        SYS_readlink,
        SYS_getuid,
        SYS_geteuid,
    };
    enum { COUNT = sizeof allowed / sizeof allowed[0], HEAD = 4, SIZE = HEAD + COUNT + 2 };
    struct sock_filter f[SIZE] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc000003eu, 1, 0), /* AUDIT_ARCH_X86_64 */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (size_t i = 0; i < COUNT; i++)
        f[HEAD + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], (uint8_t)(COUNT - i), 0);
    f[SIZE - 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    f[SIZE - 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog prog = {SIZE, f};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

_Noreturn void net_helper(int sock)
{
    const struct rlimit none = {0, 0};
    struct helper h = {.sock = sock};
    prctl(PR_SET_NAME, "noded-net", 0, 0, 0);
    h.tun = open("/dev/net/tun", O_PATH | O_CLOEXEC);
    if (unshare(CLONE_NEWNET) < 0)
        _exit(1);
    h.home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (h.tun < 0 || h.home < 0) {
        fprintf(stderr, "noded-net: /dev/net/tun or /proc cannot be opened: %s\n", strerror(errno));
        _exit(1);
    }
    if (setrlimit(RLIMIT_CORE, &none) < 0 || chroot("/proc") < 0 || chdir("/") < 0 || !keep_capabilities() ||
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0) < 0 || !install_filter())
        _exit(1);
    for (;;)
        serve(&h);
}
