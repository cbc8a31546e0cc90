// SPDX-License-Identifier: Apache-2.0
// Between the files of hostd/cluster.
#ifndef SPACE_HOSTD_CLUSTER_IMPL_H
#define SPACE_HOSTD_CLUSTER_IMPL_H

#include "hostd/cluster/cluster.h"

/* Loads what is known of all nodes, and begins to say that this one is up. */
int cluster_nodes_open(struct space *s, struct err *e);
/* A snapshot in the store is another node's from now on, or was and is ours: after the transaction that says so. */
void cluster_gave(struct snapshot *sn, int64_t to);
/* A sandbox that has arrived is restored, or boots. */
void cluster_go_on(struct sandbox *sb, struct waiter *w);
/* From the feed; NULL: forgotten. */
void cluster_node_told(struct space *s, int64_t id, const struct node_row *row);

#endif
