// SPDX-License-Identifier: Apache-2.0
// spacectl audit verify: is the log of space-credd as it was written? The chain of its lines says so, and space-credd where it ends.
#include "spacectl/command.h"

#include "base/cleanup.h"
#include "base/config.h"
#include "hostd/credd/audit.h"
#include "ipc/credd.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { OPT_CONFIG };

static const struct option_def options[] = {
    [OPT_CONFIG] = {'c', "config", "FILE", "the instance's configuration (default $SPACE_CONFIG, else " CONFIG_PATH_DEFAULT ")"},
    {0, NULL, NULL, NULL},
};

static int ask(int fd, uint32_t op, struct credd_reply *rep, struct err *e)
{
    const struct credd_request q = {.version = CREDD_VERSION, .op = op, .tag = op};
    if (send(fd, &q, sizeof q, MSG_NOSIGNAL) != (ssize_t)sizeof q || recv(fd, rep, sizeof *rep, 0) != (ssize_t)sizeof *rep)
        return err_sys(e, "ask space-credd");
    rep->sentence[sizeof rep->sentence - 1] = 0;
    return rep->error < 0 ? err_set(e, -rep->error, "%s", rep->sentence) : 0;
}

static int ask_end(const struct config *c, struct audit_end *out, struct err *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 10};
    struct credd_reply rep;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/credd.sock", c->run);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return err_sys(e, "connect to space-credd on %s", address.sun_path);
    int rc = ask(fd, CREDD_HELLO, &rep, e);
    if (rc == 0)
        rc = ask(fd, CREDD_AUDIT, &rep, e);
    if (rc < 0)
        return rc;
    out->lines = rep.audit.lines;
    memcpy(out->hash, rep.audit.hash, sizeof out->hash);
    return 0;
}

/* space-credd goes on writing: what it said before we read must be there now. */
static int check_end(const struct audit_end *said, const struct audit_end *found, struct err *e)
{
    if (found->lines < said->lines)
        return err_set(e, EBADMSG,
                       "the log ends with line %" PRIu64 ", but space-credd has written %" PRIu64 ": lines %" PRIu64 " to %" PRIu64 " were removed",
                       found->lines, said->lines, found->lines + 1, said->lines);
    if (found->lines == said->lines && memcmp(found->hash, said->hash, AUDIT_HASH) != 0)
        return err_set(e, EBADMSG, "line %" PRIu64 " is another than space-credd wrote: the log, or its end, was written anew", found->lines);
    return 0;
}

static int verify(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    struct config config;
    struct audit_end said = {0}, found;
    struct err unasked = {0};
    char folder[CONFIG_PATH_MAX + 8], hash[AUDIT_HASH * 2 + 1];
    const char *env = getenv("SPACE_CONFIG"), *path = args_value(a, OPT_CONFIG);
    (void)self, (void)t;
    int rc = config_load(path ? path : env && *env ? env : CONFIG_PATH_DEFAULT, &config, e);
    if (rc < 0)
        return rc;
    snprintf(folder, sizeof folder, "%s/audit", config.credentials);
    int asked = ask_end(&config, &said, &unasked);
    rc = audit_verify(folder, &found, e);
    if (rc == 0 && asked == 0)
        rc = check_end(&said, &found, e);
    if (rc < 0)
        return rc;
    if (found.first > 1)
        printf("lines 1 to %" PRIu64 " are not there any more: %s\n", found.first - 1,
               found.dropped ? "they were older than audit_days" : "no line says why");
    printf("%" PRIu64 " lines, each follows the one before it; the last one's hash is %s\n", found.lines - found.first + 1,
           sodium_bin2hex(hash, sizeof hash, found.hash, AUDIT_HASH));
    if (asked < 0)
        printf("whether lines are missing at the end cannot be said: %s\n", unasked.msg);
    return 0;
}

const struct command command_audit_verify = {
    .name = "audit verify",
    .usage = "[--config FILE]",
    .summary = "check the log of decisions on secrets and of denied connections; names the first broken line",
    .help = "Keep the last hash elsewhere: who can write all of the log and space-credd's memory could write both anew. For root.\n",
    .options = options,
    .pos_min = 0,
    .pos_max = 0,
    .flags = COMMAND_NO_MOUNT,
    .run = verify,
};
