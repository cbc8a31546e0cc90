// SPDX-License-Identifier: Apache-2.0
// The attributes of every directory, as tables: name, mode, reader, writer, help. docs/tree.md and help/ say the same.
#include "base/cleanup.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/guest/guest.h"
#include "hostd/lifecycle/idle.h"
#include "hostd/lifecycle/net.h"
#include "hostd/lifecycle/tenant.h"
#include "hostd/snapshot/account.h"
#include "hostd/snapshot/changes.h"
#include "hostd/snapshot/schedule.h"
#include "hostd/tree/tree.h"
#include "hostd/volume/fill.h"
#include "hostd/volume/volume.h"
#include "ipc/noded.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void add_id(struct text *t, int64_t id)
{
    text_add(t, "%012" PRIx64 "\n", (uint64_t)id);
}

static void add_time(struct text *t, int64_t nsec)
{
    time_t sec = nsec / 1000000000;
    struct tm tm;
    char buf[40];
    gmtime_r(&sec, &tm);
    strftime(buf, sizeof buf, "%Y-%m-%dT%H:%M:%SZ", &tm);
    text_add(t, "%s\n", buf);
}

static void add_size(struct text *t, int64_t bytes)
{
    char buf[24];
    text_add(t, "%s\n", str_format_size((uint64_t)bytes, buf));
}

static void add_owner(struct text *t, int64_t uid)
{
    char buf[33];
    text_add(t, "%s\n", caller_user_name((uint32_t)uid, buf));
}

/* A sentence, or nothing: an empty file says that nothing went wrong. */
static void add_line(struct text *t, const char *s)
{
    if (s[0])
        text_add(t, "%s\n", s);
}

static bool may_write_anywhere(struct p9_request *r, struct tree_fid *f)
{
    const struct node *n = &f->node;
    bool ok = n->snapshot   ? caller_may_write(f->caller, n->snapshot->row.owner, n->snapshot->row.gid, n->snapshot->row.mode)
              : n->template ? caller_owns(f->caller, n->template->row.owner)
                            : caller_may_write(f->caller, n->sandbox->row.owner, n->sandbox->row.gid, n->sandbox->row.mode);
    if (!ok)
        fail_errno(r, f, EACCES, "you may read this but not change it");
    return ok;
}

/* May the caller, and may this node? */
static bool may_write(struct p9_request *r, struct tree_fid *f)
{
    const struct node *n = &f->node;
    const struct space *s = space_of(r);
    struct err e = {0};
    if (!may_write_anywhere(r, f))
        return false;
    if (n->snapshot && !snapshot_is_here(n->snapshot))
        err_set(&e, EREMOTE, "snapshot '%s' belongs to node %s: write this there", n->snapshot->row.name, cluster_name(s, n->snapshot->row.node));
    else if (n->template && n->template->row.node != s->node_id)
        err_set(&e, EREMOTE, "template '%s' was made on node %s: write this there", n->template->row.name, cluster_name(s, n->template->row.node));
    else if (!n->snapshot && n->sandbox && !sandbox_is_here(n->sandbox))
        cluster_refuse(n->sandbox, &e);
    if (e.code)
        fail(r, f, -e.code, &e);
    return !e.code;
}

/* ---- the root ---- */

static void read_readme(struct tree_fid *f, struct text *t)
{
    (void)f;
    text_add(t, "A sandbox is a directory. Paste these:\n"
                "  mkdir sandboxes/a                                # a virtual machine\n"
                "  mkdir proc/a/1; echo 'uname -a' > proc/a/1/cmd   # a process in it\n"
                "  cat proc/a/1/stdout proc/a/1/wait; ls root/a     # its output, its end, its disk\n"
                "  cp -r sandboxes/a sandboxes/b                    # a fork\n"
                "  rmdir sandboxes/a sandboxes/b                    # more: help/, error, `spacectl --help`\n");
}

static const char *accel_name(int64_t accel)
{
    return accel == NODED_KVM ? "kvm" : accel == NODED_TCG ? "tcg" : "unknown";
}

static void read_version(struct tree_fid *f, struct text *t)
{
    const char *accel = accel_name(f->session->space->accel);
    text_add(t, "spacefs %s\nprotocol 9P2000.L\nguest-protocol 1\nnode %s\nacceleration %s\n", SPACE_VERSION, f->session->space->config.node, accel);
}

static void read_error(struct tree_fid *f, struct text *t)
{
    AUTO_FREE char *lines = failure_text(f->session->space, f->caller->uid);
    if (lines)
        text_add(t, "%s", lines);
}

static void write_events(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    uint64_t n;
    (void)len;
    if (strncmp(value, "since ", 6) != 0 || str_parse_u64(value + 6, INT64_MAX, &n) < 0) {
        fail_errno(r, f, EINVAL, "events takes `since N`: what follows event number N is read next");
        return;
    }
    f->open->cursor = n < events_last(f->session->space->events) ? n : events_last(f->session->space->events);
    reply_write(r);
}

static void add_policy(struct text *t, const char *policy)
{
    text_add(t, "%s%s", policy, policy[0] && policy[strlen(policy) - 1] != '\n' ? "\n" : "");
}

static void read_tenant_egress(struct tree_fid *f, struct text *t)
{
    add_policy(t, tenant_egress(f->session->space, f->caller->uid));
}

/* The write ends when connections that a policy does not allow any more are cut. */
static void end_of_egress(struct p9_request *r, struct tree_fid *f)
{
    struct waiter *w = pending_write(r, f);
    if (w)
        net_apply(space_of(r), w);
    else
        net_kick(space_of(r));
}

static int check_egress_length(size_t len, struct err *e)
{
    return len < EGRESS_TEXT_MAX ? 0 : err_set(e, E2BIG, "egress has more than %d bytes: use sets, or wildcards", EGRESS_TEXT_MAX - 1);
}

static void write_tenant_egress(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct space *s = space_of(r);
    struct err e = {0};
    int rc = 0;
    if (!f->caller->may_create)
        rc = err_set(&e, EPERM, "only members of the group that may make sandboxes say what theirs may reach");
    else
        rc = check_egress_length(len, &e);
    if (rc == 0)
        rc = net_check_tenant(s, f->caller->uid, value, &e);
    if (rc == 0)
        rc = tenant_set_egress(s, f->caller->uid, value, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        end_of_egress(r, f);
}

const struct attr root_attrs[] = {
    {"README", 0444, 0, read_readme, NULL, "Five lines to paste."},
    {"version", 0444, 0, read_version, NULL, "Version, protocol, node, and how guests run here (kvm or tcg)."},
    {"error", 0444, 0, read_error, NULL, "Your own last 16 failures: time, path, errno, sentence."},
    {"metrics", 0444, 0, read_metrics, NULL, "Counts in Prometheus' text format: of your own sandboxes; for root of all, and of the node."},
    {"egress", 0666, ATTR_ACCUMULATE, read_tenant_egress, write_tenant_egress,
     "What none of your own sandboxes may reach, whatever its egress says: rules such as `deny tcp *.example.org:*`."},
    {"events", 0666, ATTR_STREAM, NULL, write_events,
     "A line of JSON for each event from now on (seq, time, kind, id, name); write `since N` first to begin behind event N."},
    {0},
};

/* ---- templates ---- */

static void read_template_id(struct tree_fid *f, struct text *t)
{
    add_id(t, f->node.template->row.id);
}
static void read_template_owner(struct tree_fid *f, struct text *t)
{
    add_owner(t, f->node.template->row.owner);
}
static void read_template_created(struct tree_fid *f, struct text *t)
{
    add_time(t, f->node.template->row.created);
}
static void read_template_size(struct tree_fid *f, struct text *t)
{
    text_add(t, "%" PRId64 "\n", f->node.template->row.size);
}
static void read_template_share(struct tree_fid *f, struct text *t)
{
    add_line(t, f->node.template->row.share);
}
static void read_template_state(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s\n", artifact_state_name(f->node.template->row.state));
}
static void add_prepared(void *user, uint64_t memory, uint32_t vcpus)
{
    char size[24];
    text_add(user, "%s %u\n", str_format_size(memory, size), vcpus);
}
static void read_template_prepared(struct tree_fid *f, struct text *t)
{
    template_heads_text(f->node.template, add_prepared, t);
}
static void read_template_error(struct tree_fid *f, struct text *t)
{
    add_line(t, f->node.template->row.error);
}

static void write_template_share(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct template_row *row = &f->node.template->row;
    struct err e = {0};
    if (!may_write(r, f))
        return;
    if (len >= sizeof row->share) {
        fail_errno(r, f, EINVAL, "share takes `all`, a group's name, or nothing");
        return;
    }
    str_copy(row->share, sizeof row->share, value);
    int rc = db_save(f->session->space->db, DB_TEMPLATES, row, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_write(r);
}

static void write_template_state(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    (void)len;
    if (!may_write(r, f))
        return;
    if (strcmp(value, "ready") != 0)
        fail_errno(r, f, EINVAL, "a template's state takes `ready`, once its disk.raw is written");
    else
        template_seal(f->node.template, pending_write(r, f));
}

/* May the caller fork what the ref names? Answers the request if not. */
static bool check_ref(struct p9_request *r, struct tree_fid *f, const char *value, struct ref *ref)
{
    struct space *s = space_of(r);
    if (ref_parse(value, ref) < 0) {
        fail_errno(r, f, EINVAL, "a head is one line: template/ID, snapshot/ID or sandbox/ID@N, as another head reads");
        return false;
    }
    struct sandbox *sb = ref->kind == REF_SANDBOX ? sandbox_by_id(s, ref->id) : NULL;
    struct snapshot *sn = ref->kind == REF_SNAPSHOT ? snapshot_by_id(s, ref->id) : NULL;
    struct template *t = ref->kind == REF_TEMPLATE ? template_by_id(s, ref->id) : NULL;
    bool ok = (sb && sb->named && caller_may_read(f->caller, sb->row.owner, sb->row.gid, sb->row.mode)) ||
              (sn && caller_may_read(f->caller, sn->row.owner, sn->row.gid, sn->row.mode)) ||
              (t && !t->row.deleted && template_may_use(t, f->caller));
    if (!ok) /* the same answer for what is not there and what is not yours */
        fail_errno(r, f, ESTALE, "what this head names is not there any more, or not yours to read");
    return ok;
}

static void write_template_head(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct ref ref;
    (void)len;
    if (!may_write(r, f) || !check_ref(r, f, value, &ref))
        return;
    if (f->node.template->copying) {
        f->node.template->copied = ref;
        reply_write(r);
    } else {
        template_load(f->node.template, &ref, pending_write(r, f));
    }
}

static void read_template_head(struct tree_fid *f, struct text *t)
{
    struct ref ref = {REF_TEMPLATE, (uint64_t)f->node.template->row.id, 0};
    char buf[REF_TEXT_MAX];
    text_add(t, "%s\n", ref_format(&ref, buf));
}

const struct attr template_attrs[] = {
    {"id", 0444, 0, read_template_id, NULL, "12 hex digits; never reused."},
    {"owner", 0444, 0, read_template_owner, NULL, "Who made it."},
    {"created", 0444, 0, read_template_created, NULL, "When (UTC)."},
    {"size", 0444, 0, read_template_size, NULL, "Bytes of the disk."},
    {"share", 0644, 0, read_template_share, write_template_share, "Who else may use it: `all`, a group's name, or nothing."},
    {"state", 0644, 0, read_template_state, write_template_state, "empty, creating, ready or failed; write `ready` when disk.raw is complete."},
    {"error", 0444, 0, read_template_error, NULL, "Why it failed."},
    {"prepared", 0444, 0, read_template_prepared, NULL,
     "A line for each size (memory, vcpus) of which it holds a booted machine's memory: no boot there."},
    {"disk.raw", 0600, ATTR_RAW, NULL, NULL, "The ext4 image, writable until it is ready; not there afterwards."},
    {"head", 0644, 0, read_template_head, write_template_head, "Its ref; write one to publish a sandbox's or snapshot's disk as this template."},
    {0},
};

/* ---- sandboxes ---- */

static struct sandbox_row *row_of(const struct tree_fid *f)
{
    return &f->node.sandbox->row;
}

static void read_id(struct tree_fid *f, struct text *t)
{
    add_id(t, row_of(f)->id);
}
static void read_origin(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s\n", row_of(f)->origin[0] ? row_of(f)->origin : row_of(f)->want);
}
static void read_owner(struct tree_fid *f, struct text *t)
{
    add_owner(t, row_of(f)->owner);
}
static void read_created(struct tree_fid *f, struct text *t)
{
    add_time(t, row_of(f)->created);
}
/* Of one whose node is away nothing is known, unless it is none that changes by itself. */
static void read_state(struct tree_fid *f, struct text *t)
{
    const struct sandbox *sb = f->node.sandbox;
    const struct node_entry *n = sandbox_is_here(sb) ? NULL : cluster_node(sb->space, sb->row.node);
    bool rests = sandbox_state(sb) == SANDBOX_SUSPENDED || sandbox_state(sb) == SANDBOX_STOPPED || sandbox_state(sb) == SANDBOX_FAILED;
    bool silent = n && !rests && cluster_state(sb->space, n) != NODE_IS_UP;
    text_add(t, "%s\n", silent ? "unreachable" : state_name(sandbox_state(sb)));
}
static void read_node(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s\n", cluster_name(f->session->space, row_of(f)->node));
}
static void read_memory(struct tree_fid *f, struct text *t)
{
    add_size(t, row_of(f)->memory);
}
static void read_vcpus(struct tree_fid *f, struct text *t)
{
    text_add(t, "%" PRId64 "\n", row_of(f)->vcpus);
}
static void read_disk(struct tree_fid *f, struct text *t)
{
    add_size(t, row_of(f)->disk);
}
static void read_labels(struct tree_fid *f, struct text *t)
{
    add_line(t, row_of(f)->labels);
}
static void read_wake(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s\n", row_of(f)->wake_manual ? "manual" : "auto");
}
static void read_sandbox_error(struct tree_fid *f, struct text *t)
{
    add_line(t, row_of(f)->error);
}

/* Is what it is suspended to in the object store, and how far is that? */
static void add_volume_stats(const struct sandbox *sb, struct text *t)
{
    const struct snapshot *sn = sb->row.suspended ? snapshot_by_id(sb->space, (uint64_t)sb->row.suspended) : NULL;
    uint64_t done, total;
    text_add(t, "durable %s\n", sn && sn->row.durable ? "yes" : "no");
    if (sb->fill) {
        fill_progress(sb->fill, &done, &total);
        text_add(t, "fill_bytes %" PRIu64 "\nfill_total %" PRIu64 "\n", done, total);
    }
    if (sn && volume_progress(sn, &done, &total))
        text_add(t,
                 sn->row.state == ARTIFACT_STORED ? "download_bytes %" PRIu64 "\ndownload_total %" PRIu64 "\n"
                                                  : "upload_bytes %" PRIu64 "\nupload_total %" PRIu64 "\n",
                 done, total);
}

static void read_stats(struct tree_fid *f, struct text *t)
{
    struct sandbox *sb = f->node.sandbox;
    const struct sandbox_stats *st = &sb->stats;
    int64_t delta = account_of_sandbox(sb);
    text_add(
        t,
        "cpu_usec %" PRIu64 "\nmemory_bytes %" PRIu64 "\ndisk_bytes %" PRId64 "\njobs %u\nloads %" PRId64 "\nidle_sec %" PRIu64 "\nacceleration %s\n",
        st->cpu_nsec / 1000, st->rss_bytes, sb->row.disk, sb->job_count, sb->row.generation, idle_seconds(sb), sb->space->accel == 2 ? "kvm" : "tcg");
    struct net_sums net = net_sums(sb);
    text_add(t,
             "net_tx_bytes %" PRIu64 "\nnet_rx_bytes %" PRIu64 "\nnet_open %" PRIu64 "\nnet_allowed %" PRIu64 "\nnet_denied %" PRIu64
             "\nnet_names %" PRIu64 "\nnet_names_denied %" PRIu64 "\n",
             net.sent, net.received, net.open, net.allowed, net.denied, net.names, net.names_denied);
    if (delta >= 0)
        text_add(t, "disk_delta_bytes %" PRId64 "\n", delta);
    add_volume_stats(sb, t);
    if (!sb->guest)
        return;
    AUTO_FREE char *info = strdup(guest_info(sb->guest));
    char *save = NULL;
    for (char *line = info ? strtok_r(info, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save))
        if (!strncmp(line, "agent ", 6) || !strncmp(line, "kernel ", 7)) {
            for (char *c = line; *c; c++) /* the guest chose these bytes */
                *c = *c >= 0x20 && *c < 0x7f ? *c : '?';
            text_add(t, "%.200s\n", line);
        }
}

static void read_head(struct tree_fid *f, struct text *t)
{
    struct ref ref = {REF_SANDBOX, (uint64_t)row_of(f)->id, (uint64_t)row_of(f)->generation};
    char buf[REF_TEXT_MAX];
    text_add(t, "%s\n", ref_format(&ref, buf));
}

static void write_state(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    enum verb v = verb_of(value);
    struct err e = {0};
    (void)len;
    if (!may_write(r, f))
        return;
    if (v == VERB_COUNT)
        fail(r, f, err_set(&e, EINVAL, "'%.32s' is no verb: start, pause, resume, suspend, stop or kill", value), &e);
    else
        sandbox_verb(f->node.sandbox, v, pending_write(r, f));
}

/* NODE, or NODE boot. */
static void write_node(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    char *boot = strchr(value, ' ');
    (void)len;
    if (!may_write_anywhere(r, f))
        return;
    if (boot && strcmp(boot, " boot") != 0) {
        fail_errno(r, f, EINVAL, "node takes a node's name, or `NAME boot`: without the memory, from the disk");
        return;
    }
    if (boot)
        *boot = 0;
    cluster_move(f->node.sandbox, value, boot != NULL, pending_write(r, f));
}

static void write_head(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct ref ref;
    (void)len;
    if (!may_write(r, f) || !check_ref(r, f, value, &ref))
        return;
    if (f->node.sandbox->copy == COPY_HELD) {
        sandbox_copy_head(f->node.sandbox, &ref);
        reply_write(r);
    } else {
        sandbox_load(f->node.sandbox, &ref, pending_write(r, f));
    }
}

static void finish_set(struct p9_request *r, struct tree_fid *f, int rc, const struct err *e)
{
    if (rc < 0) {
        sandbox_set_error(f->node.sandbox, "%s", e->msg);
        fail(r, f, rc, e);
    } else {
        reply_write(r);
    }
}

/* The guest kernel does not boot in less. */
#define MEMORY_MIN (96ULL << 20)

static void write_memory(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    uint64_t bytes = 0;
    (void)len;
    if (!may_write(r, f))
        return;
    int rc = str_parse_size(value, &bytes);
    if (rc < 0 || bytes < MEMORY_MIN || bytes > (1ULL << 39) || bytes % (1 << 20))
        rc = err_set(&e, EINVAL, "'%.32s' is no memory size: whole MiB from 96M to 512G, such as 256M", value);
    else if ((int64_t)bytes != row_of(f)->memory)
        rc = sandbox_resize(f->node.sandbox, bytes, 0, &e);
    finish_set(r, f, rc, &e);
}

static void write_vcpus(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    uint64_t n = 0;
    (void)len;
    if (!may_write(r, f))
        return;
    int rc = str_parse_u64(value, 64, &n);
    if (rc < 0 || n < 1)
        rc = err_set(&e, EINVAL, "'%.32s' is no number of processors: 1 to 64", value);
    else if ((int64_t)n != row_of(f)->vcpus)
        rc = sandbox_resize(f->node.sandbox, 0, (uint32_t)n, &e);
    finish_set(r, f, rc, &e);
}

static void write_disk(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    uint64_t bytes = 0;
    (void)len;
    if (!may_write(r, f))
        return;
    if (str_parse_size(value, &bytes) < 0 || bytes % 4096 || bytes > (1ULL << 46) || bytes == 0) {
        finish_set(r, f, err_set(&e, EINVAL, "'%.32s' is no disk size: a multiple of 4096 up to 64T, such as 20G", value), &e);
    } else if (f->node.sandbox->copy == COPY_HELD) { /* the head brings its own size; larger ones grow at the boot */
        if ((int64_t)bytes > row_of(f)->disk)
            row_of(f)->disk = (int64_t)bytes;
        reply_write(r);
    } else {
        struct pending *p = pending_new(r, NULL);
        int rc = sandbox_grow(f->node.sandbox, bytes, &p->w, &e);
        if (rc < 0)
            pending_fail(p, rc, &e);
    }
}

static int check_labels(const struct tree_fid *f, const char *value, struct err *e)
{
    for (const char *line = value; *line;) {
        size_t n = strcspn(line, "\n"), key = strcspn(line, "=");
        if (n && (key >= n || key == 0))
            return err_set(e, EINVAL, "labels are key=value lines");
        if (!strncmp(line, "admin.", 6) && f->caller->uid != 0 && f->node.sandbox->copy != COPY_HELD)
            return err_set(e, EPERM, "keys under 'admin.' are set by the administrator only");
        line += n + (line[n] == '\n');
    }
    return strlen(value) > 4096 ? err_set(e, E2BIG, "labels have more than 4096 bytes") : 0;
}

/* Appends the lines of `from` that are (or are not) the administrator's. */
static bool add_lines(char out[4097], const char *from, bool admin)
{
    size_t pos = strlen(out);
    for (const char *line = from; *line;) {
        size_t n = strcspn(line, "\n");
        if (n && !strncmp(line, "admin.", 6) == admin && !str_append(out, 4097, &pos, "%s%.*s", pos ? "\n" : "", (int)n, line))
            return false;
        line += n + (line[n] == '\n');
    }
    return true;
}

/* The administrator's lines stay when an owner writes the rest; a copy does not bring the source's. */
static void write_labels(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    char labels[4097] = "";
    bool root = f->caller->uid == 0;
    (void)len;
    if (!may_write(r, f))
        return;
    int rc = check_labels(f, value, &e);
    if (rc == 0 && !(add_lines(labels, root ? value : row_of(f)->labels, true) && add_lines(labels, value, false)))
        rc = err_set(&e, E2BIG, "labels have more than 4096 bytes");
    if (rc == 0) {
        str_copy(row_of(f)->labels, sizeof row_of(f)->labels, labels);
        rc = sandbox_save(f->node.sandbox, &e);
    }
    if (rc == 0 && root) { /* labels of the administrator's choose policies */
        net_apply(f->node.sandbox->space, &pending_new(r, NULL)->w);
        return;
    }
    finish_set(r, f, rc, &e);
}

static void write_wake(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    int rc = 0;
    (void)len;
    if (!may_write(r, f))
        return;
    if (strcmp(value, "auto") != 0 && strcmp(value, "manual") != 0)
        rc = err_set(&e, EINVAL, "wake takes `auto` or `manual`");
    else
        row_of(f)->wake_manual = !strcmp(value, "manual");
    if (rc == 0)
        rc = sandbox_save(f->node.sandbox, &e);
    finish_set(r, f, rc, &e);
}

static void read_idle(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s\n", row_of(f)->idle[0] ? row_of(f)->idle : "never");
}

static void write_idle(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    (void)len;
    if (!may_write(r, f))
        return;
    int rc = idle_check(value, &e);
    if (rc == 0) {
        str_copy(row_of(f)->idle, sizeof row_of(f)->idle, strcmp(value, "never") ? value : "");
        idle_used(f->node.sandbox);
        rc = sandbox_save(f->node.sandbox, &e);
    }
    finish_set(r, f, rc, &e);
}

static void read_keep(struct tree_fid *f, struct text *t)
{
    for (const char *c = schedule_text(f->node.sandbox); *c; c++)
        if (*c == ',')
            text_add(t, "\n"), c += c[1] == ' ';
        else
            text_add(t, "%c", *c);
    text_add(t, "\n");
}

static void write_keep(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    (void)len;
    if (may_write(r, f))
        finish_set(r, f, schedule_set(f->node.sandbox, value, &e), &e);
}

static void read_egress(struct tree_fid *f, struct text *t)
{
    add_policy(t, row_of(f)->egress);
}

static void write_egress(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct sandbox *sb = f->node.sandbox;
    struct err e = {0};
    if (!may_write(r, f))
        return;
    int rc = check_egress_length(len, &e);
    if (rc == 0)
        rc = net_check(sb, value, &e);
    if (rc == 0) {
        str_copy(sb->row.egress, sizeof sb->row.egress, value);
        rc = sandbox_save(sb, &e);
    }
    if (rc < 0 || sb->copy == COPY_HELD || !sb->guest) {
        finish_set(r, f, rc, &e);
        return;
    }
    end_of_egress(r, f);
}

static void add_decision(void *user, const char *line)
{
    text_add(user, "%s\n", line);
}

static void read_net(struct tree_fid *f, struct text *t)
{
    net_lines(f->node.sandbox, add_decision, t);
}

/* Asks instead: what is read from this descriptor then is the answer. */
static void write_net(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    char answer[512];
    (void)len;
    int rc = net_explain(f->node.sandbox, value, answer, sizeof answer, &e);
    if (rc < 0) {
        fail(r, f, rc, &e);
        return;
    }
    f->open->text.len = 0;
    text_add(&f->open->text, "%s\n", answer);
    reply_write(r);
}

const struct attr sandbox_attrs[] = {
    {"id", 0444, 0, read_id, NULL, "12 hex digits; never reused."},
    {"origin", 0444, 0, read_origin, NULL, "The ref it was last loaded from."},
    {"owner", 0444, 0, read_owner, NULL, "Whose it is."},
    {"created", 0444, 0, read_created, NULL, "When (UTC)."},
    {"state", 0644, 0, read_state, write_state,
     "Reads the state's name; takes a verb: start pause resume suspend stop kill. The write returns when it is done."},
    {"node", 0644, 0, read_node, write_node,
     "The node that has it; write another's name to move it there, memory and processes included, or `NAME boot`: its disk alone."},
    {"memory", 0644, 0, read_memory, write_memory, "Such as 256M; settable until root/ or proc/ is first touched, and when stopped."},
    {"vcpus", 0644, 0, read_vcpus, write_vcpus, "Processors; settable like memory."},
    {"disk", 0644, 0, read_disk, write_disk, "Size of the disk, such as 10G; grows while running, never shrinks."},
    {"labels", 0644, ATTR_ACCUMULATE, read_labels, write_labels, "key=value lines; keys under admin. are the administrator's."},
    {"keep", 0644, ATTR_ACCUMULATE, read_keep, write_keep,
     "Automatic snapshots: `none`, `default`, or lines such as `disk every 5m for 1h`, `full every 1h for 1d`."},
    {"idle", 0644, ATTR_ACCUMULATE, read_idle, write_idle,
     "never, or lines such as `pause 5m`, `suspend 1h`, `stop 1d`, `destroy 30d`: what happens when nobody uses it so long."},
    {"wake", 0644, 0, read_wake, write_wake, "auto: touching root/ or starting a job resumes a paused or suspended sandbox; manual: EAGAIN."},
    {"egress", 0644, ATTR_ACCUMULATE, read_egress, write_egress,
     "What it may reach: rules such as `allow tcp example.org:443`, `allow tcp @pypi`; empty: nothing."},
    {"net", 0666, 0, read_net, write_net,
     "Recent decisions on its connections; write HOST:PORT, then read from the start of the same descriptor: what would be decided."},
    {"stats", 0444, 0, read_stats, NULL, "key value lines."},
    {"error", 0444, 0, read_sandbox_error, NULL, "The last error in full: what was tried, on what, why, what to do."},
    {"head", 0644, 0, read_head, write_head, "Its ref; write another ref to move the sandbox to that state."},
    {0},
};

/* ---- snapshots ---- */

static struct snapshot_row *snap_of(const struct tree_fid *f)
{
    return &f->node.snapshot->row;
}
static void read_snapshot_id(struct tree_fid *f, struct text *t)
{
    add_id(t, snap_of(f)->id);
}
static void read_snapshot_kind(struct tree_fid *f, struct text *t)
{
    const struct snapshot_row *row = snap_of(f);
    if (row->memory && (row->state == ARTIFACT_READY || row->state == ARTIFACT_STORED))
        text_add(t, "full\n");
    else
        text_add(t, "disk %s\n", row->state == ARTIFACT_CREATING ? "unknown" : row->consistent ? "consistent" : "crash");
}
static void read_snapshot_created(struct tree_fid *f, struct text *t)
{
    add_time(t, snap_of(f)->created);
}
static void read_snapshot_size(struct tree_fid *f, struct text *t)
{
    text_add(t, "%" PRId64 "\n", snap_of(f)->size);
}
static void read_snapshot_delta(struct tree_fid *f, struct text *t)
{
    int64_t delta = account_of_snapshot(f->node.snapshot);
    if (delta < 0)
        text_add(t, "unknown\n");
    else
        text_add(t, "%" PRId64 "\n", delta);
}
static void read_snapshot_expires(struct tree_fid *f, struct text *t)
{
    int64_t until = schedule_expires(f->node.snapshot);
    if (until < 0)
        text_add(t, "never\n");
    else
        add_time(t, until);
}
static void read_snapshot_tier(struct tree_fid *f, struct text *t)
{
    char line[KEEP_LINE_MAX];
    add_line(t, schedule_tier(f->node.snapshot, line));
}
static void read_snapshot_state(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s\n", artifact_state_name(snap_of(f)->state));
}
static void write_snapshot_state(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    (void)len;
    if (!may_write(r, f))
        return;
    struct err e = {0};
    int rc = volume_key(space_of(r), snap_of(f)->owner, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else if (!strcmp(value, "upload"))
        volume_upload(f->node.snapshot, pending_write(r, f));
    else if (!strcmp(value, "repair"))
        volume_repair(f->node.snapshot, pending_write(r, f));
    else
        fail_errno(r, f, EINVAL,
                   "a snapshot's state takes `upload`: its files are stored in the object store; and `repair`: what is damaged there is mended");
}
static void read_snapshot_artifacts(struct tree_fid *f, struct text *t)
{
    char line[160];
    for (unsigned i = 0; volume_artifact(f->node.snapshot, i, line, sizeof line); i++)
        text_add(t, "%s\n", line);
}
static void read_snapshot_durable(struct tree_fid *f, struct text *t)
{
    uint64_t done, total;
    if (snap_of(f)->durable)
        text_add(t, "yes\n");
    else if (volume_progress(f->node.snapshot, &done, &total))
        text_add(t, "no %" PRIu64 " %" PRIu64 "\n", done, total);
    else
        text_add(t, "no\n");
}
static void read_snapshot_error(struct tree_fid *f, struct text *t)
{
    add_line(t, snap_of(f)->error);
}
static void read_snapshot_head(struct tree_fid *f, struct text *t)
{
    struct ref ref = {REF_SNAPSHOT, (uint64_t)snap_of(f)->id, 0};
    char buf[REF_TEXT_MAX];
    text_add(t, "%s\n", ref_format(&ref, buf));
}

/* `cp -r sandboxes/A snapshots/A/S`: mkdir took the disk; the head that the copy brings makes it a checkpoint of that sandbox. */
static void write_snapshot_head(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct ref ref;
    struct err e = {0};
    (void)len;
    if (!may_write(r, f) || !check_ref(r, f, value, &ref))
        return;
    if (ref.kind != REF_SANDBOX || (int64_t)ref.id != snap_of(f)->sandbox) {
        fail_errno(r, f, EINVAL, "snapshots/NAME/ holds snapshots of sandbox NAME only");
        return;
    }
    struct waiter *w = pending_write(r, f);
    int rc = snapshot_fill(f->node.snapshot, &ref, w, &e);
    if (rc < 0 && w)
        pending_fail((struct pending *)(void *)w, rc, &e);
}

/* The write ends when the list is complete. */
static void write_changes(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct ref ref;
    (void)len;
    if (!check_ref(r, f, value, &ref))
        return;
    struct snapshot *now = f->node.snapshot, *before = ref.kind == REF_SNAPSHOT ? snapshot_by_id(space_of(r), ref.id) : NULL;
    struct err e = {0};
    int rc = volume_key(space_of(r), now->row.owner, &e);
    if (rc < 0) {
        fail(r, f, rc, &e);
        return;
    }
    if (!before || now->row.state != ARTIFACT_READY || before->row.state != ARTIFACT_READY) {
        fail_errno(r, f, before ? EAGAIN : EINVAL, before ? "both snapshots must be ready" : "changes takes the head of another snapshot");
        return;
    }
    changes_unref(f->open->changes);
    f->open->changes = changes_start(now, before);
    f->open->cursor = 0;
    if (f->open->changes->done && f->open->changes->rc < 0)
        fail(r, f, f->open->changes->rc, &f->open->changes->error);
    else if (f->open->changes->done)
        reply_write(r);
    else
        wait_add(&f->open->changes->waiters, &pending_new(r, NULL)->w);
}

const struct attr snapshot_attrs[] = {
    {"id", 0444, 0, read_snapshot_id, NULL, "12 hex digits; never reused."},
    {"kind", 0444, 0, read_snapshot_kind, NULL,
     "`full` (with memory and processes), `disk consistent` (frozen through the agent, or stopped) or `disk crash`."},
    {"created", 0444, 0, read_snapshot_created, NULL, "When (UTC)."},
    {"size", 0444, 0, read_snapshot_size, NULL, "Bytes of the disk."},
    {"delta", 0444, 0, read_snapshot_delta, NULL,
     "Bytes that it holds beyond the snapshot before it, or what its sandbox came from; `unknown` until measured."},
    {"tier", 0444, 0, read_snapshot_tier, NULL, "Of an automatic one: the line of `keep` that keeps it longest."},
    {"expires", 0444, 0, read_snapshot_expires, NULL, "When it is removed if `keep` stays as it is (UTC), or never."},
    {"state", 0644, 0, read_snapshot_state, write_snapshot_state,
     "creating, ready, stored (in the object store only) or failed; write `upload` to store it, `repair` to mend what is damaged there. The write "
     "returns when it is done."},
    {"durable", 0444, 0, read_snapshot_durable, NULL,
     "`yes`: it is in the object store, verified. `no`; while it is uploaded `no DONE TOTAL`, in bytes."},
    {"artifacts", 0444, 0, read_snapshot_artifacts, NULL,
     "What it is in the object store, FILE TENANT ID a line, its template's too: what `spacectl fsck` names."},
    {"error", 0444, 0, read_snapshot_error, NULL, "Why it failed."},
    {"changes", 0666, ATTR_STREAM, NULL, write_changes,
     "Write the head of another snapshot, then read from the same descriptor: BYTES PATH of each file in files/ that may differ from that one's."},
    {"disk.raw", 0400, ATTR_RAW, NULL, NULL, "The disk image, read-only and stable."},
    {"ram.raw", 0400, ATTR_RAW, NULL, NULL, "Of a full one: the guest's memory."},
    {"head", 0644, 0, read_snapshot_head, write_snapshot_head,
     "Its ref: write it into a sandbox's head to go back, or cp -r the directory to make a new one; a head of its sandbox written at once makes it "
     "full."},
    {0},
};

/* ---- jobs ---- */

static void read_status(struct tree_fid *f, struct text *t)
{
    char buf[32];
    text_add(t, "%s\n", job_status(f->node.job, buf));
}
static void read_env(struct tree_fid *f, struct text *t)
{
    add_line(t, f->node.job->row.env);
}
static void read_cwd(struct tree_fid *f, struct text *t)
{
    add_line(t, f->node.job->row.cwd);
}
static void read_user(struct tree_fid *f, struct text *t)
{
    add_line(t, f->node.job->row.user);
}
static void read_tty(struct tree_fid *f, struct text *t)
{
    add_line(t, f->node.job->row.tty);
}
static void read_timeout(struct tree_fid *f, struct text *t)
{
    text_add(t, "%" PRId64 "\n", f->node.job->row.timeout);
}

static void write_setting(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    (void)len;
    if (!may_write(r, f))
        return;
    int rc = job_set(f->node.job, attr_of(&f->node)->name, value, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_write(r);
}

/* What was written goes to its job; the answer follows when that has taken it. */
static void give_job(struct p9_request *r, int (*give)(struct job *j, const void *data, size_t len, struct waiter *w, struct err *e))
{
    struct tree_fid *f = fid_of(r->fid);
    struct err e = {0};
    struct pending *p = f->open->flags & P9_NONBLOCK ? NULL : pending_new(r, NULL);
    int rc = give(f->node.job, r->t->Twrite.data.p, r->t->Twrite.data.len, p ? &p->w : NULL, &e);
    if (rc < 0 && p)
        pending_fail(p, rc, &e);
    else if (rc < 0)
        fail(r, f, rc, &e);
    else if (!p)
        reply_write(r);
}

static void start_now(struct p9_request *r)
{
    give_job(r, job_start);
}

static void write_cmd(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    (void)value;
    (void)len;
    if (may_write(r, f))
        guest_gate(r, f->node.sandbox, start_now);
}

/* A job that has no machine now: that is brought back as by `cmd`. (A paused one has, and its job takes this when it goes on.) */
static bool sleeps(const struct tree_fid *f)
{
    enum sandbox_state state = sandbox_state(f->node.sandbox);
    return f->node.job->row.state == JOB_RUNNING && (state == SANDBOX_SUSPENDING || state == SANDBOX_SUSPENDED || state == SANDBOX_RESTORING);
}

static void stdin_now(struct p9_request *r)
{
    give_job(r, job_stdin);
}

static void write_stdin(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    (void)value;
    (void)len;
    if (!may_write(r, f))
        return;
    if (!r->t->Twrite.data.len)
        reply_write(r);
    else if (sleeps(f))
        guest_gate(r, f->node.sandbox, stdin_now);
    else
        stdin_now(r);
}

static void signal_now(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct err e = {0};
    char text[64];
    size_t len = r->t->Twrite.data.len < sizeof text ? r->t->Twrite.data.len : sizeof text - 1;
    memcpy(text, r->t->Twrite.data.p, len);
    text[len] = 0;
    struct pending *p = pending_new(r, NULL);
    int rc = job_signal(f->node.job, str_trim(text), &p->w, &e);
    if (rc < 0)
        pending_fail(p, rc, &e);
}

static void write_signal(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    (void)len;
    if (!may_write(r, f))
        return;
    if (job_signal_check(value, &e) < 0)
        fail(r, f, -EINVAL, &e); /* nothing is woken for that */
    else if (sleeps(f))
        guest_gate(r, f->node.sandbox, signal_now);
    else
        signal_now(r);
}

const struct attr job_attrs[] = {
    {"env", 0644, ATTR_ACCUMULATE, read_env, write_setting, "NAME=VALUE lines, before cmd."},
    {"cwd", 0644, 0, read_cwd, write_setting, "Working directory, before cmd; default the user's home."},
    {"user", 0644, 0, read_user, write_setting, "User of the guest, or UID[:GID], before cmd; default root."},
    {"tty", 0644, 0, read_tty, write_setting, "COLUMNSxROWS gives the job a terminal; later writes resize it."},
    {"timeout", 0644, 0, read_timeout, write_setting, "Such as 90s or 5m: the job is killed after it; 0 for none."},
    {"cmd", 0200, 0, NULL, write_cmd, "A shell line, or NUL and an argument vector of NUL-ended strings: starts the job."},
    {"stdin", 0200, 0, NULL, write_stdin, "Input; closing it is the end of file."},
    {"stdout", 0444, ATTR_STREAM, NULL, NULL, "Output: blocks until data or the end; readable again from any offset until rmdir."},
    {"stderr", 0444, ATTR_STREAM, NULL, NULL, "The same for errors; empty with a terminal."},
    {"wait", 0444, ATTR_STREAM, NULL, NULL, "Blocks until the end: `exit N`, `signal N` or `lost`."},
    {"status", 0444, 0, read_status, NULL, "The same at once: new, running, exit N, signal N, lost."},
    {"signal", 0200, 0, NULL, write_signal, "A name such as TERM, or a number."},
    {0},
};

/* ---- nodes ---- */

static void read_node_id(struct tree_fid *f, struct text *t)
{
    add_id(t, f->node.entry->row.id);
}
static void read_node_state(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s\n", cluster_state_name(cluster_state(f->session->space, f->node.entry)));
}
static void read_node_seen(struct tree_fid *f, struct text *t)
{
    add_time(t, f->node.entry->row.seen);
}

/* Sandboxes are counted as the caller sees them. */
static void read_node_stats(struct tree_fid *f, struct text *t)
{
    const struct node_row *row = &f->node.entry->row;
    struct space *s = f->session->space;
    unsigned count = 0;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        const struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        count += sb->row.node == row->id && sb->named && caller_may_read(f->caller, sb->row.owner, sb->row.gid, sb->row.mode);
    }
    text_add(t,
             "acceleration %s\nqemu %s\nkernel %s\ncpu %s\ncpus %" PRId64 "\nmemory_bytes %" PRId64 "\nguest_memory_bytes %" PRId64
             "\npool_bytes %" PRId64 "\npool_free_bytes %" PRId64 "\nsandboxes %u\nversion %s\n",
             accel_name(row->accel), row->qemu, row->kernel, row->cpu, row->cpus, row->memory, row->guest_memory, row->pool_size, row->pool_free,
             count, row->version);
}

static void write_node_state(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    struct err e = {0};
    (void)len;
    int rc = f->caller->uid ? err_set(&e, EACCES, "nodes are root's")
             : strcmp(value, "dead")
                 ? err_set(&e, EINVAL, "a node's state takes `dead`: its machine does not run any more, and what was on it may be taken")
                 : cluster_declare_dead(space_of(r), f->node.entry, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_write(r);
}

const struct attr node_attrs[] = {
    {"id", 0444, 0, read_node_id, NULL, "12 hex digits; made with its database or state directory."},
    {"state", 0644, 0, read_node_state, write_node_state,
     "up, away (not heard of for 10 s) or dead; root writes `dead` when its machine is off for sure: what was on it can be moved then."},
    {"seen", 0444, 0, read_node_seen, NULL, "When it last said that it is up (UTC, by its own clock)."},
    {"stats", 0444, 0, read_node_stats, NULL, "key value lines: what it is and has; sandboxes: those on it that you see."},
    {0},
};

/* ---- help ---- */

static const struct {
    const char *prefix;
    enum node_kind kind;
} helped[] = {{"", NODE_ROOT},
              {"templates.NAME.", NODE_TEMPLATE},
              {"sandboxes.NAME.", NODE_SANDBOX},
              {"snapshots.NAME.SNAP.", NODE_SNAPSHOT},
              {"proc.NAME.JOB.", NODE_JOB},
              {"credentials.", NODE_CREDENTIALS},
              {"credentials.SCOPE.", NODE_SCOPE},
              {"credentials.SCOPE.NAME.", NODE_CREDENTIAL},
              {"nodes.NODE.", NODE_NODE}};

const char *help_text(unsigned index, const char **name, char *buf, size_t size)
{
    unsigned i = 0;
    for (size_t t = 0; t < sizeof helped / sizeof helped[0]; t++)
        for (const struct attr *a = attr_table(helped[t].kind); a->name; a++, i++)
            if (i == index) {
                snprintf(buf, size, "%s%s", helped[t].prefix, a->name);
                *name = buf;
                return a->help;
            }
    return NULL;
}
