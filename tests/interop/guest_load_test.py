#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 900
# instance: none
"""A guest that is captured with its memory and goes on in another QEMU, while the first one goes on as well: jobs, streams, files, freezes and
identity. No libvirt, no other daemon. Arguments are parts of names of tests to run. As root."""

import errno
import os
import secrets
import shutil
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest_vm  # noqa: E402
from guest_test import Activity, Guest, Job, eq, eventually, fails, run_tests, until  # noqa: E402
from p9 import O_RDONLY, O_RDWR, O_WRONLY  # noqa: E402

TESTS = []


def test(f):
    TESTS.append(f)
    return f


class Source(Guest):
    """A booted guest that heads are taken of."""

    def __init__(self, **options):
        super().__init__(vm=guest_vm.Vm(128, **options))

    def load(self, hostname="loaded", generation=None, seed=None, clock=None, timeout=40):
        generation, seed = generation or secrets.token_hex(16), seed or secrets.token_hex(32)
        self.ctl(f"load {clock or time.time_ns()} {generation} {seed} {hostname}", timeout=timeout)
        return generation


class Child(Source):
    """A guest that goes on from a head, with its `load` done. `early`: the host connects before the guest runs, so that it never sees the hang-up."""

    def __init__(self, head, early=False, load=True):  # pylint: disable=super-init-not-called
        self.vm = guest_vm.Vm(head=head)
        self.next_id = 5000
        try:
            if early:
                threads = [threading.Thread(target=f) for f in (self.open_control, self.open_files)]
                for t in threads:
                    t.start()
                eventually(lambda: "disconnected" not in self.vm.monitor("info chardev"))
                self.vm.said("cont")
                for t in threads:
                    t.join()
            else:
                self.vm.said("cont")
                self.open_control()
                self.open_files()
            if load:
                self.generation = self.load()
        except BaseException:
            self.vm.close()
            raise

    def open_control(self):
        self.control_client, self.control = self.vm.control(20)

    def open_files(self):
        self.files_client, self.root = self.vm.files(20)

    def adopt(self, job):
        """The same job, in this guest."""
        mine = Job.__new__(Job)
        mine.g, mine.id = self, job.id
        return mine

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.vm.close()


def counted(stream, lines, offset):
    """Reads numbered lines of 8 bytes from `offset` until `lines` are there; checks each."""
    data = b""
    while len(data) < lines * 8:
        data += stream.read(offset=offset + len(data), timeout=30)
    first = offset // 8
    for i in range(len(data) // 8):
        eq(b"%07d\n" % (first + i), data[i * 8:i * 8 + 8], f"line {first + i}")
    return data


COUNT = "i=0; while :; do printf '%07d\\n' $i; i=$((i+1)); done"


@test
def jobs_and_streams_go_on(g):
    j = g.job("sh", "-c", COUNT)
    quiet = g.job("sh", "-c", "read line; echo got $line; exit 4")
    out = j.file("stdout")
    at = len(counted(out, 500, 0))
    blocked = [quiet.file("stdout").start_read(), quiet.file("wait").start_read()]
    head = g.vm.capture()
    with Child(head) as child:
        eq({j.id, quiet.id}, {int(n) for n, *_ in child.control.walk("jobs").open().readdir()}, "jobs of the child")
        mine = child.adopt(j).file("stdout")
        counted(mine, 3000, at)
        other = child.adopt(quiet)
        waiting = other.file("wait").start_read()
        other.write("stdin", b"child\n")
        eq([b"exit 4 10 0\n"], waiting.result())
        eq(b"got child\n", other.file("stdout").read_all())
        eq(b"alive\n", child.sh("echo alive")[1])
        child.adopt(j).forget()
    counted(out, 3000, at)
    quiet.write("stdin", b"source\n")
    eq([b"exit 4 11 0\n"], blocked[1].result())
    eq([b"got source\n"], blocked[0].result())
    j.forget()
    quiet.forget()


@test
def early_connection_goes_on(g):
    j = g.job("sh", "-c", COUNT)
    at = len(counted(j.file("stdout"), 500, 0))
    head = g.vm.capture()
    with Child(head, early=True) as child:
        counted(child.adopt(j).file("stdout"), 2000, at)
    j.forget()


def write_much(f, stop, state):
    """Keeps writes of 256 KiB in flight; block I is filled with the byte I % 251."""
    calls = []
    while not stop.is_set():
        while len(calls) < 4:
            i = state["sent"]
            calls.append(f.start_write(bytes([i % 251]) * 262144, offset=(i % 64) * 262144))
            state["sent"] += 1
        eq([262144], calls.pop(0).result(60), "count")
        state["done"] += 1
    for c in calls:
        eq([262144], c.result(60), "count")
        state["done"] += 1


@test
def captured_in_the_middle_of_writes(g):
    """Both ports busy in both directions, five moments; each child goes on, and the source's session sees nothing of it."""
    d = g.mkdir("busy")
    f = d.walk().create("big", O_RDWR)
    j = g.job("sh", "-c", COUNT)
    out = j.file("stdout")
    stop, state, seen, faults = threading.Event(), {"sent": 0, "done": 0}, [0], []

    def guarded(work, *args):
        try:
            work(*args)
        except BaseException as e:  # pylint: disable=broad-except
            faults.append(e)

    def read_on():
        while not stop.is_set():
            seen[0] += len(counted(out, 100, seen[0]))

    threads = [threading.Thread(target=guarded, args=(write_much, f, stop, state)), threading.Thread(target=guarded, args=(read_on,))]
    for t in threads:
        t.start()
    try:
        for round_number in range(5):
            before = state["done"]
            eventually(lambda n=before: state["done"] > n + 2, 60)
            begun = seen[0]
            head = g.vm.capture()
            with Child(head, early=round_number % 2 == 1) as child:
                mine = child.root.walk("busy", "big").open(O_RDWR)
                for i in range(8):
                    mine.write(bytes([200 + i]) * 300000, offset=i * 300000)
                eq(bytes([203]) * 1000, mine.read(1000, offset=3 * 300000 + 5))
                stream = child.adopt(j).file("stdout")
                # what the source acknowledged before the capture is gone; where that was, only the guest knows
                at = begun
                while True:
                    try:
                        counted(stream, 500, at)
                        break
                    except OSError as e:
                        eq(errno.ERANGE, e.errno, "errno")
                        at += 80
                eq(b"alive\n", child.sh("echo alive; sync")[1])
            shutil.rmtree(head.dir)
    finally:
        stop.set()
        for t in threads:
            t.join(60)
    eq([], faults, "of the source")
    assert seen[0] > 1000 and state["done"] > 10, (seen, state)
    j.forget()
    f.clunk()


@test
def captured_while_frozen(g):
    g.ctl("freeze 20000")
    head = g.vm.capture()
    eq("exit 0 0 0", writes_at_once(head), "the child writes at once")
    g.ctl("thaw")
    eq("exit 0 0 0", g.sh("echo x > /after; sync")[0])


def writes_at_once(head):
    with Child(head) as child:
        began = time.monotonic()
        line = child.sh("echo x > /after; sync")[0]
        assert time.monotonic() - began < 10, "the watchdog thawed, not the load"
        fails(errno.EINVAL, child.ctl, "thaw")
        return line


@test
def captured_in_the_middle_of_a_freeze(g):
    """FIFREEZE waits for writers while the machine is captured."""
    j = g.job("sh", "-c", "while :; do dd if=/dev/zero of=/dirty bs=1M count=8 2>/dev/null; done")
    time.sleep(0.5)
    f = g.control.walk("ctl").open(O_WRONLY)
    call = f.start_write("freeze 3000")
    head = g.vm.capture()
    with Child(head) as child:
        eq("exit 0 0 0", child.sh("echo x > /after; sync")[0])
        child.adopt(j).forget()
    try:
        call.result(30)
        g.ctl("thaw")
    except OSError as e:
        eq(errno.EINVAL, e.errno, "thawed by the watchdog meanwhile")
    j.forget()


IDENTITY = "cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/uuid; head -c 32 /dev/urandom | od -An -tx1"


@test
def two_children_are_two_machines(g):
    g.sh("mkdir -p /etc/space/fork-hooks.d")
    g.sh("printf '#!/bin/sh\\necho $SPACE_GENERATION $SPACE_HOSTNAME $(hostname) $(cat /etc/machine-id) >> /hooked; read x || echo no input >> /hooked\\n'"
         " > /etc/space/fork-hooks.d/20-second; echo '#!/bin/sh\necho first >> /hooked; exit 7' > /etc/space/fork-hooks.d/10-first;"
         " echo 'not run' > /etc/space/fork-hooks.d/30-no-program; chmod +x /etc/space/fork-hooks.d/[12]*; sync")
    source = g.load("source")
    head = g.vm.capture()
    seen = [g.sh(IDENTITY)[1].decode()]
    hosts = []
    for name in ("one", "two"):
        with Child(head, load=False) as child:
            generation = child.load(name)
            eq(f"first\n{source} source source {source}\nno input\nfirst\n{generation} {name} {name} {generation}\nno input\n",
               child.sh("cat /hooked")[1].decode(), "what the hooks saw")
            seen.append(child.sh(IDENTITY)[1].decode())
            hosts.append(child.sh("hostname; cat /etc/hostname /etc/machine-id")[1].decode())
            eq(f"{name}\n{name}\n{generation}\n", hosts[-1])
    words = [w for text in seen for w in text.split("\n") if w]
    eq(len(words), len(set(words)), f"different words in {words}")
    g.sh("rm -r /etc/space /hooked; sync")


@test
def same_seed_is_still_another_machine(g):
    """The seed is mixed in, it does not replace what the generator had."""
    before = g.sh(IDENTITY)[1]
    g.load(seed="00" * 32)
    one = g.sh(IDENTITY)[1]
    g.load(seed="00" * 32)
    assert len({before, one, g.sh(IDENTITY)[1]}) == 3


@test
def clock_is_right_and_monotonic_does_not_jump(g):
    up = float(g.sh("cut -d' ' -f1 /proc/uptime")[1])
    head = g.vm.capture()
    captured = time.time()
    time.sleep(3)  # the head grows old: that is what is tested
    with Child(head, load=False) as child:
        up_before = float(child.sh("cut -d' ' -f1 /proc/uptime")[1])
        child.load()
        lag = time.time() - captured
        sent = time.time_ns()
        a = child.root.walk().create("now").getattr()
        said, got = a["mtime"] * 10**9 + a["mtime_nsec"], time.time_ns()
        assert sent - 50e6 <= said <= got + 50e6, f"the guest's clock is {(said - sent) / 1e6:.1f} ms after {(got - sent) / 1e6:.1f} ms"
        up_after = float(child.sh("cut -d' ' -f1 /proc/uptime")[1])
        assert up - 1 <= up_before <= up_after < up + lag - 1, f"uptime {up} {up_before} {up_after} over {lag} s"


@test
def hooks_are_bounded(g):
    g.sh("mkdir -p /etc/space/fork-hooks.d; cd /etc/space/fork-hooks.d; for i in 1 2 3; do printf '#!/bin/sh\\necho '$i' >> /hooked; sleep 1000\\n' > $i; chmod +x $i; done")
    began = time.monotonic()
    g.load()
    took = time.monotonic() - began
    assert 4.5 < took < 9, f"{took:.1f} s"
    eq(b"1\n2\n", g.sh("cat /hooked")[1], "the third is left out")
    eq(b"", g.sh("ps | grep 'sleep [1]000'")[1], "what is left of them")
    g.sh("rm -r /etc/space /hooked")
    began = time.monotonic()
    g.load()
    assert time.monotonic() - began < 2


@test
def arguments_of_load(g):
    now, good, seed = time.time_ns(), "ab" * 16, "cd" * 32
    for bad in ("load", "load ", f"load {now}", f"load {now} {good}", f"load {now} {good} {seed}", f"load x {good} {seed} a", f"load {now} {good[1:]} {seed} a",
                f"load {now} {good[:-1]}x {seed} a", f"load {now} {good} {seed[1:]} a", f"load {now} {good} {seed} a/b", f"load {now} {good} {seed} a b",
                f"load {now} {good} {seed} ", f"load {now} {good} {seed} {'a' * 65}", f"load {now} {good} {'ab' * 513} a"):
        fails(errno.EINVAL, g.ctl, bad)
    g.load("a" * 64)
    eq(b"a" * 64 + b"\n", g.sh("hostname")[1])


@test
def machine_id_survives_what_a_guest_does_to_it(g):
    for damage in ("true > /etc/machine-id", "echo a much longer line than there was before it > /etc/machine-id", "umount /etc/machine-id"):
        eq("exit 0 0 0", g.sh(damage)[0], damage)
        generation = g.load()
        if "umount" not in damage:
            eq(generation.encode() + b"\n", g.sh("cat /etc/machine-id")[1], damage)


def pages_that_are_not_zero(path):
    zero, n = bytes(4096), 0
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            n += sum(block[i:i + 4096] != zero for i in range(0, len(block), 4096))
    return n


def free_pages_that_are_not_zero(ram, flags):
    """`flags` are the guest's /proc/kpageflags."""
    buddy, zero = 1 << 10, bytes(4096)
    with open(ram, "rb") as f:
        return sum(bool(flag & buddy) and os.pread(f.fileno(), 4096, i * 4096) != zero for i, (flag,) in enumerate(struct.iter_unpack("<Q", flags)))


@test
def settled_memory_is_small(g):
    eq("exit 0 0 0", g.sh("head -c 30000000 /dev/urandom > /dev/shm/x; rm /dev/shm/x; dd if=/dev/urandom of=/cached bs=1M count=10 2>/dev/null")[0])
    before = pages_that_are_not_zero(g.vm.capture().dir + "/ram.raw")
    # The names are there before the first grep is.
    processes = "ls /sys/fs/cgroup/jobs | wc -l; n=0; for p in /proc/[0-9]*/status; do ! grep -q VmRSS $p || n=$((n + 1)); done; echo $n"
    left = g.sh(processes)[1]
    limits = "cat /proc/sys/vm/min_free_kbytes /proc/sys/vm/lowmem_reserve_ratio; grep oom_kill /proc/vmstat"
    kept = g.sh(limits)[1]
    g.ctl("settle")
    flags = g.sh("cat /proc/kpageflags")[1]
    head = g.vm.capture()
    stained = free_pages_that_are_not_zero(head.dir + "/ram.raw", flags)
    assert stained < 200, f"{stained} free pages are not zero"
    eq(left, g.sh(processes)[1], "cgroups and processes")
    eq(kept, g.sh(limits)[1], "what the kernel keeps free, and kills")
    after = pages_that_are_not_zero(head.dir + "/ram.raw")
    assert after < 17000 and before - after > 7000, f"{after} pages of {before} are left"
    with Child(head) as child:
        eq("exit 0 0 0", child.sh(":")[0])


@test
def settle_does_not_wait_for_ever(g):
    j = g.job("sh", "-c", "while :; do :; done")
    began = time.monotonic()
    g.ctl("settle")
    took = time.monotonic() - began
    j.forget()
    assert 4 < took < 25, f"{took:.1f} s"
    began = time.monotonic()
    g.ctl("settle")
    assert time.monotonic() - began < took, "of an idle guest"


@test
def a_small_guest_full_of_jobs(g):
    """Memory ends with hundreds of jobs and one that wants all: it is that one which goes, and nothing of the agent."""
    agents = "for p in /proc/[0-9]*; do if [ \"$(readlink $p/exe)\" = /init ]; then echo ${p#/proc/}; fi; done"
    before = g.sh(agents)[1]
    jobs = []
    try:
        for i in range(400):
            j = g.job("sh", "-c", f"echo {i}; sleep 1000")
            jobs.append(j)
    except OSError as e:
        eq(errno.ENOMEM, e.errno, "errno of a job too many")
    assert len(jobs) >= 150, f"{len(jobs)} jobs fit into 128 MiB"
    for i in (0, len(jobs) // 2):
        eq(f"{i}\n".encode(), jobs[i].file("stdout").read())
    for j in jobs[-20:]:
        j.forget()
    jobs[-20:] = []
    eventually(lambda: not g.sh("ls -d /sys/fs/cgroup/jobs/space-*")[1].count(b"\n") > len(jobs) + 1)
    hog = g.job("tail", "/dev/zero")
    ended = hog.file("wait").start_read()
    activity = Activity(g)
    for _ in range(20):  # the kernel may take its time to give up; the agent answers meanwhile
        assert activity.read()["uptime_msec"] > 0
        if ended.done.wait(1):
            line = ended.result()[0].decode()
            assert line.startswith("signal 9") or "exit 1" in line, line
            break
    hog.forget()
    g.mkdir("still-there")
    eq(len(jobs), Activity(g).read()["jobs"], "jobs that run: none was killed for the one that wanted all")
    for j in jobs:
        j.forget()
    eventually(lambda: g.sh("ls -d /sys/fs/cgroup/jobs/space-*")[1].count(b"\n") == 1, 30)
    eq(before, g.sh(agents)[1], "processes of the agent")


@test
def hundreds_of_large_requests_at_once(g):
    """Whatever the host asks for at once, the agent holds a few messages of it."""
    peak = "for p in /proc/[0-9]*; do if [ \"$(readlink $p/exe)\" = /init ]; then awk '/VmHWM/ { print $2 }' $p/status; fi; done"
    f = g.root.walk().create("large", O_RDWR)
    block = os.urandom(256 << 10)
    for at in range(0, len(block) * 32, len(block)):
        f.write(block, at)
    for call in [f.start_read(len(block), at % (len(block) * 32)) for at in range(0, 100 << 20, len(block))]:
        got = call.result(120)[0]
        eq(block[:len(got) or 1], got)
    for call in [f.start_write(block, at % (len(block) * 32)) for at in range(0, 100 << 20, len(block))]:
        call.result(120)
    most = max(map(int, g.sh(peak)[1].split()))
    assert most < 8 << 10, f"a process of the agent had {most} KiB at its peak"
    g.root.unlink("large")


@test
def an_idle_guest_does_nothing(g):
    """Wakes of the agent's processes over 10 s, and processor time of the QEMU."""

    def switches():
        text = g.sh("for p in /proc/[0-9]*; do if [ \"$(readlink $p/exe)\" = /init ]; then echo ${p#/proc/} $(grep ctxt $p/status | cut -f2); fi; done")[1].decode()
        return {line.split()[0]: line.split()[1:] for line in text.splitlines()}

    def cpu():
        with open(f"/proc/{g.vm.process.pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * 1000 // os.sysconf("SC_CLK_TCK")

    looks = [switches() for _ in range(5)]
    two = looks[-1]
    used = cpu()
    time.sleep(10)  # to see nothing happen takes time
    used = cpu() - used
    three = switches()
    for pid in two:
        asking = max(int(b[pid][0]) - int(a[pid][0]) for a, b in zip(looks, looks[1:]))  # what one look itself costs, which varies by 20
        idle = int(three[pid][0]) - int(two[pid][0])
        assert idle <= asking + 30, f"process {pid} was woken {idle} times in 10 s, {asking} by the look"
    eq(b"0\n0\n", g.sh("cat /proc/sys/vm/compaction_proactiveness /proc/sys/kernel/watchdog")[1], "what wakes an idle kernel")
    assert used < 500, f"the QEMU of an idle guest used {used} ms in 10 s"


if __name__ == "__main__":
    sys.exit(run_tests(TESTS, Source))
