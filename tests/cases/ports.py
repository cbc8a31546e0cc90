#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 240
"""ports/NAME/PORT and spacectl forward: TCP ports of a guest, through its channel. One sandbox with servers of every temper (ports.d/server.py)."""

import hashlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

HTTP, ECHO, DIGEST, GREETING, DEAF, RESET, FLOOD, SIX, WEBSOCKET, SILENT, NOBODY = 8000, *range(9001, 9011)
LARGE = hashlib.shake_128(b"large").digest(4 << 20)


def box(made=[]):
    """The sandbox, with its servers."""
    if not made:
        made.append(Box("debian"))
        shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ports.d", "server.py"), made[0].root("server.py"))
        job = Job(made[0], "exec python3 /server.py")
        wait_until(lambda: job.so_far() == "ready\n", 60, f"the servers: {job.get('status')}")
    return made[0]


class Connection:
    """An open port."""

    def __init__(self, port, flags=os.O_RDWR, name=None):
        self.fd = os.open(path("ports", name or box().name, str(port)), flags)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.fd)

    def write(self, data):
        """All of it."""
        while data:
            data = data[os.write(self.fd, data):]

    def read(self, count):
        """Exactly so much, or less at the end."""
        out = b""
        while len(out) < count and (data := os.read(self.fd, count - len(out))):
            out += data
        return out

    def shut(self):
        os.ftruncate(self.fd, 0)


class Forward:
    def __init__(self, *ports):
        self.process = subprocess.Popen(["spacectl", "--space", SPACE, "forward", box().name, *(f"0:{p}" for p in ports)], stdout=subprocess.PIPE, text=True)
        defer(self.end)
        lines = [self.process.stdout.readline() for _ in ports]
        self.at = {p: int(re.match(r"127\.0\.0\.1:(\d+) is port", l)[1]) for p, l in zip(ports, lines)}

    def connect(self, port, host="127.0.0.1"):
        return socket.create_connection((host, self.at[port]), timeout=30)

    def url(self, file):
        return f"http://127.0.0.1:{self.at[HTTP]}/{file}"

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(10)


def whole(c):
    out = b""
    while data := c.recv(1 << 16):
        out += data
    return out


@check
def an_open_is_a_connection():
    with Connection(ECHO) as a, Connection(ECHO) as b:
        a.write(b"first")
        b.write(b"second")
        eq(b"second", b.read(6))
        eq(b"first", a.read(5))
        eq(0, os.fstat(a.fd).st_size, "size")
        refused(errno.ESPIPE, os.pread, a.fd, 1, 0)
    with Connection(GREETING) as c:
        eq(b"220 welcome\r\n", c.read(100), "a server that speaks first, to its end")
        eq(b"", os.read(c.fd, 1), "once more at the end")
    with Connection(GREETING, os.O_RDONLY) as c:
        eq(b"220 welcome\r\n", c.read(100), "opened for reading only")
    with Connection(SIX) as c:
        eq(b"220 welcome\r\n", c.read(100), "a server on ::1 alone")
    eq([], os.listdir(path("ports", box().name)), "what is listed")


@check
def who_sends_no_more_still_reads():
    data = os.urandom(1 << 20)
    with Connection(DIGEST) as c:
        c.write(data)
        c.shut()
        eq(f"{len(data)} {hashlib.sha256(data).hexdigest()}", c.read(1000).decode())
        refused(errno.EPIPE, os.write, c.fd, b"more")
    subprocess.run(["sh", "-c", f"printf 'a line' > {path('ports', box().name, str(ECHO))}"], check=True)  # opened for writing, truncated, closed


@check
def both_directions_flow_at_once():
    """A thread reads what another one writes, on one descriptor; neither waits for the other in the kernel."""
    data, got = os.urandom(4 << 20), []
    with Connection(ECHO) as c:
        reader = threading.Thread(target=lambda: got.append(c.read(len(data))))
        reader.start()
        time.sleep(0.05)  # it blocks in read(2) by now, or the check proves less
        c.write(data)
        reader.join(60)
    eq([hashlib.sha256(data).digest()], [hashlib.sha256(g).digest() for g in got], "what came back")


@check
def what_cannot_be_reached_says_why():
    refused(errno.ECONNREFUSED, Connection, NOBODY)
    explained(f"ports/{box().name}/{NOBODY}", errno.ECONNREFUSED)
    for name in ("0", "65536", "080", "x", "-1", "80 "):
        refused(errno.ENOENT, os.stat, path("ports", box().name, name))
    refused(errno.ENOENT, os.stat, path("ports", "no-such-sandbox", "80"))
    refused(errno.EPERM, os.unlink, path("ports", box().name, "80"))
    with Connection(RESET) as c:
        c.write(b"x")
        refused(errno.ECONNRESET, c.read, 1)
        wait_until(lambda: errno_of(os.write, c.fd, b"y") == errno.ECONNRESET, 10, "a write after a reset")


def errno_of(function, *args):
    try:
        function(*args)
    except OSError as e:
        return e.errno
    return 0


@check
def it_is_its_owners():
    uid, gid = test_user("spacetestports", config().get("group", "space"))
    eq([], as_user(uid, gid, os.listdir, path("ports")), "what another user sees")
    refused(errno.ENOENT, as_user, uid, gid, os.open, path("ports", f"root:{box().name}", str(ECHO)), os.O_RDWR)
    os.chown(path("sandboxes", box().name), -1, gid)
    os.chmod(path("sandboxes", box().name), 0o750)
    refused(errno.EACCES, as_user, uid, gid, os.open, path("ports", f"root:{box().name}", str(ECHO)), os.O_RDWR)
    os.chmod(path("sandboxes", box().name), 0o770)
    eq(True, as_user(uid, gid, os.open, path("ports", f"root:{box().name}", str(ECHO)), os.O_RDWR) > 0)
    os.chmod(path("sandboxes", box().name), 0o700)


@check
def event_loops_can_use_it():
    with Connection(ECHO, os.O_RDWR | os.O_NONBLOCK) as c:
        refused(errno.EAGAIN, os.read, c.fd, 1)
        eq(([], [c.fd], []), select.select([c.fd], [c.fd], [], 0.2), "before anything was sent")
        data, sent, back = os.urandom(1 << 20), 0, b""
        while len(back) < len(data):
            r, w, _ = select.select([c.fd], [c.fd] if sent < len(data) else [], [], 30)
            if not r and not w:
                fail(f"nothing is ready after {sent} bytes sent, {len(back)} received")
            if w:
                with contextlib.suppress(BlockingIOError):
                    sent += os.write(c.fd, data[sent:sent + 65536])
            if r:
                with contextlib.suppress(BlockingIOError):
                    back += os.read(c.fd, 1 << 16)
        eq(hashlib.sha256(data).digest(), hashlib.sha256(back).digest(), "what came back")
        c.shut()
        eq([c.fd], select.select([c.fd], [], [], 10)[0], "its end")
        eq(b"", os.read(c.fd, 1))


@check
def an_interrupted_read_loses_nothing():
    with Connection(ECHO) as c:
        for i in range(5):
            refused(errno.EINTR, with_alarm, 0.1, os.read, c.fd, 1)
            c.write(b"%d" % i)
            eq(b"%d" % i, c.read(1), "what came after an interrupted read")


def with_alarm(seconds, function, *args):
    def interrupted(number, frame):
        raise InterruptedError(errno.EINTR, "interrupted")
    old = signal.signal(signal.SIGALRM, interrupted)
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function(*args)
    finally:
        signal.signal(signal.SIGALRM, old)
        signal.setitimer(signal.ITIMER_REAL, left)


@check
def many_at_once_up_to_a_limit():
    made = []
    try:
        for i in range(256):
            made.append(Connection(ECHO if i % 16 == 0 else SILENT))
        refused(errno.EMFILE, Connection, ECHO)
        explained(f"ports/{box().name}/{ECHO}", errno.EMFILE)
        for i, c in enumerate(made):
            c.write(b"%03d" % i)
        for i, c in list(enumerate(made))[::16]:
            eq(b"%03d" % i, c.read(3))
        began = time.monotonic()
        eq("fine", box().out("echo fine"), "a job meanwhile")
        at_most(10, time.monotonic() - began, "seconds of a job meanwhile")
    finally:
        for c in made:
            os.close(c.fd)
    wait_until(lambda: errno_of(lambda: Connection(GREETING).__exit__()) == 0, 10, "room again")


@check
def a_forward_serves_browsers_and_everything_else():
    f = Forward(HTTP, ECHO, DIGEST, WEBSOCKET, NOBODY, RESET)
    curl = lambda *args: subprocess.run(["curl", "-sS", "--max-time", "60", *args], capture_output=True, check=True).stdout
    eq(hashlib.sha256(LARGE).digest(), hashlib.sha256(curl(f.url("large"))).digest(), "a file of 4 MiB")
    with open(f"{TESTTMP}/upload", "wb") as up:
        up.write(LARGE)
    eq(hashlib.sha256(LARGE).hexdigest(), curl("--data-binary", f"@{TESTTMP}/upload", f.url("")).decode(), "an upload")
    at = curl("--parallel", "--parallel-max", "16", "-w", "%{http_code}\n", *sum((["-o", "/dev/null", f.url(f"large?{i}")] for i in range(12)), []))
    eq(b"200\n" * 12, at, "twelve at once")
    with f.connect(ECHO) as a, f.connect(ECHO) as b:
        a.sendall(b"one")
        b.sendall(b"two")
        eq((b"two", b"one"), (b.recv(100), a.recv(100)))
    with f.connect(DIGEST) as c:
        c.sendall(LARGE)
        c.shutdown(socket.SHUT_WR)
        eq(f"{len(LARGE)} {hashlib.sha256(LARGE).hexdigest()}".encode(), whole(c), "after a half close")
    with f.connect(WEBSOCKET) as c:
        c.sendall(b"GET /chat HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        has(b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", c.recv(1000), "the handshake")
        for frame in (b"\x82\x01\x00", b"\x82\x04\xff\0\xfe\x01"):
            c.sendall(frame)
            eq(frame, c.recv(100), "a frame")
    with f.connect(NOBODY) as c:
        eq(errno.ECONNRESET, errno_of(whole, c), "where nobody listens")
    with f.connect(RESET) as c:
        c.sendall(b"x")
        eq(errno.ECONNRESET, errno_of(whole, c), "a reset")
    eq(0, f.end(), "exit status after SIGTERM")
    eq(2, spacectl("forward", box().name).returncode, "without a port")
    for bad in ("x:80", "80:", "70000", "1:2:3", "0"):
        eq(1, spacectl("forward", box().name, bad).returncode, bad)


@check
def who_does_not_read_makes_the_other_wait():
    """Neither a deaf server nor a deaf program fills anybody's memory, and jobs go on meanwhile."""
    with Connection(DEAF) as c:
        os.set_blocking(c.fd, False)
        written = 0
        while True:
            try:
                written += os.write(c.fd, bytes(1 << 16))
            except BlockingIOError:
                if not select.select([], [c.fd], [], 1)[1]:
                    break
        at_most(16 << 20, written, "bytes that a deaf server's side took")
        began = time.monotonic()
        eq("fine", box().out("echo fine"), "a job meanwhile")
        at_most(10, time.monotonic() - began, "seconds of a job meanwhile")
    with Connection(FLOOD) as c:
        wait_until(lambda: os.path.exists(box().root("flood")), 60, "the server was made to wait")
        with open(box().root("flood")) as f:
            sent = int(f.read())
        at_most(16 << 20, sent, "bytes that a server got rid of though nobody read")
        eq(sent, len(c.read(1 << 30)), "bytes that came")


@check
def a_use_wakes_and_a_load_ends_it():
    b = box()
    with Connection(ECHO) as c:
        b.verb("pause")
        b.set("wake", "manual")
        refused(errno.EAGAIN, os.write, c.fd, b"x")
        refused(errno.EAGAIN, Connection, ECHO)
        b.set("wake", "auto")
        eq("paused", b.state)
        c.write(b"x")
        eq(b"x", c.read(1), "after a pause")
        eq("running", b.state)
        b.verb("pause")
        with Connection(ECHO) as d:
            d.write(b"y")
            eq(b"y", d.read(1), "opened while paused")
        fork = Box.known(fresh_name())
        subprocess.run(["cp", "-r", path("sandboxes", b.name), path("sandboxes", fork.name)], check=True)
        with Connection(ECHO, name=fork.name) as d:
            d.write(b"z")
            eq(b"z", d.read(1), "a server in the fork")
        c.write(b"z")
        eq(b"z", c.read(1), "that of the source, which goes on")
        with Connection(ECHO, name=fork.name) as d:
            waiting = Child(errno_of, os.read, d.fd, 1)
            waiting.blocked()
            fork.remove()
            eq(("value", errno.ECONNRESET), waiting.answer(20), "a read while the sandbox goes")
            refused(errno.ECONNRESET, os.read, d.fd, 1)
            refused((errno.ECONNRESET, errno.ESTALE), os.write, d.fd, b"x")
        old = kill_daemon("hostd")
        daemon_back("hostd", old)
        refused(errno.ECONNRESET, os.read, c.fd, 1)
    with Connection(ECHO) as c:
        c.write(b"again")
        eq(b"again", c.read(5), "with the next space-hostd")


def ends(s):
    """A program's socket of a forward, when the connection behind it is gone."""
    return errno_of(whole, s) == errno.ECONNRESET


@check
def a_forward_outlives_what_it_leads_to():
    """Suspend, roll back, pause, another space-hostd: its connections end with a reset, and the next one is there."""
    b, f = box(), Forward(ECHO)

    def echoes(s, data):
        s.sendall(data)
        eq(data, s.recv(100))
        return s

    def with_one_open(what, step):
        with f.connect(ECHO) as s, Connection(ECHO) as c:
            echoes(s, b"before")
            step()
            eq(True, ends(s), f"{what}: a program's socket was reset")
            refused(errno.ECONNRESET, os.read, c.fd, 1)
        with f.connect(ECHO) as s:
            echoes(s, b"after")
    with f.connect(ECHO) as s:
        echoes(s, b"before")
        b.verb("pause")
        echoes(s, b"a pause keeps it")
        b.verb("pause")
        with f.connect(ECHO) as other:
            echoes(other, b"a new one wakes")
    os.mkdir(path("snapshots", b.name, "now"))
    write(b.get("head"), "snapshots", b.name, "now", "head")
    with_one_open("a roll back", lambda: b.set("head", line("snapshots", b.name, "now", "head")))
    with_one_open("a suspend", lambda: b.verb("suspend"))
    with_one_open("another space-hostd", lambda: (daemon_back("hostd", kill_daemon("hostd")), settled()))
    eq(0, f.end(), "exit status after SIGTERM")


if __name__ == "__main__":
    if not shutil.which("curl"):
        print("needs curl", file=sys.stderr)
        sys.exit(77)
    main()
