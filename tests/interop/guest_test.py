#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 600
# instance: none
"""space-daemon as the host sees it: a guest of busybox alone is booted under emulation, both ports are driven by p9.py. No libvirt, no other
daemon. Takes the daemon from $BUILD/guest; arguments are parts of names of tests to run. As root."""

import errno
import hashlib
import os
import re
import signal
import stat
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest_vm  # noqa: E402
import p9  # noqa: E402
from p9 import O_RDONLY, O_RDWR, O_WRONLY  # noqa: E402

TESTS = []


class Skip(Exception):
    pass


def test(f):
    TESTS.append(f)
    return f


def eq(want, got, what="value"):
    if want != got:
        raise AssertionError(f"{what}: want {want!r:.300}, got {got!r:.300}")


def fails(code, f, *args, **kw):
    try:
        got = f(*args, **kw)
    except OSError as e:
        eq(errno.errorcode[code], errno.errorcode.get(e.errno, e.errno), "errno")
        return
    raise AssertionError(f"succeeded with {got!r:.100}, want {errno.errorcode[code]}")


def eventually(f, timeout=10):
    """For states that the guest reaches by itself and nobody can be told of."""
    end = time.monotonic() + timeout
    while not f():
        if time.monotonic() > end:
            raise AssertionError("not in time")
        time.sleep(0.02)


def until(stream, text, wanted):
    """Reads on after `text` until `wanted` has come; all of it."""
    while wanted not in text:
        data = stream.read(offset=len(text), timeout=20)
        if not data:
            raise AssertionError(f"the stream ended without {wanted!r}: {text!r}")
        text += data
    return text


class Guest:
    """A VM with sessions on both ports, and jobs."""

    def __init__(self, vm=None):
        self.vm = vm or guest_vm.Vm()
        self.next_id = 1000
        try:
            self.control_client, self.control = self.vm.control()
            self.hello = time.monotonic() - self.vm.began
            self.files_client, self.root = self.vm.files()
        except BaseException:
            self.vm.close()
            raise

    def reconnect(self):
        self.control_client.close()
        self.control_client, self.control = self.vm.control(20)

    def job(self, *argv, **options):
        return Job(self, argv, **options)

    def sh(self, script, **options):
        """Runs it to its end: (what wait says, stdout, stderr)."""
        j = self.job("sh", "-c", script, **options)
        out, err = j.read("stdout"), j.read("stderr")
        line = j.wait()
        j.forget()
        return line, out, err

    def ctl(self, line, timeout=40):
        f = self.control.walk("ctl").open(O_WRONLY)
        try:
            f.write(line, timeout=timeout)
        finally:
            f.clunk()

    def mkdir(self, name):
        self.root.mkdir(name)
        return self.root.walk(name)


class Job:
    def __init__(self, guest, argv, job_id=None, user=None, cwd=None, tty=None, env=()):
        guest.next_id += 1
        self.g, self.id = guest, job_id or guest.next_id
        record = f"id={self.id}\0"
        for key, value in (("user", user), ("cwd", cwd), ("tty", tty)):
            record += f"{key}={value}\0" if value else ""
        record += "".join(f"env={e}\0" for e in env) + "".join(f"arg={a}\0" for a in argv)
        f = guest.control.begin(["spawn"], O_WRONLY)
        f.pending.append(f.start_write(record))
        f.pending.append(guest.control_client.start("Tclunk", f.n))
        f.check()

    def file(self, name, flags=O_RDONLY):
        return self.g.control.begin(["jobs", str(self.id), name], flags).check()

    def read(self, name, offset=0, timeout=60):
        f = self.file(name)
        try:
            return f.read_all(offset, timeout)
        finally:
            f.clunk()

    def write(self, name, data):
        f = self.file(name, O_WRONLY)
        try:
            f.write(data)
        finally:
            f.clunk()

    def wait(self, timeout=30):
        f = self.file("wait")
        try:
            return f.read(timeout=timeout).decode().strip()
        finally:
            f.clunk()

    def forget(self):
        jobs = self.g.control.walk("jobs")
        jobs.unlink(str(self.id))
        jobs.clunk()


# ---- jobs ----


@test
def info_and_activity(g):
    info = dict(line.split(" ", 1) for line in g.control.walk("info").open().read_all().decode().splitlines())
    eq("1", info["protocol"], "protocol")
    assert re.fullmatch("[0-9a-f]{32}", info["boot-id"]), info
    activity = dict(line.split() for line in g.control.walk("activity").open().read_all().decode().splitlines())
    assert all(int(v) >= 0 for v in activity.values()) and int(activity["uptime_msec"]) > 0, activity
    eq({"info", "ctl", "activity", "files", "spawn", "trust", "tcp", "jobs"}, {n for n, *_ in g.control.walk().open().readdir()}, "the tree")


class Activity:
    """One fid, read again and again."""

    def __init__(self, g):
        self.f = g.control.walk("activity").open()

    def read(self):
        return {k: int(v) for k, v in (line.split() for line in self.f.read().decode().splitlines())}


@test
def activity_is_that_of_jobs(g):
    activity, d = Activity(g), g.mkdir("activity")
    before = activity.read()
    for i in range(300):  # work of the agent alone
        d.walk().create(f"f{i}").clunk()
    after = activity.read()
    eq((before["cpu_usec"], before["jobs"], before["handles"]), (after["cpu_usec"], after["jobs"], after["handles"]), "what the agent does is no activity")
    assert after["busy_usec"] > before["busy_usec"] and after["uptime_msec"] > before["uptime_msec"], (before, after)
    f = d.walk("f0").open()
    listing = d.walk().open()
    eq(before["handles"] + 2, activity.read()["handles"], "open handles")
    f.clunk()
    listing.clunk()
    sleeper = g.job("sleep", "1000")
    eq((after["jobs"] + 1, before["handles"]), (activity.read()["jobs"], activity.read()["handles"]), "a running job, closed handles")
    sleeper.forget()
    eq(after["jobs"], activity.read()["jobs"], "jobs after it was forgotten")
    before = activity.read()
    g.sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; (setsid sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done')")
    after = activity.read()
    used = after["cpu_usec"] - before["cpu_usec"]
    assert 5000 < used <= (after["uptime_msec"] - before["uptime_msec"] + 1) * 1000, (before, after)
    activity.f.clunk()


@test
def exit_status_and_both_streams(g):
    eq(("exit 3 4 5", b"out\n", b"fail\n"), g.sh("echo out; echo fail >&2; exit 3"))
    eq("exit 0 0 0", g.sh("true")[0])


@test
def death_by_signal(g):
    eq("signal 9 0 0", g.sh("kill -9 $$")[0])


@test
def user_environment_and_directory(g):
    line, out, _ = g.sh("id -u; id -G; pwd; echo $HOME $USER $SHELL $PATH $X; umask", user="user", env=["X=a b"])
    eq("1000\n1000 1001\n/home/user\n/home/user user /bin/sh /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin a b\n0022\n",
       out.decode())
    eq(b"1234\n77\n77\n/\n", g.sh("id -u; id -g; id -G; pwd", user="1234:77")[1], "a user that nobody knows is in no other group")
    eq(b"/tmp\n", g.sh("pwd", cwd="/tmp")[1])
    assert line.startswith("exit 0"), line


@test
def nothing_is_inherited(g):
    fds = g.job("ls", "/proc/self/fd")
    eq(b"0\n1\n2\n3\n", fds.read("stdout"), "descriptors (3 is the listing itself)")
    fds.forget()
    status = g.sh("grep -E '^Sig(Blk|Ign)' /proc/self/status; ulimit -n")[1].decode().split()
    eq(["0" * 16, "0" * 16, "1024"], status[1::2] + status[-1:], "signals and limits")


@test
def what_programs_expect(g):
    eq(b"127.0.0.1", re.search(rb"inet addr:(\S+)|inet (\S+)/8", g.sh("ifconfig lo")[1])[1], "loopback")
    eq("exit 0 0 0", g.sh("for p in /dev/fd/0 /dev/ptmx /dev/pts/ptmx /dev/shm /proc/1 /sys/kernel /run/lock; do test -e $p || exit 1; done")[0])
    eq(b"-1000\n-1000\n", g.sh("for p in /proc/[0-9]*; do if [ \"$(readlink $p/exe)\" = /init ] && [ ${p#/proc/} != 1 ]; then cat $p/oom_score_adj; fi; done")[1])


@test
def errors_of_spawn(g):
    fails(errno.ENOENT, g.job, "/no/such/program")
    fails(errno.ENOENT, g.job, "no-such-program")
    fails(errno.EACCES, g.job, "/etc/passwd")
    fails(errno.ENOENT, g.job, "true", cwd="/nowhere")
    fails(errno.ENOTDIR, g.job, "true", cwd="/etc/passwd")
    fails(errno.EINVAL, g.job, "true", user="nobody-here")
    fails(errno.EINVAL, g.job, "true", tty="80")
    fails(errno.EINVAL, g.job)
    f = g.control.walk("spawn").open(O_WRONLY)
    for record in (b"", b"id=5", b"id=x\0arg=true\0", b"arg=true\0", b"id=5\0arg=true\0bad\0", b"id=5\0env=novalue\0arg=true\0", b"id=281474976710657\0arg=true\0"):
        if record:
            fails(errno.EINVAL, f.write, record)
    j = g.job("true", job_id=1 << 48)
    fails(errno.EEXIST, g.job, "true", job_id=1 << 48)
    eq("exit 0 0 0", j.wait())
    j.forget()
    fails(errno.ENOENT, j.wait)
    fails(errno.ENOENT, j.forget)


@test
def stdin_and_its_end(g):
    j = g.job("sh", "-c", "cat; echo end")
    data = os.urandom(300000)
    f, out = j.file("stdin", O_WRONLY), j.file("stdout")
    calls = [f.start_write(data[at:at + 50000]) for at in range(0, len(data), 50000)]
    got = b""
    while len(got) < len(data):
        got += out.read(offset=len(got))
    for c in calls:
        eq([50000], c.result(), "count")
    eq(data, got, "stdin through cat")
    f.clunk()
    j.write("stdin", b"more")
    j.write("eof", b"1")
    fails(errno.EPIPE, j.write, "stdin", b"x")
    eq(b"moreend\n", out.read_all(len(data)))
    j.forget()


@test
def stdin_nobody_reads(g):
    j = g.job("sleep", "100")
    f = j.file("stdin", O_WRONLY)
    call = f.start_write(bytes(200000))
    eq(False, call.done.wait(0.3), "answered while the pipe is full")
    second = f.start_write(b"x")
    second.flush()
    fails(errno.EINTR, second.result)
    call.flush()
    eq([65536], call.result(), "what the pipe took")
    j.write("signal", "15")
    eq("signal 15 0 0", j.wait())
    third = f.start_write(b"y")
    fails(errno.EPIPE, third.result)
    j.forget()


@test
def backpressure(g):
    size = 10_000_000
    j = g.job("sh", "-c", f"head -c {size} /dev/zero; echo done >&2")
    errors = j.file("stderr")
    call = errors.start_read()
    eq(False, call.done.wait(1), "the job ran on though nobody reads")
    out = j.file("stdout")
    at = total = 0
    began = time.monotonic()
    while data := out.read(offset=at):
        total += data.count(0)
        at += len(data)
    eq((size, size), (at, total), "bytes")
    eq(b"done\n", call.result()[0])
    eq(f"exit 0 {size} 5", j.wait())
    fails(errno.ERANGE, out.read, offset=0)
    fails(errno.ERANGE, out.read, offset=size + 1)
    eq(b"", out.read(offset=size), "the end, again")
    j.forget()
    print(f"    {size / (time.monotonic() - began) / 1e6:.1f} MB/s of a job's output")


@test
def unacknowledged_output_can_be_read_again(g):
    j = g.job("sh", "-c", "echo one; echo two")
    j.wait()
    out = j.file("stdout")
    eq(b"one\ntwo\n", out.read())
    eq(b"one\ntwo\n", out.read(), "the same offset")
    eq(b"two\n", out.read(offset=4))
    fails(errno.ERANGE, out.read, offset=0)
    j.forget()


@test
def background_child_holds_the_pipe(g):
    j = g.job("sh", "-c", "echo first; (sleep 3; echo later) & exit 5")
    eq("exit 5 6 0", j.wait(2), "wait does not wait for the child")
    out = j.file("stdout")
    eq(b"first\n", out.read())
    eq(b"later\n", out.read_all(6), "what the child adds")
    j.forget()


@test
def signals(g):
    j = g.job("sh", "-c", "trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.05; done")
    out = j.file("stdout")
    eq(b"ready\n", out.read())
    j.write("signal", str(int(signal.SIGUSR1)))
    eq("exit 7 10", " ".join(j.wait().split()[:3]))  # the shell says on stderr that the signal hit its sleep, too, if it ran
    fails(errno.ESRCH, j.write, "signal", "9")
    fails(errno.EINVAL, j.write, "signal", "x")
    fails(errno.EINVAL, j.write, "signal", "0")
    j.forget()


@test
def signal_reaches_a_child_that_is_left(g):
    j = g.job("sh", "-c", "setsid sleep 1000 & echo $!")
    j.wait()
    pid = int(j.file("stdout").read())
    j.write("signal", "15")
    eventually(lambda: g.sh(f"test -d /proc/{pid}")[0].startswith("exit 1"))
    j.forget()


@test
def forgetting_kills_everything(g):
    j = g.job("sh", "-c", "setsid sleep 1000 & echo $!; sleep 1000")
    out = j.file("stdout")
    pid = int(out.read())
    waiting = j.file("wait").start_read()
    reading = out.start_read(offset=len(str(pid)) + 1)
    j.forget()
    fails(errno.ENOENT, waiting.result)
    eq([b""], reading.result())
    eventually(lambda: g.sh(f"test -d /proc/{pid}")[0].startswith("exit 1"))
    eventually(lambda: g.sh("ls -d /sys/fs/cgroup/jobs/space-*")[1].count(b"\n") == 1)  # that of the listing itself


@test
def terminal(g):
    j = g.job("sh", "-c", "tty; stty size; trap 'stty size' WINCH; echo ready; until read line; do :; done; echo \"got $line\"; read line; exit 4", tty="80x24")
    out = j.file("stdout")
    text = until(out, b"", b"ready")
    assert re.match(rb"/dev/pts/\d+\r\n24 80\r\nready", text), text
    eq(b"", j.read("stderr"), "stderr of a terminal")
    j.write("tty", "100x40")
    text = until(out, text, b"40 100\r\n")
    j.write("stdin", b"hello\n")
    text = until(out, text, b"got hello\r\n")
    j.write("eof", b"1")
    line = j.wait()
    eq("exit 4", " ".join(line.split()[:2]))
    rest = out.read_all(len(text))
    eq(len(text) + len(rest), int(line.split()[2]), "the mark of the end")
    fails(errno.EINVAL, j.write, "tty", "0x0")
    j.forget()
    plain = g.job("true")
    fails(errno.ENOTTY, plain.write, "tty", "80x24")
    plain.forget()


@test
def terminal_interrupt(g):
    j = g.job("sh", "-c", "echo ready; sleep 1000", tty="80x24")
    out = j.file("stdout")
    until(out, b"", b"ready\r\n")
    j.write("stdin", b"\3")
    line = j.wait()
    assert line.startswith("signal 2"), line
    j.forget()


@test
def terminal_output_is_whole(g):
    j = g.job("sh", "-c", "seq 1 6000", tty="80x24")
    want = "".join(f"{i}\r\n" for i in range(1, 6001)).encode()
    got = j.read("stdout")
    eq(len(want), len(got), "length")
    eq(want, got)
    eq(f"exit 0 {len(want)} 0", j.wait())
    j.forget()


@test
def flushed_reads(g):
    j = g.job("sleep", "1000")
    for name in ("stdout", "stderr", "wait"):
        f = j.file(name)
        call = f.start_read()
        call.flush()
        fails(errno.EINTR, call.result)
    j.forget()


@test
def many_jobs(g):
    jobs = [g.job("sh", "-c", f"echo {i}") for i in range(100)]
    names = [n for n, *_ in g.control.walk("jobs").open().readdir(200)]
    eq(sorted(str(j.id) for j in jobs), sorted(n for n in names if int(n) >= jobs[0].id), "listing")
    for i, j in enumerate(jobs):
        eq(f"{i}\n".encode(), j.read("stdout"))
        j.forget()


# ---- control ----


@test
def freeze_and_thaw(g):
    g.sh("sync")
    fails(errno.EINVAL, g.ctl, "thaw")
    g.ctl("freeze 20000")
    fails(errno.EBUSY, g.ctl, "freeze 20000")
    j = g.job("sh", "-c", "echo x > /frozen; echo written")
    call = j.file("stdout").start_read()
    eq(False, call.done.wait(0.5), "a write went through while frozen")
    eq(b"alive\n", g.sh("echo alive")[1], "control while frozen")
    g.ctl("thaw")
    eq([b"written\n"], call.result(10))
    fails(errno.EINVAL, g.ctl, "thaw")
    j.forget()


@test
def frozen_files_do_not_stop_control(g):
    d = g.mkdir("frozen-dir")
    g.ctl("freeze 20000")
    call = g.files_client.start("Tmkdir", d.n, "x", 0o755, 0)
    eq(False, call.done.wait(0.3), "made while frozen")
    eq(b"alive\n", g.sh("echo alive")[1], "control")
    g.ctl("thaw")
    call.result(10)


@test
def freeze_watchdog(g):
    g.ctl("freeze 500")
    eq("exit 0 0 0", g.sh("echo x > /frozen")[0], "the watchdog let the write through")
    fails(errno.EINVAL, g.ctl, "thaw")
    for bad in ("freeze", "freeze 0", "freeze 30001", "freeze x", "thaw now", "nothing", "clock x", "hostname a/b", "generation 12", "entropy 1"):
        fails(errno.EINVAL, g.ctl, bad)


@test
def clock(g):
    g.ctl("clock 1700000000000000000")
    now = int(g.sh("date +%s")[1])
    assert 1700000000 <= now < 1700000030, now
    g.ctl(f"clock {time.time_ns()}")
    before, said = time.time(), int(g.sh("date +%s")[1])
    assert before - 5 < said < time.time() + 5, (before, said)


@test
def identity(g):
    g.ctl("hostname some-guest")
    eq(b"some-guest\nsome-guest\n", g.sh("hostname; cat /etc/hostname")[1])
    g.ctl("generation 0123456789abcdef0123456789abcdef")
    eq(b"0123456789abcdef0123456789abcdef\n", g.sh("cat /etc/machine-id")[1])
    g.ctl("entropy " + "ab" * 64)
    g.ctl("sync")


def certificate(text, hash=None):
    return (f"# hash {hash}\n" if hash else "") + f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"


def trust(g, text):
    f = g.control.walk("trust").open(O_WRONLY)
    try:
        f.write(text, timeout=20)
    finally:
        f.clunk()


@test
def the_hosts_ca_is_where_programs_look(g):
    cat = lambda path: g.sh(f"cat {path}")[1].decode()
    eq("", g.sh("echo $SSL_CERT_FILE$NODE_EXTRA_CA_CERTS")[1].decode().strip(), "variables before")
    g.sh("mkdir -p /etc/ssl/certs /etc/pki/tls/certs /etc/pki/ca-trust/source/anchors; echo others > /etc/ssl/certs/ca-certificates.crt;"
         "ln -s /etc/ssl/certs/ca-certificates.crt /etc/ssl/cert.pem; printf unended > /etc/pki/tls/certs/ca-bundle.crt; chmod 640 /etc/pki/tls/certs/ca-bundle.crt")
    one, two = certificate("T25l", "0a1b2c3d"), certificate("VHdv")
    trust(g, one)
    ours = f"# BEGIN spacefs\n{one}# END spacefs\n"
    for _ in range(2):
        eq("others\n" + ours, cat("/etc/ssl/certs/ca-certificates.crt"), "Debian's bundle")
        trust(g, one)  # the same again: once is enough
    eq("unended\n" + ours, cat("/etc/pki/tls/certs/ca-bundle.crt"), "Fedora's bundle")
    eq(certificate("T25l"), cat("/usr/local/share/ca-certificates/spacefs-1.crt"), "Debian's source")
    eq(certificate("T25l"), cat("/etc/pki/ca-trust/source/anchors/spacefs-1.crt"), "Fedora's source")
    eq(certificate("T25l"), cat("/etc/ssl/certs/0a1b2c3d.0"), "by its hash")
    trust(g, two + one)  # another one comes first, the old one stays
    eq(f"others\n# BEGIN spacefs\n{two}{one}# END spacefs\n", cat("/etc/ssl/certs/ca-certificates.crt"), "the bundle after a rotation")
    eq("640", g.sh("stat -c %a /etc/pki/tls/certs/ca-bundle.crt")[1].decode().strip(), "mode of the bundle")
    eq("/etc/ssl/cert.pem", g.sh("find /etc/ssl/cert.pem -type l")[1].decode().strip(), "the link")
    eq(certificate("T25l"), cat("/usr/local/share/ca-certificates/spacefs-2.crt"), "the second source")
    eq("/etc/ssl/certs/ca-certificates.crt /run/space/ca.pem mine", g.sh("echo $REQUESTS_CA_BUNDLE $NODE_EXTRA_CA_CERTS $PIP_CERT", env=["PIP_CERT=mine"])[1].decode().strip(),
       "variables")
    for wrong in ("", "no certificate", "-----BEGIN CERTIFICATE-----\nx", certificate("x") * 9, "x" * 20000):
        fails(errno.EINVAL, trust, g, wrong)
    eq(two + one, cat("/run/space/ca.pem"), "what is trusted after that")


@test
def grow(g):
    before = g.root.statfs()
    eq("exit 0 0 0", g.sh("true")[0])
    text = g.vm.monitor("block_resize d 128M")
    assert "Error" not in text, text
    eventually(lambda: int(g.sh("cat /sys/block/vda/size")[1]) == 128 * 2048)
    g.ctl("grow")
    after = g.root.statfs()
    assert after["blocks"] * after["bsize"] > 1.8 * before["blocks"] * before["bsize"], (before, after)
    g.ctl("grow")


# ---- connections ----


@test
def reconnect(g):
    j = g.job("sh", "-c", "echo before; read line; echo after $line")
    eq(b"before\n", j.file("stdout").read())
    reading = j.file("stdout").start_read(offset=7)
    g.reconnect()
    try:
        raise AssertionError(f"a read of the old session was answered: {reading.result()}")
    except ConnectionResetError:
        pass
    j.write("stdin", b"x\n")
    eq("exit 0 15 0", j.wait())
    eq(b"after x\n", j.file("stdout").read_all(7))
    j.forget()


@test
def garbage_before_the_preamble(g):
    g.control_client.close()
    s = guest_vm.socket.socket(guest_vm.socket.AF_UNIX)
    s.connect(f"{g.vm.dir}/port0")
    g.vm.hello(s, before=os.urandom(50000) + b"SPACE1 " + b"SPACE1 0123\n" + b"SSPACE1 0" * 100)
    g.control_client = p9.Client(s)
    g.control = g.control_client.attach("control")
    eq(b"ok\n", g.sh("echo ok")[1])


@test
def missed_hangup(g):
    # The VM stands still while one client leaves and the next comes: the guest sees one stream of bytes.
    for cut in (b"", b"\x40\x00\x00\x00\x6e\x05\x00\x01\x00", bytes.fromhex("ffff000076")):
        if cut:
            g.control_client.sock.sendall(cut)
        g.vm.monitor("stop")
        g.control_client.close()
        s = guest_vm.socket.socket(guest_vm.socket.AF_UNIX)
        s.connect(f"{g.vm.dir}/port0")
        g.vm.monitor("cont")
        g.vm.hello(s, 20)
        g.control_client = p9.Client(s)
        g.control = g.control_client.attach("control")
        eq(b"ok\n", g.sh("echo ok")[1])


@test
def hangup_of_the_peer_before_is_not_the_next_ones(g):
    # Bytes come by an interrupt, the news that somebody connected from a worker of the kernel: one that has to wait for a busy processor is late.
    hogs = [g.job("sh", "-c", "while :; do :; done") for _ in range(6)]
    for i in range(40):
        g.files_client.close()
        time.sleep(i % 8 * 0.005)
        g.files_client, g.root = g.vm.files(20)
    for j in hogs:
        j.forget()


@test
def broken_protocol_ends_the_session_only(g):
    j = g.job("sleep", "1000")
    g.control_client.sock.sendall(b"\xff\xff\xff\xff garbage")
    g.reconnect()
    j.write("signal", "9")
    eq("signal 9 0 0", j.wait())
    j.forget()


@test
def files_process_is_started_again(g):
    out = g.sh("for p in /proc/[0-9]*; do if ls -l $p/fd 2>/dev/null | grep -q vport.*p2; then echo ${p#/proc/}; fi; done")[1]
    eq(1, out.count(b"\n"), "file servers")
    ends = g.control.walk("files").open()
    n = int(ends.read(offset=1 << 62))
    told = ends.start_read(offset=n)
    dropped = ends.start_read(offset=n)
    assert not told.done.wait(0.1), "ends were told where there was none"
    dropped.flush()
    fails(errno.EINTR, dropped.result)
    g.sh(f"kill -9 {int(out)}")
    eq(b"%d\n" % (n + 1), told.result(5)[0], "ends of file servers")
    eq(b"%d\n" % (n + 1), ends.read(offset=n), "asked late")
    g.files_client.close()
    g.files_client, g.root = g.vm.files(20)
    assert any(n == "etc" for n, *_ in g.root.walk().open().readdir())


@test
def freezer_is_started_again(g):
    out = g.sh("for p in /proc/[0-9]*; do if [ \"$(readlink $p/exe)\" = /init ] && ls -l $p/fd/0 | grep -q socket; then echo ${p#/proc/}; fi; done")[1]
    eq(1, out.count(b"\n"), "freezers")
    g.ctl("freeze 30000")
    g.sh(f"kill -9 {int(out)}")
    eq("exit 0 0 0", g.sh("echo x > /frozen")[0], "it thawed what its predecessor froze")
    g.ctl("freeze 30000")
    g.ctl("thaw")


# ---- files ----


@test
def write_read_and_sizes(g):
    d = g.mkdir("io")
    data = os.urandom(3_000_000)
    f = d.walk().create("a", O_RDWR)
    began = time.monotonic()
    f.write(data)
    wrote = time.monotonic()
    eq(data, f.read_all(), "read back")
    read = time.monotonic()
    print(f"    {len(data) / (wrote - began) / 1e6:.1f} MB/s in, {len(data) / (read - wrote) / 1e6:.1f} MB/s out")
    eq(len(data), f.getattr()["size"], "size")
    f.setattr(what="size", size=10)
    eq(data[:10], f.read_all())
    f.fsync()
    f.clunk()
    d.walk("a").open(O_RDWR | os.O_TRUNC).clunk()
    eq(0, d.walk("a").getattr()["size"], "after O_TRUNC")
    fails(errno.EEXIST, d.walk().create, "a", O_WRONLY | os.O_EXCL)
    fails(errno.EISDIR, g.root.walk("io").open, O_WRONLY)
    f = d.walk("a").open(O_WRONLY | os.O_APPEND)
    f.write(b"one")
    f.write(b"two", offset=0)
    eq(b"onetwo", d.walk("a").open().read_all(), "appended")


@test
def large_pieces_of_any_kind(g):
    """The server goes around the cache where that is safe: what is read is what was written last, whoever wrote it."""
    d = g.mkdir("large")
    data = os.urandom(5 << 20)
    piece = 256 << 10

    def put(f, at, end):
        while at < end:
            at += f.write(data[at:min(end, at + piece)], offset=at)

    f = d.walk().create("f", O_RDWR)
    put(f, 0, 1 << 20)                   # whole pages at the end of the file
    put(f, 1 << 20, (1 << 20) + 300001)  # ... and what is left of one
    put(f, (1 << 20) + 300001, 3 << 20)  # from the middle of a page
    put(f, 4 << 20, 5 << 20)             # behind a hole
    put(f, 3 << 20, 4 << 20)             # fills it
    eq(data, f.read_all(), "read by the client")
    eq(hashlib.sha256(data).hexdigest().encode(), g.sh("sha256sum /large/f")[1].split()[0], "read in the guest")
    data = data[:1 << 20] + bytes(1 << 20) + data[2 << 20:]
    g.sh("dd if=/dev/zero of=/large/f bs=1M seek=1 count=1 conv=notrunc")  # is in the cache, and not yet on the disk
    eq(data, f.read_all(), "after the guest wrote")
    g.sh("echo 3 > /proc/sys/vm/drop_caches; dd if=/large/f of=/dev/null bs=4096 skip=200 count=1")
    eq(data, f.read_all(), "from the disk, but for a little")
    put(f, 1 << 20, 4 << 20)  # over what is there
    eq(hashlib.sha256(data).hexdigest().encode(), g.sh("sha256sum /large/f")[1].split()[0], "written over")
    a = d.walk("f").open(O_WRONLY | os.O_APPEND)
    a.start_write(data[:piece], offset=8 << 20).result()
    eq(data + data[:piece], f.read_all(), "appended")
    eq(b"", f.read(offset=16 << 20, count=piece), "behind the end")
    for handle in (f, a):
        handle.clunk()


@test
def synchronous_files(g):
    d = g.mkdir("synchronous")
    for flags in (os.O_SYNC, os.O_DSYNC):
        f = d.walk().create(f"f{flags}", O_RDWR | flags)
        f.write(b"x" * 300000)
        f.clunk()
        f = d.walk(f"f{flags}").open(O_RDWR | flags)
        f.write(b"y" * 10, offset=5)
        eq(b"x" * 5 + b"y" * 10 + b"x", f.read(16))
        f.clunk()


@test
def a_slow_fsync_delays_nobody(g):
    d = g.mkdir("slow")
    f, s = d.walk().create("f", O_RDWR), d.walk().create("s", O_RDWR | os.O_SYNC)
    f.write(os.urandom(3_000_001))
    g.vm.monitor("block_set_io_throttle d 0 0 1000000 0 0 0")
    try:
        calls = [g.files_client.start("Tfsync", f.n, 0), s.start_write(b"waits as well"), g.files_client.start("Tfsync", f.n, 1)]
        for _ in range(20):
            began = time.monotonic()
            d.walk("f").open().read(100)
            d.walk("f").getattr()
            assert time.monotonic() - began < 1, "a request waited for the disk"
        assert not calls[0].done.is_set(), "the disk was not slow enough to show anything"
        calls[2].flush(5)  # a caller that gives up is let go at once
        fails(errno.EINTR, calls[2].result)
    finally:
        g.vm.monitor("block_set_io_throttle d 0 0 0 0 0 0")
    eq([], calls[0].result(60), "the fsync")
    eq([13], calls[1].result(60), "the synchronous write")


@test
def sparse(g):
    d = g.mkdir("sparse")
    f = d.walk().create("s")
    f.write(b"end", offset=100 << 20)
    a = f.getattr()
    eq((100 << 20) + 3, a["size"])
    assert a["blocks"] < 64, a
    eq(b"\0\0\0end", f.read(offset=(100 << 20) - 3))


@test
def ten_thousand_files(g):
    d = g.mkdir("many")
    want = {f"file-{i:04d}" + ("" if i % 2 else "-even") for i in range(10000)}
    line, _, err = g.sh("cd /many; seq -w 0 9999 | sed 's/^.*[02468]$/file-&-even/; s/^.*[13579]$/file-&/' | xargs touch")
    eq("exit 0", line[:6], err)
    for count in (None, 4096, 600):
        entries = d.walk().open().readdir(count)
        names = [n for n, *_ in entries if n not in (".", "..")]
        eq(10000, len(names), f"entries with buffers of {count}")
        eq(want, set(names), "names")
    # any offset is one to go on from
    f = d.walk().open()
    middle = entries[5000]
    data = g.files_client.call("Treaddir", f.n, middle[3], 4096)[0]
    first = data[24:24 + int.from_bytes(data[22:24], "little")].decode()
    eq(entries[5001][0], first, "the entry after an offset")


@test
def names(g):
    d = g.mkdir("names")
    for name in ("x" * 255, "with space", "new\nline", "ü€😀", "-", "~"):
        d.walk().create(name).clunk()
    eq({"x" * 255, "with space", "new\nline", "ü€😀", "-", "~", ".", ".."}, {n for n, *_ in d.walk().open().readdir()})
    fails(errno.ENAMETOOLONG, d.walk().create, "x" * 256)
    fails(errno.EINVAL, d.mkdir, "a/b")
    fails(errno.EINVAL, d.mkdir, "..")
    fails(errno.ENOENT, d.walk, "nothing")
    fails(errno.EINVAL, d.walk, "names/x")
    eq(g.root.qid[2], d.walk("..", "..", "..").qid[2], "above the root")


@test
def deep_walk(g):
    d = g.root
    path = ["deep"] + [f"d{i}" for i in range(39)]
    for name in path:
        d.mkdir(name)
        d = d.walk(name)
    eq(d.qid[2], g.root.walk(*path).qid[2], "40 names")


@test
def symlinks_are_never_followed(g):
    d = g.mkdir("links")
    d.symlink("out", "/etc/passwd")
    d.symlink("dir", "/etc")
    d.symlink("long", "y" * 900)
    link = d.walk("out")
    eq(b"/etc/passwd", link.readlink())
    eq(2, link.qid[0], "qid type")
    assert stat.S_ISLNK(link.getattr()["mode"])
    fails(errno.ELOOP, link.open)
    fails(errno.ENOENT, d.walk, "dir", "passwd")
    fails(errno.ELOOP, d.walk().create, "out", O_WRONLY)
    fails(errno.EOPNOTSUPP, d.walk("out").setattr, what="mode", mode=0o600)
    link.setattr(what="uid gid", uid=5, gid=6)
    eq((5, 6, 0), (link.getattr()["uid"], link.getattr()["gid"], g.root.walk("etc", "passwd").getattr()["uid"]))
    link.setattr(what="mtime", mtime=1234567890123456789)
    eq((1234567890, 123456789), (link.getattr()["mtime"], link.getattr()["mtime_nsec"]))
    eq(b"y" * 900, d.walk("long").readlink())
    fails(errno.EINVAL, d.walk("..").readlink)


@test
def attributes(g):
    d = g.mkdir("attributes")
    f = d.walk().create("f", O_RDWR, mode=0o4751, gid=12)
    a = f.getattr()
    eq((0o104751, 0, 12, 1), (a["mode"], a["uid"], a["gid"], a["nlink"]))
    f.setattr(what="mode uid gid atime mtime", mode=0o6711, uid=1000, gid=1001, atime=10**9, mtime=2 * 10**18 + 7)
    a = f.getattr()
    eq((0o106711, 1000, 1001, 1, 2 * 10**9, 7), (a["mode"], a["uid"], a["gid"], a["atime"], a["mtime"], a["mtime_nsec"]))
    eq(0x1FFF, a["valid"], "valid with generation and birth time")
    assert a["gen"] != 0 and a["btime"] > 0
    d.unlink("f")
    eq(0, f.getattr()["nlink"], "unlinked and open")
    f.write(b"still there")
    eq(b"still there", f.read())
    d.walk().create("f").clunk()
    again = d.walk("f").getattr()
    assert (again["qid"][2], again["gen"]) != (a["qid"][2], a["gen"]), "an inode number that is used again has another generation"


@test
def xattrs(g):
    d = g.mkdir("xattrs")
    f = d.walk().create("f")
    f.clunk()
    f = d.walk("f")
    f.setxattr("user.a", b"value")
    f.setxattr("user.b", b"x" * 700)
    f.setxattr("trusted.t", b"\0\1")
    eq([b"value", b"x" * 700, b"\0\1"], [f.getxattr(n) for n in ("user.a", "user.b", "trusted.t")])
    eq(["trusted.t", "user.a", "user.b"], sorted(f.listxattr()))
    fails(errno.EEXIST, f.setxattr, "user.a", b"2", flags=1)
    fails(errno.ENODATA, f.getxattr, "user.none")
    f.removexattr("user.a")
    eq(["trusted.t", "user.b"], sorted(f.listxattr()))
    f.setxattr("user.empty", b"", flags=1)
    eq(b"", f.getxattr("user.empty"))
    f.setxattr("user.empty", b"again")
    f.setxattr("user.empty", b"")
    eq(b"", f.getxattr("user.empty"), "only XATTR_REPLACE removes")
    acl = bytes.fromhex("02000000 01000600ffffffff 02000400e8030000 04000400ffffffff 10000400ffffffff 20000000ffffffff")
    f.setxattr("system.posix_acl_access", acl)
    eq(acl, f.getxattr("system.posix_acl_access"))
    fails(errno.E2BIG, f.setxattr, "user.big", b"x" * 65537)
    fails(errno.ENOSPC, f.setxattr, "user.big", b"x" * 60000)


@test
def links_renames_removal(g):
    d = g.mkdir("tree")
    f = d.walk().create("a")
    f.write(b"content")
    d.link("b", f)
    eq(2, f.getattr()["nlink"])
    other = g.mkdir("tree-2")
    d.rename("b", other, "c")
    eq(b"content", other.walk("c").open().read_all())
    fails(errno.ENOENT, d.walk, "b")
    d.mkdir("sub")
    held = d.walk("sub")
    d.rename("sub", other, "moved")
    held.mkdir("inside")
    eq(True, "inside" in {n for n, *_ in other.walk("moved").open().readdir()}, "a fid follows a rename")
    fails(errno.ENOTEMPTY, other.rmdir, "moved")
    fails(errno.EISDIR, other.unlink, "moved")
    fails(errno.ENOTDIR, d.rmdir, "a")
    held.rmdir("inside")
    other.rmdir("moved")
    fails(errno.ENOENT, held.mkdir, "late")
    other.unlink("c")
    eq(1, f.getattr()["nlink"])


@test
def special_files(g):
    d = g.mkdir("special")
    d.mknod("fifo", stat.S_IFIFO | 0o600)
    d.mknod("null", stat.S_IFCHR | 0o666, 1, 3)
    d.mknod("socket", stat.S_IFSOCK | 0o600)
    for name in ("fifo", "null", "socket"):
        for flags in (O_RDONLY, O_WRONLY, O_RDWR):
            fails(errno.ENXIO, d.walk(name).open, flags)
    fails(errno.ENXIO, d.walk().create, "fifo", O_WRONLY)
    eq((stat.S_IFCHR | 0o666, os.makedev(1, 3)), (d.walk("null").getattr()["mode"], d.walk("null").getattr()["rdev"]))
    g.sh("mkfifo /special/read; (sleep 1000 < /special/read) >/dev/null 2>&1 & true")
    d.rename("fifo", d, "fifo2")
    d.unlink("fifo2")


@test
def nothing_mounted_over_it(g):
    g.sh("mkdir -p /tmp/m; mount -t tmpfs none /tmp/m; touch /tmp/m/hidden")
    eq({".", ".."}, {n for n, *_ in g.root.walk("tmp", "m").open().readdir()})
    eq({".", ".."}, {n for n, *_ in g.root.walk("proc").open().readdir()})
    g.sh("umount /tmp/m; mount --bind /tmp /proc")
    eq(b"root", g.root.walk("etc", "passwd").open().read(4), "with /proc covered")
    g.sh("umount /proc")


@test
def locks(g):
    d = g.mkdir("locks")
    one = d.walk().create("f")
    two = d.walk("f").open(O_RDWR)
    eq(0, one.lock(1), "write lock")
    eq(1, two.lock(1), "blocked")
    eq(1, two.lock(1, flags=1), "blocked at once, too, for who would wait")
    eq(0, one.lock(2), "unlock")
    eq(0, two.lock(0, 10, 5), "a range")
    eq(0, one.lock(1, 20, 5), "another")
    two.clunk()
    eq(0, one.lock(1), "a clunk lets go")


@test
def a_full_disk(g):
    d = g.mkdir("full")
    f = d.walk().create("f", O_WRONLY)
    chunk, at, code = bytes(1 << 20), 0, 0
    try:
        while at < 2 << 30:
            at += f.write(chunk, offset=at)
    except OSError as e:
        code = e.errno
    eq(errno.ENOSPC, code, "errno")
    eq(b"alive\n", g.sh("echo alive")[1])
    f.clunk()
    d.unlink("f")


@test
def wrong_messages(g):
    c = g.files_client
    fails(errno.EBADF, c.call, "Tread", 999999, 0, 10)
    d = g.mkdir("wrong")
    fails(errno.EBADF, d.read)
    fails(errno.EBADF, d.walk().walk().readdir)
    f = d.walk().create("f", O_RDONLY)
    fails(errno.EBADF, f.write, b"x")
    fails(errno.EINVAL, f.read, offset=1 << 63)
    fails(errno.ENOENT, c.attach, "control")
    fails(errno.ENOENT, g.control_client.attach, "root")
    fails(errno.EOPNOTSUPP, c.call, "Trename", f.n, d.n, "x")
    for message in ("ctl", "spawn"):
        fails(errno.EACCES, g.control.walk(message).open, O_RDONLY)
    fails(errno.EPERM, g.control.unlink, "info")


@test
def without_a_disk(_):
    """How a host finds out whether its acceleration runs guests at all."""
    vm = guest_vm.Vm(disk=False)
    try:
        client, control = vm.control()
        assert control.walk("info").open().read_all().startswith(b"protocol 1\n")
        fails(errno.ENOENT, Job, type("NoDisk", (), {"next_id": 0, "control": control, "control_client": client})(), ["/bin/sh"])
        vm.files()[1].getattr()
    finally:
        vm.close()


@test
def power_off(g):
    eq("exit 0 0 0", g.sh("echo kept > /kept")[0])
    j = g.job("sh", "-c", "trap 'echo bye > /bye; sync' TERM; echo ready; while :; do sleep 0.1; done")
    eq(b"ready\n", j.file("stdout").read())
    g.ctl("freeze 30000")  # which must keep nobody from ending well
    f = g.control.walk("ctl").open(O_WRONLY)
    call = f.start_write("poweroff")
    eq(0, g.vm.process.wait(30), "QEMU's end")
    try:
        raise AssertionError(f"poweroff was answered: {call.result()}")
    except ConnectionResetError:
        pass
    image = f"{g.vm.dir}/disk.raw"
    run = guest_vm.subprocess.run
    state = run(["dumpe2fs", "-h", image], check=True, capture_output=True, text=True).stdout
    assert "needs_recovery" not in state, "the journal was left to be replayed"
    eq(0, run(["e2fsck", "-fn", image], capture_output=True, check=False).returncode, "e2fsck")
    for name, text in (("kept", "kept\n"), ("bye", "bye\n")):
        eq(text, run(["debugfs", "-R", f"cat /{name}", image], check=True, capture_output=True, text=True).stdout)


def run_tests(tests, make):
    """Runs those that the arguments choose with the guest that make() gives. The exit status."""
    if os.geteuid() != 0:
        print("0 passed, 0 failed, 1 skipped")
        print("needs root", file=sys.stderr)
        return 77
    chosen = [t for t in tests if len(sys.argv) == 1 or any(a in t.__name__ for a in sys.argv[1:])]
    passed = failed = skipped = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    g = make()
    print(f"hello {g.hello:.2f} s after QEMU was started")
    try:
        for t in chosen:
            began = time.monotonic()
            try:
                t(g)
                passed += 1
                print(f"ok    {t.__name__} ({time.monotonic() - began:.2f} s)", flush=True)
            except Skip as e:
                skipped += 1
                print(f"skip  {t.__name__}: {e}", flush=True)
            except Exception:  # pylint: disable=broad-except
                failed += 1
                print(f"FAIL  {t.__name__}", flush=True)
                traceback.print_exc(file=sys.stdout)
                time.sleep(0.5)  # its sockets close before it ends
                if g.vm.process.poll() is not None:
                    print(f"the guest is gone: {g.vm.console()[-2000:]}")
                    break
    finally:
        g.vm.close()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_tests(TESTS, Guest))
