#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""A disk and a memory that arrive while their sandbox runs: what is not there yet is waited for, whatever is killed, and nothing is lost when the store is gone."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

MIB = 1 << 20
SIZE = 40  # MiB of the file, and of another one in its memory: more than would be fetched before it runs

shared = None


def middle(folder):
    """Of an artifact's packs: the first one of a disk has its file system, and the last one the lists of chunks."""
    packs = [os.path.join(folder, pack) for pack in sorted(os.listdir(folder))[1:-1]]
    ne([], packs, "packs in the middle")
    return packs


def remember(b):
    """Puts other things into its memory."""
    b.memory = b.out(f"dd if=/dev/urandom of=/dev/shm/big bs=1M count={SIZE} 2>/dev/null && md5sum < /dev/shm/big")


def box():
    """One for all checks, with a file that its memory does not hold (chunks that both have are stored once, and what is read by root/ passes its cache by); suspended, and
    nothing of it is in the pool."""
    global shared
    if shared is None:
        wait_until(lambda: line("templates", default_template(), "prepared"), 120, "the template is prepared")
        defer(lambda: restart_with(suspend_keep=None))
        restart_with(suspend_keep="no")
        shared = Box()
        shared.set("keep", "none")
        shared.data = os.urandom(SIZE * MIB)
        with open(shared.root("big"), "wb") as f:
            f.write(shared.data)
        shared.out("mkdir -p /dev/shm; mountpoint -q /dev/shm || mount -t tmpfs -o size=100m none /dev/shm; echo unsaved > /dev/shm/memory; sync")
        remember(shared)
        os.mkdir(path("snapshots", shared.name, "first"))  # what is stored later has these chunks, too
        wait_until(lambda: line("snapshots", shared.name, "first", "state") == "ready", 30)
        write("upload", "snapshots", shared.name, "first", "state")
        first = int(line("snapshots", shared.name, "first", "id"), 16)
        folder = os.path.join(config()["store"], "u0", "packs", rows("SELECT name FROM artifacts WHERE file = 1 AND object = ?", first)[0][0])
        shared.packs = middle(folder)
        shared.counter = Job(shared, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done", name="count")
    for hidden in Hidden.all:  # by a check that failed
        hidden.show()
    if shared.state == "paused":
        shared.verb("resume")
    if shared.state == "running":
        wait_until(lambda: "fill_total" not in stats(shared.name), 30, "its disk is there")
        eq("unsaved", shared.out("cat /dev/shm/memory"), "its memory")
        shared.out("sync; echo 3 > /proc/sys/vm/drop_caches")
        shared.verb("suspend")
    eq("suspended", shared.state)
    return shared


class Hidden:
    """A part of what it is suspended to cannot be had."""

    all = []

    def __init__(self, packs):
        self.packs = packs
        self.all.append(self)
        defer(self.show)
        for pack in self.packs:
            os.rename(pack, pack + ".hidden")

    def show(self):
        for pack in self.packs:
            if os.path.exists(pack + ".hidden"):
                os.rename(pack + ".hidden", pack)


def content(b):
    with open(b.root("big"), "rb") as f:
        return f.read() == b.data


def arrives(b, hidden):
    """Its disk is whole in the end, and so is all else."""
    hidden.show()
    wait_until(lambda: b.state == "running" and "fill_total" not in stats(b.name), 60, "all of its disk is there")
    eq([(0,)], rows("SELECT suspended FROM sandboxes WHERE id = ?", int(b.get("id"), 16)), "what it is suspended to")
    b.out("echo 3 > /proc/sys/vm/drop_caches")
    eq(True, content(b), "its file is what it was")
    eq("unsaved", b.out("cat /dev/shm/memory"), "what only memory knew")
    eq(b.memory, b.out("md5sum < /dev/shm/big"), "all of that")
    eq("", b.get("error"))
    seen = [int(text) for text in b.counter.so_far().split("\n")[:-1]]
    eq(list(range(1, len(seen) + 1)), seen, "what its job counted")
    wait_until(lambda: len(b.counter.so_far().split("\n")) > len(seen) + 1, 20, "it counts on")


@check
def it_runs_before_its_disk_is_there():
    b = box()
    hidden = Hidden(b.packs)
    with Events() as events:
        b.verb("resume")
        eq("running", b.state)
        has("still arriving", wait_until(lambda: b.get("error"), 20, "it says so"))
        eq("store", events.next(kind="restore")["from"])
        job = Job(b)
        Child(job.start, "dd if=/big of=/dev/null bs=64k iflag=direct")
        events.next(kind="state", state="paused")
        has("It is paused, since it needs a part of it", b.get("error"))
        refused(errno.EAGAIN, os.listdir, b.root("etc"))
        has("fill_total", stats(b.name))
        hidden.show()
        events.next(kind="fill", state="goes-on")
        done = events.next(kind="fill", state="complete")
    eq(done["total_bytes"], done["done_bytes"])
    at_most(done["done_bytes"], 2 * SIZE * MIB, "bytes of the files")
    eq("exit 0", job.wait(), "the job that waited")
    job.remove()
    arrives(b, hidden)


@check
def what_needs_all_of_it_waits():
    b = box()
    hidden = Hidden(b.packs)
    b.verb("resume")
    os.mkdir(path("snapshots", b.name, "s"))
    fork = fresh_name()
    subprocess.run(["cp", "-r", path("sandboxes", b.name), path("sandboxes", fork)], check=True, timeout=30)
    b.verb("pause")
    suspend = Child(b.verb, "suspend")
    time.sleep(1)  # nothing is there that would tell
    eq(("creating", "creating"), (line("snapshots", b.name, "s", "state"), line("sandboxes", fork, "state")), "a snapshot, a fork")
    eq((False, "paused"), (suspend.ended(), b.state), "a suspend, and the sandbox")
    hidden.show()
    wait_until(suspend.ended, 60, "suspended")
    wait_until(lambda: line("snapshots", b.name, "s", "state") == "ready", 60, "the snapshot")
    os.rmdir(path("snapshots", b.name, "s"))
    fork = Box.known(fork)
    fork.data = b.data
    eq(True, content(fork), "the fork's file is what it was")
    fork.remove()
    eq("suspended", b.state)
    b.verb("resume")
    arrives(b, hidden)


@check
def its_machine_ends_and_it_is_suspended_as_before():
    b = box()
    hidden = Hidden(b.packs)
    b.verb("resume")
    b.verb("kill")
    eq("suspended", b.state, "killed")
    b.set("wake", "manual")
    b.verb("resume")
    os.kill(wait_until(lambda: qemu_of(b.get("id")), 10), signal.SIGKILL)
    wait_until(lambda: b.state == "suspended", 40, "its QEMU was killed")
    has("suspended as before", b.get("error"))
    b.set("wake", "auto")
    hidden.show()
    b.verb("resume")
    wait_until(lambda: "fill_total" not in stats(b.name), 60, "all of its disk is there")
    arrives(b, hidden)


@check
def whatever_is_killed_it_goes_on():
    b = box()
    hidden = Hidden(b.packs)
    b.verb("resume")
    qemu = qemu_of(b.get("id"))
    job = Job(b)
    Child(job.start, "dd if=/big of=/dev/null bs=64k iflag=direct")
    wait_until(lambda: b.state == "paused", 40, "paused, since it needs what does not come")
    for daemon in ("volumed", "hostd", "noded"):
        daemon_back(daemon, kill_daemon(daemon))
    settled()
    wait_until(lambda: "fill_total" in stats(b.name), 20, "it goes on to arrive")
    eq("paused", b.state)
    arrives(b, hidden)
    eq(qemu, qemu_of(b.get("id")), "its QEMU")


class Damaged:
    """Some chunks of a pack that lie at `offset` cannot be had."""

    def __init__(self, pack, offset):
        Hidden.all.append(self)
        self.fd = os.open(pack, os.O_RDWR)
        self.offset, self.bytes = offset, os.pread(self.fd, 4 << 16, offset)
        defer(self.show)
        os.pwrite(self.fd, bytes(len(self.bytes)), offset)

    def show(self):
        os.pwrite(self.fd, self.bytes, self.offset)


def resumes_without(b, pack, offset):
    """Does it run, and do a command, without those chunks? It may be that its guest needs one of them for that. They are missed before it runs."""
    damaged = Damaged(pack, offset)
    try:
        with Events() as events:
            resume = Child(b.verb, "resume")
            events.next(kind="fill", state="begun", file="all")
            stopped = list(qemus())
            for pid in stopped:
                defer(wake, pid)
                os.kill(pid, signal.SIGSTOP)
            events.next(kind="fill", state="failing", file="memory")
            for pid in stopped:
                wake(pid)
            eq("value", resume.answer(60)[0], "resumed")
        b.out("true")
        return damaged
    except (OSError, Failed) as e:
        print(f"not without {offset} of {pack}: {e}")
    damaged.show()
    return None


@check
def what_its_memory_lacks_pauses_it():
    b = box()
    b.verb("resume")
    wait_until(lambda: "fill_total" not in stats(b.name), 60, "all of it is there")
    remember(b)
    b.verb("suspend")
    of = rows("SELECT artifacts.name FROM artifacts, sandboxes WHERE artifacts.file = 2 AND artifacts.object = suspended AND sandboxes.name = ?", b.name)[0][0]
    for pack, offset in ((pack, offset << 20) for offset in (9, 4, 12, 6, 14, 2) for pack in middle(os.path.join(config()["store"], "u0", "packs", of))):
        box()
        damaged = resumes_without(b, pack, offset)
        if damaged:
            break
    else:
        fail("it needs something everywhere")
    matches("the memory of .* is still arriving", b.get("error"))
    qemu = qemu_of(b.get("id"))
    with Events() as events:
        job = Job(b)
        Child(job.start, "md5sum < /dev/shm/big")
        events.next(kind="state", state="paused")
    matches("the memory of .* is still arriving.*It is paused, since it needs a part of it", b.get("error"))
    refused(errno.EAGAIN, os.listdir, b.root("etc"))
    for daemon in ("volumed", "hostd", "noded"):
        daemon_back(daemon, kill_daemon(daemon))
    settled()
    wait_until(lambda: "the memory of" in b.get("error"), 30, "it goes on to arrive")
    eq("paused", b.state)
    refused(errno.EAGAIN, os.listdir, b.root("etc"))
    with Events() as events:
        damaged.show()
        events.next(kind="fill", state="complete")
    eq(("exit 0", b.memory), (job.wait(), job.output().rstrip("\n")), "the job that waited")
    job.remove()
    arrives(b, damaged)
    eq(qemu, qemu_of(b.get("id")), "its QEMU")


@check
def rmdir_does_not_wait():
    b = box()
    number, hidden = int(b.get("id"), 16), Hidden(b.packs)
    b.verb("resume")
    os.mkdir(path("snapshots", b.name, "s"))
    began = time.monotonic()
    os.rmdir(path("sandboxes", b.name))
    wait_until(lambda: not rows("SELECT 1 FROM sandboxes WHERE id = ?", number), 20, "it is gone")
    at_most(15, time.monotonic() - began, "seconds")
    hidden.show()


main()
