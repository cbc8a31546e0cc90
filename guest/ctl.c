// SPDX-License-Identifier: Apache-2.0
// The commands of /ctl: see ctl.h. Whatever may block on the root file system is done by the
// freezer or a helper.
#include "guest/ctl.h"

#include "base/str.h"
#include "guest/helper.h"
#include "guest/hooks.h"
#include "guest/identity.h"
#include "guest/net.h"
#include "guest/settle.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

#define COMMAND_MAX    1200
#define GENERATION_LEN 32
/* From the kernel's fs/ext4/ext4.h: not in a header for programs. */
#define EXT4_IOC_RESIZE_FS _IOW('f', 16, uint64_t)

/* The arguments of `load`; they point into the command. */
struct load {
    uint64_t nsec;
    char *generation, *seed, *hostname;
};

/* A command in flight; outlives its request when that is flushed. */
struct command {
    struct agent *agent;
    struct p9_request *r;
    char text[COMMAND_MAX], *arg;
    struct load load; /* of `load` */
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

static int do_hostname(struct command *c)
{
    return identity_set_hostname(c->arg);
}

static int add_entropy(const struct command *c, const char *hex)
{
    uint8_t bytes[IDENTITY_ENTROPY_MAX];
    long n = identity_from_hex(hex, bytes, sizeof bytes);
    return n < 0 ? (int)n : identity_add_entropy(c->agent->root.random, bytes, (size_t)n);
}

static int do_entropy(struct command *c)
{
    return add_entropy(c, c->arg);
}

static int set_machine_id(const struct agent *a, const char *hex)
{
    return identity_set_machine_id(a->root.machine_id, a->root.machine_id_map, hex);
}

static int do_generation(struct command *c)
{
    if (strlen(c->arg) != GENERATION_LEN)
        return -EINVAL;
    int rc = add_entropy(c, c->arg);
    return rc < 0 ? rc : set_machine_id(c->agent, c->arg);
}

static void thawed(void *user, int rc)
{
    (void)user;
    (void)rc;
}

/* A freeze that was captured with the guest is of no use to anybody any more, and hooks would wait.
 */
static void end_old_freeze(struct freezer *f)
{
    if (freezer_used(f))
        freezer_thaw(f, thawed, NULL);
}

static int parse_load(char *text, struct load *out)
{
    uint8_t bytes[IDENTITY_ENTROPY_MAX];
    char *nsec = strsep(&text, " ");
    out->generation = strsep(&text, " ");
    out->seed = strsep(&text, " ");
    out->hostname = strsep(&text, " ");
    if (!out->hostname || text || str_parse_u64(nsec, INT64_MAX, &out->nsec) < 0 || strlen(out->generation) != GENERATION_LEN ||
        identity_from_hex(out->generation, bytes, sizeof bytes) < 0 || identity_from_hex(out->seed, bytes, sizeof bytes) < 0 ||
        !identity_hostname_valid(out->hostname))
        return -EINVAL;
    return 0;
}

static int run_hooks(void *arg)
{
    const struct command *c = arg;
    hooks_run(&(struct hooks){c->load.generation, c->load.hostname});
    return 0;
}

static void hooks_done(void *user, int rc)
{
    (void)rc; /* somebody in the guest killed the helper */
    finish(user, 0);
}

/*
 * This is on the way of `mkdir`, and in an emulator that has not run this guest before: what code
 * it takes counts more than how long that runs. So nothing but system calls that need no disk and
 * no other process, unless there are hooks.
 */
static int do_load(struct command *c)
{
    struct agent *a = c->agent;
    int rc = parse_load(c->arg, &c->load);
    if (rc == 0)
        rc = add_entropy(c, c->load.seed);
    if (rc == 0)
        rc = identity_set_clock((int64_t)c->load.nsec);
    if (rc == 0)
        rc = identity_set_hostname(c->load.hostname);
    if (rc == 0)
        rc = set_machine_id(a, c->load.generation);
    if (rc < 0)
        return rc;
    net_end_connections();
    end_old_freeze(&a->freezer);
    if (!hooks_maybe())
        return 0;
    rc = helper_start(&a->loop, run_hooks, c, hooks_done, c);
    return rc < 0 ? rc : -EINPROGRESS;
}

static int sync_root(void *arg)
{
    return syncfs(((struct command *)arg)->agent->root.top) < 0 ? -errno : 0;
}

static int do_sync(struct command *c)
{
    return by_helper(c, sync_root);
}

static int settle_guest(void *arg)
{
    return settle(&((struct command *)arg)->agent->root);
}

static int do_settle(struct command *c)
{
    return by_helper(c, settle_guest);
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
    {"freeze", do_freeze, 1},         {"thaw", do_thaw, 0},       {"load", do_load, 1}, {"clock", do_clock, 1},   {"hostname", do_hostname, 1},
    {"generation", do_generation, 1}, {"entropy", do_entropy, 1}, {"sync", do_sync, 0}, {"settle", do_settle, 0}, {"grow", do_grow, 0},
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
