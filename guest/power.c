// SPDX-License-Identifier: Apache-2.0
// Switches the machine off: see power.h. Every process of the guest descends from PID 1, so none is
// left when it has no children.
#include "guest/power.h"

#include "guest/helper.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <unistd.h>

#define TERM_MSEC 3000
#define KILL_MSEC 1000 /* a process in uninterruptible sleep is not waited for longer */
#define SYNC_MSEC 30000

static int finish(void *arg)
{
    (void)arg;
    int top = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ioctl(top, FITHAW, 0); /* or nothing below would end */
    sync();
    mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    reboot(RB_POWER_OFF);
    return 0;
}

static void off(void *user, int rc)
{
    (void)user;
    (void)rc;
    reboot(RB_POWER_OFF);
}

static void next(struct power *p)
{
    switch (p->step) {
    case POWER_ON:
        p->step = POWER_TERM;
        kill(-1, SIGTERM);
        kill(-1, SIGCONT);
        poll_timer_start(p->loop, &p->timer, TERM_MSEC);
        break;
    case POWER_TERM:
        p->step = POWER_KILL;
        kill(-1, SIGKILL);
        poll_timer_start(p->loop, &p->timer, KILL_MSEC);
        break;
    case POWER_KILL:
        p->step = POWER_SYNC;
        poll_timer_start(p->loop, &p->timer, SYNC_MSEC);
        if (helper_start(p->loop, finish, NULL, off, NULL) < 0)
            finish(NULL);
        break;
    case POWER_SYNC: reboot(RB_POWER_OFF); break;
    }
}

static void power_timer(struct poll_timer *t)
{
    next((struct power *)(void *)((char *)t - offsetof(struct power, timer)));
}

void power_init(struct power *p, struct poll_loop *l)
{
    *p = (struct power){.loop = l, .timer.fire = power_timer};
}

void power_off(struct power *p)
{
    if (p->step == POWER_ON)
        next(p);
}

bool power_going(const struct power *p)
{
    return p->step != POWER_ON;
}

void power_reaped(struct power *p, bool none_left)
{
    if (none_left && p->step == POWER_TERM)
        p->step = POWER_KILL; /* nobody to kill */
    else if (!none_left || p->step != POWER_KILL)
        return;
    next(p);
}
