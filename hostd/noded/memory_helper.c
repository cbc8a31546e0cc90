// SPDX-License-Identifier: Apache-2.0
// The memory helper: the only code of the platform that may look into another process. See
// memory.h for its rights.
//
// Theory of operation. One request at a time. For each, /proc/PID is opened, which pins that very
// process; its uids and its start time are compared with what the request says; then its files are
// opened under its own file-system uid, which owns them. An address is what QEMU said when it
// started: a QEMU that lies, or maps something else there, gives away its own memory to its own
// head, and nothing more. Pages are bytes: nothing here looks at what is in them.
//
// A save first copies the changed pages into this process, at the speed of memory, and says so: the
// guest can run on. What is left, to compare, to checksum and to write, takes ten times as long.
// When there are more than STAGED_MAX of them, those copied so far are written in between.
//
// Which pages changed: QEMU's memory is a private mapping of a file (qemu_ram.c). A page that the
// guest wrote is anonymous: present and no page of a file, or swapped out
// (Documentation/admin-guide/mm/pagemap.rst, bits 63, 61, 62).
#include "hostd/noded/head_format.h"
#include "hostd/noded/memory.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define NOBODY 65534u
#define ARCH   0xc000003eu /* AUDIT_ARCH_X86_64 */

#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_FILE    (1ull << 61)

#define CHUNK      2048u  /* pages looked at in one go: 8 MiB of memory */
#define RUN        256u   /* pages copied in one go */
#define STAGED_MAX 32768u /* pages copied before they are written: 128 MiB */
#define STAGED_FEW 1024u  /* pages whose room is kept for the next time */

/* No heap: the system call filter allows none. */
static uint64_t pagemap[CHUNK], table[CHUNK];
static uint8_t pages[STAGED_MAX * HEAD_PAGE] __attribute__((aligned(2 << 20)));
static uint64_t staged[STAGED_MAX]; /* numbers of the pages in `pages`, ascending */

struct target {
    int dir; /* /proc/PID */
    const struct memory_request *q;
};

/* ---- the process ---- */

static int open_as_target(const struct target *t, const char *name, int flags)
{
    syscall(SYS_setfsgid, t->q->uid);
    syscall(SYS_setfsuid, t->q->uid);
    int fd = openat(t->dir, name, flags | O_CLOEXEC);
    int error = errno;
    syscall(SYS_setfsuid, NOBODY);
    syscall(SYS_setfsgid, NOBODY);
    return fd < 0 ? -error : fd;
}

/* A small file of the process, as text. */
static int read_text(const struct target *t, const char *name, char *out, size_t size)
{
    AUTO_CLOSE int fd = open_as_target(t, name, O_RDONLY);
    if (fd < 0)
        return fd;
    size_t len = 0;
    for (ssize_t n; len < size - 1; len += (size_t)n) {
        n = read(fd, out + len, size - 1 - len);
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
    }
    out[len] = 0;
    return 0;
}

/* The decimal number after blanks at *s; moves on. */
static uint64_t number(const char **s)
{
    uint64_t n = 0;
    while (**s == ' ' || **s == '\t')
        (*s)++;
    for (; **s >= '0' && **s <= '9'; (*s)++)
        n = n * 10 + (uint64_t)(**s - '0');
    return n;
}

/* Real, effective, saved and file-system uid are all the one that was asked for. */
static int check_uids(const struct target *t)
{
    static char text[4096];
    int rc = read_text(t, "status", text, sizeof text);
    const char *line = rc < 0 ? NULL : strstr(text, "\nUid:");
    if (!line)
        return rc < 0 ? rc : -EPROTO;
    line += strlen("\nUid:");
    for (int i = 0; i < 4; i++)
        if (number(&line) != t->q->uid)
            return -EPERM;
    return 0;
}

/* Field 22 of /proc/PID/stat; the name in field 2 may hold anything, and ends with the last ')'. */
static int read_start_time(const struct target *t, uint64_t *out)
{
    static char text[1024];
    int rc = read_text(t, "stat", text, sizeof text);
    const char *s = rc < 0 ? NULL : strrchr(text, ')');
    if (!s)
        return rc < 0 ? rc : -EPROTO;
    s++;
    for (int field = 3; field < 22; field++) {
        s += strspn(s, " ");
        s += strcspn(s, " ");
    }
    *out = number(&s);
    return *out ? 0 : -EPROTO;
}

static int open_target(const struct memory_request *q, struct target *t, uint64_t *ret_start_time)
{
    char path[16];
    t->q = q;
    if (q->pid <= 0)
        return -EINVAL;
    snprintf(path, sizeof path, "/%d", (int)q->pid);
    t->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->dir < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    int rc = check_uids(t);
    if (rc == 0)
        rc = read_start_time(t, ret_start_time);
    if (rc == 0 && q->op != MEMORY_IDENTIFY && *ret_start_time != q->start_time)
        rc = -ESRCH; /* another one has its number by now */
    return rc;
}

/* The process is still there, so nobody else had its number meanwhile. */
static bool is_same(const struct target *t)
{
    uint64_t start_time;
    return read_start_time(t, &start_time) == 0 && start_time == t->q->start_time;
}

/* A process that ends has given up its memory, and its files in /proc belong to root. */
static bool has_memory(const struct target *t)
{
    char text[128];
    const char *s = text;
    return read_text(t, "statm", text, sizeof text) == 0 && number(&s) > 0;
}

/* ---- copying ---- */

static int transfer(ssize_t (*move)(int, void *, size_t, off_t), int fd, void *buf, size_t len, uint64_t at)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = move(fd, (uint8_t *)buf + done, len - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

static ssize_t put(int fd, void *buf, size_t len, off_t at)
{
    return pwrite(fd, buf, len, at);
}

struct copy {
    int file; /* pagemap (save) or mem (load) of the process */
    int ram, table;
    const struct memory_request *q;
    struct memory_reply *rep;
    uint32_t staged;
};

static bool is_changed(uint64_t entry)
{
    return ((entry & PAGEMAP_PRESENT) && !(entry & PAGEMAP_FILE)) || (entry & PAGEMAP_SWAPPED);
}

static bool is_flagged(uint64_t entry)
{
    return entry & HEAD_CHANGED;
}

/* Length of the run of pages that starts at `i`, at most RUN. */
static uint32_t run_length(const uint64_t *map, bool (*wanted)(uint64_t), uint32_t i, uint32_t n)
{
    uint32_t len = 0;
    while (len < RUN && i + len < n && wanted(map[i + len]))
        len++;
    return len;
}

static bool is_zero(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, HEAD_PAGE - 1) == 0;
}

/* Compares a page with what the base has; updates its entry. True when it is to be written. */
static bool differs(const uint8_t *page, uint64_t *entry)
{
    if (*entry == 0 && is_zero(page))
        return false;
    uint64_t now = head_entry(XXH3_64bits(page, HEAD_PAGE));
    if (now == *entry)
        return false;
    *entry = now | HEAD_CHANGED;
    return true;
}

/* Pages [from, to) of `staged`, which lie in one chunk, whose part of the table is loaded. Those
 * that differ are written, neighbours together. */
static int write_pages(struct copy *c, uint64_t chunk, uint32_t from, uint32_t to)
{
    uint32_t start = from; /* of the run to be written, which ends before k */
    int rc = 0;
    for (uint32_t k = from; k <= to && rc == 0; k++) {
        bool wanted = k < to && differs(pages + (size_t)k * HEAD_PAGE, &table[staged[k] - chunk]);
        bool joins = wanted && (k == start || staged[k] == staged[k - 1] + 1);
        if (!joins && k > start) {
            rc = transfer(put, c->ram, pages + (size_t)start * HEAD_PAGE, (size_t)(k - start) * HEAD_PAGE, staged[start] * HEAD_PAGE);
            c->rep->written += k - start;
        }
        if (!joins)
            start = wanted ? k : k + 1;
    }
    return rc;
}

static int write_staged(struct copy *c)
{
    int rc = 0;
    for (uint32_t from = 0, to; from < c->staged && rc == 0; from = to) {
        uint64_t chunk = staged[from] / CHUNK * CHUNK, all = c->q->length / HEAD_PAGE;
        size_t bytes = (all - chunk < CHUNK ? all - chunk : CHUNK) * sizeof table[0];
        uint64_t at = c->q->table + chunk * sizeof table[0];
        for (to = from; to < c->staged && staged[to] < chunk + CHUNK; to++)
            ;
        rc = transfer(pread, c->table, table, bytes, at);
        if (rc == 0)
            rc = write_pages(c, chunk, from, to);
        if (rc == 0)
            rc = transfer(put, c->table, table, bytes, at);
    }
    if (c->staged > STAGED_FEW)
        madvise(pages, sizeof pages, MADV_DONTNEED);
    c->staged = 0;
    return rc;
}

/* Twice as fast as /proc/PID/mem. It goes by the number of the process: is_same() afterwards. */
static int read_memory(const struct copy *c, uint64_t page, uint8_t *to, uint32_t len)
{
    uint64_t at = c->q->address + page * HEAD_PAGE;
    for (size_t done = 0, all = (size_t)len * HEAD_PAGE; done < all;) {
        struct iovec local = {to + done, all - done}, remote = {(void *)(uintptr_t)(at + done), all - done};
        ssize_t n = process_vm_readv(c->q->pid, &local, 1, &remote, 1, 0);
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

static int stage(struct copy *c, uint64_t page, uint32_t len)
{
    int rc = c->staged + len > STAGED_MAX ? write_staged(c) : 0;
    if (rc == 0)
        rc = read_memory(c, page, pages + (size_t)c->staged * HEAD_PAGE, len);
    for (uint32_t k = 0; k < len; k++)
        staged[c->staged + k] = page + k;
    c->staged += len;
    c->rep->pages += len;
    return rc;
}

static int save_chunk(struct copy *c, uint64_t first, uint32_t n)
{
    int rc = transfer(pread, c->file, pagemap, n * sizeof pagemap[0], (c->q->address / HEAD_PAGE + first) * sizeof pagemap[0]);
    for (uint32_t i = 0; i < n && rc == 0;) {
        uint32_t len = run_length(pagemap, is_changed, i, n);
        if (len)
            rc = stage(c, first + i, len);
        i += len ? len : 1;
    }
    return rc;
}

static int load_run(struct copy *c, uint64_t first, uint32_t i, uint32_t len)
{
    uint64_t at = (first + i) * HEAD_PAGE;
    int rc = transfer(pread, c->ram, pages, (size_t)len * HEAD_PAGE, at);
    for (uint32_t k = 0; k < len && rc == 0; k++)
        if (table[i + k] != (head_entry(XXH3_64bits(pages + (size_t)k * HEAD_PAGE, HEAD_PAGE)) | HEAD_CHANGED))
            rc = -EBADMSG;
    if (rc == 0)
        rc = transfer(put, c->file, pages, (size_t)len * HEAD_PAGE, c->q->address + at);
    c->rep->pages += len;
    return rc;
}

static int load_chunk(struct copy *c, uint64_t first, uint32_t n)
{
    int rc = transfer(pread, c->table, table, n * sizeof table[0], c->q->table + first * sizeof table[0]);
    for (uint32_t i = 0; i < n && rc == 0;) {
        uint32_t len = run_length(table, is_flagged, i, n);
        if (len)
            rc = load_run(c, first, i, len);
        i += len ? len : 1;
    }
    return rc;
}

static void reply(int sock, const struct memory_reply *rep)
{
    if (send(sock, rep, sizeof *rep, MSG_NOSIGNAL) != (ssize_t)sizeof *rep)
        _exit(0); /* space-noded is gone */
}

static int copy(const struct target *t, int sock, const int *fds, struct memory_reply *rep)
{
    bool save = t->q->op == MEMORY_SAVE;
    if (fds[MEMORY_FD_RAM] < 0 || fds[MEMORY_FD_TABLE] < 0 || t->q->address % HEAD_PAGE || t->q->length % HEAD_PAGE)
        return -EINVAL;
    AUTO_CLOSE int file = open_as_target(t, save ? "pagemap" : "mem", save ? O_RDONLY : O_RDWR);
    if (file < 0)
        return file == -EACCES && !has_memory(t) ? -ESRCH : file;
    struct copy c = {.file = file, .ram = fds[MEMORY_FD_RAM], .table = fds[MEMORY_FD_TABLE], .q = t->q, .rep = rep};
    uint64_t count = t->q->length / HEAD_PAGE;
    int rc = 0;
    for (uint64_t first = 0; first < count && rc == 0; first += CHUNK) {
        uint32_t n = count - first < CHUNK ? (uint32_t)(count - first) : CHUNK;
        rc = save ? save_chunk(&c, first, n) : load_chunk(&c, first, n);
    }
    if (rc == 0 && save && !is_same(t))
        rc = -ESRCH;
    if (rc == 0 && save) {
        reply(sock, rep);
        rc = write_staged(&c);
    }
    return rc;
}

/* ---- measuring ---- */

static uint64_t kilobytes(const char *text, const char *name)
{
    const char *s = strstr(text, name);
    if (!s)
        return 0;
    s += strlen(name);
    return number(&s) * 1024;
}

static int measure(const struct target *t, struct memory_reply *rep)
{
    static char text[4096];
    int rc = read_text(t, "smaps_rollup", text, sizeof text);
    rep->pss = kilobytes(text, "\nPss:");
    rep->pss_anon = kilobytes(text, "\nPss_Anon:");
    return rc;
}

/* ---- requests ---- */

/* By the directory that is open, not by a number. */
static int end_process(const struct target *t)
{
    return syscall(SYS_pidfd_send_signal, t->dir, SIGKILL, NULL, 0) < 0 ? -errno : 0;
}

static void answer(int sock, const struct memory_request *q, const int *fds)
{
    struct memory_reply rep = {0};
    struct target t = {.dir = -1};
    int rc = open_target(q, &t, &rep.start_time);
    if (rc == 0 && (q->op == MEMORY_SAVE || q->op == MEMORY_LOAD))
        rc = copy(&t, sock, fds, &rep);
    else if (rc == 0 && q->op == MEMORY_PSS)
        rc = measure(&t, &rep);
    else if (rc == 0 && q->op == MEMORY_KILL)
        rc = end_process(&t);
    else if (rc == 0 && q->op != MEMORY_IDENTIFY)
        rc = -EOPNOTSUPP;
    cleanup_close(&t.dir);
    rep.error = rc;
    reply(sock, &rep);
}

static void serve(int sock)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(MEMORY_FDS * sizeof(int))];
    } control;
    struct memory_request q;
    struct iovec iov = {&q, sizeof q};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fds[MEMORY_FDS] = {-1, -1};
    ssize_t got = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR)
        return;
    if (got != (ssize_t)sizeof q)
        _exit(0); /* space-noded is gone */
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof fds))
        memcpy(fds, CMSG_DATA(c), sizeof fds);
    answer(sock, &q, fds);
    for (int i = 0; i < MEMORY_FDS; i++)
        cleanup_close(&fds[i]);
}

/* ---- rights ---- */

static bool become_nobody(void)
{
    const uint64_t keep = 1ull << CAP_SYS_PTRACE | 1ull << CAP_KILL | 1ull << CAP_SETUID | 1ull << CAP_SETGID;
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = (uint32_t)keep, .permitted = (uint32_t)keep}};
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            return false;
    return prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0 && setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 &&
           setresuid(NOBODY, NOBODY, NOBODY) == 0 && syscall(SYS_capset, &head, data) == 0 && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
}

#define LOAD(field)              BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define RETURN(what)             BPF_STMT(BPF_RET | BPF_K, (what))
#define ALLOW(number)            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), RETURN(SECCOMP_RET_ALLOW)
#define DENY_UNLESS(jump, value) BPF_JUMP(BPF_JMP | (jump) | BPF_K, (value), 1, 0), RETURN(SECCOMP_RET_KILL_PROCESS)

/* What is not in here ends the process. */
static bool install_filter(uid_t uid_base, uint32_t uid_count)
{
    struct sock_filter f[] = {
        LOAD(arch),
        DENY_UNLESS(BPF_JEQ, ARCH),
        LOAD(nr),
        ALLOW(SYS_pread64),
        ALLOW(SYS_pwrite64),
        ALLOW(SYS_read),
        ALLOW(SYS_openat),
        ALLOW(SYS_close),
        ALLOW(SYS_madvise),
        ALLOW(SYS_process_vm_readv),
        ALLOW(SYS_pidfd_send_signal),
        ALLOW(SYS_recvmsg),
        ALLOW(SYS_sendto),
        ALLOW(SYS_rt_sigreturn),
        ALLOW(SYS_restart_syscall),
        ALLOW(SYS_exit_group),
#ifdef __SANITIZE_ADDRESS__
        ALLOW(SYS_write),
        ALLOW(SYS_mmap),
        ALLOW(SYS_munmap),
        ALLOW(SYS_getpid),
        ALLOW(SYS_gettid),
        ALLOW(SYS_sigaltstack),
        ALLOW(SYS_futex),
#endif
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setfsuid, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setfsgid, 1, 0),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(args[0]), /* its low half; the kernel looks at no more */
        ALLOW(NOBODY),
        DENY_UNLESS(BPF_JGE, uid_base),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, uid_base + uid_count, 0, 1),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof f / sizeof f[0], f};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

_Noreturn void memory_helper(int sock, uid_t uid_base, uint32_t uid_count)
{
    const struct rlimit none = {0, 0};
    prctl(PR_SET_NAME, "noded-memory", 0, 0, 0);
    setpriority(PRIO_PROCESS, 0, -10); /* some guest stands still meanwhile */
    if (setrlimit(RLIMIT_CORE, &none) < 0 || chroot("/proc") < 0 || chdir("/") < 0 || !become_nobody() || prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0) < 0 ||
        !install_filter(uid_base, uid_count)) {
        log_error("confine a memory helper: %s (does it have CAP_SYS_CHROOT, CAP_SETUID, CAP_SETGID?)", strerror(errno));
        _exit(1);
    }
    madvise(pages, sizeof pages, MADV_HUGEPAGE); /* a fault for each page takes as long as its copy */
    for (;;)
        serve(sock);
}
