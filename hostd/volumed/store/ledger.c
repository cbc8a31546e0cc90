// SPDX-License-Identifier: Apache-2.0
// This node's own claims: see ledger.h.
#include "hostd/volumed/store/ledger.h"

#include "base/log.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER      ".claims" /* no tenant's name */
#define SETTLE_MSEC 1200000u  /* until nothing of a process that ended is taken any more */
#define AGAIN_MSEC  60000u    /* a claim that could not be deleted */
#define FILE_SIZE   (KEYS_TENANT_MAX + 1 + OWN_NAME + 1)
#define OWN_NAME    49u /* ID-N */

/* A claim that is to be deleted. */
struct dead_claim {
    struct dead_claim *next;
    struct store *store;
    char tenant[KEYS_TENANT_MAX + 1];
    struct object_id id;
    uint64_t due; /* by the loop's clock */
};

/* TENANT.ID-N: the end of the claim's own name behind the tenant's. */
static void file_name(char out[FILE_SIZE], const char *tenant, const struct object_id *id)
{
    char name[NAME_SIZE];
    store_name(name, tenant, OBJECT_CLAIM, id);
    snprintf(out, FILE_SIZE, "%s.%s", tenant, name + strlen(name) - OWN_NAME);
}

static bool parse_file(const char *file, struct dead_claim *out)
{
    char name[NAME_SIZE];
    size_t len = strlen(file), n = len > OWN_NAME ? len - OWN_NAME - 1 : 0;
    if (n == 0 || n > KEYS_TENANT_MAX || file[n] != '.' || !str_name_valid(file, n))
        return false;
    memcpy(out->tenant, file, n);
    out->tenant[n] = 0;
    store_prefix(name, out->tenant, OBJECT_CLAIM, NULL);
    strcat(name, file + n + 1);
    return store_parse(name, out->tenant, OBJECT_CLAIM, &out->id);
}

/* ---- deleting ---- */

static void on_due(uv_timer_t *t);

static void wait_for(struct store *s, struct dead_claim *d, uint64_t msec)
{
    uint64_t now = uv_now(s->loop);
    d->due = now + msec;
    d->next = s->dead;
    s->dead = d;
    if (!uv_is_active((uv_handle_t *)&s->reaper) || uv_timer_get_due_in(&s->reaper) > msec)
        uv_timer_start(&s->reaper, on_due, msec, 0);
}

static void deleted(void *user, const struct backend_result *r)
{
    struct dead_claim *d = user;
    struct store *s = d->store;
    char file[FILE_SIZE];
    s->background--;
    if (r->rc < 0) { /* the store is away */
        wait_for(s, d, AGAIN_MSEC);
        return;
    }
    file_name(file, d->tenant, &d->id);
    if (s->claims >= 0)
        unlinkat(s->claims, file, 0);
    free(d);
}

static void ask(struct dead_claim *d)
{
    struct store *s = d->store;
    char name[NAME_SIZE];
    store_name(name, d->tenant, OBJECT_CLAIM, &d->id);
    s->background++;
    backend_start(s->backend, &(struct backend_request){.verb = BACKEND_DELETE, .name = name, .done = deleted, .user = d});
}

static void on_due(uv_timer_t *t)
{
    struct store *s = t->data;
    struct dead_claim *rest = s->dead;
    s->dead = NULL;
    for (struct dead_claim *d; (d = rest);) {
        uint64_t now = uv_now(s->loop);
        rest = d->next;
        if (d->due <= now)
            ask(d);
        else
            wait_for(s, d, d->due - now);
    }
}

void ledger_forget(struct store *s, const char *tenant, const struct object_id *claim)
{
    struct dead_claim *d = calloc(1, sizeof *d);
    if (!d)
        abort();
    d->store = s;
    d->id = *claim;
    str_copy(d->tenant, sizeof d->tenant, tenant);
    ask(d);
}

/* ---- the files ---- */

struct note {
    int folder;
    char file[FILE_SIZE];
};

static void make_file(void *arg)
{
    const struct note *n = arg;
    int fd = openat(n->folder, n->file, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        close(fd);
    else
        log_warn("a claim is not noted in the cache (%s): should space-volumed be killed, it stays for a day", strerror(errno));
}

void ledger_note(struct store *s, const char *tenant, const struct object_id *claim)
{
    struct note n = {.folder = s->claims};
    if (s->claims < 0)
        return;
    file_name(n.file, tenant, claim);
    task_thread(s->co, make_file, &n);
}

static unsigned take_files(struct store *s, DIR *dir, uint64_t msec)
{
    unsigned count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct dead_claim *d = calloc(1, sizeof *d);
        if (!d)
            abort();
        d->store = s;
        if (entry->d_name[0] != '.' && parse_file(entry->d_name, d)) {
            wait_for(s, d, msec);
            count++;
        } else {
            free(d);
        }
    }
    return count;
}

void ledger_open(struct store *s)
{
    uint64_t settle = s->stale_s * 1000 / 2;
    uv_timer_init(s->loop, &s->reaper);
    s->reaper.data = s;
    mkdirat(s->cache, FOLDER, 0700);
    int fd = openat(s->cache, FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
        log_warn("the folder %s in the cache cannot be used by this process alone (%s): claims of one that is killed stay for a day", FOLDER,
                 strerror(errno));
        if (fd >= 0)
            close(fd);
        return;
    }
    s->claims = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* the lock is both descriptors' */
    DIR *dir = fdopendir(fd);
    settle = backend_features(s->backend) & BACKEND_LOCAL ? 0 : settle < SETTLE_MSEC ? settle : SETTLE_MSEC;
    unsigned count = dir ? take_files(s, dir, settle) : 0;
    if (count)
        log_info("%u claims of a process that ended are deleted", count);
    if (dir)
        closedir(dir);
}
