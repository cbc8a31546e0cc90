// SPDX-License-Identifier: Apache-2.0
// spacectl credential set, ls, rm, login: secrets, through credentials/ of the mount, where spacefs seals them.
#include "spacectl/command.h"
#include "spacectl/table.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "ipc/credd.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#define VARIANT    sodium_base64_VARIANT_ORIGINAL
#define SCOPE_HELP "platform, tenant, label.admin.KEY=VALUE or sandbox.NAME, for root USER:... (default tenant)"

enum { OPT_SCOPE, OPT_HOST, OPT_METHOD, OPT_EXPIRES, OPT_RATE };
enum { OPT_JSON };

static const struct option_def set_options[] = {
    [OPT_SCOPE] = {'s', "scope", "SCOPE", SCOPE_HELP},
    [OPT_HOST] = {'H', "host", "HOST", "HOST[:PORT] or *.DOMAIN that it may be sent to; may be given several times"},
    [OPT_METHOD] = {'m', "method", "METHOD", "'header NAME [FORMAT with {}]', 'basic USER', 'query NAME' or 'autofill USER'"},
    [OPT_EXPIRES] = {'e', "expires", "WHEN", "never, 2026-12-31T23:59:59Z, or a duration such as 30d"},
    [OPT_RATE] = {'r', "rate", "RATE", "none, or USES/DURATION such as 100/1m"},
    {0, NULL, NULL, NULL},
};

static const struct option_def rm_options[] = {
    [OPT_SCOPE] = {'s', "scope", "SCOPE", SCOPE_HELP},
    {0, NULL, NULL, NULL},
};

static const struct option_def ls_options[] = {
    [OPT_JSON] = {'j', "json", NULL, "print a JSON array"},
    {0, NULL, NULL, NULL},
};

static int path_of(char out[TREE_PATH_MAX], const char *scope, const char *name, const char *file, struct err *e)
{
    if (strchr(scope, '/') || !str_name_valid(name, strlen(name)))
        return err_set(e, EINVAL, "'%.80s/%.80s' is no scope and name of a credential", scope, name);
    return tree_path(out, e, "credentials/%s/%s%s%s", scope, name, *file ? "/" : "", file);
}

/* ---- set ---- */

/* One line from the standard input; a terminal shows nothing of it. */
static int read_secret(char *out, size_t size, struct err *e)
{
    struct termios old, quiet;
    bool terminal = tcgetattr(STDIN_FILENO, &old) == 0;
    size_t len = 0;
    ssize_t n = 1;
    if (terminal) {
        quiet = old;
        quiet.c_lflag &= ~(tcflag_t)ECHO;
        fputs("value: ", stderr);
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
    }
    while (len < size - 1 && n > 0 && !(terminal && len && out[len - 1] == '\n')) {
        n = read(STDIN_FILENO, out + len, size - 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    if (terminal) {
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &old);
        fputc('\n', stderr);
    }
    if (n < 0)
        return err_sys(e, "read the value from the standard input");
    if (len && out[len - 1] == '\n')
        len--;
    out[len] = 0;
    return len ? 0 : err_set(e, EINVAL, "the value is read from the standard input, and there was none");
}

static int write_field(const struct tree *t, const char *scope, const char *name, const char *file, const char *value, struct err *e)
{
    char path[TREE_PATH_MAX];
    int rc = path_of(path, scope, name, file, e);
    return rc < 0 ? rc : tree_write(t, path, value, e);
}

static int write_hosts(const struct tree *t, const char *scope, const char *name, const struct args *a, struct err *e)
{
    char hosts[CREDD_HOSTS_SIZE] = "";
    size_t pos = 0;
    const char *host;
    for (int at = 0; (host = args_next(a, OPT_HOST, &at));)
        if (!str_append(hosts, sizeof hosts, &pos, "%s\n", host))
            return err_set(e, E2BIG, "hosts have more than %u bytes", CREDD_HOSTS_SIZE - 1);
    return pos ? write_field(t, scope, name, "hosts", hosts, e) : 0;
}

/* What it may be used for first, the value last. */
static int fill(const struct tree *t, const char *scope, const char *name, const struct args *a, const char *value, struct err *e)
{
    static const struct {
        int option;
        const char *file;
    } fields[] = {{OPT_METHOD, "method"}, {OPT_EXPIRES, "expires"}, {OPT_RATE, "rate"}};
    int rc = write_field(t, scope, name, "value", "\n", e);
    if (rc == 0)
        rc = write_hosts(t, scope, name, a, e);
    for (size_t i = 0; rc == 0 && i < sizeof fields / sizeof fields[0]; i++)
        if (args_value(a, fields[i].option))
            rc = write_field(t, scope, name, fields[i].file, args_value(a, fields[i].option), e);
    return rc < 0 ? rc : write_field(t, scope, name, "value", value, e);
}

static int set(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    char path[TREE_PATH_MAX], value[CREDD_VALUE_MAX + 2];
    const char *scope = args_value(a, OPT_SCOPE) ? args_value(a, OPT_SCOPE) : "tenant";
    (void)self;
    int rc = path_of(path, scope, a->pos[0], "", e);
    sodium_mlock(value, sizeof value); /* as far as it goes */
    if (rc == 0)
        rc = read_secret(value, sizeof value, e);
    if (rc == 0 && faccessat(t->fd, path, F_OK, 0) < 0)
        rc = tree_mkdir(t, path, e);
    if (rc == 0)
        rc = fill(t, scope, a->pos[0], a, value, e);
    sodium_munlock(value, sizeof value); /* wipes, too */
    return rc;
}

/* ---- ls, rm ---- */

static const struct column columns[] = {
    {"scope", COLUMN_TEXT, NULL}, {"name", COLUMN_TEXT, NULL},    {"state", COLUMN_TEXT, NULL}, {"method", COLUMN_TEXT, NULL},
    {"hosts", COLUMN_TEXT, NULL}, {"expires", COLUMN_TEXT, NULL}, {"rate", COLUMN_TEXT, NULL},  {NULL, COLUMN_TEXT, NULL},
};

static void add_row(const struct tree *t, struct table *table, const char *scope, const char *name)
{
    static const char *const files[] = {"state", "method", "hosts", "expires", "rate"};
    char path[TREE_PATH_MAX], text[5][CREDD_HOSTS_SIZE];
    const char *cells[7] = {scope, name};
    for (size_t i = 0; i < 5; i++) {
        if (path_of(path, scope, name, files[i], NULL) < 0 || tree_read(t, path, text[i], sizeof text[i], NULL) < 0)
            return; /* it went meanwhile, or is no credential but a file of the scope */
        for (char *c = text[i]; *c; c++)
            *c = *c == '\n' ? ' ' : *c;
        cells[i + 2] = text[i];
    }
    table_add(table, cells);
}

static int list_scope(const struct tree *t, struct table *table, const char *scope, struct err *e)
{
    char path[TREE_PATH_MAX], **names;
    int rc = tree_path(path, e, "credentials/%s", scope);
    int count = rc < 0 ? rc : tree_list(t, path, &names, e);
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], "autofill") != 0)
            add_row(t, table, scope, names[i]);
    if (count >= 0)
        tree_free_names(names, count);
    return count < 0 ? count : 0;
}

static int ls(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    struct table *table = table_create(columns);
    char **scopes;
    int rc = 0, count = a->pos_count ? 0 : tree_list(t, "credentials", &scopes, e);
    (void)self;
    for (int i = 0; i < a->pos_count && rc == 0; i++)
        rc = strchr(a->pos[i], '/') ? err_set(e, EINVAL, "'%.80s' is no scope", a->pos[i]) : list_scope(t, table, a->pos[i], e);
    for (int i = 0; i < count; i++)
        if (strcmp(scopes[i], "key") != 0)
            list_scope(t, table, scopes[i], NULL); /* a sandbox may go meanwhile */
    if (count > 0)
        tree_free_names(scopes, count);
    rc = count < 0 ? count : rc;
    if (rc == 0)
        table_print(table, args_value(a, OPT_JSON), stdout);
    table_destroy(table);
    return rc;
}

static int rm(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    const char *scope = args_value(a, OPT_SCOPE) ? args_value(a, OPT_SCOPE) : "tenant";
    char path[TREE_PATH_MAX];
    int rc = 0;
    (void)self;
    for (int i = 0; i < a->pos_count && rc == 0; i++) {
        rc = path_of(path, scope, a->pos[i], "", e);
        if (rc == 0)
            rc = tree_rmdir(t, path, e);
    }
    return rc;
}

/* ---- login ---- */

/* What came back, opened and printed. */
static int print_login(const char *line, size_t len, const uint8_t *public, const uint8_t *secret, struct err *e)
{
    size_t prefix = strlen(CREDD_SEALED), n = 0;
    AUTO_FREE uint8_t *box = malloc(len + 1);
    char *plain = sodium_malloc(len + 1);
    bool good = box && plain && len > prefix && !strncmp(line, CREDD_SEALED, prefix) &&
                sodium_base642bin(box, len, line + prefix, len - prefix, "\n", &n, NULL, VARIANT) == 0 && n > crypto_box_SEALBYTES &&
                crypto_box_seal_open((uint8_t *)plain, box, n, public, secret) == 0;
    if (good) {
        plain[n - crypto_box_SEALBYTES] = '\n';
        fflush(stdout);
        good = write(STDOUT_FILENO, plain, n - crypto_box_SEALBYTES + 1) > 0; /* through no buffer */
    }
    if (plain)
        sodium_free(plain);
    return good ? 0 : err_set(e, EBADMSG, "the answer is no login, or sealed to another key");
}

static int login(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    uint8_t public[crypto_box_PUBLICKEYBYTES], secret[crypto_box_SECRETKEYBYTES];
    char path[TREE_PATH_MAX], key[64], question[TREE_PATH_MAX + 64], *answer = malloc(TREE_VALUE_MAX);
    ssize_t n = -1;
    (void)self;
    if (!answer || sodium_init() < 0)
        return err_set(e, ENOMEM, "out of memory");
    crypto_box_keypair(public, secret);
    sodium_bin2base64(key, sizeof key, public, sizeof public, VARIANT);
    snprintf(question, sizeof question, "%.400s %s", a->pos[1], key);
    int rc = strchr(a->pos[0], '/') ? err_set(e, EINVAL, "'%.80s' is no sandbox's name", a->pos[0])
                                    : tree_path(path, e, "credentials/sandbox.%s/autofill", a->pos[0]);
    const char *colon = strchr(a->pos[0], ':');
    if (rc == 0 && colon) /* OWNER:NAME */
        rc = tree_path(path, e, "credentials/%.*s:sandbox.%s/autofill", (int)(colon - a->pos[0]), a->pos[0], colon + 1);
    AUTO_CLOSE int fd = rc < 0 ? -1 : tree_file(t, path, O_RDWR, e);
    if (rc == 0 && fd < 0)
        rc = fd;
    else if (rc == 0 && (write(fd, question, strlen(question)) < 0 || (n = pread(fd, answer, TREE_VALUE_MAX, 0)) < 0))
        rc = tree_fail(t, errno, "ask", path, e);
    if (rc == 0)
        rc = print_login(answer, (size_t)n, public, secret, e);
    sodium_memzero(secret, sizeof secret);
    free(answer);
    return rc;
}

const struct command command_credential_set = {
    .name = "credential set",
    .usage = "[--scope SCOPE] [--host HOST ...] [--method METHOD] [--expires WHEN] [--rate RATE] NAME",
    .summary = "make a credential, or give it another value, which is read from the standard input",
    .help = "The value is a line that nobody reads back. While it is replaced the credential is refused.\n",
    .options = set_options,
    .pos_min = 1,
    .pos_max = 1,
    .run = set,
};

const struct command command_credential_ls = {
    .name = "credential ls",
    .usage = "[--json] [SCOPE ...]",
    .summary = "list credentials, without their values",
    .options = ls_options,
    .pos_min = 0,
    .pos_max = -1,
    .run = ls,
};

const struct command command_credential_rm = {
    .name = "credential rm",
    .usage = "[--scope SCOPE] NAME ...",
    .summary = "remove credentials: from then on they are used by nobody",
    .options = rm_options,
    .pos_min = 1,
    .pos_max = -1,
    .run = rm,
};

const struct command command_credential_login = {
    .name = "credential login",
    .usage = "SANDBOX ORIGIN",
    .summary = "print the login that a sandbox has for https://HOST[:PORT], as JSON: for an agent that drives a browser",
    .help = "Counts, is limited and logged as every use of a credential.\n",
    .pos_min = 2,
    .pos_max = 2,
    .run = login,
};
