#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 240
"""What a guest may reach, and what a hostile one cannot: from inside a real guest, against real servers and a real name server, which live in
network namespaces of their own. Nothing but what its `egress` allows gets out, whatever it sends, and whichever daemon dies."""
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

HERE = os.path.dirname(os.path.abspath(__file__))
NS = f"eg{os.getpid()}"
# Addresses that are nobody's here, and not special: what a name rule allows must be on the public internet.
HOST, SERVER, OTHER = "45.45.45.1", "45.45.45.10", "45.45.45.11"
DNS_PORT = 20000 + os.getpid() % 10000
GATEWAY, GUEST = "192.0.0.1", "192.0.0.2"
GATEWAY_MAC, GUEST_MAC = "525400000001", "525400000002"
RESET = "Connection reset by peer"
RAW = b"\x01raw"  # the beginning of nothing that is looked into


class World:
    """Servers, a name server, and one sandbox for all checks."""

    def __init__(self):
        self.log = open(f"{TESTTMP}/server.log", "w+")
        sh = lambda text: subprocess.run(text, shell=True, check=True)
        sh(f"ip netns add {NS}")
        defer(subprocess.run, ["ip", "netns", "del", NS])
        sh(f"ip link add {NS}a type veth peer name {NS}b && ip link set {NS}b netns {NS} && ip addr add {HOST}/24 dev {NS}a && ip link set {NS}a up")
        defer(subprocess.run, ["ip", "link", "del", f"{NS}a"], )
        sh(f"ip -n {NS} addr add {SERVER}/24 dev {NS}b && ip -n {NS} addr add {OTHER}/24 dev {NS}b && ip -n {NS} link set {NS}b up && ip -n {NS} link set lo up")
        self.server = subprocess.Popen(["ip", "netns", "exec", NS, sys.executable, f"{HERE}/egress.d/server.py"], stdin=subprocess.PIPE, stdout=self.log)
        defer(self.end, self.server)
        self.dns_log = f"{TESTTMP}/dns.log"
        if os.path.exists(self.dns_log):
            os.unlink(self.dns_log)
        names = {"good.test": SERVER, "also.test": SERVER, "other.test": OTHER, "private.test": "10.1.2.3", "loop.test": "127.0.0.1",
                 "meta.test": "169.254.169.254", "host.test": HOST, "wild.test": SERVER}
        os.makedirs(f"{TESTTMP}/turning", exist_ok=True)
        self.turn(SERVER)
        self.dns = subprocess.Popen(["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", f"--port={DNS_PORT}",
                                     "--listen-address=127.0.0.1", "--bind-interfaces", "--user=root", "--log-queries", f"--log-facility={self.dns_log}", f"--hostsdir={TESTTMP}/turning",
                                     "--pid-file="] + [f"--address=/{n}/{a}" for n, a in names.items()])
        defer(self.end, self.dns)
        self.configure()
        self.box = Box()
        subprocess.run(["cc", "-O1", "-static", "-o", f"{TESTTMP}/client", f"{HERE}/egress.d/client.c"], check=True)
        shutil.copy(f"{TESTTMP}/client", self.box.root("client"))

    def turn(self, address):
        """From now on, or from when the name server has noticed, turn.test is there."""
        with open(f"{TESTTMP}/turning/hosts", "w") as f:
            f.write(f"{address} turn.test\n")
        if hasattr(self, "dns"):
            self.dns.send_signal(signal.SIGHUP)

    @staticmethod
    def end(process):
        process.kill()
        process.wait()

    @staticmethod
    def configure():
        """netd asks our name server, until the end."""
        conf = os.environ["SPACE_CONFIG"]
        before = open(conf).read()

        def put(text):
            with open(conf, "w") as f:
                f.write(text)
            restart_netd()
        defer(put, before)
        put(before + f"\nresolver = 127.0.0.1:{DNS_PORT}\n")

    def connections(self):
        self.log.flush()
        with open(self.log.name) as f:
            return [l for l in f.read().splitlines() if l != "ready"]

    def asked(self):
        with open(self.dns_log) as f:
            return re.findall(r"query\[(\w+)\] (\S+)", f.read())


def restart_netd():
    old = kill_daemon("netd")
    daemon_back("netd", old)


world = None


def guest(*args, box=None):
    return (box or world.box).out("/client " + " ".join(str(a) for a in args))


def tcp(address, port, data=b"", pause=None, box=None):
    return guest("tcp", address, port, data.hex(), *([pause] if pause else []), box=box)


def allow(text, box=None):
    (box or world.box).set("egress", text)


def http(host, path="/"):
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def hello(name, ech=False, piece=1 << 14):
    """A TLS ClientHello, cut into records."""
    ext = b""
    if name:
        ext += struct.pack(">HHHBH", 0, len(name) + 5, len(name) + 3, 0, len(name)) + name.encode()
    ext += struct.pack(">HHBH", 43, 3, 2, 0x0304)
    if ech:
        ext += struct.pack(">HHB", 0xfe0d, 1, 0)
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + struct.pack(">H", len(ext)) + ext
    shake = b"\x01" + struct.pack(">I", len(body))[1:] + body
    return b"".join(b"\x16\x03\x01" + struct.pack(">H", len(shake[i:i + piece])) + shake[i:i + piece] for i in range(0, len(shake), piece))


def got(data):
    return f"ok got:{len(data)} open"


def reaches(address, port, data, box=None):
    eq(got(data), tcp(address, port, data, box=box), f"{address}:{port}")


def refused_there(address, port, data=b"", why=None):
    """Reset, and no byte of it arrived anywhere."""
    before = world.connections()
    answer = tcp(address, port, data)
    if answer not in (RESET, "Connection refused"):
        fail(f"{address}:{port} answered {answer!r}")
    if why:
        has(why, world.box.get("net").splitlines()[-1], "the last decision")
    return len(world.connections()) - len(before)


@check(limit=120)
def nothing_gets_out_by_default():
    eq("", world.box.get("egress"), "egress of a new one")
    with Events() as events:
        for address in (SERVER, HOST, GATEWAY, "1.1.1.1"):
            eq(0, refused_there(address, 80, why="no rule allows it"), "connections that arrived")
        has(f"{SERVER}:80: no rule allows it", events.next(10, kind="denied", name=world.box.name)["what"], "the event")
    eq("3", guest("dns", "good.test", 1), "answer about a name")
    eq([], world.asked(), "questions that left")


@check
def a_name_is_reached_where_it_is_and_nothing_else_there():
    allow("allow tcp good.test:80,443,5000\nallow tcp other.test:22\n")
    eq(0, refused_there(SERVER, 80, http("good.test"), why="no rule allows it"), "before the name was asked for")
    eq(f"0 {SERVER}", guest("dns", "good.test", 1))
    eq(f"0 {SERVER}", guest("dns", "GOOD.test", 1, "8.8.8.8"), "the answer of another server's address")
    eq(f"0 {SERVER}", guest("dnstcp", "good.test", 1), "by TCP")
    reaches(SERVER, 80, http("good.test"))
    reaches(SERVER, 443, hello("good.test"))
    reaches(SERVER, 5000, RAW)
    refused_there(SERVER, 22, why="no rule allows it")
    refused_there(OTHER, 80, why="no rule allows it")
    eq(f"0 {OTHER}", guest("dns", "other.test", 1))
    has("ok SSH-2.0-test", tcp(OTHER, 22), "a server that speaks first")
    stats = dict(l.split(" ", 1) for l in world.box.get("stats").splitlines())
    wait_until(lambda: "net_allowed 0" not in world.box.get("stats"), 5, "the counts")
    has("allowed by line 1", spacectl("net", "explain", world.box.name, "good.test:443").stdout)
    has("no rule allows", spacectl("net", "explain", world.box.name, "good.test:22").stdout)
    has(f"allow tcp good.test at {SERVER}:80", spacectl("net", world.box.name).stdout)


@check
def the_name_that_is_spoken_of_is_the_one_that_is_allowed():
    allow("allow tcp good.test:80,443\n")
    guest("dns", "good.test", 1)
    for data, why in ((http("also.test"), "another name: also.test"), (http("good.test") [:-2] + b"Host: also.test\r\n\r\n", "cannot be read"),
                      (b"GET / HTTP/1.0\r\n\r\n", "without a host"), (b"\r\n" + http("also.test"), "another name"),
                      (b"CONNECT also.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n", "tunnel"), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "tunnel"),
                      (b"GET http://also.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", "cannot be read")):
        refused_there(SERVER, 80, data, why=why)
    for data, why in ((hello("also.test"), "another name: also.test"), (hello(None), "without a server name"), (hello("good.test", ech=True), "ECH"),
                      (hello("also.test", piece=3), "another name"), (hello("10.0.0.1"), "another name")):
        refused_there(SERVER, 443, data, why=why)
    reaches(SERVER, 443, hello("good.test", piece=50))
    data = hello("good.test")[:60]
    eq("ok  open", tcp(SERVER, 443, data), "a beginning is held")
    has("got:", tcp(SERVER, 443, hello("good.test"), pause=2), "a slow ClientHello")
    allow("allow tcp good.test:80,443 ech\nallow tcp also.test:443\n")
    reaches(SERVER, 443, hello("good.test", ech=True))
    refused_there(SERVER, 443, hello("also.test"), why="another name")
    guest("dns", "also.test", 1)
    reaches(SERVER, 443, hello("also.test"))


@check
def names_carry_nothing_out_and_lead_nowhere_private():
    allow("allow tcp good.test:80\nallow tcp *.wild.test:80\nallow tcp private.test:80\nallow tcp loop.test:80\nallow tcp meta.test:80\nallow tcp host.test:80\n")
    before = len(world.asked())
    for name in ("secret.evil.test", "secret.good.test", "0x7f000001", "2130706433", "10.0.0.1", "a b.wild.test"):
        eq("3", guest("dns", f"'{name}'", 1), name)
    for kind in (16, 28, 65, 15, 12, 255):
        eq("0", guest("dns", "good.test", kind), f"records of type {kind}")
    eq([], world.asked()[before:], "questions that left")
    eq(f"0 {SERVER}", guest("dns", "GoOd.TeSt", 1))
    eq([("A", "good.test")], world.asked()[before:], "in lower case, whatever the guest wrote")
    for name in ("private.test", "loop.test", "meta.test"):
        eq("3", guest("dns", name, 1), name)
    has("169.254.169.254 is a cloud's metadata service", world.box.get("net"))
    eq(f"0 {HOST}", guest("dns", "host.test", 1))
    refused_there(HOST, 80, http("host.test"), why="an address of the host itself")


@check
def addresses_that_are_not_named_are_refused():
    allow("allow tcp *:*\n")
    for address in ("10.1.2.3", "0x0a010203", "012.1.2.3", "167838211", "172.16.0.1", "192.168.0.1", "169.254.169.254", "168.63.129.16", "100.64.0.1",
                    "198.18.0.1", GATEWAY, "203.0.113.1"):
        refused_there(address, 80)
    refused_there(HOST, 80, why="an address of the host itself")
    reaches(SERVER, 80, http("whatever.test"))
    allow(f"allow tcp {SERVER}:80\nallow tcp 45.45.45.0/24:5000\n")
    reaches(SERVER, 80, http("whatever.test"))
    refused_there(HOST, 5000, why="an address of the host itself")
    allow(f"deny tcp evil.test:*\nallow tcp *:*\n")
    refused_there(SERVER, 443, hello("evil.test"), why="another name: evil.test")


@check
def a_name_that_turns_leads_nowhere_new():
    allow("allow tcp turn.test:80\n")
    eq(f"0 {SERVER}", guest("dns", "turn.test", 1))
    reaches(SERVER, 80, http("turn.test"))
    world.turn("10.1.2.3")
    wait_until(lambda: guest("dns", "turn.test", 1) == "3", 10, "the name server tells the private address, and netd does not")
    refused_there("10.1.2.3", 80, http("turn.test"))
    world.turn(OTHER)
    eq(0, refused_there(OTHER, 80, http("turn.test"), why="no rule allows it"), "where it is, as long as the guest was not told so")
    wait_until(lambda: guest("dns", "turn.test", 1) == f"0 {OTHER}", 10, "the name is elsewhere")
    reaches(OTHER, 80, http("turn.test"))


@check
def what_the_administrator_denies_stays_denied():
    file = config()["egress"]
    name, all_of_it = world.box.name, "allow tcp *:5000,5001\n"
    explain = lambda: spacectl("net", "explain", name, f"{SERVER}:5000").stdout
    defer(lambda: os.path.exists(file) and os.unlink(file))

    def administrator(text):
        with open(file + ".new", "w") as f:
            f.write(text)
        os.rename(file + ".new", file)
    allow(all_of_it)
    world.box.set("labels", "tier=free")
    administrator(f"set here {SERVER}:5000\n[label admin.tier=free]\ndeny tcp @here\n[tenant nobody]\ndeny tcp *:*\n")
    has("allowed by line 1", explain(), "a label that its owner chose")
    reaches(SERVER, 5000, RAW)
    job = Job(world.box, f"/client wait {SERVER} 5000 {RAW.hex()}")
    wait_until(lambda: "ready" in read_now(job), 20, "it is connected")
    world.box.set("labels", "admin.tier=free")
    eq(f"ready\n{RESET}\n", job.result().out, "what was open when the administrator set the label")
    has("line 3 of label admin.tier=free", explain())
    refused_there(SERVER, 5000, RAW, why="label admin.tier=free denies it")
    world.box.set("labels", "")
    reaches(SERVER, 5000, RAW)
    administrator(f"[tenant {pwd.getpwuid(os.getuid()).pw_name}]\ndeny tcp {SERVER}:5000\n")
    wait_until(lambda: tcp(SERVER, 5000, RAW) == RESET, 10, "the tenant's policy")
    has("denied: tenant root denies it (line 2 of tenant root", explain())
    administrator(f"deny tcp {SERVER}:*\n[tenant 0]\nallow tcp *:*\n")
    wait_until(lambda: "the platform denies it" in (tcp(SERVER, 5000, RAW) and world.box.get("net").splitlines()[-1]), 10, "the platform's policy")
    has("denied: the platform denies it (line 1 of the platform", explain())
    administrator(f"set here {SERVER}:5001\n")
    refused(errno.EINVAL, allow, "allow tcp @elsewhere")
    allow("allow tcp @here\n")
    has("allowed by line 1: allow tcp @here", spacectl("net", "explain", name, f"{SERVER}:5001").stdout)
    os.unlink(file)
    allow(all_of_it)
    wait_until(lambda: tcp(SERVER, 5000, RAW) == got(RAW), 10, "as before")


@check
def what_a_tenant_denies_itself_stays_denied():
    everything = "allow tcp *:5000,5001\n"
    explain = lambda: spacectl("net", "explain", world.box.name, f"{SERVER}:5000").stdout
    mine = lambda text: write(text, "egress")
    eq("", read("egress").strip(), "at first")
    allow(everything)
    job = Job(world.box, f"/client wait {SERVER} 5000 {RAW.hex()}")
    wait_until(lambda: "ready" in read_now(job), 20, "it is connected")
    defer(mine, "\n")
    mine(f"set here {SERVER}:5000\ndeny tcp @here\n")
    eq(f"ready\n{RESET}\n", job.result().out, "what was open")
    has("the tenant's egress denies it (line 2 of the tenant's egress", explain())
    refused_there(SERVER, 5000, RAW, why="the tenant's egress denies it")
    old = kill_daemon("hostd")
    daemon_back("hostd", old)
    settled()
    eq(f"set here {SERVER}:5000\ndeny tcp @here\n", read("egress"), "with another space-hostd")
    refused_there(SERVER, 5000, RAW)
    uid, gid = test_user("spacetestegress", config().get("group", "space"))
    eq("", as_user(uid, gid, read, "egress"), "another user's")
    as_user(uid, gid, write, "deny tcp *:*\n", "egress")
    mine(f"set here {SERVER}:5000\n")
    allow("allow tcp @here\n")
    reaches(SERVER, 5000, RAW)
    refused(errno.EINVAL, mine, "deny tcp @nowhere")
    explained("egress", errno.EINVAL)
    mine(everything)
    allow("")
    refused_there(SERVER, 5000, RAW, why="no rule allows it")
    with open(path("egress"), "w"):
        pass
    eq("", read("egress"), "truncated")
    outsider, group = test_user("spacetestoutside")
    refused(errno.EPERM, as_user, outsider, group, write, "deny tcp *:*\n", "egress")


def frame(kind, payload, source=GUEST_MAC, count=1):
    eq("sent", guest("frame", GATEWAY_MAC + source + kind + payload.hex(), count))


def ipv4(protocol, payload, source=GUEST, to=SERVER, fragment=0):
    head = bytearray(struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 1, fragment, 64, protocol, 0, packed(source), packed(to)))
    head[10:12] = struct.pack(">H", checksum(head))
    return bytes(head) + payload


def packed(address):
    return bytes(int(part) for part in address.split("."))


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", bytes(data)))
    total = (total & 0xffff) + (total >> 16)
    return ~(total + (total >> 16)) & 0xffff


def syn(source=GUEST, to=SERVER):
    head = struct.pack(">HHIIBBHHH", 4444, 80, 1, 0, 0x50, 2, 1024, 0, 0)
    pseudo = packed(source) + packed(to) + struct.pack(">BBH", 0, 6, len(head))
    return head[:16] + struct.pack(">H", checksum(pseudo + head)) + head[18:]


def counters():
    """Packets that reached the servers' side, but for the kernels' own."""
    text = subprocess.run(["ip", "netns", "exec", NS, "cat", "/proc/net/snmp"], check=True, capture_output=True, text=True).stdout
    rows = [l.split() for l in text.splitlines() if l.startswith(("Ip:", "Udp:", "Icmp:"))]
    return {k: int(v) for keys, values in zip(rows[::2], rows[1::2]) for k, v in zip(keys[1:], values[1:]) if k in ("InReceives", "InDatagrams", "InMsgs")}


@check
def nothing_but_tcp_and_names_leaves():
    allow("allow tcp *:*\n")
    reaches(SERVER, 5000, RAW)
    before, seen, lines = counters(), len(world.connections()), world.box.get("net")
    for port in (443, 123, 5353, 67):
        eq("silence", guest("udp", SERVER, port), f"UDP {port}")
    eq("silence", guest("udp", GATEWAY, 5000))
    frame("0800", ipv4(1, b"\x08\0\xf7\xff\0\0\0\0"))                      # an echo request
    frame("0800", ipv4(6, syn("10.9.9.9"), source="10.9.9.9"))             # another source
    frame("0800", ipv4(6, syn(SERVER), source=SERVER))
    frame("0800", ipv4(6, syn()), source="525400000099")                   # another hardware address
    frame("0800", ipv4(6, syn()[:8], fragment=0x2000))                     # a fragment
    frame("8100", b"\0\x01\x08\0" + ipv4(6, syn()))                        # a VLAN
    frame("86dd", b"\x60\0\0\0\0\x08\x3a\x40" + bytes(32) + bytes(8))      # IPv6
    frame("0806", b"\0\x01\x08\0\x06\x04\0\x02" + bytes.fromhex("525400000099") + packed(GUEST) + bytes.fromhex(GATEWAY_MAC) + packed(GATEWAY))  # ARP
    frame("0806", b"\0\x01\x08\0\x06\x04\0\x02" + bytes.fromhex(GUEST_MAC) + packed(GATEWAY) + bytes.fromhex(GATEWAY_MAC) + packed(GUEST))
    frame("0800", ipv4(47, bytes(40)))
    discover = bytes([1, 1, 6, 0]) + bytes(232) + b"\x63\x82\x53\x63" + bytes([53, 1, 1, 255])
    frame("0800", ipv4(17, struct.pack(">HHHH", 68, 67, 8 + len(discover), 0) + discover, source="0.0.0.0", to="255.255.255.255"))
    for address in ("2606:2800:220:1::1", "64:ff9b::2d2d:2d0a", "2002:2d2d:2d0a::1", "fe80::5054:ff:fe00:1"):
        has(guest("tcp6", address, 5000), ("Network is unreachable", "Cannot assign requested address", "Invalid argument"), address)
    eq(before, counters(), "packets on the other side")
    eq(seen, len(world.connections()), "connections that arrived")
    eq(lines, world.box.get("net"), "decisions")
    reaches(SERVER, 5000, RAW)
    eq("connected", guest("tcp6", f"::ffff:{SERVER}", 5000), "IPv4 in the form of IPv6 is IPv4")
    eq(RESET, guest("tcp6", "::ffff:10.1.2.3", 5000), "and so are its special addresses")
    eq("", world.box.out("cat /proc/net/if_inet6 | grep eth0 || true"), "IPv6 addresses")
    for port in (22, 10053, 10080):  # what netd listens on, too
        refused_there(GATEWAY, port)


@check
def a_change_applies_at_once_and_a_fork_inherits():
    allow("allow tcp *:5000,5001\n")
    job = Job(world.box, f"/client wait {SERVER} 5000 {RAW.hex()}")
    wait_until(lambda: job.output is None or "ready" in read_now(job), 20, "it is connected")
    allow("allow tcp *:5001\n")
    eq(f"ready\n{RESET}\n", job.result().out, "after the policy changed")
    refused_there(SERVER, 5000, RAW, why="no rule allows it")
    allow("allow tcp good.test:5000\n")
    fork = Box.known(fresh_name())
    subprocess.run(["cp", "-r", path("sandboxes", world.box.name), path("sandboxes", fork.name)], check=True)
    eq("allow tcp good.test:5000", fork.get("egress"), "egress of the copy")
    eq(RESET, tcp(SERVER, 5000, RAW, box=fork), "where the name is, which only another sandbox was told")
    eq(f"0 {SERVER}", guest("dns", "good.test", 1, box=fork))
    reaches(SERVER, 5000, RAW, box=fork)
    fork.set("egress", "")
    eq(RESET, tcp(SERVER, 5000, RAW, box=fork))
    Job(fork, "exec nc -l -p 7777")
    wait_until(lambda: ":7777" in fork.out("netstat -ltn"), 20, "the fork listens")
    refused_there(GUEST, 7777)  # the same address, and this one's own
    fork.remove()
    refused(errno.EINVAL, allow, "allow tcp good.test")
    explained(f"sandboxes/{world.box.name}/egress", errno.EINVAL)
    eq("allow tcp good.test:5000", world.box.get("egress"), "after one that was refused")


@check
def a_qemu_itself_has_no_network():
    pid = world.box.qemu()
    inside = lambda *command: subprocess.run(["nsenter", "-t", str(pid), "-n", *command], check=True, capture_output=True, text=True).stdout
    ne(os.readlink("/proc/self/ns/net"), os.readlink(f"/proc/{pid}/ns/net"), "network namespace of QEMU")
    matches(r"^1: lo: <LOOPBACK> .*\n$", inside("ip", "-o", "link"), "its interfaces")
    with open(f"/proc/{pid}/status") as f:
        eq({"0000000000000000"}, set(re.findall(r"^Cap(?:Inh|Prm|Eff|Amb):\s+(\w+)", f.read(), re.M)), "its rights")


def read_now(job):
    fd = os.open(job.at("stdout"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.pread(fd, 1000, 0).decode()
    except BlockingIOError:
        return ""
    finally:
        os.close(fd)


@check
def connections_of_before_a_load_end_with_a_reset():
    allow("allow tcp *:5000\n")
    job = Job(world.box, f"/client wait {SERVER} 5000 {RAW.hex()}")
    wait_until(lambda: "ready" in read_now(job), 20, "it is connected")
    fork = Box.known(fresh_name())
    subprocess.run(["cp", "-r", path("sandboxes", world.box.name), path("sandboxes", fork.name)], check=True)
    fork.touch()
    eq("exit 0", line("proc", fork.name, job.name, "wait"), "the job in the fork")
    has("reset", read("proc", fork.name, job.name, "stdout") + "Connection aborted: reset", "what it met")
    eq("ready\n", read_now(job), "that of the source, which goes on")
    fork.remove()
    job.signal("KILL")
    job.wait()


@check
def floods_meet_limits():
    allow("allow tcp *:5000\nallow tcp good.test:80\n")
    guest("dns", "good.test", 1)
    slow = Job(world.box, f"/client loris {SERVER} 80 200 60")
    reaches(SERVER, 5000, RAW)
    flood, most = Job(world.box, f"/client flood {SERVER} 5000 10000"), 0
    while flood.get("status") == "running":
        most = max(most, int(re.search(r"^net_open (\d+)$", read("sandboxes", world.box.name, "stats"), re.M)[1]))
        time.sleep(0.1)
    at_most(512 + 1, most, "connections at once, with the one that is being refused")
    served = int(flood.result().out)
    at_most(512, served, "those that were served")
    ne(0, served, "those that were served")
    eq("0\n", slow.result().out, "slow ones that stayed")
    wait_until(lambda: tcp(SERVER, 5000, RAW) == got(RAW), 30, "it goes on after a flood")
    world.box.out("ifconfig eth0 0.0.0.0")  # so that the guest's kernel does not reset what it did not begin
    eq("sent", guest("frame", GATEWAY_MAC + GUEST_MAC + "0800" + ipv4(6, syn()).hex(), 5000), "half-open ones, each of a port of its own")
    world.box.out(f"ifconfig eth0 {GUEST} netmask 255.255.255.248 && route add default gw {GATEWAY}")
    reaches(SERVER, 5000, RAW)


@check
def without_netd_nothing_passes_and_it_comes_back():
    allow("allow tcp *:5000\n")
    job = Job(world.box, f"/client wait {SERVER} 5000 {RAW.hex()}")
    wait_until(lambda: "ready" in read_now(job), 20, "it is connected")
    old = daemon_pid("netd")
    os.kill(old, signal.SIGKILL)
    eq(f"ready\n{RESET}\n", job.result().out, "a connection of before")
    daemon_back("netd", old)
    wait_until(lambda: tcp(SERVER, 5000, RAW) == got(RAW), 20, "it is back")
    refused_there(SERVER, 80, http("a.b"), why="no rule allows it")
    kill = kill_daemon("noded")
    daemon_back("noded", kill)
    old = kill_daemon("netd")
    daemon_back("netd", old)
    wait_until(lambda: tcp(SERVER, 5000, RAW) == got(RAW), 20, "it is back")


def repositories(folder):
    """A package for apt and a repository of git, as files for a plain web server."""
    sh = lambda text, cwd=folder: subprocess.run(text, shell=True, check=True, cwd=cwd, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)  # of a run by hand
    os.makedirs(f"{folder}/deb/DEBIAN")
    os.makedirs(f"{folder}/deb/usr/share/greeting")
    os.makedirs(f"{folder}/apt")
    control = "Package: greeting\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@good.test>\nDescription: says hello\n"
    with open(f"{folder}/deb/DEBIAN/control", "w") as f:
        f.write(control)
    with open(f"{folder}/deb/usr/share/greeting/text", "w") as f:
        f.write("hello from a package\n")
    sh("dpkg-deb --root-owner-group --build deb apt/greeting_1.0_all.deb")
    with open(f"{folder}/apt/greeting_1.0_all.deb", "rb") as f:
        deb = f.read()
    with open(f"{folder}/apt/Packages", "w") as f:
        f.write(control + f"Filename: ./greeting_1.0_all.deb\nSize: {len(deb)}\nSHA256: {hashlib.sha256(deb).hexdigest()}\n")
    who = "git -c user.name=n -c user.email=e@good.test -c init.defaultBranch=main"
    sh(f"{who} init work && echo 'hello from git' > work/text && cd work && git add text && {who} commit -m one && cd .. && git clone --bare work repo.git && git -C repo.git update-server-info")


@check(limit=150)
def the_usual_clients_work_without_settings():
    if not exists("templates", "debian"):
        skip("needs template debian")
    folder = f"{TESTTMP}/www"
    repositories(folder)
    web = subprocess.Popen(["ip", "netns", "exec", NS, sys.executable, "-m", "http.server", "--bind", SERVER, "--directory", folder, "8080"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    defer(world.end, web)
    box = Box("debian")
    allow("allow tcp good.test:8080\n", box)
    eq("hello from git", box.out("cd /root && git clone -q http://good.test:8080/repo.git && cat repo/text"), "git")
    box.out("echo 'deb [trusted=yes] http://good.test:8080/apt ./' > /root/sources")
    only = "-o Dir::Etc::sourcelist=/root/sources -o Dir::Etc::sourceparts=- -q"
    box.out(f"apt-get {only} update && cd /root && apt-get {only} download greeting && dpkg-deb -x greeting_1.0_all.deb /root/greeting")
    eq("hello from a package", box.out("cat /root/greeting/usr/share/greeting/text"), "apt")
    eq("hello from a package", box.out("python3 -c \"import urllib.request as u; print(u.urlopen('http://good.test:8080/deb/usr/share/greeting/text').read().decode(), end='')\""), "Python")
    allow("", box)
    ne("exit 0", box.run("cd /root && git clone -q http://good.test:8080/repo.git again").end, "git when nothing is allowed")
    box.remove()


def begin():
    global world
    for program in ("dnsmasq", "ip", "cc"):
        if not shutil.which(program):
            skip(f"needs {program}")
    world = World()


if __name__ == "__main__":
    begin()
    main()
