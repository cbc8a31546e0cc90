// SPDX-License-Identifier: Apache-2.0
// The commands of /ctl: see ctl.h. Whatever may block on the root file system is done by the
// freezer or a helper.
#include "guest/ctl.h"

#include "base/str.h"
#include "guest/helper.h"
#include "guest/identity.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

#define COMMAND_MAX 1200
/* From the kernel's fs/ext4/ext4.h: not in a header for programs. */
#define EXT4_IOC_RESIZE_FS _IOW('f', 16, uint64_t)

/* A command in flight; outlives its request when that is flushed. */
struct command {
    struct agent *agent;
    struct p9_request *r;
    char text[COMMAND_MAX], *arg;
};

static void finish(void *user, int rc)
{
    struct command *c = user;
    struct p9_request *r = c->r;
    struct p9_msg m = {0};
    if (r && rc < 0) {
        p9_fail(r, -rc);
    } else if (r) {
        m.Rwrite.count = r->t->Twrite.data.len;
        p9_reply(r, &m);
    }
    free(c);
}

static void command_cancel(struct p9_request *r)
{
    struct command *c = r->aux;
    c->r = NULL;
    p9_fail(r, EINTR);
}

static int by_helper(struct command *c, helper_work *work)
{
    int rc = helper_start(&c->agent->loop, work, c, finish, c);
    return rc < 0 ? rc : -EINPROGRESS;
}

/* ---- one function a command: 0 or -errno is the answer, -EINPROGRESS: it comes later ---- */

static int do_freeze(struct command *c)
{
    uint64_t msec;
    if (str_parse_u64(c->arg, FREEZER_MSEC_MAX, &msec) < 0 || msec == 0)
        return -EINVAL;
    int rc = freezer_freeze(&c->agent->freezer, (unsigned)msec, finish, c);
    return rc < 0 ? rc : -EINPROGRESS;
}

static int do_thaw(struct command *c)
{
    int rc = freezer_thaw(&c->agent->freezer, finish, c);
    return rc < 0 ? rc : -EINPROGRESS;
}

static int do_clock(struct command *c)
{
    uint64_t nsec;
    int rc = str_parse_u64(c->arg, INT64_MAX, &nsec);
    return rc < 0 ? rc : identity_set_clock((int64_t)nsec);
}

static int write_hostname(void *arg)
{
    return identity_write_hostname(((struct command *)arg)->arg);
}

static int do_hostname(struct command *c)
{
    int rc = identity_set_hostname(c->arg);
    return rc < 0 ? rc : by_helper(c, write_hostname);
}

static int write_generation(void *arg)
{
    return identity_write_machine_id(((struct command *)arg)->arg);
}

static int do_entropy(struct command *c)
{
    uint8_t bytes[IDENTITY_ENTROPY_MAX];
    long n = identity_from_hex(c->arg, bytes, sizeof bytes);
    return n < 0 ? (int)n : identity_add_entropy(c->agent->root.random, bytes, (size_t)n);
}

static int do_generation(struct command *c)
{
    if (strlen(c->arg) != 32)
        return -EINVAL;
    int rc = do_entropy(c);
    return rc < 0 ? rc : by_helper(c, write_generation);
}

static int sync_root(void *arg)
{
    return syncfs(((struct command *)arg)->agent->root.top) < 0 ? -errno : 0;
}

static int do_sync(struct command *c)
{
    return by_helper(c, sync_root);
}

static int grow_root(void *arg)
{
    const struct root *root = &((struct command *)arg)->agent->root;
    struct statfs fs;
    uint64_t bytes;
    if (fstatfs(root->top, &fs) < 0 || ioctl(root->disk, BLKGETSIZE64, &bytes) < 0)
        return -errno;
    uint64_t blocks = bytes / (uint64_t)fs.f_bsize;
    return ioctl(root->top, EXT4_IOC_RESIZE_FS, &blocks) < 0 ? -errno : 0;
}

static int do_grow(struct command *c)
{
    return by_helper(c, grow_root);
}

/* Answered by the machine's end. The request, if it is not flushed, dies with the session. */
static int do_poweroff(struct command *c)
{
    agent_power_off(c->agent);
    return -EINPROGRESS;
}

static const struct {
    const char *name;
    int (*run)(struct command *c);
    int args;
} commands[] = {
    {"freeze", do_freeze, 1},
    {"thaw", do_thaw, 0},
    {"clock", do_clock, 1},
    {"hostname", do_hostname, 1},
    {"generation", do_generation, 1},
    {"entropy", do_entropy, 1},
    {"sync", do_sync, 0},
    {"grow", do_grow, 0},
    {"poweroff", do_poweroff, 0},
};

static int run(struct command *c)
{
    char *name = str_trim(c->text);
    c->arg = strchr(name, ' ');
    if (c->arg)
        *c->arg++ = 0;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(name, commands[i].name))
            return (c->arg != NULL) == commands[i].args ? commands[i].run(c) : -EINVAL;
    return -EINVAL;
}

void ctl_write(struct agent *a, struct p9_request *r)
{
    const struct p9_data *d = &r->t->Twrite.data;
    struct command *c = d->len < COMMAND_MAX ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        p9_fail(r, d->len < COMMAND_MAX ? ENOMEM : EINVAL);
        return;
    }
    c->agent = a;
    c->r = r;
    memcpy(c->text, d->p, d->len);
    r->aux = c;
    r->cancel = command_cancel;
    int rc = memchr(c->text, 0, d->len) ? -EINVAL : run(c);
    if (rc != -EINPROGRESS) {
        r->cancel = NULL;
        finish(c, rc);
    }
}
