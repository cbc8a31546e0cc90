// SPDX-License-Identifier: Apache-2.0
// Commands to a QEMU's monitor through libvirt: see vm.h. They are libvirt's jobs like its own, so
// that none runs beside another; what they change, libvirt learns from QEMU's events.
#include "hostd/noded/vm_impl.h"

#include "base/str.h"

#include <errno.h>
#include <libvirt/libvirt-qemu.h>
#include <libvirt/virterror.h>
#include <stdlib.h>
#include <string.h>

struct vm_session {
    struct vms_use use;
    virDomainPtr dom;
    uint64_t id;
};

int vms_session_open(struct vms *v, const char *what, uint64_t id, struct vm_session **out, struct err *e)
{
    char name[64];
    struct vm_session *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ENOMEM, "%s sandbox %012llx: out of memory", what, (unsigned long long)id);
    s->id = id;
    int rc = vms_take(v, what, id, &s->use, e);
    if (rc == 0) {
        vms_name(v, id, name);
        s->dom = virDomainLookupByName(s->use.conn, name);
        rc = s->dom ? 0 : vms_fail(&s->use, what, id, e);
    }
    if (rc < 0) {
        vms_session_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void vms_session_close(struct vm_session *s)
{
    if (!s)
        return;
    if (s->dom)
        virDomainFree(s->dom);
    vms_give(&s->use);
    free(s);
}

/* The text of "NAME":"TEXT" in a monitor's answer. */
static bool json_text(const char *json, const char *name, char *out, size_t size)
{
    const char *s = strstr(json, name);
    s = s ? strchr(s + strlen(name), '"') : NULL;
    const char *end = s ? strchr(s + 1, '"') : NULL;
    if (!end || (size_t)(end - s) > size)
        return false;
    memcpy(out, s + 1, (size_t)(end - s - 1));
    out[end - s - 1] = 0;
    return true;
}

int vms_qmp(struct vm_session *s, const char *command, int fd, const char *name, char *out, size_t size, struct err *e)
{
    char *reply = NULL, why[200];
    unsigned fds = fd >= 0 ? 1 : 0;
    int rc = virDomainQemuMonitorCommandWithFiles(s->dom, command, fds, &fd, NULL, NULL, &reply, 0);
    if (rc < 0)
        return vms_fail(&s->use, "command the QEMU of", s->id, e);
    rc = 0;
    if (strncmp(reply, "{\"error\"", 8) == 0) {
        if (!json_text(reply, "\"desc\":", why, sizeof why))
            str_copy(why, sizeof why, "it gives no reason");
        rc = err_set(e, EIO, "QEMU of sandbox %012llx refuses %.60s: %s", (unsigned long long)s->id, command, why);
    } else if (out && !json_text(reply, name, out, size)) {
        out[0] = 0;
    }
    free(reply);
    return rc;
}

bool vms_session_running(struct vm_session *s)
{
    int state = 0;
    return virDomainGetState(s->dom, &state, NULL, 0) == 0 && state == VIR_DOMAIN_RUNNING;
}
