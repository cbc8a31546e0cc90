// SPDX-License-Identifier: Apache-2.0
// Writing and reading the file of `spacectl export`: see space_file.h.
#include "spacectl/space_file.h"

#include "spacectl/process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC      "spacefs export 1\n"
#define LINE_SIZE  1024u
#define LINES_MAX  4096u
#define RECORD_MAX (1u << 20)
#define DISK_MAX   (64ull << 40)

/* Little endian, as all that runs here. */
struct record {
    uint64_t offset, length;
};

void space_file_begin(struct space_file *f, int fd, const char *name)
{
    *f = (struct space_file){.fd = fd, .name = name, .sum = XXH3_createState(), .buf = malloc(RECORD_MAX)};
    if (!f->sum || !f->buf)
        abort();
    XXH3_128bits_reset(f->sum);
}

void space_file_end(struct space_file *f)
{
    XXH3_freeState(f->sum);
    free(f->buf);
}

/* ---- writing ---- */

static int put(struct space_file *f, const void *data, size_t len, struct err *e)
{
    XXH3_128bits_update(f->sum, data, len);
    for (size_t done = 0; done < len;) {
        ssize_t n = write(f->fd, (const char *)data + done, len - done);
        if (n < 0 && errno != EINTR)
            return err_sys(e, "cannot write %s", f->name);
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int space_file_put_header(struct space_file *f, struct err *e)
{
    return put(f, MAGIC, strlen(MAGIC), e);
}

int space_file_put_setting(struct space_file *f, const char *key, const char *line, struct err *e)
{
    char text[LINE_SIZE];
    if (!key)
        return put(f, "\n", 1, e);
    int n = snprintf(text, sizeof text, "%s %s\n", key, line);
    if (n >= (int)sizeof text)
        return err_set(e, E2BIG, "a line of %s is longer than %zu bytes", key, sizeof text - 3 - strlen(key));
    return put(f, text, (size_t)n, e);
}

static int put_range(struct space_file *f, int disk, uint64_t offset, uint64_t end, struct err *e)
{
    while (offset < end) {
        size_t want = end - offset < RECORD_MAX ? (size_t)(end - offset) : RECORD_MAX;
        ssize_t n = pread(disk, f->buf, want, (off_t)offset);
        if (n <= 0)
            return n < 0 ? err_sys(e, "cannot read the disk") : err_set(e, EIO, "the disk is shorter than it says");
        struct record r = {offset, (uint64_t)n};
        int rc = put(f, &r, sizeof r, e);
        if (rc == 0)
            rc = put(f, f->buf, (size_t)n, e);
        if (rc == 0 && process_interrupted())
            rc = err_set(e, EINTR, "interrupted");
        if (rc < 0)
            return rc;
        offset += (uint64_t)n;
    }
    return 0;
}

int space_file_put_disk(struct space_file *f, int disk, struct err *e)
{
    struct stat st;
    if (fstat(disk, &st) < 0)
        return err_sys(e, "cannot look at the disk");
    for (off_t at = 0, end; at < st.st_size; at = end) {
        off_t data = lseek(disk, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break; /* holes up to the end */
        if (data < 0)
            return err_sys(e, "cannot find the disk's data");
        end = lseek(disk, data, SEEK_HOLE);
        if (end < 0)
            return err_sys(e, "cannot find the disk's holes");
        int rc = put_range(f, disk, (uint64_t)data, (uint64_t)end, e);
        if (rc < 0)
            return rc;
    }
    struct record last = {(uint64_t)st.st_size, 0};
    XXH128_canonical_t sum;
    int rc = put(f, &last, sizeof last, e);
    XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(f->sum));
    return rc < 0 ? rc : put(f, &sum, sizeof sum, e);
}

/* ---- reading ---- */

static int get_raw(struct space_file *f, void *data, size_t len, struct err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = read(f->fd, (char *)data + done, len - done);
        if (n == 0)
            return err_set(e, EBADMSG, "%s is cut: its end is missing", f->name);
        if (n < 0 && errno != EINTR)
            return err_sys(e, "cannot read %s", f->name);
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int get(struct space_file *f, void *data, size_t len, struct err *e)
{
    int rc = get_raw(f, data, len, e);
    if (rc == 0)
        XXH3_128bits_update(f->sum, data, len);
    return rc;
}

/* Byte by byte: there are few, and what follows is not ours. */
static int get_line(struct space_file *f, char out[LINE_SIZE], struct err *e)
{
    for (size_t i = 0; i < LINE_SIZE; i++) {
        int rc = get(f, out + i, 1, e);
        if (rc < 0)
            return rc;
        if (out[i] == 0)
            break;
        if (out[i] != '\n')
            continue;
        out[i] = 0;
        return 0;
    }
    return err_set(e, EBADMSG, "%s is damaged: a setting has no end", f->name);
}

int space_file_get_header(struct space_file *f, int (*setting)(void *user, const char *key, const char *line, struct err *e), void *user,
                          struct err *e)
{
    char line[LINE_SIZE], magic[sizeof MAGIC] = "";
    int rc = get(f, magic, strlen(MAGIC), e);
    if (rc < 0)
        return rc;
    if (strncmp(magic, MAGIC, strlen("spacefs export ")) != 0)
        return err_set(e, EBADMSG, "%s is not what `spacectl export` writes", f->name);
    if (strcmp(magic, MAGIC) != 0)
        return err_set(e, EPROTO, "%s was written by a newer spacectl", f->name);
    for (unsigned n = 0; rc == 0 && n < LINES_MAX; n++) {
        rc = get_line(f, line, e);
        if (rc == 0 && !line[0])
            return 0;
        char *blank = strchr(line, ' ');
        if (rc == 0 && !blank)
            rc = err_set(e, EBADMSG, "%s is damaged: '%.40s' is no setting", f->name, line);
        if (rc == 0) {
            *blank = 0;
            rc = setting(user, line, blank + 1, e);
        }
    }
    return rc < 0 ? rc : err_set(e, EBADMSG, "%s is damaged: it has no end of settings", f->name);
}

static int write_all(int disk, const char *data, size_t len, uint64_t offset, struct err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(disk, data + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno != EINTR)
            return err_sys(e, "cannot write the disk");
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int check_sum(struct space_file *f, struct err *e)
{
    XXH128_canonical_t is, should;
    XXH128_canonicalFromHash(&is, XXH3_128bits_digest(f->sum));
    int rc = get_raw(f, &should, sizeof should, e);
    if (rc == 0 && memcmp(&is, &should, sizeof is) != 0)
        rc = err_set(e, EBADMSG, "%s is damaged: its checksum does not fit", f->name);
    return rc;
}

int space_file_get_disk(struct space_file *f, int disk, struct err *e)
{
    for (uint64_t end = 0;;) {
        struct record r;
        int rc = get(f, &r, sizeof r, e);
        if (rc == 0 && (r.offset < end || r.offset > DISK_MAX || r.length > RECORD_MAX))
            rc = err_set(e, EBADMSG, "%s is damaged: a part of the disk lies where it cannot", f->name);
        if (rc == 0 && !r.length) {
            if (ftruncate(disk, (off_t)r.offset) < 0)
                return err_sys(e, "cannot size the disk");
            return check_sum(f, e);
        }
        if (rc == 0)
            rc = get(f, f->buf, (size_t)r.length, e);
        if (rc == 0)
            rc = write_all(disk, f->buf, (size_t)r.length, r.offset, e);
        if (rc == 0 && process_interrupted())
            rc = err_set(e, EINTR, "interrupted");
        if (rc < 0)
            return rc;
        end = r.offset + r.length;
    }
}
