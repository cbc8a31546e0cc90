// SPDX-License-Identifier: Apache-2.0
// Extended attributes of a volume: see volume.h.
#include "hostd/browse/volume.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ext4's own form of an access control list, and the system calls' (Linux: fs/ext4/acl.h,
 * include/uapi/linux/posix_acl_xattr.h). libext2fs converts too, but trusts the lengths. */
#define ACL_DISK_VERSION 1u
#define ACL_VERSION      2u
#define ACL_USER         2u
#define ACL_GROUP        8u
#define ACL_NO_ID        UINT32_MAX

static uint32_t le16(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

static uint32_t le32(const uint8_t *p)
{
    return le16(p) | le16(p + 2) << 16;
}

static uint8_t *put32(uint8_t *p, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++)
        *p++ = (uint8_t)(x >> (8 * i));
    return p;
}

static int convert_acl(const uint8_t *disk, size_t len, uint8_t **out, size_t *ret_len)
{
    if (len < 4 || le32(disk) != ACL_DISK_VERSION)
        return -EIO;
    uint8_t *acl = malloc(4 + len * 2), *p = acl; /* 4 bytes or 8 become 8 */
    if (!acl)
        return -ENOMEM;
    p = put32(p, ACL_VERSION);
    for (size_t at = 4, size; at < len; at += size) {
        uint32_t tag = len - at >= 4 ? le16(disk + at) : 0;
        size = tag == ACL_USER || tag == ACL_GROUP ? 8 : 4;
        if (!tag || size > len - at) {
            free(acl);
            return -EIO;
        }
        memcpy(p, disk + at, 4); /* tag and permissions */
        p = put32(p + 4, size == 8 ? le32(disk + at + 4) : ACL_NO_ID);
    }
    *out = acl;
    *ret_len = (size_t)(p - acl);
    return 0;
}

static bool is_acl(const char *name)
{
    return strcmp(name, "system.posix_acl_access") == 0 || strcmp(name, "system.posix_acl_default") == 0;
}

/* system.data is inline data; what has no namespace came from a number that is not known. */
static bool is_shown(const char *name)
{
    static const char *const spaces[] = {"user.", "trusted.", "security."};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (strncmp(name, spaces[i], strlen(spaces[i])) == 0 && name[strlen(spaces[i])])
            return true;
    return is_acl(name);
}

struct answer {
    const char *name; /* "": the list */
    uint8_t *p;
    size_t len;
    int rc;
};

static void copy_value(struct answer *a, const char *value, size_t len)
{
    if (is_acl(a->name)) {
        a->rc = convert_acl((const uint8_t *)value, len, &a->p, &a->len);
        return;
    }
    a->p = malloc(len ? len : 1);
    a->rc = a->p ? 0 : -ENOMEM;
    if (!a->p)
        return;
    memcpy(a->p, value, len);
    a->len = len;
}

static int each(char *name, char *value, size_t len, void *user)
{
    struct answer *a = user;
    size_t size = strlen(name) + 1;
    if (!is_shown(name) || len > VOLUME_XATTR_MAX)
        return 0;
    if (*a->name) {
        if (strcmp(name, a->name) != 0)
            return 0;
        copy_value(a, value, len);
        return XATTR_ABORT;
    }
    uint8_t *longer = a->len + size <= VOLUME_XATTR_MAX ? realloc(a->p, a->len + size) : NULL;
    if (!longer) {
        a->rc = -ENOMEM;
        return XATTR_ABORT;
    }
    memcpy(longer + a->len, name, size);
    a->p = longer;
    a->len += size;
    return 0;
}

int volume_xattr(struct volume *v, const struct inode *n, const char *name, uint8_t **out, size_t *ret_len)
{
    struct ext2_xattr_handle *h = NULL;
    unsigned int raw = XATTR_HANDLE_FLAG_RAW;
    struct answer a = {.name = name, .rc = *name ? -ENODATA : 0};
    errcode_t rc = ext2fs_xattrs_open(v->fs, n->ino, &h);
    if (rc == 0)
        rc = ext2fs_xattrs_flags(h, &raw, NULL);
    if (rc == 0)
        rc = ext2fs_xattrs_read(h);
    if (rc == 0)
        rc = ext2fs_xattrs_iterate(h, each, &a);
    if (h)
        ext2fs_xattrs_close(&h);
    if (rc == 0 && a.rc == 0 && !a.p)
        a.p = malloc(1); /* an empty list */
    if (rc == 0 && a.rc == 0 && a.p) {
        *out = a.p;
        *ret_len = a.len;
        return 0;
    }
    free(a.p);
    return rc ? volume_errno(rc) : a.rc ? a.rc : -ENOMEM;
}
