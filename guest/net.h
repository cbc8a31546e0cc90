// SPDX-License-Identifier: Apache-2.0
// The guest's network, as every guest has it.
//
// One interface on a wire to the host, where all TCP and DNS ends at the egress gateway
// (docs/egress.md) and nothing else passes. The addresses are the same everywhere, so that a fork
// and a restore need no change inside.
#ifndef SPACE_GUEST_NET_H
#define SPACE_GUEST_NET_H

/* Brings the loopback interface up, which gives it its addresses. 0 or -errno. */
int net_start_loopback(void);

/* Address, route and the gateway's hardware address of eth0. 1, 0 when the machine has none, or
 * -errno. */
int net_start_outside(void);

/* Makes /etc/resolv.conf of the root file system one that can work here: any IPv4 name server that
 * is not on this machine does, since the gateway answers for all of them. What can work is left as
 * it is. 0 or -errno. */
int net_write_resolver(void);

/* After a load: ends the TCP connections that lead out of this machine, as a reset would. Their
 * other ends are another machine's now, or nobody's; who waits for bytes would wait for ever. */
void net_end_connections(void);

#endif
