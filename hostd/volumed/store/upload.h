// SPDX-License-Identifier: Apache-2.0
// A file becomes an artifact, or mends it (coroutine). VOLUMED_UPLOAD and VOLUMED_REPAIR in lib/ipc/volumed.h say what is promised.
#ifndef SPACE_VOLUMED_UPLOAD_H
#define SPACE_VOLUMED_UPLOAD_H

#include "hostd/volumed/store/store.h"
#include "ipc/volumed.h"

struct upload_request {
    const char *tenant;
    uint8_t id[16];
    struct volumed_ref base;
    uint8_t parent[16]; /* zeros: none */
    uint32_t file;
    uint64_t size;
    int fd, ranges; /* borrowed; ranges -1: the whole file. In a repair fd may be -1: there is none */
    bool repair;    /* VOLUMED_REPAIR */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
};

/* Fills rep->upload. */
int upload_run(struct store *s, const struct upload_request *q, struct volumed_reply *rep, struct err *e);

#endif
