// SPDX-License-Identifier: Apache-2.0
// The configuration file: one table of keys, defaults in the file's own syntax, so that both go
// through the same checks.
#include "base/config.h"

#include "base/str.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_SIZE 1024u

enum kind {
    K_PATH,  /* absolute */
    K_TEXT,  /* not empty, no control characters */
    K_NAME,  /* str_name_valid */
    K_ACCEL, /* auto, kvm, tcg */
    K_STYLE, /* path, host */
    K_YES,   /* yes, no */
    K_U32,   /* min to max */
    K_SIZE,  /* min to max, with K M G T */
};

struct key {
    const char *name;
    enum kind kind;
    size_t offset, size;
    uint64_t min, max;
    const char *fallback; /* NULL: found at run time */
};

#define AT(member)  offsetof(struct config, member), sizeof((struct config *)0)->member
#define SIZE_MIB(n) ((uint64_t)(n) << 20)
#define SIZE_GIB(n) ((uint64_t)(n) << 30)

static const struct key keys[] = {
    {"pool", K_PATH, AT(pool), 0, 0, "/var/lib/space/pool"},
    {"run", K_PATH, AT(run), 0, 0, "/run/space"},
    {"state", K_PATH, AT(state), 0, 0, "/var/lib/space/state"},
    {"database", K_PATH, AT(database), 0, 0, NULL},
    {"mount", K_PATH, AT(mount), 0, 0, "/space"},
    {"guest", K_PATH, AT(guest), 0, 0, "/usr/local/lib/space/guest"},
    {"user", K_NAME, AT(user), 0, 0, "space"},
    {"group", K_NAME, AT(group), 0, 0, "space"},
    {"net_user", K_NAME, AT(net_user), 0, 0, "space-net"},
    {"inject_user", K_NAME, AT(inject_user), 0, 0, "space-inject"},
    {"inject", K_YES, AT(inject), 0, 0, "yes"},
    {"inject_ca", K_PATH, AT(inject_ca), 0, 0, "/etc/space/upstream.pem"},
    {"resolver", K_TEXT, AT(resolver), 0, 0, "system"},
    {"egress", K_PATH, AT(egress), 0, 0, "/etc/space/egress"},
    {"egress_congestion", K_NAME, AT(egress_congestion), 0, 0, "system"},
    {"node", K_NAME, AT(node), 0, 0, NULL},
    {"libvirt", K_TEXT, AT(libvirt), 0, 0, "qemu:///system"},
    {"vm_prefix", K_NAME, AT(vm_prefix), 0, 0, "space"},
    {"accel", K_ACCEL, AT(accel), 0, 0, "auto"},
    {"uid_base", K_U32, AT(uid_base), 1000, INT32_MAX, "610000"},
    {"uid_count", K_U32, AT(uid_count), 1, 1u << 20, "4096"},
    {"memory", K_SIZE, AT(memory), SIZE_MIB(32), SIZE_GIB(1024), "256M"},
    {"vcpus", K_U32, AT(vcpus), 1, 64, "1"},
    {"disk", K_SIZE, AT(disk), SIZE_MIB(16), SIZE_GIB(65536), "10G"},
    {"template", K_NAME, AT(template_), 0, 0, "debian"},
    {"keep", K_TEXT, AT(keep), 0, 0, "disk every 5m for 1h, disk every 1h for 1d, disk every 1d for 30d, full every 1h for 6h"},
    {"overcommit_percent", K_U32, AT(overcommit_percent), 10, 10000, "200"},
    {"pool_ready", K_U32, AT(pool_ready), 0, 1024, "2"},
    {"pool_slots", K_U32, AT(pool_slots), 0, 1024, "1"},
    {"pool_max", K_U32, AT(pool_max), 0, 4096, "32"},
    {"suspend_keep", K_YES, AT(suspend_keep), 0, 0, "yes"},
    {"copy_keep", K_U32, AT(copy_keep), 1, 7u * 86400, "600"},
    {"key_check", K_U32, AT(key_check), 1, 240, "60"},
    {"reserve_percent", K_U32, AT(reserve_percent), 0, 90, "5"},
    {"max_sandboxes", K_U32, AT(max_sandboxes), 1, 1u << 20, "4096"},
    {"max_disk", K_SIZE, AT(max_disk), 0, SIZE_GIB(1ull << 24), "0"},
    {"max_jobs", K_U32, AT(max_jobs), 1, 1024, "1024"},
    {"store", K_TEXT, AT(store), 0, 0, "/var/lib/space/store"},
    {"store_region", K_NAME, AT(store_region), 0, 0, "us-east-1"},
    {"store_style", K_STYLE, AT(store_style), 0, 0, "path"},
    {"store_credentials", K_PATH, AT(store_credentials), 0, 0, "/etc/space/store.credentials"},
    {"store_ca", K_PATH, AT(store_ca), 0, 0, NULL},
    {"store_cache", K_PATH, AT(store_cache), 0, 0, "/var/lib/space/volumes"},
    {"store_stale", K_U32, AT(store_stale), 2, 7u * 86400, "86400"},
    {"keys", K_PATH, AT(keys), 0, 0, "/etc/space/keys"},
    {"volume_user", K_NAME, AT(volume_user), 0, 0, "space-vol"},
    {"credentials", K_PATH, AT(credentials), 0, 0, "/var/lib/space/credentials"},
    {"credential_keys", K_PATH, AT(credential_keys), 0, 0, "/etc/space/credential-keys"},
    {"credential_store", K_TEXT, AT(credential_store), 0, 0, "local"},
    {"audit_lines", K_U32, AT(audit_lines), 1, 1000000000, "100"},
    {"audit_days", K_U32, AT(audit_days), 0, 36500, "0"},
    {"cred_user", K_NAME, AT(cred_user), 0, 0, "space-cred"},
    {"job_output", K_SIZE, AT(job_output), 4096, SIZE_GIB(1024), "64M"},
};
#define KEYS (sizeof keys / sizeof keys[0])

static int set_text(const struct key *k, const char *value, char *dst, struct err *e)
{
    size_t len = strlen(value);
    if (!len)
        return err_set(e, EINVAL, "%s has no value", k->name);
    if (len >= k->size)
        return err_set(e, ENAMETOOLONG, "%s takes at most %zu bytes", k->name, k->size - 1);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)value[i] < 0x20 || value[i] == 0x7f)
            return err_set(e, EINVAL, "%s holds a control character", k->name);
    if (k->kind == K_PATH && value[0] != '/')
        return err_set(e, EINVAL, "%s must be an absolute path, not '%s'", k->name, value);
    if (k->kind == K_NAME && !str_name_valid(value, len))
        return err_set(e, EINVAL, "%s must be letters, digits, '.', '_' and '-', not '%s'", k->name, value);
    if (k->kind == K_ACCEL && strcmp(value, "auto") != 0 && strcmp(value, "kvm") != 0 && strcmp(value, "tcg") != 0)
        return err_set(e, EINVAL, "%s must be auto, kvm or tcg, not '%s'", k->name, value);
    if (k->kind == K_STYLE && strcmp(value, "path") != 0 && strcmp(value, "host") != 0)
        return err_set(e, EINVAL, "%s must be path or host, not '%s'", k->name, value);
    memcpy(dst, value, len + 1);
    return 0;
}

static int set_number(const struct key *k, const char *value, void *dst, struct err *e)
{
    uint64_t n = 0;
    int rc = k->kind == K_U32 ? str_parse_u64(value, UINT32_MAX, &n) : str_parse_size(value, &n);
    if (rc == -EINVAL)
        return err_set(e, EINVAL, "%s must be a number%s, not '%s'", k->name, k->kind == K_SIZE ? " such as 256M or 10G" : "", value);
    if (rc < 0 || n < k->min || n > k->max) {
        char min[24], max[24];
        return err_set(e, ERANGE, "%s must be from %s to %s, not '%s'", k->name, str_format_size(k->min, min), str_format_size(k->max, max), value);
    }
    if (k->kind == K_U32)
        *(uint32_t *)dst = (uint32_t)n;
    else
        *(uint64_t *)dst = n;
    return 0;
}

static int set_yes(const struct key *k, const char *value, void *dst, struct err *e)
{
    if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
        return err_set(e, EINVAL, "%s must be yes or no, not '%s'", k->name, value);
    *(uint32_t *)dst = !strcmp(value, "yes");
    return 0;
}

static int set_key(struct config *c, const struct key *k, const char *value, struct err *e)
{
    void *dst = (char *)c + k->offset;
    if (k->kind == K_YES)
        return set_yes(k, value, dst, e);
    return k->kind == K_U32 || k->kind == K_SIZE ? set_number(k, value, dst, e) : set_text(k, value, dst, e);
}

static int set_defaults(struct config *c, struct err *e)
{
    for (size_t i = 0; i < KEYS; i++) {
        int rc = keys[i].fallback ? set_key(c, &keys[i], keys[i].fallback, e) : 0;
        if (rc < 0)
            return rc;
    }
    if (gethostname(c->node, sizeof c->node) < 0 || !memchr(c->node, 0, sizeof c->node) || !str_name_valid(c->node, strlen(c->node)))
        str_copy(c->node, sizeof c->node, "localhost");
    return 0;
}

/* One line of the file; `seen` marks the keys that came before. */
static int take_line(struct config *c, char *line, bool seen[KEYS], struct err *e)
{
    char *text = str_trim(line);
    if (!*text || *text == '#')
        return 0;
    char *eq = strchr(text, '=');
    if (!eq)
        return err_set(e, EINVAL, "expected 'key = value', not '%s'", text);
    *eq = 0;
    char *name = str_trim(text), *value = str_trim(eq + 1);
    for (size_t i = 0; i < KEYS; i++) {
        if (strcmp(name, keys[i].name) != 0)
            continue;
        if (seen[i])
            return err_set(e, EINVAL, "%s is set twice", name);
        seen[i] = true;
        return set_key(c, &keys[i], value, e);
    }
    return err_set(e, EINVAL, "unknown key '%s' (space.conf(5) lists the known ones)", name);
}

static int take_lines(struct config *c, FILE *f, const char *path, bool seen[KEYS], struct err *e)
{
    char line[LINE_SIZE];
    for (unsigned number = 1; fgets(line, sizeof line, f); number++) {
        int rc = 0;
        if (!strchr(line, '\n') && !feof(f))
            rc = err_set(e, EINVAL, "the line is longer than %u bytes", LINE_SIZE - 2);
        else
            rc = take_line(c, line, seen, e);
        if (rc < 0)
            return e ? err_wrap(e, "%s:%u", path, number) : rc;
    }
    return ferror(f) ? err_sys(e, "cannot read %s", path) : 0;
}

/* FOLDER/NAME, FOLDER being that in which `beside` lies. What does not fit, or has no folder, leaves the default. */
static void set_beside(char out[CONFIG_PATH_MAX], const char *beside, const char *name)
{
    const char *slash = beside[0] == '/' ? strrchr(beside, '/') : NULL;
    size_t n = slash ? (size_t)(slash - beside) : 0, len = strlen(name);
    if (n == 0 || n + len + 2 > CONFIG_PATH_MAX)
        return;
    memmove(out, beside, n);
    out[n] = '/';
    memcpy(out + n + 1, name, len + 1);
}

/* A file of before space-volumed says nothing of these: they lie where the rest of that instance does. */
static void set_places(struct config *c, const char *path, const bool seen[KEYS])
{
    char full[PATH_MAX];
    const char *file = realpath(path, full) ? full : "";
    const struct {
        const char *key;
        char *out;
        const char *beside, *name;
    } places[] = {{"store", c->store, c->state, "store"},
                  {"store_cache", c->store_cache, c->state, "volumes"},
                  {"store_credentials", c->store_credentials, file, "store.credentials"},
                  {"keys", c->keys, file, "keys"},
                  {"credentials", c->credentials, c->state, "credentials"},
                  {"credential_keys", c->credential_keys, file, "credential-keys"}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        for (size_t k = 0; k < KEYS; k++)
            if (!strcmp(keys[k].name, places[i].key) && !seen[k])
                set_beside(places[i].out, places[i].beside, places[i].name);
}

int config_load(const char *path, struct config *out, struct err *e)
{
    bool seen[KEYS] = {false};
    memset(out, 0, sizeof *out);
    int rc = set_defaults(out, e);
    if (rc < 0)
        return rc;
    FILE *f = fopen(path, "re");
    if (!f)
        return err_sys(e, "cannot open the configuration %s", path);
    rc = take_lines(out, f, path, seen, e);
    fclose(f);
    if (rc == 0)
        set_places(out, path, seen);
    if (rc == 0 && !out->database[0] && snprintf(out->database, sizeof out->database, "%s/space.db", out->state) >= (int)sizeof out->database)
        rc = err_set(e, ENAMETOOLONG, "%s: the path of `state` is too long for the database's", path);
    if (rc == 0 && (uint64_t)out->uid_base + out->uid_count > INT32_MAX)
        rc = err_set(e, ERANGE, "%s: uid_base + uid_count must stay below %d", path, INT32_MAX);
    return rc;
}
