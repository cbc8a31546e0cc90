// SPDX-License-Identifier: Apache-2.0
// The guest's root file system: mounts it, makes it the root of PID 1, and keeps what the daemon
// needs of it reachable whatever is mounted over it.
#ifndef SPACE_GUEST_ROOT_H
#define SPACE_GUEST_ROOT_H

#include "base/err.h"

/* Descriptors that are held for good; -1 where there is no such thing. */
struct root {
    int tree;     /* private clone of the root mount alone, O_PATH: files are served from it */
    int top;      /* its root directory, open: FIFREEZE, syncfs, resizing */
    int disk;     /* the block device, for its size */
    int proc;     /* private clone of /proc, O_PATH */
    int pts;      /* private clone of /dev/pts, O_PATH */
    int cgroup;   /* private clone of the cgroup that jobs have theirs in, O_PATH */
    int jobs_cpu; /* its cpu.stat: the time of all jobs, also of those that are gone */
    int stat;     /* /proc/stat */
    int memory;   /* /proc/meminfo */
    int random;   /* the random generator's device */
    /* A file of ours that lies over /etc/machine-id, and its memory: what changes with every load
     * must not cost a write to the disk, and must also change where the disk cannot be written. */
    int machine_id;
    char *machine_id_map;
};

/* Mounts /proc, /sys and /dev of the initramfs. Returns 0 or -errno. */
int root_prepare(struct err *e);

/*
 * Mounts /dev/vda (ext4) and what belongs into it, and makes it the root of the calling process. A
 * machine without any disk (a host that tries out its acceleration boots one) stays in the
 * initramfs. Waits for a disk's device up to 10 s. Returns 0 or -errno; the process is still in the
 * initramfs then.
 */
int root_switch(struct root *out, struct err *e);

/* The calling process is not chosen when memory runs out. */
void root_protect(const struct root *r);

#endif
