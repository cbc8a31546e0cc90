// SPDX-License-Identifier: Apache-2.0
// The host's CA in the guest: see trust.h.
//
// Theory of operation. A child does it, as all of this is the guest's file system. Bundles that distributions keep get the certificates at their end, between two
// lines of ours: the first time by one appending write, which nobody can see half of and which dirties one block; later by a new file in place of the old one.
// Sources that distributions make their bundles from get files, so that they are there again after `update-ca-certificates` and the like; folders that OpenSSL
// looks into get them by hash. /run/space/ca.pem has them alone. A root without any of these gets Debian's bundle.
//
// PID 1 remembers what it was told last: a fork and what was restored with its memory are told the same again, and cost nothing.
#include "guest/trust.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "guest/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OWN_DIR      "/run/space"
#define OWN          OWN_DIR "/ca.pem"
#define MARK_BEGIN   "# BEGIN spacefs\n"
#define MARK_END     "# END spacefs\n"
#define BUNDLE_MAX   (16 << 20)
#define CERTS_MAX    8
#define HASH_LEN     8
#define HASH_NUMBERS 4 /* of the same hash */

/* Bundles of Debian and Alpine, Fedora, SUSE, others. */
static const char *const bundles[] = {"/etc/ssl/certs/ca-certificates.crt",
                                      "/etc/pki/tls/certs/ca-bundle.crt",
                                      "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
                                      "/etc/ssl/ca-bundle.pem",
                                      "/etc/ssl/cert.pem",
                                      "/etc/pki/tls/cert.pem"};
/* Folders that they are made from, and where to put a new one if its parent is there. */
static const char *const sources[] = {"/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors",
                                      "/etc/ca-certificates/trust-source/anchors"};
static const char hashed[] = "/etc/ssl/certs";

/* Variables that name the only bundle a program uses, and those that name CAs besides its own. */
static const char *const instead[] = {
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",    "PIP_CERT",          "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO",  "NIX_SSL_CERT_FILE", "HTTPLIB2_CA_CERTS", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"};
static const char *const besides[] = {"NODE_EXTRA_CA_CERTS", "DENO_CERT"};

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* One certificate of what was told. */
struct cert {
    const char *pem;
    size_t len;
    char hash[HASH_LEN + 1]; /* "": not told */
};

struct trust {
    char text[TRUST_MAX + 1];
    struct cert certs[CERTS_MAX];
    size_t count;
};

/* A request, which outlives its message when that is flushed. */
struct order {
    struct agent *agent;
    struct p9_request *r;
    char *text;
};

/* ---- what was told ---- */

static const char *skip_line(const char *at)
{
    const char *end = strchr(at, '\n');
    return end ? end + 1 : at + strlen(at);
}

/* -EINVAL: nothing but certificates and comments may be there. */
static int parse(struct trust *t)
{
    static const char begin[] = "-----BEGIN CERTIFICATE-----\n", end[] = "-----END CERTIFICATE-----\n", hash[] = "# hash ";
    char next[HASH_LEN + 1] = "";
    for (const char *at = t->text; *at;) {
        if (!strncmp(at, hash, sizeof hash - 1) && strspn(at + sizeof hash - 1, "0123456789abcdef") == HASH_LEN)
            memcpy(next, at + sizeof hash - 1, HASH_LEN);
        if (*at == '#' || *at == '\n') {
            at = skip_line(at);
            continue;
        }
        const char *last = strncmp(at, begin, sizeof begin - 1) == 0 ? strstr(at, end) : NULL;
        if (!last || t->count == CERTS_MAX)
            return -EINVAL;
        struct cert *c = &t->certs[t->count++];
        c->pem = at;
        c->len = (size_t)(last - at) + sizeof end - 1;
        memcpy(c->hash, next, sizeof next);
        next[0] = 0;
        at += c->len;
    }
    return t->count ? 0 : -EINVAL;
}

/* ---- files ---- */

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static int write_all(int fd, const void *bytes, size_t len)
{
    for (const char *p = bytes; len;) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno != EINTR)
            return -errno;
        p += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* In place of what is there, with its owner and mode (NULL: nothing is). */
static int replace(const char *path, const struct stat *like, const void *bytes, size_t len)
{
    char new[PATH_MAX];
    if ((size_t)snprintf(new, sizeof new, "%s.spacefs", path) >= sizeof new)
        return -ENAMETOOLONG;
    unlink(new);
    AUTO_CLOSE int fd = open(new, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    int rc = write_all(fd, bytes, len);
    if (rc == 0 && (fchmod(fd, like ? like->st_mode & 07777 : 0644) < 0 || (like && fchown(fd, like->st_uid, like->st_gid) < 0)))
        rc = -errno;
    if (rc == 0 && rename(new, path) < 0)
        rc = -errno;
    if (rc < 0)
        unlink(new);
    return rc;
}

/* malloc'ed, NUL-ended; NULL with errno. */
static char *read_file(const char *path, struct stat *st)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, st) < 0)
        return NULL;
    if (!S_ISREG(st->st_mode) || st->st_size > BUNDLE_MAX) {
        errno = EFBIG;
        return NULL;
    }
    char *text = malloc((size_t)st->st_size + 1);
    ssize_t n = text ? read(fd, text, (size_t)st->st_size) : -1;
    if (n != st->st_size) {
        free(text);
        errno = EIO;
        return NULL;
    }
    text[n] = 0;
    return text;
}

/* Cuts our part out; true: there was one. */
static bool cut_ours(char *text)
{
    char *begin = strstr(text, MARK_BEGIN), *end = begin ? strstr(begin, MARK_END) : NULL;
    if (!end)
        return false;
    end += sizeof MARK_END - 1;
    memmove(begin, end, strlen(end) + 1);
    return true;
}

static int append(const char *path, const char *part)
{
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    return fd < 0 ? -errno : write_all(fd, part, strlen(part));
}

/* A bundle that a link leads to is changed where it is. */
static int update_bundle(const char *link, const struct trust *t)
{
    char path[PATH_MAX], part[TRUST_MAX + 64];
    struct stat st;
    if (!realpath(link, path))
        return -errno;
    AUTO_FREE char *text = read_file(path, &st);
    if (!text)
        return -errno;
    bool had = cut_ours(text);
    size_t len = strlen(text);
    bool open_line = len && text[len - 1] != '\n';
    int n = snprintf(part, sizeof part, "%s" MARK_BEGIN "%s" MARK_END, open_line ? "\n" : "", t->text);
    if (!had)
        return append(path, part);
    AUTO_FREE char *all = malloc(len + (size_t)n);
    if (!all)
        return -ENOMEM;
    memcpy(all, text, len);
    memcpy(all + len, part, (size_t)n);
    return replace(path, &st, all, len + (size_t)n);
}

/* With files of ours for certificates that there are no more, too. */
static void update_source(const char *folder, const struct trust *t)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < CERTS_MAX; i++) {
        snprintf(path, sizeof path, "%s/spacefs-%zu.crt", folder, i + 1);
        if (i >= t->count)
            unlink(path);
        else if (replace(path, NULL, t->certs[i].pem, t->certs[i].len) < 0)
            log_warn("write %s: %s", path, strerror(errno));
    }
}

static void update_hashed(const struct cert *c)
{
    char path[PATH_MAX];
    struct stat st;
    for (int i = 0; i < HASH_NUMBERS && c->hash[0]; i++) {
        snprintf(path, sizeof path, "%s/%s.%d", hashed, c->hash, i);
        AUTO_FREE char *there = read_file(path, &st);
        if (there && strncmp(there, c->pem, c->len) != 0 && strlen(there) > c->len + 1)
            continue; /* another's, of the same hash */
        replace(path, NULL, c->pem, c->len);
        return;
    }
}

static void make_dirs(const char *path)
{
    char part[PATH_MAX];
    for (size_t i = 1; path[i]; i++)
        if (path[i] == '/') {
            snprintf(part, sizeof part, "%.*s", (int)i, path);
            mkdir(part, 0755);
        }
}

static void update_bundles(const struct trust *t)
{
    bool any = false;
    for (size_t i = 0; i < COUNT(bundles); i++) {
        bool seen = false;
        char real[PATH_MAX], other[PATH_MAX];
        if (!realpath(bundles[i], real))
            continue;
        for (size_t j = 0; j < i && !seen; j++)
            seen = realpath(bundles[j], other) && strcmp(real, other) == 0;
        int rc = seen ? 0 : update_bundle(bundles[i], t);
        if (rc < 0)
            log_warn("put the host's CA into %s: %s", bundles[i], strerror(-rc));
        any = any || rc == 0;
    }
    if (any || exists(bundles[0]))
        return;
    make_dirs(bundles[0]);
    replace(bundles[0], NULL, "", 0);
    update_bundle(bundles[0], t);
}

static int install(void *arg)
{
    const struct order *o = arg;
    struct trust *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    umask(022);
    strcpy(t->text, o->text);
    int rc = parse(t);
    if (rc < 0)
        return rc;
    mkdir(OWN_DIR, 0755);
    rc = replace(OWN, NULL, t->text, strlen(t->text));
    make_dirs("/usr/local/share/ca-certificates/");
    for (size_t i = 0; i < COUNT(sources); i++)
        if (exists(sources[i]))
            update_source(sources[i], t);
    update_bundles(t);
    for (size_t i = 0; i < t->count && exists(hashed); i++)
        update_hashed(&t->certs[i]);
    return rc;
}

/* ---- the request ---- */

static void answer(struct p9_request *r, int rc)
{
    struct p9_msg m = {0};
    m.Rwrite.count = r->t->Twrite.data.len;
    if (rc < 0)
        p9_fail(r, -rc);
    else
        p9_reply(r, &m);
}

static void installed(void *user, int rc)
{
    struct order *o = user;
    if (rc == 0) {
        free(o->agent->trusted);
        o->agent->trusted = steal_ptr(o->text);
    }
    if (o->r)
        answer(o->r, rc);
    free(o->text);
    free(o);
}

static void order_cancel(struct p9_request *r)
{
    ((struct order *)r->aux)->r = NULL;
    p9_fail(r, EINTR);
}

void trust_write(struct agent *a, struct p9_request *r)
{
    const struct p9_data *d = &r->t->Twrite.data;
    if (d->len == 0 || d->len > TRUST_MAX || memchr(d->p, 0, d->len)) {
        p9_fail(r, EINVAL);
        return;
    }
    if (a->trusted && strlen(a->trusted) == d->len && memcmp(a->trusted, d->p, d->len) == 0) {
        answer(r, 0);
        return;
    }
    struct order *o = calloc(1, sizeof *o);
    if (!o || !(o->text = strndup(d->p, d->len))) {
        free(o);
        p9_fail(r, ENOMEM);
        return;
    }
    o->agent = a;
    o->r = r;
    r->aux = o;
    r->cancel = order_cancel;
    int rc = helper_start(&a->loop, install, o, installed, o);
    if (rc == 0)
        return;
    r->cancel = NULL;
    installed(o, rc);
}

/* ---- jobs ---- */

void trust_set_environment(void)
{
    const char *bundle = OWN;
    if (!exists(OWN))
        return;
    for (size_t i = COUNT(bundles); i-- > 0;)
        if (exists(bundles[i]))
            bundle = bundles[i];
    for (size_t i = 0; i < COUNT(instead); i++)
        setenv(instead[i], bundle, 0);
    for (size_t i = 0; i < COUNT(besides); i++)
        setenv(besides[i], OWN, 0);
}
