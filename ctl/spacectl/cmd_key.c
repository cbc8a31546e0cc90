// SPDX-License-Identifier: Apache-2.0
// spacectl key show, rotate, revoke: the key under which what a tenant stores is encrypted, through space-volumed.
#include "spacectl/command.h"
#include "spacectl/volumed.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OPT_CONFIG, OPT_FOR_GOOD };

static const struct option_def options[] = {
    [OPT_CONFIG] = {'c', "config", "FILE", VOLUMED_CONFIG_HELP},
    {0, NULL, NULL, NULL},
};

static const struct option_def revoke_options[] = {
    [OPT_CONFIG] = {'c', "config", "FILE", VOLUMED_CONFIG_HELP},
    [OPT_FOR_GOOD] = {0, "for-good", NULL, "yes, nobody will ever read that data again"},
    {0, NULL, NULL, NULL},
};

static void print_key(const char *tenant, const struct volumed_reply *r)
{
    static const char *const policies[] = {"pause", "continue", "kill"};
    printf("%s: key ", tenant);
    for (size_t i = 0; i < sizeof r->key.id; i++)
        printf("%02x", r->key.id[i]);
    printf(", wrapped by %.*s; when it is revoked: %s\n", (int)sizeof r->key.wrapped_by, r->key.wrapped_by,
           r->key.policy < 3 ? policies[r->key.policy] : "?");
}

static int one_tenant(int fd, const char *tenant, uint32_t flags, struct err *e)
{
    struct volumed_reply rep;
    if (!str_name_valid(tenant, strlen(tenant)))
        return err_set(e, EINVAL, "'%s' is no tenant's name", tenant);
    int rc = volumed_ask(fd, VOLUMED_KEY, tenant, flags, &rep, NULL, e);
    if (rc == 0 && rep.error < 0)
        rc = err_set(e, -rep.error, "%s", rep.sentence);
    if (rc == 0 && flags == VOLUMED_KEY_CLOSE)
        printf("%s: revoked\n", tenant);
    else if (rc == 0)
        print_key(tenant, &rep);
    return rc;
}

static int each_tenant(const struct args *a, uint32_t flags, struct err *e)
{
    struct volumed_reply hello;
    AUTO_CLOSE int fd = volumed_open(args_value(a, OPT_CONFIG), &hello, e);
    int rc = fd < 0 ? -e->code : 0;
    for (int i = 0; rc == 0 && i < a->pos_count; i++)
        rc = one_tenant(fd, a->pos[i], flags, e);
    return rc;
}

static int show(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    (void)self, (void)t;
    return each_tenant(a, 0, e);
}

static int rotate(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    (void)self, (void)t;
    return each_tenant(a, VOLUMED_KEY_ROTATE, e);
}

static int revoke_key(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    (void)self, (void)t;
    if (!args_value(a, OPT_FOR_GOOD))
        return err_set(e, EINVAL, "that cannot be undone: what %s has in the store can be read by nobody afterwards. Say --for-good if that is meant",
                       a->pos_count == 1 ? a->pos[0] : "they");
    return each_tenant(a, VOLUMED_KEY_CLOSE, e);
}

const struct command command_key_show = {
    .name = "key show",
    .usage = "[--config FILE] TENANT ...",
    .summary = "say whether a tenant's key can be used, and who wraps it",
    .help = "For root.\n",
    .options = options,
    .pos_min = 1,
    .pos_max = -1,
    .flags = COMMAND_NO_MOUNT,
    .run = show,
};

const struct command command_key_rotate = {
    .name = "key rotate",
    .usage = "[--config FILE] TENANT ...",
    .summary = "wrap a tenant's key by the wrapping key that its file names now; no data is written anew",
    .help = "Remove the old wrapping key only after this. For root.\n",
    .options = options,
    .pos_min = 1,
    .pos_max = -1,
    .flags = COMMAND_NO_MOUNT,
    .run = rotate,
};

const struct command command_key_revoke = {
    .name = "key revoke",
    .usage = "--for-good [--config FILE] TENANT ...",
    .summary = "make what a tenant has in the store unreadable, on every node, for good",
    .help = "Other nodes stop within five minutes. What a tenant with a key service of its own has in this node's pool, and does not run, is "
            "encrypted first, so that it cannot be read\n"
            "either: this waits for space-hostd to do so, for a minute or more, five at the most. A tenant revokes its key itself, and may take it "
            "back, where its wrapping key is kept.\n"
            "For root.\n",
    .options = revoke_options,
    .pos_min = 1,
    .pos_max = -1,
    .flags = COMMAND_NO_MOUNT,
    .run = revoke_key,
};
