// SPDX-License-Identifier: Apache-2.0
// The file of `spacectl export`: settings as text, then the disk without its holes, then a checksum of all of it (docs/protocol/space-file.md). Written and read
// front to back. What is read may come from anywhere: lengths and offsets are bounded, and nothing is believed before the checksum fits.
#ifndef SPACE_CTL_SPACE_FILE_H
#define SPACE_CTL_SPACE_FILE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct XXH3_state_s;

struct space_file {
    int fd;           /* borrowed */
    const char *name; /* borrowed, for messages */
    struct XXH3_state_s *sum;
    char *buf; /* of a record */
};

void space_file_begin(struct space_file *f, int fd, const char *name);
void space_file_end(struct space_file *f);

/* Writing, in this order. The setting NULL ends the settings. 0 or -errno; -EINTR when interrupted. */
int space_file_put_header(struct space_file *f, struct err *e);
int space_file_put_setting(struct space_file *f, const char *key, const char *line, struct err *e);
int space_file_put_disk(struct space_file *f, int disk, struct err *e);

/* Reading. -EBADMSG: it is no such file, or damaged; -EPROTO: of a newer kind. */
int space_file_get_header(struct space_file *f, int (*setting)(void *user, const char *key, const char *line, struct err *e), void *user,
                          struct err *e);
/* Makes `disk` as long as it is to be, and writes what is no hole. 0 only when the checksum fits. */
int space_file_get_disk(struct space_file *f, int disk, struct err *e);

#endif
