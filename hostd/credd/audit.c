// SPDX-License-Identifier: Apache-2.0
// Writing the audit log: see audit.h.
#include "hostd/credd/audit.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/credd/audit_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SYNC_MSEC 200u
#define FILE_MAX  ((off_t)64 << 20)
#define DAY_SEC   86400

struct audit {
    uv_loop_t *loop;
    uv_timer_t timer;
    uv_work_t work;
    bool syncing, dirty;
    int sync_fd; /* of the file that is being synced */
    char folder[256];
    int fd;
    off_t size;
    time_t day;    /* when it was last written, in days */
    unsigned days; /* that files are kept; 0: for ever */
    struct audit_end end;
};

/* ---- to the disk ---- */

static void sync_work(uv_work_t *w)
{
    const struct audit *a = w->data;
    if (fdatasync(a->sync_fd) < 0)
        log_error("the audit log is not written to the disk: %s", strerror(errno));
}

static void sync_done(uv_work_t *w, int status)
{
    struct audit *a = w->data;
    (void)status;
    close(a->sync_fd);
    a->syncing = false;
}

static void sync_tick(uv_timer_t *t)
{
    struct audit *a = t->data;
    if (a->syncing || !a->dirty)
        return;
    a->sync_fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 3);
    if (a->sync_fd < 0)
        return;
    a->syncing = true;
    a->dirty = false;
    a->work.data = a;
    uv_queue_work(a->loop, &a->work, sync_work, sync_done);
}

int audit_sync(struct audit *a)
{
    a->dirty = false;
    return fdatasync(a->fd) < 0 ? -errno : 0;
}

/* ---- files ---- */

static int open_file(struct audit *a, uint64_t first, struct err *e)
{
    char path[AUDIT_PATH_MAX];
    audit_file_path(path, a->folder, first);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    AUTO_CLOSE int folder = open(a->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || folder < 0 || fstat(fd, &st) < 0 || fsync(folder) < 0) {
        if (fd >= 0)
            close(fd);
        return err_sys(e, "open %s", path);
    }
    if (a->fd >= 0) {
        fdatasync(a->fd);
        close(a->fd);
    }
    a->fd = fd;
    a->size = st.st_size;
    a->day = st.st_mtime / DAY_SEC;
    return 0;
}

/* What a power failure left of a line that was not whole, and so was never told of. */
static int cut_torn(struct audit *a, struct err *e)
{
    char buf[AUDIT_LINE_MAX * 2];
    off_t from = a->size > (off_t)sizeof buf ? a->size - (off_t)sizeof buf : 0;
    ssize_t n = pread(a->fd, buf, sizeof buf, from);
    if (n < 0)
        return err_sys(e, "read the audit log in %s", a->folder);
    size_t len = (size_t)n;
    while (len && buf[len - 1] != '\n')
        len--;
    if (len == (size_t)n)
        return 0;
    log_warn("the last line of the audit log in %s was not whole: it is cut off", a->folder);
    a->size = from + (off_t)len;
    return ftruncate(a->fd, a->size) < 0 ? err_sys(e, "cut the audit log in %s", a->folder) : 0;
}

static int remove_file(const char *folder, uint64_t first, struct err *e)
{
    char path[AUDIT_PATH_MAX];
    audit_file_path(path, folder, first);
    return unlink(path) < 0 ? err_sys(e, "remove %s", path) : 0;
}

int audit_open(uv_loop_t *loop, const char *folder, unsigned days, struct audit **out, struct err *e)
{
    struct audit *a = calloc(1, sizeof *a);
    uint64_t first = 0;
    if (!a)
        return err_set(e, ENOMEM, "open the audit log: out of memory");
    a->fd = -1;
    a->loop = loop;
    a->days = days;
    str_copy(a->folder, sizeof a->folder, folder);
    int rc = mkdir(folder, 0700) < 0 && errno != EEXIST ? err_sys(e, "make %s", folder) : audit_file_last(folder, &first, e);
    if (rc == 0)
        rc = open_file(a, first ? first : 1, e);
    if (rc == 0)
        rc = cut_torn(a, e);
    if (rc == 0)
        rc = audit_file_end(folder, first ? first : 1, &a->end, e); /* whatever is to be said of it: audit_verify says it */
    bool empty = rc == 0 && a->end.lines == 0 && first > 1;         /* a power failure right after a new file was begun */
    if (empty)
        rc = remove_file(folder, first, e);
    if (rc < 0 || empty) {
        audit_close(a);
        return rc < 0 ? rc : audit_open(loop, folder, days, out, e);
    }
    if (loop) {
        uv_timer_init(loop, &a->timer);
        a->timer.data = a;
        uv_timer_start(&a->timer, sync_tick, SYNC_MSEC, SYNC_MSEC);
        uv_unref((uv_handle_t *)&a->timer);
    }
    *out = a;
    return 0;
}

void audit_close(struct audit *a)
{
    if (a->fd >= 0) {
        fdatasync(a->fd);
        close(a->fd);
    }
    free(a); /* with a loop, at the end of the process only */
}

/* ---- lines ---- */

/* As JSON wants it; what is no printable ASCII becomes '?': it may come from a guest. */
static void quote(const char *text, char *out, size_t size)
{
    size_t n = 0;
    for (; *text && n + 3 < size; text++) {
        char c = *text;
        if (c == '"' || c == '\\')
            out[n++] = '\\';
        out[n++] = c >= 0x20 && c < 0x7f ? c : '?';
    }
    out[n] = 0;
}

static int append(struct audit *a, const char *line, size_t len)
{
    ssize_t n = write(a->fd, line, len);
    int rc = n == (ssize_t)len ? 0 : n < 0 ? -errno : -ENOSPC;
    if (rc == 0)
        a->size += (off_t)len;
    else if (n > 0 && ftruncate(a->fd, a->size) < 0)
        log_error("half a line is left in the audit log: %s", strerror(errno));
    return rc;
}

static int write_line(struct audit *a, const char *kind, uint64_t credential, uint64_t sandbox, uint32_t uid, uint64_t count, const char *text)
{
    char line[AUDIT_LINE_MAX], quoted[AUDIT_TEXT_MAX], prev[AUDIT_HASH * 2 + 1], hash[AUDIT_HASH * 2 + 1], stamp[40];
    struct audit_end end = {.lines = a->end.lines + 1};
    struct timespec now;
    struct tm tm;
    size_t len = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    quote(text, quoted, sizeof quoted);
    sodium_bin2hex(prev, sizeof prev, a->end.hash, AUDIT_HASH);
    str_append(line, sizeof line, &len,
               "{\"seq\":%" PRIu64 ",\"time\":\"%s.%03ldZ\",\"kind\":\"%s\",\"credential\":\"%012" PRIx64 "\",\"sandbox\":\"%012" PRIx64
               "\",\"uid\":%u,\"count\":%" PRIu64 ",\"text\":\"%s\",\"prev\":\"%s\"",
               end.lines, stamp, now.tv_nsec / 1000000, kind, credential, sandbox, uid, count, quoted, prev);
    crypto_hash_sha256(end.hash, (const unsigned char *)line, len);
    sodium_bin2hex(hash, sizeof hash, end.hash, AUDIT_HASH);
    str_append(line, sizeof line, &len, ",\"hash\":\"%s\"}\n", hash);
    int rc = append(a, line, len);
    if (rc < 0)
        return rc;
    a->end = end;
    a->day = now.tv_sec / DAY_SEC;
    a->dirty = true;
    return 0;
}

/* True: the file is so old that it goes, now that it is written where it ended. */
static bool drop(struct audit *a, uint64_t number)
{
    char path[AUDIT_PATH_MAX], hash[AUDIT_HASH * 2 + 1], text[AUDIT_TEXT_MAX];
    struct audit_end end;
    struct stat st;
    audit_file_path(path, a->folder, number);
    if (stat(path, &st) < 0 || time(NULL) - st.st_mtime < (time_t)a->days * DAY_SEC || audit_file_end(a->folder, number, &end, NULL) < 0)
        return false;
    snprintf(text, sizeof text, AUDIT_DROP_TEXT, end.lines, sodium_bin2hex(hash, sizeof hash, end.hash, AUDIT_HASH));
    return write_line(a, "drop", 0, 0, 0, 1, text) == 0 && audit_sync(a) == 0 && remove_file(a->folder, number, NULL) == 0;
}

/* The oldest first: what is left has no gap. */
static void drop_old(struct audit *a)
{
    AUTO_FREE uint64_t *numbers = NULL;
    size_t count = 0, i = 0;
    if (!a->days || audit_file_list(a->folder, &numbers, &count, NULL) < 0)
        return;
    while (i + 1 < count && drop(a, numbers[i]))
        i++;
    if (i)
        log_info("%zu files of the audit log were older than %u days, and are gone", i, a->days);
}

/* A file for each day, and more when one is large. */
static int next_file(struct audit *a)
{
    if (a->size == 0 || (a->size <= FILE_MAX && time(NULL) / DAY_SEC == a->day))
        return 0;
    int rc = open_file(a, a->end.lines + 1, NULL);
    if (rc == 0)
        drop_old(a);
    return rc;
}

int audit_note(struct audit *a, const char *kind, uint64_t credential, uint64_t sandbox, uint32_t uid, uint64_t count, const char *text)
{
    int rc = next_file(a);
    if (rc == 0)
        rc = write_line(a, kind, credential, sandbox, uid, count, text);
    if (rc < 0)
        log_error("the audit log cannot be written: %s", strerror(-rc));
    return rc;
}

struct audit_end audit_end(const struct audit *a)
{
    return a->end;
}
