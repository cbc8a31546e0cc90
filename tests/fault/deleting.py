#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 600
# alone: yes
"""Deleting a thousand snapshots: others do not feel it, it is counted, and a hostd killed in the middle goes on with the rest."""

import os
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

COUNT = 1000
ROUNDS = 4


def objects():
    return set(os.listdir(os.path.join(config()["pool"], "snapshots")))


def make(box, names):
    """Returns their ids."""
    for name in names:
        os.mkdir(path("snapshots", box.name, name))
    wait_until(lambda: all(line("snapshots", box.name, n, "state") == "ready" for n in names), 300, f"{len(names)} snapshots")
    return [line("snapshots", box.name, n, "id") for n in names]


def early(made=[]):
    """A stopped sandbox with 100 snapshots, their names and ids."""
    if not made:
        box = Box()
        box.verb("stop")
        names = [f"k{i:04}" for i in range(100)]
        made.append((box, names, make(box, names)))
    return made[0]


class Meter:
    """What a user of another sandbox does, over and over: milliseconds of control operations, and of writes that reach the guest's disk."""

    def __init__(self, box):
        self.box = box
        self.file = os.open(box.root("durable"), os.O_RDWR | os.O_CREAT)
        defer(os.close, self.file)

    def control(self):
        line("sandboxes", self.box.name, "state")
        os.stat(path("sandboxes", self.box.name, "labels"))

    def write(self):
        os.pwrite(self.file, os.urandom(4096), 0)
        os.fsync(self.file)

    def sample(self, seconds, into):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for i in range(3):
                into[0].append(millis(self.control))
                time.sleep(0.001)
            into[1].append(millis(self.write))


def deleting(box, names):
    """Removes them, from another process; returns how long it takes until the last one has left the disk."""
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", "import os,sys\nfor p in sys.stdin.read().split(): os.rmdir(p)"], stdin=subprocess.PIPE, text=True)
    child.stdin.write("\n".join(path("snapshots", box.name, n) for n in names))
    child.stdin.close()
    return child, began


@check(limit=500)
def others_are_not_slowed_down():
    early()
    box, other = Box(), Box()
    box.out("dd if=/dev/urandom of=/x bs=1M count=8 2>/dev/null; sync")
    box.verb("stop")
    names = [f"s{i:04}" for i in range(COUNT)]
    ids = make(box, names)
    deleted = metric("space_deletes_total")
    meter, rounds = Meter(other), []
    part = COUNT // ROUNDS
    for i in range(ROUNDS):  # side by side: what else the machine does meets both
        alone, beside = ([], []), ([], [])
        meter.sample(5, alone)
        child, began = deleting(box, names[i * part:(i + 1) * part])
        while child.poll() is None or metric("space_deletes_queued") or time.monotonic() < began + 5:
            meter.sample(0.2, beside)
        eq(0, child.wait(), "status of the one who deletes")
        rounds.append((alone, beside))
    at_most(COUNT, 0 if metric("space_deletes_total") - deleted >= COUNT else COUNT + 1, "deletes are counted")
    eq(set(), set(ids) & objects(), "objects that were left")
    for kind, what in enumerate(("control operations", "guest writes")):
        a, b = [x for r in rounds for x in r[0][kind]], [x for r in rounds for x in r[1][kind]]
        print(f"{what}: {len(a)} and {len(b)}; p50 {percentile(a, 50):.2f} and {percentile(b, 50):.2f} ms, "
              f"p99 {percentile(a, 99):.2f} and {percentile(b, 99):.2f} ms", flush=True)
        at_most(2 * percentile(a, 99) + 1, percentile(b, 99), f"{what}: p99 in ms while 1,000 snapshots are deleted (bar: twice that without, and 1 ms)")


@check(limit=400)
def a_hostd_killed_in_the_middle_goes_on():
    box, names, ids = early()
    noded = daemon_pid("noded")
    os.kill(noded, signal.SIGSTOP)  # so that the disks wait
    try:
        child, _ = deleting(box, names)
        wait_until(lambda: metric("space_deletes_queued") > 20, 60, "some wait for their removal, and nobody knows them any more")
        old = kill_daemon("hostd")
        child.wait()  # one of its rmdirs may have failed
    finally:
        os.kill(noded, signal.SIGCONT)
    daemon_back("hostd", old)
    settled()
    left = os.listdir(path("snapshots", box.name))
    known = {line("snapshots", box.name, n, "id") for n in left}
    ne(set(), (set(ids) & objects()) - known, "objects of snapshots that are not there any more")
    for name in left:
        os.rmdir(path("snapshots", box.name, name))
    # What nobody knows any more is looked for by hostd itself, once it is old enough to be nobody's for sure.
    wait_until(lambda: not set(ids) & objects(), 180, "the rest is deleted")
    has("0", str(metric("space_deletes_queued")), "queue")


main()
