// SPDX-License-Identifier: Apache-2.0
// Packets with descriptors over SOCK_SEQPACKET, as the daemons exchange them. Nothing here blocks.
#ifndef SPACE_IPC_PACKET_H
#define SPACE_IPC_PACKET_H

#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Descriptors that one packet may carry. */
#define PACKET_FDS 2u

/* A connection to the socket at `path`, which does not block and is the caller's; or -errno. */
int packet_connect(const char *path);

/* Sends `parts` as one packet, with copies of `fd_count` descriptors. 1 sent, 0 no room now, or
 * -errno: the connection is of no more use. */
int packet_send(int sock, const struct iovec *parts, unsigned part_count, const int *fds, unsigned fd_count);

/* Takes one packet of at most `size` bytes. Its length; 0: none is there now; or -errno, the end
 * of the connection: ECONNRESET hung up, EMSGSIZE it was longer or carried too much. `fd`
 * becomes the descriptor that came with it, the caller's, or -1. NULL: whatever comes is dropped.
 */
ssize_t packet_receive(int sock, void *buf, size_t size, int *fd);

#endif
