// SPDX-License-Identifier: Apache-2.0
// The guest's interfaces and resolver: see net.h.
#include "guest/net.h"

#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* As the host knows them: hostd/noded/net_wire.h. */
#define INTERFACE "eth0"
#define ADDRESS   "192.0.0.2"
#define MASK      "255.255.255.248"
#define GATEWAY   "192.0.0.1"
static const unsigned char gateway_mac[] = {0x52, 0x54, 0, 0, 0, 1};

#define RESOLVER "/etc/resolv.conf"

int net_start_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
}

static void set_address(struct sockaddr *a, const char *text)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    inet_pton(AF_INET, text, &in.sin_addr);
    memcpy(a, &in, sizeof in);
}

/* Before it is up: no address of that kind appears, and no program waits for answers there. */
static void without_ipv6(void)
{
    AUTO_CLOSE int fd = open("/proc/sys/net/ipv6/conf/" INTERFACE "/disable_ipv6", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "1", 1) < 0)
        return;
}

static int set_route(int fd)
{
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    set_address(&route.rt_dst, "0.0.0.0");
    set_address(&route.rt_genmask, "0.0.0.0");
    set_address(&route.rt_gateway, GATEWAY);
    return ioctl(fd, SIOCADDRT, &route) < 0 && errno != EEXIST ? -errno : 0;
}

/* Known from the start, and for good: the first connection after a load asks nobody. */
static int set_neighbour(int fd)
{
    struct arpreq gateway = {.arp_flags = ATF_PERM | ATF_COM, .arp_ha.sa_family = ARPHRD_ETHER, .arp_dev = INTERFACE};
    set_address(&gateway.arp_pa, GATEWAY);
    memcpy(gateway.arp_ha.sa_data, gateway_mac, sizeof gateway_mac);
    return ioctl(fd, SIOCSARP, &gateway) < 0 ? -errno : 0;
}

int net_start_outside(void)
{
    struct ifreq r = {.ifr_name = INTERFACE};
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (ioctl(fd, SIOCGIFFLAGS, &r) < 0)
        return errno == ENODEV ? 0 : -errno;
    without_ipv6();
    set_address(&r.ifr_addr, ADDRESS);
    if (ioctl(fd, SIOCSIFADDR, &r) < 0)
        return -errno;
    set_address(&r.ifr_netmask, MASK);
    if (ioctl(fd, SIOCSIFNETMASK, &r) < 0)
        return -errno;
    r.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(fd, SIOCSIFFLAGS, &r) < 0)
        return -errno;
    int rc = set_neighbour(fd);
    if (rc == 0)
        rc = set_route(fd);
    return rc < 0 ? rc : 1;
}

/* ---- the resolver ---- */

/* Does it name a server that the gateway can stand for? */
static bool resolver_works(void)
{
    char line[256], address[64];
    struct in_addr in;
    bool works = false;
    FILE *f = fopen(RESOLVER, "re"); /* a link to what systemd would make leads nowhere */
    while (f && !works && fgets(line, sizeof line, f))
        works = sscanf(line, " nameserver %63s", address) == 1 && inet_pton(AF_INET, address, &in) == 1 && ntohl(in.s_addr) >> 24 != 127 &&
                in.s_addr != 0;
    if (f)
        fclose(f);
    return works;
}

int net_write_resolver(void)
{
    static const char text[] = "nameserver " GATEWAY "\n";
    if (resolver_works())
        return 0;
    if (unlink(RESOLVER) < 0 && errno != ENOENT)
        return -errno;
    AUTO_CLOSE int fd = open(RESOLVER, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno; /* a root without /etc has nobody who would read it */
    return write(fd, text, sizeof text - 1) < 0 ? -errno : 0;
}
