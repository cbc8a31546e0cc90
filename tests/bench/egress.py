#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much space-netd costs beside a namespace with plain nftables NAT: connections (bar: 1.5 times as long) and bulk throughput (bar: 80 %).

egress.py SPACE-NETD [CONGESTION]; as root, on a quiet machine. With CONGESTION, space-netd's `egress_congestion` is that one."""
import os
import socket
import statistics
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "unit", "netd"))
from daemon import *

ROUNDS, BULK, TURNS = 400, 512 << 20, 7
NAT = """table ip n {
 chain p { type nat hook postrouting priority srcnat; oifname "out" masquerade; }
}"""


def nat(w):
    """A namespace whose way to the server is another one, that forwards."""
    name, inner = f"{w.tag}n", f"{w.tag}m"
    for n in (name, inner):
        sh("ip", "netns", "add", n)
        w.spaces.append(n)
    sh("ip", "link", "add", "in", "netns", inner, "type", "veth", "peer", "name", "eth0", "netns", name)
    sh("ip", "link", "add", "out", "netns", inner, "type", "veth", "peer", "name", "eth1", "netns", w.far)
    for n, device, address in ((inner, "in", "192.0.0.1/29"), (name, "eth0", "192.0.0.2/29"), (inner, "out", "45.45.48.1/24"), (w.far, "eth1", "45.45.48.10/24")):
        sh("ip", "-n", n, "addr", "add", address, "dev", device)
        sh("ip", "-n", n, "link", "set", device, "up")
    sh("ip", "-n", name, "route", "add", "default", "via", "192.0.0.1")
    sh("ip", "netns", "exec", inner, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    sh("ip", "netns", "exec", inner, "nft", "-f", "-", input=NAT)
    return name


def connect_time(name, address):
    """Medians of connect alone, and of connect, a byte, and its echo; microseconds."""
    alone, echoed = [], []

    def go():
        for _ in range(ROUNDS):
            s = socket.socket()
            began = time.perf_counter()
            s.connect((address, 7003))
            alone.append(time.perf_counter() - began)
            s.sendall(b"\x01")
            s.recv(1)
            echoed.append(time.perf_counter() - began)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
            time.sleep(0.012)  # netd lets a guest begin a hundred a second
    in_namespace(name, go)
    return statistics.median(alone) * 1e6, statistics.median(echoed) * 1e6


def send(s):
    block = bytes(1 << 20)
    for _ in range(BULK >> 20):
        s.sendall(block)


def receive(s):
    buffer, left = bytearray(1 << 20), BULK
    while left and (n := s.recv_into(buffer)):
        left -= n
    assert not left, f"{left} bytes are missing"


def feed(c):
    c.recv(1)
    send(c)


def swallow(c):
    c.recv(1)
    receive(c)
    c.sendall(b"\x02")


def throughput(name, address, up):
    """What the guest receives, or sends, MB/s."""
    s = dial(name, 7005 if up else 7004, address)
    s.sendall(b"\x01")
    began = time.perf_counter()
    if up:
        send(s)
        s.recv(1)
    else:
        receive(s)
    return BULK / (time.perf_counter() - began) / 1e6


def main():
    with World(sys.argv[1], more=f"egress_congestion = {sys.argv[2]}\n" if len(sys.argv) > 2 else "") as w:
        w.ask(HELLO)
        for port, serve in ((7003, lambda c: [c.sendall(d) for d in received(c)]), (7004, feed), (7005, swallow)):
            listen(w, port, serve)
        both = [("NAT", nat(w), "45.45.48.10"), ("netd", w.guest(1, "allow tcp *:*"), SERVER)]
        for what, name, address in both:
            alone, echoed = connect_time(name, address)
            print(f"{what:5} connect {alone:.0f} us, with a byte and its echo {echoed:.0f} us", flush=True)
        for up in (False, True):  # by turns: other things on the machine are the same for both
            rates = {what: [] for what, _, _ in both}
            for _ in range(TURNS):
                for what, name, address in both:
                    rates[what].append(throughput(name, address, up))
            n, g = (statistics.median(rates[what]) for what in ("NAT", "netd"))
            print(f"bulk {'to the server' if up else 'to the guest '}: NAT {n:.0f} MB/s, netd {g:.0f}: {g / n:.2f} (bar 0.80)", flush=True)


if __name__ == "__main__":
    main()
