// SPDX-License-Identifier: Apache-2.0
// See tenant.h.
#include "hostd/lifecycle/tenant.h"

#include "base/str.h"
#include "hostd/lifecycle/net.h"

#include <stdlib.h>

struct tenant {
    struct hmap_node by_uid;
    struct tenant_row row;
};

static struct tenant *find(const struct space *s, int64_t uid)
{
    struct hmap_node *n = hmap_find(&s->tenants, (uint64_t)uid);
    return n ? hmap_entry(n, struct tenant, by_uid) : NULL;
}

static void learn(void *user, const void *row)
{
    struct space *s = user;
    const struct tenant_row *r = row;
    struct tenant *t = find(s, r->id);
    if (!t) {
        if (!(t = calloc(1, sizeof *t)))
            abort();
        hmap_insert(&s->tenants, &t->by_uid, (uint64_t)r->id);
    }
    t->row = *r;
}

int tenants_load(struct space *s, struct err *e)
{
    return db_load(s->db, DB_TENANTS, learn, s, e);
}

const char *tenant_egress(const struct space *s, int64_t uid)
{
    const struct tenant *t = find(s, uid);
    return t ? t->row.egress : "";
}

int tenant_set_egress(struct space *s, int64_t uid, const char *text, struct err *e)
{
    struct tenant_row row = {.id = uid};
    str_copy(row.egress, sizeof row.egress, text);
    int rc = db_save(s->db, DB_TENANTS, &row, e);
    if (rc == 0)
        learn(s, &row);
    return rc;
}

void tenant_told(struct space *s, int64_t uid, const struct tenant_row *row)
{
    const struct tenant_row nothing = {.id = uid};
    learn(s, row ? row : &nothing);
    if (s->net) /* not yet at the start */
        net_kick(s);
}
