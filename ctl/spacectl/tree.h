// SPDX-License-Identifier: Apache-2.0
// The mounted tree, seen as small attributes: everything that spacectl does to sandboxes goes
// through these file operations.
//
// Paths are relative to the mount. Every failure's sentence says what was tried on which path,
// errno's text, and what the platform itself says about it (the caller's last line in the mount's
// `error` file, when that line is about this failure).
#ifndef SPACE_CTL_TREE_H
#define SPACE_CTL_TREE_H

#include "base/err.h"

#include <stddef.h>

#define TREE_PATH_MAX  512   /* longest path of a control file, NUL included */
#define TREE_VALUE_MAX 65536 /* attributes are at most 64 KiB */

struct tree {
    int fd;           /* the mount's directory */
    const char *path; /* borrowed; for messages */
};

/* `dir` NULL: $SPACE, else /space. 0 or -errno. */
int tree_open(const char *dir, struct tree *out, struct err *e);
void tree_close(struct tree *t);

/* printf into a path; cuts never: -ENAMETOOLONG. */
int tree_path(char out[TREE_PATH_MAX], struct err *e, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Refuses what is no name of a sandbox, template or snapshot ("OWNER:NAME", as root sees others'
 * things, is one). -EINVAL. */
int tree_check_name(const char *what, const char *name, struct err *e);

/* openat below the mount (O_CLOEXEC added). The descriptor or -errno. */
int tree_file(const struct tree *t, const char *path, int flags, struct err *e);

/* Reads an attribute whole, without the newline at its end, NUL-ended. The length or -errno
 * (-EMSGSIZE: longer than `size`). */
int tree_read(const struct tree *t, const char *path, char *buf, size_t size, struct err *e);

/* Writes an attribute in one write(2). 0 or -errno. */
int tree_write(const struct tree *t, const char *path, const char *value, struct err *e);

/* Carries the ref in `from` (a `head` file) to the `head` file `to`. 0 or -errno. */
int tree_copy_head(const struct tree *t, const char *from, const char *to, struct err *e);

int tree_mkdir(const struct tree *t, const char *path, struct err *e);
int tree_rmdir(const struct tree *t, const char *path, struct err *e);
int tree_rename(const struct tree *t, const char *from, const char *to, struct err *e);

/* Names in a directory, sorted; the caller frees with tree_free_names. The count or -errno. */
int tree_list(const struct tree *t, const char *path, char ***out, struct err *e);
void tree_free_names(char **names, int count);

/* The sentence for errno `code` (positive) after `what` failed on `path`, as described on top.
 * Returns -code. */
int tree_fail(const struct tree *t, int code, const char *what, const char *path, struct err *e);

/* Finds the sentence for (code, path) in the last line of `text`, an `error` file; NULL when it is
 * about something else. */
const char *tree_error_sentence(char *text, int code, const char *path);

#endif
