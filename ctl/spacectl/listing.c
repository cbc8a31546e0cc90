// SPDX-License-Identifier: Apache-2.0
// Directories of the tree as tables: see listing.h.
#include "spacectl/listing.h"

#include "base/cleanup.h"

#include <fcntl.h>
#include <unistd.h>

#define CELL_MAX 512

/* No tree_read: an attribute that cannot be read is an empty cell, not worth a sentence. */
static const char *read_cell(int dir, const char *name, char buf[CELL_MAX])
{
    AUTO_CLOSE int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, CELL_MAX - 1);
    if (n < 0)
        return NULL;
    while (n && buf[n - 1] == '\n')
        n--;
    buf[n] = 0;
    for (ssize_t i = 0; i < n; i++)
        if (buf[i] == '\n')
            buf[i] = ' ';
    return buf;
}

bool listing_add(const struct tree *t, struct table *table, const struct column *columns, const char *dir, const char *name)
{
    char path[TREE_PATH_MAX], text[TABLE_COLUMNS_MAX][CELL_MAX];
    const char *cells[TABLE_COLUMNS_MAX] = {name};
    struct err ignored;
    if (tree_path(path, &ignored, "%s/%s", dir, name) < 0)
        return false;
    AUTO_CLOSE int fd = openat(t->fd, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    for (int i = 1; i < TABLE_COLUMNS_MAX && columns[i].name; i++)
        cells[i] = read_cell(fd, columns[i].name, text[i]);
    table_add(table, cells);
    return true;
}

int listing_add_all(const struct tree *t, struct table *table, const struct column *columns, const char *dir, struct err *e)
{
    char **names = NULL;
    int count = tree_list(t, dir, &names, e);
    for (int i = 0; i < count; i++)
        listing_add(t, table, columns, dir, names[i]);
    tree_free_names(names, count);
    return count < 0 ? count : 0;
}
