#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 600
"""Heads with memory: create without a boot, live forks, checkpoints, roll backs, and what a guest is told after a load."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"


def copy(source, target):
    subprocess.run(["cp", "-r", path(*source), path(*target)], check=True, timeout=60)


def fork(src):
    name = fresh_name()
    copy(("sandboxes", src.name), ("sandboxes", name))
    return Box.known(name)


def from_snapshot(src, snap):
    name = fresh_name()
    copy(("snapshots", src.name, snap), ("sandboxes", name))
    return Box.known(name)


def checkpoint(src, snap):
    copy(("sandboxes", src.name), ("snapshots", src.name, snap))
    eq("full", line("snapshots", src.name, snap, "kind"), "kind of a copy of a running sandbox")


def boot_id(box):
    return box.out("cat /proc/sys/kernel/random/boot_id")


def counted(job):
    """The last number that a counting job has printed."""
    lines = [text for text in job.so_far().split("\n")[:-1] if text.isdigit()]
    return int(lines[-1]) if lines else 0


@check
def the_default_template_is_prepared():
    wait_until(lambda: line("templates", default_template(), "prepared"), 90, "the template is prepared")


@check
def sandboxes_continue_one_boot():
    a, b = Box(), Box()
    eq(boot_id(a), boot_id(b), "boot id of two new sandboxes: none of them has booted")


@check
def identities_differ():
    boxes = [Box() for _ in range(3)]
    for what in ("cat /proc/sys/kernel/random/uuid", "od -An -tx1 -N16 /dev/urandom", "cat /etc/machine-id", "hostname"):
        values = [box.out(what) for box in boxes]
        eq(3, len(set(values)), f"different answers to {what!r}, which were {values!r}")
    eq(boxes[0].name.replace("_", "-"), boxes[0].out("hostname"), "host name")


@check
def the_clock_is_right():
    Box().clock_is_right()


@check
def a_fork_goes_on():
    a = Box()
    job = Job(a, COUNT, name="count")
    a.out("echo kept > /dev/shm/mark")
    wait_until(lambda: counted(job) >= 5, 20, "the job counts")
    boot = boot_id(a)
    b = fork(a)
    b.touch()
    eq(boot, boot_id(b), "boot id of the fork")
    eq("kept", b.out("cat /dev/shm/mark"), "memory of the fork")
    eq(["count"], os.listdir(path("proc", b.name)), "jobs of the fork")
    twin = Job.__new__(Job)
    twin.box, twin.name = b, "count"
    eq("running", twin.get("status"), "status of the forked job")
    first = wait_until(lambda: counted(twin), 20, "output of the forked job")
    wait_until(lambda: counted(twin) > first + 3, 20, "the forked job goes on")
    mine = counted(job)
    wait_until(lambda: counted(job) > mine + 3, 20, "the source's job goes on")
    numbers = [int(text) for text in job.so_far().split()]
    eq(list(range(1, len(numbers) + 1)), numbers, "the source's output, in which nothing is missing")
    b.out("echo other > /dev/shm/mark")
    eq("kept", a.out("cat /dev/shm/mark"), "memory of the source")
    twin.signal("KILL")
    eq("signal 9", twin.wait(), "end of the forked job")
    eq("running", job.get("status"), "the source's job")
    ne(a.out("cat /etc/machine-id"), b.out("cat /etc/machine-id"), "machine id of the fork")
    job.remove()


@check
def the_two_line_form_is_the_same():
    a = Box()
    a.out("echo kept > /dev/shm/mark")
    b = Box(wait=False)
    write(read("sandboxes", a.name, "head"), "sandboxes", b.name, "head")
    eq("kept", b.out("cat /dev/shm/mark"), "memory")


@check
def fork_of_a_fork():
    box = Box()
    box.out("echo 0 > /dev/shm/depth")
    boot = boot_id(box)
    for depth in range(1, 6):
        child = fork(box)
        eq(str(depth - 1), child.out("cat /dev/shm/depth"), f"memory at depth {depth}")
        child.out(f"echo {depth} > /dev/shm/depth; echo {depth} > /depth; sync")
        box.remove()
        box = child
    eq(boot, boot_id(box), "boot id at depth 5")
    eq("5", box.out("cat /depth"), "disk at depth 5")


@check
def paused_and_stopped_sources():
    a = Box()
    a.out("echo kept > /dev/shm/mark; echo disk > /mark; sync")
    a.verb("pause")
    b = fork(a)
    eq("kept", b.out("cat /dev/shm/mark"), "memory of a paused source's fork")
    eq("paused", a.state, "state of the source")
    a.verb("resume")
    a.verb("stop")
    c = fork(a)
    eq("disk", c.out("cat /mark"), "disk of a stopped source's fork")
    eq("stopped", a.state, "state of the source")


@check
def a_checkpoint_comes_back():
    a = Box()
    job = Job(a, COUNT, name="count")
    a.out("echo one > /dev/shm/mark; echo one > /mark; sync")
    wait_until(lambda: counted(job) >= 3, 20, "the job counts")
    checkpoint(a, "s")
    at = counted(job)
    a.out("echo two > /dev/shm/mark; echo two > /mark")
    c = from_snapshot(a, "s")
    eq("one one", c.out("echo $(cat /dev/shm/mark /mark)"), "memory and disk of a copy")
    twin = Job.__new__(Job)
    twin.box, twin.name = c, "count"
    wait_until(lambda: counted(twin), 20, "the copy's job goes on")

    newer = Job(a, "sleep 1000", name="newer")
    write(read("snapshots", a.name, "s", "head"), "sandboxes", a.name, "head")
    eq("running", a.state, "state after the roll back")
    eq("one one", a.out("echo $(cat /dev/shm/mark /mark)"), "memory and disk after the roll back")
    eq("lost", newer.get("wait"), "a job newer than the head")
    eq("running", job.get("status"), "a job of the head")
    wait_until(lambda: counted(job) > at + 3, 20, "a job of the head goes on")
    autos = [name for name in os.listdir(path("snapshots", a.name)) if name.startswith("auto-")]
    eq(1, len(autos), "automatic snapshots")
    eq("full", line("snapshots", a.name, autos[0], "kind"), "kind of the automatic one")
    write(read("snapshots", a.name, autos[0], "head"), "sandboxes", a.name, "head")
    eq("two two", a.out("echo $(cat /dev/shm/mark /mark)"), "the roll back undone")


@check
def a_checkpoint_outlives_its_sandbox():
    a = Box()
    a.out("echo kept > /dev/shm/mark")
    ident = a.get("id")
    checkpoint(a, "s")
    a.remove()
    orphans = f"{a.name}~{ident}"
    b = fresh_name()
    copy(("snapshots", orphans, "s"), ("sandboxes", b))
    eq("kept", Box.known(b).out("cat /dev/shm/mark"), "memory")
    os.rmdir(path("snapshots", orphans, "s"))


@check
def a_taken_snapshot_never_changes():
    a = Box()
    checkpoint(a, "s")
    refused(errno.EBUSY, write, read("sandboxes", a.name, "head"), "snapshots", a.name, "s", "head")
    os.rmdir(path("snapshots", a.name, "s"))


@check
def another_size_boots_once():
    for _ in range(2):
        box = Box(wait=False)
        box.set("memory", "160M")
        eq("160M", box.get("memory"), "memory")
        kib = int(box.out("head -n 1 /proc/meminfo").split()[1])
        if not 110 * 1024 < kib < 160 * 1024:
            fail(f"the guest has {kib} KiB")
        wait_until(lambda: any(text.startswith("160M") for text in read("templates", default_template(), "prepared").splitlines()), 90,
                   "the template is prepared for 160M")


@check
def nothing_is_left_of_a_fork():
    """The capture that nobody sees goes, and so do machines that were discarded."""
    a = Box()
    b = fork(a)
    b.touch()
    b.remove()
    pool = config()["pool"]
    known = lambda: {f"{number:012x}" for (number,) in rows("SELECT id FROM snapshots")}
    wait_until(lambda: set(os.listdir(f"{pool}/snapshots")) <= known(), 30, "no snapshot object without a row")


WRITER = """
import sqlite3
db = sqlite3.connect('/var/tmp/db', isolation_level=None)
db.execute('PRAGMA journal_mode = WAL')
db.execute('CREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, data TEXT)')
n = 0
while True:
    db.execute('BEGIN')
    for _ in range(20):
        db.execute('INSERT INTO t VALUES(?, ?)', (n, str(n) * 50))
        n += 1
    db.execute('COMMIT')
    print(n, flush=True)
"""
CHECKER = "import sqlite3; print(*sqlite3.connect('/var/tmp/db').execute('PRAGMA integrity_check').fetchone())"


@check(limit=300)
def heavy_writing_survives():
    """A database that is written all the time is whole after a roll back, and so is the file system in the checkpoint's image."""
    box = Box(template="debian")
    job = Job(box, ["python3", "-c", WRITER], name="writer")
    wait_until(lambda: counted(job) >= 200, 60, "rows are written")
    checkpoint(box, "s")
    at = counted(job)
    wait_until(lambda: counted(job) > at + 200, 60, "and more")
    image = os.path.join(config()["pool"], "snapshots", line("snapshots", box.name, "s", "id"), "disk.raw")
    scratch = os.path.join(config()["pool"], f"{box.name}.raw")
    defer(lambda: os.path.exists(scratch) and os.unlink(scratch))
    subprocess.run(["cp", "--reflink=always", image, scratch], check=True)
    subprocess.run(["e2fsck", "-E", "journal_only", "-p", scratch], capture_output=True)
    fsck = subprocess.run(["e2fsck", "-fn", scratch], capture_output=True, text=True)
    eq(0, fsck.returncode, f"e2fsck of the image, which says {fsck.stdout!r}")
    write(read("snapshots", box.name, "s", "head"), "sandboxes", box.name, "head")
    wait_until(lambda: counted(job) > at, 60, "the writer goes on")
    job.signal("KILL")
    job.wait()
    eq("ok", box.out(f"python3 -c \"{CHECKER}\""), "integrity check after the roll back")
    os.rmdir(path("snapshots", box.name, "s"))


main()
