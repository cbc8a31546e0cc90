// SPDX-License-Identifier: Apache-2.0
// Credentials, as space-hostd sees them: who may do what with which, and what space-credd is told of sandboxes. No secret passes: values come sealed.
//
// space-credd is the one that keeps them. Here is a copy of its records, without values, taken at each connection and with each answer, so that the tree answers at
// once. Sandboxes are told to it with their labels as they come, change and go.
//
// A sandbox's own credentials follow it to other nodes: follow.c.
#ifndef SPACE_HOSTD_CREDENTIAL_H
#define SPACE_HOSTD_CREDENTIAL_H

#include "hostd/object.h"
#include "ipc/credd.h"

struct credential {
    struct hmap_node by_id;
    unsigned refs;
    struct space *space;
    struct credd_record rec;
    bool gone;
};

/* A directory credentials/SCOPE. */
struct scope {
    unsigned refs;
    struct credd_scope s;
};

int credentials_open(struct space *s, struct err *e);

struct credential *credential_ref(struct credential *c);
void credential_unref(struct credential *c); /* NULL is fine */
struct scope *scope_new(const struct credd_scope *s);
struct scope *scope_ref(struct scope *s);
void scope_unref(struct scope *s); /* NULL is fine */

struct credential *credential_by_name(const struct space *s, const struct credd_scope *scope, const char *name);
void credential_each(const struct space *s, void (*each)(void *user, struct credential *c), void *user);
bool credd_scope_equal(const struct credd_scope *a, const struct credd_scope *b);
/* KEY=VALUE with a key below `admin.`, in letters that a directory's name has. */
bool credd_label_valid(const char *label);

/* May the caller see a scope's credentials; make some in it; change this one? What root made only root changes: its value is not the owner's to send elsewhere. */
bool scope_may_read(const struct credd_scope *s, const struct caller *c);
bool scope_may_make(const struct credd_scope *s, const struct caller *c);
bool credential_may_change(const struct credential *c, const struct caller *caller);

/* Each ends `w` when space-credd answered; credential_answer is what came with that, while waiters are told. */
void credential_make(struct space *s, const struct credd_scope *scope, const char *name, uint32_t uid, struct waiter *w);
void credential_set(struct credential *c, enum credd_field field, const char *text, uint32_t uid, struct waiter *w);
/* `text` is sealed, or empty. */
void credential_value(struct credential *c, const char *text, uint32_t uid, struct waiter *w);
void credential_remove(struct credential *c, uint32_t uid, struct waiter *w);
void credential_log(struct credential *c, struct waiter *w);
/* `text` is ORIGIN and a public key. */
void credential_login(const struct sandbox *sb, const char *text, uint32_t uid, struct waiter *w);
const char *credential_answer(const struct space *s);

/* What values are sealed to, in base64, with a newline; "" while space-credd has not been seen. */
const char *credential_key(const struct space *s);

/* After each change of a sandbox's row: tells space-credd of it when that changes what it may use. Not named, or not here any more: it may use nothing, and another
 * node's own credentials are that node's. */
void credential_sandbox(struct sandbox *sb);
/* It came from another node: its own credentials are handed to space-credd, and then it is told of. */
void credential_sandbox_arrived(struct sandbox *sb);
/* It is being destroyed for good: its own credentials go. */
void credential_sandbox_gone(struct sandbox *sb);
/* -ENOKEY: it has credentials of its own that space-credd at node `to` cannot read. In a transaction. */
int credential_check_move(const struct sandbox *sb, const struct node_row *to, struct err *e);

/* Another request of hostd's: see credd_send of client.h. */
void credential_send(const struct space *s, const struct credd_request *q,
                     void (*done)(void *user, const struct credd_reply *rep, const char *bytes, size_t len), void *user);

/* space-netd has denied `total` connections of the sandbox so far; `line` tells of the last. */
void credential_denied(struct sandbox *sb, uint64_t total, const char *line);

#endif
