// SPDX-License-Identifier: Apache-2.0
// The one configuration file of an instance (default /etc/space/space.conf), read by every program: `key = value` lines,
// '#' comments. Unknown keys are errors. docs/man/space.conf.5 lists them.
#ifndef SPACE_BASE_CONFIG_H
#define SPACE_BASE_CONFIG_H

#include "base/err.h"

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

#define CONFIG_PATH_DEFAULT "/etc/space/space.conf"
#define CONFIG_PATH_MAX     256 /* so that sockets below `run` still fit sun_path */

struct config {
    char pool[CONFIG_PATH_MAX];     /* btrfs directory of templates/ sandboxes/ snapshots/; default /var/lib/space/pool */
    char run[64];                   /* sockets; default /run/space. At most 63 bytes: sun_path holds 107 */
    char state[CONFIG_PATH_MAX];    /* database and job output; default /var/lib/space/state */
    char database[CONFIG_PATH_MAX]; /* file of the database, which several nodes may share; default STATE/space.db */
    char mount[CONFIG_PATH_MAX];    /* where spacefs mounts; default /space */
    char guest[CONFIG_PATH_MAX];    /* vmlinuz and initrd for guests; default /usr/local/lib/space/guest */
    char user[33], group[33];       /* the unprivileged user of hostd and spacefs, and the group whose members may make
                                     things; default space, space */
    char net_user[33];              /* the user of space-netd; default space-net */
    char inject_user[33];           /* the user of HAProxy; default space-inject */
    uint32_t inject;                /* 1: hosts with a credential are decrypted for it; default yes */
    char inject_ca
        [CONFIG_PATH_MAX];        /* PEM file of CAs that such hosts may have besides the system's; default /etc/space/upstream.pem, may be missing */
    char resolver[256];           /* name servers that space-netd asks: `system` (those of /etc/resolv.conf), or ADDRESS[:PORT],... */
    char egress[CONFIG_PATH_MAX]; /* rules of which the denials go before those of every sandbox; default /etc/space/egress, may be missing */
    char egress_congestion[16];   /* congestion control of connections to servers, by the kernel's name; default system: the host's choice */
    char node[65];                /* name of this node; default the host's name */
    char libvirt[128];            /* URI; default qemu:///system */
    char vm_prefix[33];           /* libvirt domain names are PREFIX-ID; default space. Two instances need different ones */
    char accel[8];                /* auto (boot a guest under KVM, fall back to TCG), kvm, tcg; default auto */
    uint32_t uid_base, uid_count; /* each QEMU gets one of these uids (and the gid of the same number); default 610000, 4096 */
    uint64_t memory;              /* of a new sandbox, bytes; default 256M */
    uint32_t vcpus;               /* of a new sandbox; default 1 */
    uint64_t disk;                /* of a new template made without a size, bytes; default 10G */
    char template_[65];           /* key `template`: what `mkdir sandboxes/X` starts from; default debian */
    char keep[512];               /* snapshots of a sandbox that says nothing else, tiers between commas; default: see config.c */
    uint32_t overcommit_percent;  /* memory of all live guests over host memory; default 200 */
    uint32_t pool_ready;          /* machines of the default template kept ready for mkdir; default 2 */
    uint32_t pool_slots;          /* and kept waiting for a fork or a roll back; default 1 */
    uint32_t pool_max;            /* machines in the pool at most, all templates together; 0: no pool; default 32 */
    uint32_t suspend_keep;        /* 1: what was suspended stays in the pool, too, and is restored from there; default yes */
    uint32_t reserve_percent;     /* of the pool kept free: creating is refused below, removing still works; default 5 */
    uint32_t max_sandboxes;       /* per owner; default 4096 */
    uint64_t max_disk;            /* bytes that the things of one owner may hold of their own; 0: no limit; default 0 */
    uint32_t max_jobs;            /* per sandbox; default 1024 */
    char store
        [CONFIG_PATH_MAX]; /* where suspended sandboxes go: a directory, or URL/BUCKET[/PREFIX] of an S3 server; default `store` beside `state` */
    char store_region[65]; /* of S3; default us-east-1 */
    char store_style[8];   /* path or host: how the bucket is named; default path */
    char store_credentials[CONFIG_PATH_MAX]; /* file with access_key and secret_key; default `store.credentials` beside the configuration */
    char store_ca[CONFIG_PATH_MAX];          /* PEM file of the CAs that are trusted; default the system's, then it is empty */
    char store_cache[CONFIG_PATH_MAX];       /* what this node knows of the store; default `volumes` beside `state` */
    uint32_t store_stale;       /* seconds after which an upload that did not renew its claim is given up; the same on all nodes; default 86400 */
    char keys[CONFIG_PATH_MAX]; /* folder of the tenants' TENANT.key, default.key; default `keys` beside the configuration */
    uint32_t copy_keep;         /* seconds that a copy of another node's snapshot stays in the pool after its last use; default 600 */
    uint32_t key_check;         /* seconds between two questions whether a tenant's key was revoked; default 60 */
    char volume_user[33];       /* user of space-volumed; default space-vol */
    char credentials[CONFIG_PATH_MAX];      /* what space-credd keeps, and the audit log; default /var/lib/space/credentials */
    char credential_keys[CONFIG_PATH_MAX];  /* folder with credentials.key: who wraps space-credd's key; default /etc/space/credential-keys */
    char credential_store[CONFIG_PATH_MAX]; /* where values lie: `local`, or a file that says where Vault is; default local */
    uint32_t audit_lines;                   /* of the audit log that uses of one tenant may fill in a minute, and changes; default 100 */
    uint32_t audit_days;                    /* that a file of the audit log is kept after its last line; 0: for ever; default 0 */
    char cred_user[33];                     /* user of space-credd; default space-cred */
    uint64_t job_output;                    /* spooled bytes per job; default 64M */
};

/* Fills in the defaults, then the file. A missing file is an error. 0 or -errno; the sentence names file and line. */
int config_load(const char *path, struct config *out, struct err *e);

#endif
