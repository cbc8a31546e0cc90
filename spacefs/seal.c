// SPDX-License-Identifier: Apache-2.0
// Sealing: see seal.h. The key is read from the file that space-credd keeps, not from the tree: space-hostd could put its own there.
#include "spacefs/seal.h"

#include "base/cleanup.h"
#include "ipc/credd.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIANT sodium_base64_VARIANT_ORIGINAL

_Static_assert(crypto_box_PUBLICKEYBYTES == CREDD_KEY_BYTES, "the key");

int seal_init(struct err *e)
{
    return sodium_init() < 0 ? err_set(e, ENOSYS, "libsodium does not start") : 0;
}

bool seal_wants(const struct node *n)
{
    const struct node *name = n->parent, *scope = name ? name->parent : NULL, *tree = scope ? scope->parent : NULL;
    return n->kind == NODE_CONTROL && !strcmp(n->name, "value") && tree && tree->kind == NODE_TREE && !strcmp(tree->name, "credentials");
}

static int read_key(const struct fs *fs, uint8_t key[CREDD_KEY_BYTES])
{
    char path[CONFIG_PATH_MAX + 8], text[64];
    size_t len = 0;
    snprintf(path, sizeof path, "%s/public", fs->config.credentials);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    bool good = n > 0 && sodium_base642bin(key, CREDD_KEY_BYTES, text, (size_t)n, "\n", &len, NULL, VARIANT) == 0 && len == CREDD_KEY_BYTES;
    return good ? 0 : -ENOKEY;
}

static int seal(const struct fs *fs, const char *plain, size_t size, char **out, size_t *ret_len)
{
    uint8_t key[CREDD_KEY_BYTES];
    size_t sealed = size + crypto_box_SEALBYTES, prefix = strlen(CREDD_SEALED), text = sodium_base64_encoded_len(sealed, VARIANT);
    int rc = read_key(fs, key);
    if (rc < 0)
        return rc;
    AUTO_FREE uint8_t *box = malloc(sealed);
    char *line = malloc(prefix + text);
    if (!box || !line || crypto_box_seal(box, (const uint8_t *)plain, size, key) < 0) {
        free(line);
        return -ENOMEM;
    }
    memcpy(line, CREDD_SEALED, prefix);
    sodium_bin2base64(line + prefix, text, box, sealed, VARIANT);
    *out = line;
    *ret_len = prefix + text - 1;
    return 0;
}

int seal_value(const struct fs *fs, char *plain, size_t size, off_t offset, char **out, size_t *ret_len)
{
    size_t len = size && plain[size - 1] == '\n' ? size - 1 : size;
    int rc = offset ? -EINVAL : len > CREDD_VALUE_MAX ? -E2BIG : 0;
    if (rc == 0 && len == 0) {
        *out = strdup("\n");
        *ret_len = 1;
        return *out ? 0 : -ENOMEM;
    }
    if (rc == 0)
        rc = seal(fs, plain, len, out, ret_len);
    sodium_memzero(plain, size);
    return rc;
}
