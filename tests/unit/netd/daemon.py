#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-netd by itself: this script is its space-hostd, and guests are network namespaces with a redirecting rule, as space-noded makes them. As root.
"""
import array
import hashlib
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

MESSAGE = struct.Struct("=IIQQQiIIIII7Q")
HELLO, ADD, REMOVE, POLICY, REPLY, DECISION, COUNTS = 1, 2, 3, 4, 100, 101, 102
RULES = """table ip t {
 chain p { type nat hook prerouting priority dstnat; meta l4proto tcp redirect to :10080; udp dport 53 redirect to :10053; }
}"""
NET = f"45.46.{os.getpid() % 250}"  # of this run's own
SERVER, HOST = f"{NET}.10", f"{NET}.1"


def sh(*argv, **kw):
    return subprocess.run(argv, check=True, capture_output=True, text=True, **kw).stdout


def in_namespace(name, function, *args):
    """In a child: its result, which must be bytes, or descriptors."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    libc_setns(there)
    try:
        return function(*args)
    finally:
        libc_setns(here)
        os.close(here)
        os.close(there)


def libc_setns(fd):
    import ctypes
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) < 0:
        raise OSError(ctypes.get_errno(), "setns")


class World:
    def __init__(self, program, config="net_user = nobody\nresolver = 127.0.0.1:1\ninject = no\n", more="", tag=""):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="netd-"))
        self.tag = f"nd{os.getpid()}{tag}"
        self.spaces = []
        os.chmod(self.dir, 0o755)
        (self.dir / "conf").write_text(f"run = {self.dir}\nuser = root\negress = {self.dir}/egress\n{config}{more}")
        self.log = open(self.dir / "log", "w+")
        self.netd = subprocess.Popen([program, "--config", self.dir / "conf"], stderr=self.log)
        wait("its socket", lambda: (self.dir / "netd.sock").exists())
        self.hostd = self.connect()
        self.far = self.namespace("far", SERVER, HOST)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.netd.kill()
        self.netd.wait()
        for name in self.spaces:
            subprocess.run(["ip", "netns", "del", name])
            subprocess.run(["ip", "link", "del", name], capture_output=True)
        if exc[0]:
            self.log.seek(0)
            print(self.log.read()[-3000:], file=sys.stderr)
        shutil.rmtree(self.dir)

    def connect(self):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wait("it accepts", lambda: s.connect_ex(f"{self.dir}/netd.sock") == 0)
        return s

    def namespace(self, what, address, peer):
        """A namespace with `address`, joined to ours by a cable; `peer` is at our end."""
        name = f"{self.tag}{what}"
        sh("ip", "netns", "add", name)
        self.spaces.append(name)
        sh("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        sh("ip", "addr", "add", f"{peer}/24", "dev", name)
        sh("ip", "link", "set", name, "up")
        sh("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "eth0", "up")
        sh("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def ask(self, op, key=0, id=0, text="", fds=(), error=0, belongs="", tenant=""):
        raw = (belongs + tenant + text).encode()
        head = MESSAGE.pack(3, op, 7, key, id, 0, len(raw), 0, len(belongs), len(tenant), *[0] * 8)
        socket.send_fds(self.hostd, [head + raw], list(fds))
        while True:
            got = self.hostd.recv(70000)
            fields = MESSAGE.unpack_from(got)
            if fields[1] == REPLY:
                eq(error, fields[5], f"answer to {op}: {got[MESSAGE.size:].decode()}")
                return got[MESSAGE.size:].decode()

    def guest(self, key, policy):
        """Returns two namespaces: where the guest is, and where its sockets are."""
        name = f"{self.tag}g{key}"
        inner = f"{self.tag}h{key}"
        for n in (name, inner):
            sh("ip", "netns", "add", n)
            self.spaces.append(n)
        sh("ip", "link", "add", "guest", "netns", inner, "type", "veth", "peer", "name", "eth0", "netns", name)
        for n, device, address in ((inner, "guest", "192.0.0.1"), (name, "eth0", "192.0.0.2")):
            sh("ip", "-n", n, "addr", "add", f"{address}/29", "dev", device)
            sh("ip", "-n", n, "link", "set", device, "up")
            sh("ip", "-n", n, "link", "set", "lo", "up")
        sh("ip", "-n", name, "route", "add", "default", "via", "192.0.0.1")
        sh("ip", "netns", "exec", inner, "nft", "-f", "-", input=RULES)
        self.ask(ADD, key, fds=in_namespace(inner, sockets))
        self.ask(POLICY, key, key, policy)
        return name


def sockets():
    tcp = socket.create_server(("0.0.0.0", 10080), backlog=512)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("0.0.0.0", 10053))
    tcp.setblocking(False)
    udp.setblocking(False)
    return [tcp.detach(), udp.detach()]


def eq(want, got, what):
    assert want == got, f"{what}: want {want!r}, got {got!r}"


def wait(what, condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def listen(w, port, serve):
    server = in_namespace(w.far, lambda: socket.create_server(("0.0.0.0", port), backlog=512))

    def one(c):
        try:
            serve(c)
        except OSError:
            pass  # what the client meets is what counts
        c.close()

    def run():
        while True:
            c, _ = server.accept()
            threading.Thread(target=one, args=(c,), daemon=True).start()
    threading.Thread(target=run, daemon=True).start()


def dial(name, port, address=SERVER):
    def go():
        s = socket.socket()
        s.settimeout(20)
        s.connect((address, port))
        return s
    return in_namespace(name, go)


def stream(seed, size):
    """Bytes that tell when one is missing."""
    block = hashlib.shake_128(seed).digest(1 << 20)
    for at in range(0, size, len(block)):
        yield block[:min(len(block), size - at)]


def digest(chunks):
    h = hashlib.sha256()
    for c in chunks:
        h.update(c)
    return h.hexdigest()


def received(s):
    while data := s.recv(1 << 18):
        yield data


def both_ways(c):
    """Sends the digest of what came, and 8 MiB of its own, once the other side has ended."""
    got = digest(received(c))
    c.sendall(got.encode())
    for block in stream(b"server", 8 << 20):
        c.sendall(block)
    c.close()


def test_bytes_pass_whole_in_both_directions_and_an_end_is_one_directions(w):
    listen(w, 7000, both_ways)
    g = w.guest(1, "allow tcp *:7000")
    for _ in range(3):
        s = dial(g, 7000)
        s.sendall(b"\x01")
        for block in stream(b"client", 16 << 20):
            s.sendall(block)
        s.shutdown(socket.SHUT_WR)
        all = b"".join(received(s))
        eq(digest([b"\x01", *stream(b"client", 16 << 20)]), all[:64].decode(), "what the server got")
        eq(digest(stream(b"server", 8 << 20)), digest([all[64:]]), "what the client got")
        s.close()


def test_a_reader_that_stands_still_stops_only_its_own_connection(w):
    listen(w, 7001, lambda c: [c.sendall(bytes(1 << 20)) for _ in range(64)])
    g = w.guest(2, "allow tcp *:7001,7000")
    slow = dial(g, 7001)
    time.sleep(0.3)
    quick = dial(g, 7000)
    quick.sendall(b"\x01")
    quick.shutdown(socket.SHUT_WR)
    eq(64 + (8 << 20), len(b"".join(received(quick))), "bytes of another connection")
    eq(64 << 20, sum(len(d) for d in received_until(slow, 64 << 20)), "bytes of the slow one")


def received_until(s, size):
    while size and (data := s.recv(1 << 18)):
        size -= len(data)
        yield data


def test_a_servers_refusal_and_reset_are_the_guests(w):
    def reset(c):
        c.recv(1)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
    listen(w, 7002, reset)
    g = w.guest(3, "allow tcp *:*")
    for port in (7002, 7999):
        try:
            s = dial(g, port)
            s.sendall(b"\x01")
            eq(None, s.recv(1), "a byte")
        except ConnectionResetError:
            pass


def test_another_hostd_takes_over_and_connections_stay(w):
    listen(w, 7003, lambda c: [c.sendall(d) for d in received(c)])
    g = w.guest(4, "allow tcp *:7003")
    s = dial(g, 7003)
    s.sendall(b"\x01")
    eq(b"\x01", s.recv(10), "an echo")
    looker = w.connect()  # as spacectl doctor
    looker.close()
    w.ask(POLICY, 4, 4, "allow tcp *:7003")
    old, w.hostd = w.hostd, w.connect()
    assert "000000000004" in w.ask(HELLO).split()
    eq(b"", old.recv(1), "the old one's connection")
    s.sendall(b"\x02")
    eq(b"\x02", s.recv(10), "an echo after it")
    w.ask(POLICY, 4, 4, "allow tcp nothing", error=-22)
    try:
        eq(b"never", s.recv(10), "after a policy that does not parse")
    except ConnectionResetError:
        pass


def test_what_goes_to_a_guest_is_not_paced(w):
    g = w.guest(8, "allow tcp *:7003")
    s = dial(g, 7003)
    s.sendall(b"\x01")
    eq(b"\x01", s.recv(10), "an echo")

    def sockets(*argv):
        return sh(*argv, "ss", "-tinO", "state", "established")
    inner = f"{w.tag}h8"
    assert " reno " in sockets("ip", "netns", "exec", inner), sockets("ip", "netns", "exec", inner)
    outer = [l for l in sockets().splitlines() if f"{SERVER}:7003" in l]
    assert outer and all(f" {congestion()[1]} " in l for l in outer), (congestion(), outer)


def congestion():
    """The host's choice, and another one that everybody may have, if there is any."""
    mine, allowed = (pathlib.Path(f"/proc/sys/net/ipv4/tcp_{n}congestion_control").read_text().split() for n in ("", "allowed_"))
    return mine[0], ([a for a in allowed if a != mine[0]] or mine)[0]


def test_congestion_control_that_nobody_has_leaves_the_hosts(w):
    with World(sys.argv[1], more="egress_congestion = nobodys\n", tag="c") as other:
        eq("", other.ask(HELLO), "it is there")
        said = (other.dir / "log").read_text()
        assert "egress_congestion = nobodys: No such file or directory: connections to servers are as the host has them" in said, said


def test_what_no_hostd_may_send_ends_its_connection_or_is_refused(w):
    w.ask(ADD, 99, error=-22)
    a, b = socket.socketpair()
    w.ask(ADD, 99, fds=[a.fileno(), b.fileno()], error=-22)
    w.ask(POLICY, 99, error=-2)
    w.ask(77, error=-95)
    w.ask(REMOVE, 99)
    for bad in (b"x", MESSAGE.pack(3, POLICY, 7, 4, 0, 0, 5, 0, 0, *[0] * 9) + b"too long"):
        s = w.connect()
        s.send(bad)
        eq(b"", s.recv(100), "end of a connection")
    s = w.connect()
    s.send(MESSAGE.pack(3, POLICY, 7, 4, 0, 0, 0, 0, 0, *[0] * 9))  # before hello
    eq(b"", s.recv(100), "end of a connection")


def test_the_platforms_rules_apply_when_they_change(w):
    g = w.guest(5, "allow tcp *:7003")
    s = dial(g, 7003)
    s.sendall(b"\x01")
    eq(b"\x01", s.recv(10), "an echo")
    (w.dir / "egress").write_text(f"deny tcp {SERVER}:*\n")
    try:
        eq(b"never", s.recv(10), "after the platform denied it")
    except ConnectionResetError:
        pass
    (w.dir / "egress").write_text("nonsense\n")
    wait("it complains", lambda: "until it is mended nothing is allowed" in (w.dir / "log").read_text())
    os.unlink(w.dir / "egress")

    def passes():
        try:
            s = dial(g, 7003)
            s.sendall(b"\x01")
            return s.recv(10) == b"\x01"
        except ConnectionResetError:
            return False
    wait("it is allowed again", passes)


def test_a_tenants_and_a_labels_policies_cut_what_is_open(w):
    belongs = "tenant alice\ntenant 1001\nlabel admin.tier=free\n"
    g = w.guest(11, "")
    other = w.guest(12, "allow tcp *:7003")
    w.ask(POLICY, 11, 11, "allow tcp *:7003", belongs=belongs)

    def echo(guest):
        s = dial(guest, 7003)
        s.sendall(b"\x01")
        return s if s.recv(10) == b"\x01" else None
    for heading in ("tenant alice", "tenant 1001", "label admin.tier=free"):
        mine, theirs = echo(g), echo(other)
        (w.dir / "egress").write_text(f"set s {SERVER}:7003\n[{heading}]\ndeny tcp @s\n")
        assert meets_reset(mine.recv, 1), f"open while [{heading}] denies it"
        assert meets_reset(echo, g), f"new while [{heading}] denies it"
        theirs.sendall(b"2")
        eq(b"2", theirs.recv(1), "a guest of somebody else's")
        os.unlink(w.dir / "egress")
        wait("it is allowed again", lambda: not meets_reset(echo, g))
    (w.dir / "egress").write_text(f"set s {SERVER}:7003\n")
    wait("the set is known", lambda: "is no set" not in asked(w, 11, "allow tcp @s", belongs))
    mine = echo(g)
    os.unlink(w.dir / "egress")
    assert meets_reset(mine.recv, 1), "open by a set that is gone"
    wait("it says so", lambda: "00b is allowed nothing any more: line 1, column 11: '@s' is no set" in (w.dir / "log").read_text())
    w.ask(REMOVE, 11)
    w.ask(REMOVE, 12)


def test_what_a_tenant_denies_itself_is_denied_and_allows_nothing(w):
    everything = "allow tcp *:7003"
    g = w.guest(13, everything)

    def echo():
        s = dial(g, 7003)
        s.sendall(b"\x01")
        return s if s.recv(10) == b"\x01" else None
    mine = echo()
    w.ask(POLICY, 13, 13, everything, tenant=f"set s {SERVER}:7003\ndeny tcp @s\n")
    assert meets_reset(mine.recv, 1), "open while the tenant denies it"
    assert meets_reset(echo), "new while the tenant denies it"
    w.ask(POLICY, 13, 13, "", tenant=everything)
    assert meets_reset(echo), "a tenant's allow line alone"
    w.ask(POLICY, 13, 13, "allow tcp @s", tenant=f"set s {SERVER}:7003\n")
    assert not meets_reset(echo), "by a set of the tenant's"
    assert "line 1, column 1" in w.ask(POLICY, 13, 13, everything, tenant="nonsense", error=-22)
    assert meets_reset(echo), "with a tenant's policy that does not parse"
    w.ask(REMOVE, 13)


def asked(w, key, text, belongs):
    try:
        w.ask(POLICY, key, key, text, belongs=belongs)
    except AssertionError as e:
        return str(e)
    return ""


def meets_reset(function, *args):
    try:
        function(*args)
    except ConnectionResetError:
        return True
    return False


def test_limits_of_connections_and_bytes_hold(w):
    g = w.guest(6, "allow tcp *:*\nlimit connections 3\nlimit bytes 2M\n")

    def echo():
        s = dial(g, 7003)
        s.sendall(b"\x01")
        eq(b"\x01", s.recv(10), "an echo")
        return s
    open_ones = [echo() for _ in range(3)]
    assert meets_reset(echo), "a fourth connection"
    open_ones.pop().close()
    wait("there is room again", lambda: not meets_reset(lambda: open_ones.append(echo())))

    def much():
        s = open_ones[0]
        for _ in range(64):
            s.sendall(bytes(1 << 16))
            s.recv(1 << 16)
    assert meets_reset(much), "more than 2 MiB"
    assert meets_reset(echo), "a connection after that"
    w.ask(POLICY, 6, 6, "allow tcp *:*\nlimit bytes 1G\n")
    echo()


def test_a_limit_of_the_rate_holds(w):
    g = w.guest(9, "allow tcp *:*\nlimit rate 2\n")

    def echo():
        with dial(g, 7003) as s:
            s.sendall(b"\x01")
            eq(b"\x01", s.recv(10), "an echo")
    began = time.monotonic()
    passed = [meets_reset(echo) for _ in range(60)].count(False)
    assert 8 <= passed <= 8 + 2 * (time.monotonic() - began) + 1, f"{passed} of 60"
    w.ask(POLICY, 9, 9, "allow tcp *:*\n")
    wait("it goes on", lambda: not meets_reset(echo))


def status(w, field):
    return re.search(rf"^{field}:\s+(\S+)", pathlib.Path(f"/proc/{w.netd.pid}/status").read_text(), re.M).group(1)


def test_it_runs_confined(w):
    eq(["0000000000000000"] * 3, [status(w, f) for f in ("CapEff", "CapPrm", "CapInh")], "capabilities")
    eq("2", status(w, "Seccomp"), "Seccomp")
    eq("1", status(w, "NoNewPrivs"), "NoNewPrivs")
    eq("65534", status(w, "Uid"), "user")


def test_many_guests_cost_little(w, count=1000):
    """Their sockets may all be in one namespace, at ports of their own."""
    before = int(status(w, "VmRSS"))

    def pair():
        tcp = socket.create_server(("127.0.0.1", 0), backlog=512)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        return [tcp.detach(), udp.detach()]
    for i in range(count):
        fds = pair()
        w.ask(ADD, 1000 + i, fds=fds)
        w.ask(POLICY, 1000 + i, i, "allow tcp @debian\nallow tcp @pypi\nallow tcp *.example.org:443\n")
        for fd in fds:
            os.close(fd)
    grown = int(status(w, "VmRSS")) - before
    sanitized = "libasan" in pathlib.Path(f"/proc/{w.netd.pid}/maps").read_text()  # what is beside each object, and what is freed, stays
    assert sanitized or grown < 20 * count, f"{grown} KiB for {count} guests"
    print(f"{count} guests: {grown / count:.1f} KiB each")
    for i in range(count):
        w.ask(REMOVE, 1000 + i)


def main():
    with World(sys.argv[1], more=f"egress_congestion = {congestion()[1]}\n") as w:
        eq("", w.ask(HELLO), "guests of a new one")
        for name, test in [(n, t) for n, t in globals().items() if n.startswith("test_")]:
            began = time.monotonic()
            test(w)
            print(f"ok   {name[5:].replace('_', ' ')} ({time.monotonic() - began:.2f} s)", flush=True)
        w.netd.send_signal(signal.SIGTERM)
        eq(0, w.netd.wait(10), "status of its end")


if __name__ == "__main__":
    if os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("ip"):
        print("needs root, nft and ip", file=sys.stderr)
        sys.exit(77)
    main()
