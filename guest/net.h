// SPDX-License-Identifier: Apache-2.0
// What of the network the daemon sets up itself.
#ifndef SPACE_GUEST_NET_H
#define SPACE_GUEST_NET_H

/* Brings the loopback interface up, which gives it its addresses. 0 or -errno. */
int net_start_loopback(void);

#endif
