// SPDX-License-Identifier: Apache-2.0
// The confinement of a browser: what it needs works, all else kills it.
#include "hostd/browse/isolate.h"
#include "unit/check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int image, connection, other;

/* How a child that is confined and then does this ends: a status of wait(2). */
static int end_of(void (*act)(void))
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct err e = {0};
        if (isolate_browser(image, connection, &e) < 0)
            _exit(100);
        act();
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

#define KILLED(act)                                                                                                                                  \
    do {                                                                                                                                             \
        int status = end_of(act);                                                                                                                    \
        fprintf(stderr, "  %s: %s\n", #act, WIFSIGNALED(status) ? "killed" : "went on");                                                             \
        CHECK_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status), SIGSYS);                                                             \
    } while (0)

static void need(int holds)
{
    if (!holds)
        _exit(1);
}

static void do_what_is_needed(void)
{
    char buf[4];
    need(pread(image, buf, 4, 0) == 4 && lseek(image, 0, SEEK_END) == 5);
    need(write(connection, "x", 1) == 1);
    void *p = malloc(100 << 20);
    need(p != NULL);
    free(p);
    p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(p != MAP_FAILED && mprotect(p, 4096, PROT_READ) == 0 && munmap(p, 4096) == 0);
}

#ifndef __SANITIZE_ADDRESS__
static void take_too_much_memory(void)
{
    need(malloc((size_t)600 << 20) == NULL);
}
#endif

static void what_it_needs_works(void)
{
    CHECK_EQ(end_of(do_what_is_needed), 0);
}

static void memory_is_limited(void)
{
#ifdef __SANITIZE_ADDRESS__
    fprintf(stderr, "  not with sanitizers, whose shadow takes terabytes of addresses\n");
#else
    CHECK_EQ(end_of(take_too_much_memory), 0);
#endif
}

static void open_a_file(void)
{
    (void)!open("/etc/passwd", O_RDONLY);
}
static void open_with_a_number(void)
{
    syscall(SYS_open, "/", O_RDONLY);
}
static void write_to_the_image(void)
{
    (void)!pwrite(image, "x", 1, 0);
}
static void write_elsewhere(void)
{
    (void)!write(other, "x", 1);
}
static void read_elsewhere(void)
{
    char c;
    (void)!pread(other, &c, 1, 0);
}
static void make_a_socket(void)
{
    (void)!socket(AF_INET, SOCK_STREAM, 0);
}
static void send_a_descriptor(void)
{
    struct msghdr m = {0};
    (void)!sendmsg(connection, &m, 0);
}
static void start_a_process(void)
{
    (void)!fork();
}
static void execute(void)
{
    execl("/bin/true", "true", NULL);
}
static void kill_another(void)
{
    kill(1, 0);
}
static void trace(void)
{
    syscall(SYS_ptrace, 0, 1, 0, 0);
}
static void map_a_file(void)
{
    mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, image, 0);
}
static void map_code(void)
{
    mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void make_code(void)
{
    static _Alignas(4096) char page[4096];
    mprotect(page, sizeof page, PROT_READ | PROT_EXEC);
}
static void raise_a_limit(void)
{
    syscall(SYS_prlimit64, 0, 9, NULL, NULL);
}
static void use_the_other_numbers(void)
{
    syscall(0x40000000 | SYS_brk, 0);
}

static void all_else_kills(void)
{
#ifdef __SANITIZE_ADDRESS__
    fprintf(stderr, "  not with sanitizers, whose own calls must not kill\n");
    return;
#endif
    KILLED(open_a_file);
    KILLED(open_with_a_number);
    KILLED(write_to_the_image);
    KILLED(write_elsewhere);
    KILLED(read_elsewhere);
    KILLED(make_a_socket);
    KILLED(send_a_descriptor);
    KILLED(start_a_process);
    KILLED(execute);
    KILLED(kill_another);
    KILLED(trace);
    KILLED(map_a_file);
    KILLED(map_code);
    KILLED(make_code);
    KILLED(raise_a_limit);
    KILLED(use_the_other_numbers);
}

int main(int argc, char **argv)
{
    static const struct check_test tests[] = {TEST(what_it_needs_works), TEST(memory_is_limited), TEST(all_else_kills)};
    int pair[2];
    image = memfd_create("image", 0);
    other = memfd_create("other", 0);
    CHECK(image >= 0 && other >= 0 && write(image, "12345", 5) == 5);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    connection = pair[0];
    return check_run(tests, sizeof tests / sizeof *tests, argc, argv);
}
