// SPDX-License-Identifier: Apache-2.0
// space-inject: starts HAProxy, which ends TLS for hosts that have a credential (docs/injection.md).
//
// As root it writes HAProxy's configuration, gives itself a network of its own that has nothing in it, gives up what HAProxy does not need to bind its
// sockets and become `inject_user`, and becomes HAProxy. Which can then reach what is in RUN/inject, its root directory, and nothing else.
#include "base/log.h"
#include "base/options.h"
#include "hostd/credd/haproxy.h"
#include "ipc/inject.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define HAPROXY "/usr/sbin/haproxy"

/* What HAProxy does as root: sockets for other users, its root directory, another user. */
static bool is_needed(int capability)
{
    static const int needed[] = {CAP_CHOWN, CAP_FOWNER, CAP_DAC_OVERRIDE, CAP_SETGID, CAP_SETUID, CAP_SYS_CHROOT, CAP_SETPCAP};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (needed[i] == capability)
            return true;
    return false;
}

static int confine(struct err *e)
{
    const struct rlimit none = {0, 0};
    struct rlimit files;
    if (unshare(CLONE_NEWNET) < 0)
        return err_sys(e, "make a network of its own");
    for (int i = 0; i <= CAP_LAST_CAP; i++)
        if (!is_needed(i) && prctl(PR_CAPBSET_DROP, i) < 0 && errno != EINVAL)
            return err_sys(e, "give up capability %d", i);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || setgroups(0, NULL) < 0)
        return err_sys(e, "give up privileges");
    if (setrlimit(RLIMIT_CORE, &none) < 0) /* secrets are in its memory */
        return err_sys(e, "forbid core dumps");
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    return 0;
}

static void become_haproxy(char *file, bool checks)
{
    char *argv[] = {(char[]){HAPROXY}, (char[]){"-q"}, checks ? (char[]){"-c"} : (char[]){"-db"}, (char[]){"-f"}, file, NULL};
    /* Its buffers come and go with each request: memory is not given back to the kernel between two of them. */
    char *env[] = {(char[]){"PATH=/usr/sbin:/usr/bin"}, (char[]){"MALLOC_TRIM_THRESHOLD_=16777216"}, (char[]){"MALLOC_TOP_PAD_=1048576"}, NULL};
    execve(HAPROXY, argv, env);
}

/* It warns of each list that is empty, and is silent on errors when it may not warn: so it is only asked whether all is well. */
static int check(char *file, struct err *e)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        become_haproxy(file, true);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return err_sys(e, "start " HAPROXY);
    return status == 0 ? 0 : err_set(e, EINVAL, "HAProxy does not take its configuration: " HAPROXY " -c -f %s says why", file);
}

static int run(const char *path, struct err *e)
{
    static struct config c;
    char folder[CONFIG_PATH_MAX], file[CONFIG_PATH_MAX + 16];
    int rc = config_load(path, &c, e);
    if (rc < 0)
        return rc;
    if (!c.inject) {
        log_info("nothing is injected (config `inject = no`)");
        for (;;)
            pause();
    }
    umask(022);
    snprintf(folder, sizeof folder, "%s/" INJECT_DIR, c.run);
    snprintf(file, sizeof file, "%s/haproxy.cfg", folder);
    if ((mkdir(folder, 0755) < 0 && errno != EEXIST) || chmod(folder, 0755) < 0)
        return err_sys(e, "make %s", folder);
    rc = haproxy_configure(&c, folder, e);
    if (rc == 0)
        rc = check(file, e);
    if (rc == 0)
        rc = confine(e);
    if (rc < 0)
        return rc;
    become_haproxy(file, false);
    return err_sys(e, "start " HAPROXY);
}

int main(int argc, char **argv)
{
    const char *config;
    struct err e = {0};
    int status = options_parse(argc, argv, "space-inject", "", &config);
    if (status >= 0)
        return status;
    run(config, &e);
    log_error("%s", e.msg);
    return 1;
}
