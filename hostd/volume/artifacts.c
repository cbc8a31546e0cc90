// SPDX-License-Identifier: Apache-2.0
// Rows of artifacts: found, made, condemned. See volume_impl.h.
#include "base/log.h"
#include "base/str.h"
#include "hostd/volume/volume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

const char *volume_file_name(uint32_t file)
{
    static const char *const names[] = {[NODED_DISK] = "disk.raw", [NODED_RAM] = "ram.raw",   [NODED_STATE] = "vm.state",
                                        [NODED_KERNEL] = "kernel", [NODED_INITRD] = "initrd", [NODED_META] = "meta"};
    return file >= NODED_DISK && file <= NODED_META ? names[file] : "file";
}

struct artifact *artifact_find(const struct volume *v, uint32_t kind, uint64_t object, uint32_t file)
{
    struct artifact *a = v->artifacts;
    while (a &&
           !(a->row.kind == (int64_t)kind && a->row.object == (int64_t)object && a->row.file == (int64_t)file && a->row.state != STORE_CONDEMNED))
        a = a->next;
    return a;
}

struct artifact *artifact_by_name(const struct volume *v, const char *name)
{
    struct artifact *a = name[0] ? v->artifacts : NULL;
    while (a && strcmp(a->row.name, name) != 0)
        a = a->next;
    return a;
}

int artifact_save(struct volume *v, const struct artifact *a, struct err *e)
{
    return db_save(v->space->db, DB_ARTIFACTS, &a->row, e);
}

static void random_name(char out[33])
{
    unsigned char raw[16];
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        abort();
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
}

int artifact_create(struct volume *v, const struct artifact_row *like, struct artifact **out, struct err *e)
{
    struct artifact *a = calloc(1, sizeof *a);
    if (!a)
        abort();
    a->row = *like;
    a->row.id = (int64_t)space_new_id();
    a->row.state = STORE_BEGUN;
    a->row.created = space_now();
    a->row.node = v->space->node_id;
    random_name(a->row.name);
    int rc = artifact_save(v, a, e);
    if (rc < 0) {
        free(a);
        return rc;
    }
    a->next = v->artifacts;
    v->artifacts = a;
    *out = a;
    return 0;
}

void artifact_condemn(struct volume *v, struct artifact *a)
{
    struct err e = {0};
    a->row.state = STORE_CONDEMNED;
    a->row.node = v->space->node_id; /* who deletes it */
    if (artifact_save(v, a, &e) < 0)
        log_error("artifact %s: %s", a->row.name, e.msg);
}

static uint8_t nibble(char c)
{
    return (uint8_t)(c >= 'a' ? c - 'a' + 10 : c - '0');
}

struct volumed_ref artifact_ref(const char *tenant, const char *name)
{
    struct volumed_ref r = {0};
    if (!name[0])
        return r;
    str_copy(r.tenant, sizeof r.tenant, tenant);
    for (size_t i = 0; i < sizeof r.id; i++)
        r.id[i] = (uint8_t)(nibble(name[2 * i]) << 4 | nibble(name[2 * i + 1]));
    return r;
}
