// SPDX-License-Identifier: Apache-2.0
// libvirt: one connection that comes back by itself, domains PREFIX-ID, and what happens to them.
//
// Operations block and may be called from any thread. One that waits for a QEMU that hangs ends
// when vms_destroy ends that QEMU, one that waits for a libvirtd that hangs when libvirtd goes on
// or ends. Without libvirtd they fail with ENOTCONN, also from 20 s after it began to hang. A
// domain that is not there is ESRCH.
#ifndef SPACE_NODED_VM_H
#define SPACE_NODED_VM_H

#include "base/err.h"
#include "ipc/noded.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct vms;

/* Called on the loop's thread. */
struct vms_hooks {
    void (*event)(void *user, uint64_t id, enum noded_vm_event what);
    void (*connected)(void *user); /* each time; what happened before is not known */
    void (*tried)(void *user);     /* once, after the first attempt to connect, whatever came out (after
                                  connected) */
    void *user;
};

/* Starts connecting to `uri`. `prefix` and `uri` must outlive it. Call once a process. */
int vms_open(uv_loop_t *loop, const char *uri, const char *prefix, const struct vms_hooks *hooks, struct vms **out, struct err *e);
/* No more hooks; the thread is left to the end of the process. NULL is fine. */
void vms_close(struct vms *v);

/* Starts a transient domain from its XML, with a limit on the memory of the whole QEMU and its page
 * cache (bytes, 0: none); its processors do not run yet when `paused`. EEXIST. */
int vms_start(struct vms *v, uint64_t id, const char *xml, uint64_t memory_limit, bool paused, struct err *e);
/* Ends it at once. A missing one is success. */
int vms_destroy(struct vms *v, uint64_t id, struct err *e);
/* 1, 0, or -errno when it cannot be known. */
int vms_active(struct vms *v, uint64_t id, struct err *e);
/* The same, when a start that libvirt is still at has come to its end (80 s at most): an earlier
 * space-noded may have begun it. */
int vms_started(struct vms *v, uint64_t id, struct err *e);
/* Both succeed when it is so already. */
int vms_pause(struct vms *v, uint64_t id, struct err *e);
int vms_resume(struct vms *v, uint64_t id, struct err *e);
int vms_resize_disk(struct vms *v, uint64_t id, uint64_t bytes, struct err *e);
int vms_stats(struct vms *v, uint64_t id, uint64_t *ret_cpu_nsec, uint64_t *ret_rss, bool *ret_running, struct err *e);
/* Calls back for each domain of this instance, with "running", "paused" or "other". */
int vms_list(struct vms *v, void (*cb)(void *user, uint64_t id, const char *state), void *user, struct err *e);
/* A domain, found once, for several commands. One thread at a time. */
struct vm_session;
int vms_session_open(struct vms *v, const char *what, uint64_t id, struct vm_session **out, struct err *e);
void vms_session_close(struct vm_session *s); /* NULL is fine */
/* libvirt says that it runs. */
bool vms_session_running(struct vm_session *s);
/*
 * One command to QEMU's monitor, with a descriptor for it (-1: none). The text after `name` (such
 * as
 * "\"status\":") in the answer goes to `out`, empty when there is none. EIO with QEMU's reason.
 */
int vms_qmp(struct vm_session *s, const char *command, int fd, const char *name, char *out, size_t size, struct err *e);

/* The next `paused` PAUSED and `resumed` RESUMED events of a domain are this process's own doing,
 * and not told. Negative takes that back for those that have not come. */
void vms_expect(struct vms *v, uint64_t id, int paused, int resumed);

/* There is a connection, as far as it is known. */
bool vms_up(struct vms *v);
/* "7.2.22"; empty until libvirt was reached. */
void vms_qemu_version(struct vms *v, char out[32]);
/* The domain's name. */
void vms_name(const struct vms *v, uint64_t id, char out[64]);

#endif
