// SPDX-License-Identifier: Apache-2.0
// ext4 images: see image.h.
#include "spacectl/image.h"

#include "spacectl/process.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/*
 * Features are spelled out, so that the image does not depend on this host's mke2fs.conf, and any
 * kernel of the last ten years mounts it. Nothing is left for the guest to initialise: its first
 * minutes would else be spent writing zeros. Blocks that are zero stay holes, so that costs no
 * space.
 */
#define FEATURES                                                                                                                                     \
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,flex_bg,sparse_super,large_"                                                   \
    "file,huge_file,"                                                                                                                                \
    "dir_nlink,extra_isize,metadata_csum"

static int failed(const struct scratch *s, const char *dir, uint64_t size, int status, struct err *e)
{
    char line[200];
    scratch_first_line(s, "log", line, sizeof line);
    return err_set(e, ENOSPC,
                   "cannot make a file system of %lluM from %s: %s (mke2fs ended with status %d; "
                   "is --size too small?)",
                   (unsigned long long)(size >> 20), dir, *line ? line : "no reason given", status);
}

int image_make(const struct scratch *s, const char *dir, uint64_t size, const char *label, struct err *e)
{
    char path[SCRATCH_PATH_MAX], blocks[24], short_label[17];
    snprintf(short_label, sizeof short_label, "%.16s", label);
    snprintf(blocks, sizeof blocks, "%llu", (unsigned long long)(size / 4096));
    scratch_path(s, "disk.raw", path);
    const char *const argv[] = {"mke2fs",
                                "-q",
                                "-F",
                                "-t",
                                "ext4",
                                "-b",
                                "4096",
                                "-I",
                                "256",
                                "-m",
                                "1",
                                "-O",
                                FEATURES,
                                "-L",
                                short_label,
                                "-E",
                                "root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0",
                                "-d",
                                dir,
                                path,
                                blocks,
                                NULL};
    AUTO_CLOSE int out = scratch_file(s, "out", e), log = scratch_file(s, "log", e);
    if (out < 0 || log < 0)
        return -e->code;
    int status = process_run(&(struct process){.argv = argv, .out = out, .err = log, .flags = geteuid() == 0 ? 0u : PROCESS_MAP_ROOT}, e);
    if (status < 0)
        return status;
    return status == 0 ? 0 : failed(s, dir, size, status, e);
}
