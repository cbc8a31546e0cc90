// SPDX-License-Identifier: Apache-2.0
// Heads: see head.h.
#include "hostd/noded/head.h"

#include "hostd/noded/domain_xml.h"

#include "base/cleanup.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define TABLE_STEP  8192u          /* entries in one go */
#define RAM_STEP    (1u << 20)     /* bytes in one go */
#define STATE_MAX   (256ull << 20) /* of a machine with so few devices it is under 1 MiB */
#define CHECKED_MAX 256u

/* ---- small things ---- */

struct head_sum head_sum_of(const void *bytes, size_t len)
{
    struct head_sum sum;
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(bytes, len));
    memcpy(sum.bytes, c.digest, sizeof sum.bytes);
    return sum;
}

static bool sum_equal(const struct head_sum *a, const struct head_sum *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

bool head_id_equal(const struct head_id *a, const struct head_id *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

bool head_id_none(const struct head_id *id)
{
    static const struct head_id none;
    return head_id_equal(id, &none);
}

int head_id_new(struct head_id *out, struct err *e)
{
    return getrandom(out, sizeof *out, 0) == (ssize_t)sizeof *out ? 0 : err_sys(e, "make a head's id");
}

/* 0, -EIO at the end of the file (errno set), or -errno. */
static int read_at(int fd, void *buf, size_t len, uint64_t at)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(fd, (uint8_t *)buf + done, len - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = EIO;
        if (n <= 0)
            return -errno;
        done += (size_t)n;
    }
    return 0;
}

static int write_at(int fd, const void *buf, size_t len, uint64_t at)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, (const uint8_t *)buf + done, len - done, (off_t)(at + done));
        if (n < 0)
            return -errno;
        done += (size_t)n;
    }
    return 0;
}

static const char *kind_name(const struct head *h)
{
    return h->object.kind == NODED_TEMPLATE ? "template" : "snapshot";
}

static int damaged(const struct head *h, struct err *e, const char *what)
{
    return err_set(e, EBADMSG,
                   "%s %012llx cannot be loaded: %s; it is damaged: take another one, or start from "
                   "its disk alone",
                   kind_name(h), (unsigned long long)h->object.id, what);
}

static int unreadable(const struct head *h, struct err *e, const char *file)
{
    if (errno == EIO)
        return damaged(h, e, file);
    return err_sys(e, "read %s of %s %012llx", file, kind_name(h), (unsigned long long)h->object.id);
}

/* ---- opening ---- */

void head_close(struct head *h)
{
    cleanup_close(&h->ram);
    cleanup_close(&h->meta);
    cleanup_close(&h->state);
}

static int64_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) < 0 ? -1 : st.st_size;
}

static bool text_ends(const char *s, size_t size)
{
    return memchr(s, 0, size) != NULL;
}

static int check_header(const struct head *h, struct err *e)
{
    const struct head_meta *m = &h->m;
    if (memcmp(m->magic, HEAD_MAGIC, sizeof m->magic) != 0)
        return damaged(h, e, "meta does not start as it must");
    struct head_sum self = head_sum_of(m, offsetof(struct head_meta, self));
    if (!sum_equal(&self, &m->self))
        return damaged(h, e, "the checksum of meta does not fit");
    if (m->version != HEAD_VERSION || m->header_bytes != HEAD_PAGE)
        return err_set(e, ENOEXEC,
                       "%s %012llx cannot be loaded: its format is version %u, this space-noded "
                       "knows %u",
                       kind_name(h), (unsigned long long)h->object.id, m->version, HEAD_VERSION);
    if (!m->memory || m->memory % HEAD_PAGE || m->table_bytes != m->memory / HEAD_PAGE * 8 || m->state_bytes > STATE_MAX ||
        !text_ends(m->machine, sizeof m->machine) || !text_ends(m->cpu, sizeof m->cpu) || !text_ends(m->devices, sizeof m->devices) ||
        !text_ends(m->qemu, sizeof m->qemu))
        return damaged(h, e, "meta contradicts itself");
    return 0;
}

static int check_sizes(const struct head *h, struct err *e)
{
    if (size_of(h->meta) != (int64_t)(HEAD_PAGE + h->m.table_bytes))
        return damaged(h, e, "meta is not as long as it says");
    if (size_of(h->ram) != (int64_t)h->m.memory)
        return damaged(h, e, "ram.raw is not as long as meta says");
    if (size_of(h->state) != (int64_t)h->m.state_bytes)
        return damaged(h, e, "vm.state is not as long as meta says");
    return 0;
}

static int sum_table(int meta, uint64_t bytes, struct head_sum *out)
{
    AUTO_FREE uint8_t *buf = malloc(TABLE_STEP * 8);
    XXH3_state_t *state = XXH3_createState();
    int rc = !buf || !state || XXH3_128bits_reset(state) != XXH_OK ? -ENOMEM : 0;
    for (uint64_t at = 0; at < bytes && rc == 0;) {
        size_t n = bytes - at < TABLE_STEP * 8 ? (size_t)(bytes - at) : TABLE_STEP * 8;
        rc = read_at(meta, buf, n, HEAD_PAGE + at);
        if (rc == 0)
            XXH3_128bits_update(state, buf, n);
        at += n;
    }
    if (rc == 0) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits_digest(state));
        memcpy(out->bytes, c.digest, sizeof out->bytes);
    }
    XXH3_freeState(state);
    return rc;
}

int head_open(const struct pool *p, struct pool_object o, struct head *out, struct err *e)
{
    struct head_sum sum;
    AUTO_HEAD struct head h = HEAD_INIT;
    h.object = o;
    int rc = pool_file_open(p, o, NODED_META, false, &h.meta, e);
    if (rc == 0)
        rc = pool_file_open(p, o, NODED_RAM, false, &h.ram, e);
    if (rc == 0)
        rc = pool_file_open(p, o, NODED_STATE, false, &h.state, e);
    if (rc < 0)
        return rc;
    if (read_at(h.meta, &h.m, sizeof h.m, 0) < 0)
        return unreadable(&h, e, "meta is too short");
    rc = check_header(&h, e);
    if (rc == 0)
        rc = check_sizes(&h, e);
    if (rc < 0)
        return rc;
    if (sum_table(h.meta, h.m.table_bytes, &sum) < 0)
        return unreadable(&h, e, "meta");
    if (!sum_equal(&sum, &h.m.table))
        return damaged(&h, e, "the checksum of the page table in meta does not fit");
    *out = h;
    h = (struct head)HEAD_INIT;
    return 0;
}

/* ---- whether it can be loaded here ---- */

static int64_t version_number(const char *text)
{
    unsigned a, b, c;
    return sscanf(text, "%4u.%4u.%4u", &a, &b, &c) == 3 ? (int64_t)a * 100000000 + (int64_t)b * 10000 + c : -1;
}

static int foreign(const struct head *h, struct err *e, const char *what, const char *its, const char *ours)
{
    return err_set(e, ENOEXEC,
                   "%s %012llx cannot be loaded: it was made with %s %s, this host has %s; start "
                   "from its disk alone",
                   kind_name(h), (unsigned long long)h->object.id, what, its, ours);
}

static const char *accel_name(uint32_t accel)
{
    return accel == NODED_KVM ? "KVM" : "TCG";
}

int head_check_host(const struct head *h, uint32_t accel, const char *qemu, struct err *e)
{
    const struct head_meta *m = &h->m;
    if (strcmp(m->machine, DOMAIN_MACHINE) != 0)
        return foreign(h, e, "machine", m->machine, DOMAIN_MACHINE);
    if (strcmp(m->cpu, DOMAIN_CPU) != 0)
        return foreign(h, e, "processor", m->cpu, DOMAIN_CPU);
    if (strcmp(m->devices, DOMAIN_DEVICES) != 0)
        return foreign(h, e, "devices", m->devices, DOMAIN_DEVICES);
    if (m->accel != accel)
        return foreign(h, e, "accelerator", accel_name(m->accel), accel_name(accel));
    if (version_number(m->qemu) < 0 || version_number(m->qemu) > version_number(qemu))
        return foreign(h, e, "QEMU", m->qemu, qemu[0] ? qemu : "one that is not known");
    return 0;
}

/* ---- memory ---- */

struct checked {
    uint64_t device, inode;
    struct timespec changed;
    struct head_id id;
};

struct heads {
    pthread_mutex_t lock;
    struct checked v[CHECKED_MAX];
    uint32_t next;
};

struct heads *heads_create(void)
{
    struct heads *s = calloc(1, sizeof *s);
    if (s)
        pthread_mutex_init(&s->lock, NULL);
    return s;
}

static bool was_checked(struct heads *s, const struct checked *c)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < CHECKED_MAX && !found; i++)
        found = memcmp(&s->v[i], c, sizeof *c) == 0;
    pthread_mutex_unlock(&s->lock);
    return found;
}

static void set_checked(struct heads *s, const struct checked *c)
{
    pthread_mutex_lock(&s->lock);
    s->v[s->next] = *c;
    s->next = (s->next + 1) % CHECKED_MAX;
    pthread_mutex_unlock(&s->lock);
}

static bool page_fits(const uint8_t *page, uint64_t entry)
{
    if (entry == 0)
        return page[0] == 0 && memcmp(page, page + 1, HEAD_PAGE - 1) == 0;
    return head_entry(XXH3_64bits(page, HEAD_PAGE)) == (entry & ~HEAD_CHANGED);
}

/* 1 when all fits, 0 when not, or -errno. Holes are not read: they are zeros. */
static int ram_fits(const struct head *h)
{
    AUTO_FREE uint8_t *ram = malloc(RAM_STEP);
    AUTO_FREE uint64_t *entries = malloc(RAM_STEP / HEAD_PAGE * 8);
    if (!ram || !entries)
        return -ENOMEM;
    for (uint64_t at = 0; at < h->m.memory;) {
        size_t n = h->m.memory - at < RAM_STEP ? (size_t)(h->m.memory - at) : RAM_STEP;
        off_t data = lseek(h->ram, (off_t)at, SEEK_DATA);
        bool hole = data < 0 ? errno == ENXIO : (uint64_t)data >= at + n;
        if (hole)
            memset(ram, 0, n);
        else if (read_at(h->ram, ram, n, at) < 0)
            return -errno;
        if (read_at(h->meta, entries, n / HEAD_PAGE * 8, HEAD_PAGE + at / HEAD_PAGE * 8) < 0)
            return -errno;
        for (size_t i = 0; i < n / HEAD_PAGE; i++)
            if (!page_fits(ram + i * HEAD_PAGE, entries[i]))
                return 0;
        at += n;
    }
    return 1;
}

int head_check_ram(struct heads *heads, const struct head *h, struct err *e)
{
    struct stat st;
    struct checked c;
    memset(&c, 0, sizeof c); /* padding is compared, too */
    if (fstat(h->ram, &st) < 0)
        return unreadable(h, e, "ram.raw");
    c.device = st.st_dev;
    c.inode = st.st_ino;
    c.changed = st.st_ctim;
    c.id = h->m.id;
    if (was_checked(heads, &c))
        return 0;
    int rc = ram_fits(h);
    if (rc < 0)
        return unreadable(h, e, "ram.raw");
    if (rc == 0)
        return damaged(h, e, "the checksum of ram.raw does not fit");
    set_checked(heads, &c);
    return 0;
}

int head_read_state(const struct head *h, uint8_t **out, size_t *ret_len, struct err *e)
{
    size_t len = (size_t)h->m.state_bytes;
    AUTO_FREE uint8_t *buf = malloc(len + 1);
    if (!buf)
        return err_set(e, ENOMEM, "read vm.state: out of memory");
    if (read_at(h->state, buf, len, 0) < 0)
        return unreadable(h, e, "vm.state");
    struct head_sum sum = head_sum_of(buf, len);
    if (!sum_equal(&sum, &h->m.state))
        return damaged(h, e, "the checksum of vm.state does not fit");
    *out = steal_ptr(buf);
    *ret_len = len;
    return 0;
}

/* ---- making one ---- */

struct head_id head_id_of(int meta)
{
    struct head_meta m;
    if (read_at(meta, &m, sizeof m, 0) < 0 || memcmp(m.magic, HEAD_MAGIC, sizeof m.magic) != 0)
        memset(&m.id, 0, sizeof m.id);
    return m.id;
}

int head_start_table(int meta, int base_meta, uint64_t memory, struct err *e)
{
    uint64_t bytes = memory / HEAD_PAGE * 8;
    AUTO_FREE uint64_t *buf = malloc(TABLE_STEP * 8);
    if (!buf)
        return err_set(e, ENOMEM, "make a page table: out of memory");
    if (ftruncate(meta, 0) < 0 || ftruncate(meta, (off_t)(HEAD_PAGE + bytes)) < 0)
        return err_sys(e, "make a page table");
    for (uint64_t at = 0; at < bytes && base_meta >= 0;) {
        size_t n = bytes - at < TABLE_STEP * 8 ? (size_t)(bytes - at) : TABLE_STEP * 8;
        if (read_at(base_meta, buf, n, HEAD_PAGE + at) < 0)
            return err_sys(e, "read the base's page table");
        for (size_t i = 0; i < n / 8; i++)
            buf[i] &= ~HEAD_CHANGED;
        if (write_at(meta, buf, n, HEAD_PAGE + at) < 0)
            return err_sys(e, "write a page table");
        at += n;
    }
    return 0;
}

int head_finish_meta(int meta, struct head_meta *m, struct err *e)
{
    memcpy(m->magic, HEAD_MAGIC, sizeof m->magic);
    m->version = HEAD_VERSION;
    m->header_bytes = HEAD_PAGE;
    m->table_bytes = m->memory / HEAD_PAGE * 8;
    if (sum_table(meta, m->table_bytes, &m->table) < 0)
        return err_sys(e, "read the page table");
    m->self = head_sum_of(m, offsetof(struct head_meta, self));
    return write_at(meta, m, sizeof *m, 0) < 0 ? err_sys(e, "write meta") : 0;
}
