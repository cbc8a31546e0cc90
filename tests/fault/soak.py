#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 500
"""Many sandboxes write, are snapshotted and checkpointed, rolled back, forked, paused, stopped and removed at random, their automatic snapshots
come and expire, and all the while daemons are killed.

At the end each holds a number that it was told to hold, as does each snapshot; every image passes e2fsck once its journal is replayed; and
nothing is in the pool, in libvirt or beside the database that belongs to nothing. SEED=N repeats the operations and the moments of a run, as
far as these depend on themselves; BOXES and LOOP_SECONDS make it larger (20 and 80, say, for three minutes).

Theory of operation. Each worker has boxes of its own and does one thing after the other with them; another thread kills daemons. A box's number is
written to a file and synced. What succeeded is `sure`; what failed may have been done or not: all numbers that may be there are kept, of the box
and of each of its snapshots. An operation may fail while daemons are killed; it may neither hang nor do something else.
"""

import os
import random
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import leftovers
from lib import *

SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
BOXES = int(os.environ.get("BOXES") or 10)
LOOP_SECONDS = int(os.environ.get("LOOP_SECONDS") or 15)
BOXES_LEAST, MAKE_SECONDS = 6, 45  # on a loaded machine
WORKERS = 3
DONE_LEAST = 8  # operations that succeed, on a machine so loaded that nearly all of them meet the end of a daemon
HANG_SECONDS = 150  # a cold boot on a loaded machine included
STEADY = ("running", "paused", "stopped", "failed", "ready")
# What may be answered while daemons die, or because an operation before was left undone.
MAY_FAIL = (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ENOENT, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EEXIST,
            errno.EINVAL)
KEEP = "disk every 3s for 9s"
NUMBER = "root/number"


class Subject:
    """A box as a worker knows it."""

    def __init__(self, name, numbers):
        self.box = Box.known(name)
        self.numbers = set(numbers)  # what it may hold
        self.snapshots = {}          # name: what that may hold

    def used(self):
        """Brings it to where its files can be reached."""
        if self.box.state in ("stopped", "failed"):
            self.box.verb("start")

    def write(self, number):
        """Its number, and some more that moves blocks about."""
        self.used()
        self.numbers |= {number, 0}  # 0: opening it empties it
        with open(self.box.root(NUMBER), "w") as f:
            f.write(f"{number}\n".ljust(4096))
            f.flush()
            os.fsync(f.fileno())
        self.numbers = {number}
        with open(self.box.root(f"root/bulk-{number % 5}"), "wb") as f:
            f.write(random.Random(number).randbytes(number % 7 * 40_000))


class Worker(threading.Thread):
    def __init__(self, index, subjects):
        super().__init__(daemon=True)
        self.index, self.subjects, self.dice = index, subjects, random.Random(SEED + index)
        self.count, self.failed, self.now, self.since, self.error = {}, {}, "", 0, None

    def number(self):
        return self.dice.randrange(1, 1 << 30)

    # ---- operations ----

    def op_write(self, s):
        s.write(self.number())

    @contextlib.contextmanager
    def settles(self, *parts):
        """What is made within comes to rest before its source is changed, whatever becomes of the daemons: until then it may hold that, too."""
        try:
            yield
        finally:
            end = time.monotonic() + HANG_SECONDS
            while time.monotonic() < end:
                try:
                    if line(*parts, "state") in STEADY:
                        break
                except FileNotFoundError:
                    break
                except OSError:
                    pass
                time.sleep(0.05)

    def op_snapshot(self, s):
        name = f"s{self.number()}"
        s.snapshots[name] = set(s.numbers)
        with self.settles("snapshots", s.box.name, name):
            os.mkdir(path("snapshots", s.box.name, name))

    def op_checkpoint(self, s):
        name = f"c{self.number()}"
        s.snapshots[name] = set(s.numbers)
        with self.settles("snapshots", s.box.name, name):
            os.mkdir(path("snapshots", s.box.name, name))
            write(s.box.get("head"), "snapshots", s.box.name, name, "head")

    def op_forget(self, s):
        if s.snapshots:
            name = self.dice.choice(sorted(s.snapshots))
            os.rmdir(path("snapshots", s.box.name, name))
            del s.snapshots[name]

    def op_roll_back(self, s):
        if not s.snapshots:
            return
        name = self.dice.choice(sorted(s.snapshots))
        head = read("snapshots", s.box.name, name, "head")
        s.numbers |= s.snapshots[name]
        write(head, "sandboxes", s.box.name, "head")
        s.numbers = set(s.snapshots[name])

    def op_fork(self, s):
        """In place of another one, whose snapshots go on as those of a sandbox that is gone, or are removed before. The state of `s` is taken when the head is
        written, or when a hostd that was killed then has started again."""
        victim = self.dice.choice([v for v in self.subjects if v is not s])
        for name in sorted(victim.snapshots):
            with contextlib.suppress(OSError):
                os.rmdir(path("snapshots", victim.box.name, name))
        os.rmdir(path("sandboxes", victim.box.name))
        self.subjects.remove(victim)
        name = fresh_name()
        self.subjects.append(Subject(name, s.numbers | {0}))  # 0: a mkdir that got no further holds the template's, which has none
        with self.settles("sandboxes", name):
            os.mkdir(path("sandboxes", name))
            write(s.box.get("head"), "sandboxes", name, "head")
        self.subjects[-1].numbers = set(s.numbers)

    def op_pause(self, s):
        s.box.verb("pause")

    def op_stop(self, s):
        s.box.verb("stop")

    def op_kill(self, s):
        s.box.verb("kill")

    def op_keep(self, s):
        s.box.set("keep", self.dice.choice((KEEP, "none")))

    def wait_for_daemons(self):
        """What fails at once would fail again at once."""
        while time.monotonic() < self.end:
            with contextlib.suppress(OSError):
                read("version")
                return
            time.sleep(0.1)

    OPS = ("write",) * 6 + ("snapshot",) * 4 + ("checkpoint",) * 2 + ("forget",) * 2 + ("roll_back",) * 3 + ("fork",) * 2 + ("pause",) * 4 + ("stop", "kill", "keep")

    def run(self):
        try:
            while time.monotonic() < self.end:
                op, s = self.dice.choice(self.OPS), self.dice.choice(self.subjects)
                self.now, self.since = f"{op} of {s.box.name}", time.monotonic()
                try:
                    getattr(self, f"op_{op}")(s)
                except OSError as e:
                    if e.errno not in MAY_FAIL:
                        raise
                    why = f"{op} {errno_name(e.errno)}"
                    self.failed[why] = self.failed.get(why, 0) + 1
                    self.wait_for_daemons()
                self.count[op] = self.count.get(op, 0) + 1
        except BaseException as e:  # noqa: BLE001 to be told by the main thread
            self.error = f"{self.now}: {type(e).__name__}: {e}"
        self.now = ""


state = {}


@check(limit=200)
def many_sandboxes_are_made():
    print(f"SEED={SEED} BOXES={BOXES} LOOP_SECONDS={LOOP_SECONDS}")
    first = Box()
    subjects = [Subject(first.name, ())]
    subjects[0].write(1)
    subjects[0].numbers, subjects[0].snapshots = {1}, {"base": {1}}
    os.mkdir(path("snapshots", first.name, "base"))
    write(first.get("head"), "snapshots", first.name, "base", "head")
    end = time.monotonic() + MAKE_SECONDS
    while len(subjects) < BOXES and (len(subjects) < BOXES_LEAST or time.monotonic() < end):
        name, i = fresh_name(), len(subjects)
        os.mkdir(path("sandboxes", name))
        write(read("snapshots", first.name, "base", "head"), "sandboxes", name, "head")
        subjects.append(Subject(name, {1}))
        if i % 5 == 0:
            subjects[-1].box.set("keep", KEEP)
        if i % 4:
            subjects[-1].box.verb("pause")
    print(f"  {len(subjects)} sandboxes")
    state["workers"] = [Worker(i, subjects[i::WORKERS]) for i in range(WORKERS)]


def total(counts):
    out = {}
    for each in counts:
        for what, n in each.items():
            out[what] = out.get(what, 0) + n
    return dict(sorted(out.items()))


def hung(workers):
    for w in workers:
        if w.now and time.monotonic() - w.since > HANG_SECONDS:
            fail(f"{w.now} has not ended in {HANG_SECONDS} s")


@check(limit=LOOP_SECONDS + HANG_SECONDS + 30)
def they_work_while_daemons_are_killed():
    dice, workers, kills = random.Random(SEED), state["workers"], {}
    end = time.monotonic() + LOOP_SECONDS
    for w in workers:
        w.end = end
        w.start()
    while time.monotonic() < end:
        time.sleep(dice.random() * 8)
        name = dice.choice(("hostd", "hostd", "noded", "spacefs", "browsed"))
        old = kill_daemon(name)
        kills[name] = kills.get(name, 0) + 1
        daemon_back(name, old, 30)
    settled(60)
    while any(w.is_alive() for w in workers):
        hung(workers)
        time.sleep(0.1)
    counts, failed = total(w.count for w in workers), total(w.failed for w in workers)
    print(f"  killed {kills}; did {counts}, of which failed {failed}")
    eq([], [w.error for w in workers if w.error], "what went wrong")
    at_most(sum(counts.values()) - DONE_LEAST, sum(failed.values()), "operations that failed")


def subjects():
    """Those that are there: a mkdir that failed made none."""
    return [s for w in state["workers"] for s in w.subjects if exists("sandboxes", s.box.name)]


@check(limit=170)
def all_of_them_hold_what_they_were_told():
    """They end as by a power cut first: what was synced must be on the disk."""
    for s in subjects():
        s.box.set("keep", "none")
        wait_until(lambda: s.box.state in STEADY, 120, f"{s.box.name} comes to rest")
        s.box.verb("kill")
    state["numbers"] = {}  # directory in the pool: numbers that may be there
    names = 0
    for s in subjects():
        for name in os.listdir(path("snapshots", s.box.name)):
            wait_until(lambda: line("snapshots", s.box.name, name, "state") != "creating", 60, f"{s.box.name}'s {name}")
            if name in s.snapshots and line("snapshots", s.box.name, name, "state") == "ready":
                state["numbers"][f"snapshots/{line('snapshots', s.box.name, name, 'id')}"] = s.snapshots[name]
                names += 1
    for object_id, sandbox_id in leftovers.rows("SELECT object, id FROM sandboxes WHERE object != 0"):  # 0: a creation that failed
        for s in subjects():
            if s.box.get("id") == f"{sandbox_id:012x}":
                state["numbers"][f"sandboxes/{object_id:012x}"] = s.numbers
    print(f"  {len(subjects())} sandboxes, {names} snapshots made by hand")
    eq(True, names > 3, "snapshots")


def replayed(disk, scratch):
    """A reflink of the image with its journal replayed."""
    copy = os.path.join(scratch, "disk.raw")
    subprocess.run(["cp", "--reflink=always", "--sparse=auto", disk, copy], check=True, timeout=60)
    subprocess.run(["e2fsck", "-p", "-E", "journal_only", copy], capture_output=True, check=False, timeout=60)
    # What was being truncated or removed is on a list, of which a mount takes care after the journal; so does this, and looks no further.
    if b"First orphan inode" in subprocess.run(["dumpe2fs", "-h", copy], capture_output=True, check=True, timeout=60).stdout:
        subprocess.run(["e2fsck", "-p", copy], capture_output=True, check=False, timeout=60)
    return copy


def number_in(image):
    said = subprocess.run(["debugfs", "-R", f"cat /{NUMBER}", image], capture_output=True, check=True, timeout=60).stdout.strip()
    return int(said) if said else 0


@check(limit=170)
def every_image_is_sound():
    pool = config()["pool"]
    scratch = os.path.join(pool, f"soak-{os.getpid()}")
    os.mkdir(scratch)
    defer(shutil.rmtree, scratch)
    bad, seen = [], 0
    for what in sorted(leftovers.objects()):
        with contextlib.suppress(FileNotFoundError, subprocess.CalledProcessError):  # what is on its way out
            image = replayed(os.path.join(pool, what, "disk.raw"), scratch)
            done = subprocess.run(["e2fsck", "-fn", image], capture_output=True, text=True, check=False, timeout=60)
            if done.returncode:
                bad.append(f"{what}: e2fsck ends with {done.returncode}: {done.stdout[-600:]}")
            elif what in state["numbers"]:
                number = number_in(image)
                if number not in state["numbers"][what]:
                    bad.append(f"{what} holds {number}, should be one of {sorted(state['numbers'][what])}")
                seen += 1
    lost = {what: leftovers.rows(f"SELECT id, state, name, error FROM snapshots WHERE id = {int(what.split('/')[1], 16)}")
            for what in set(state["numbers"]) - leftovers.objects()}
    eq({}, lost, "images of known content that are gone")
    eq([], bad, "images that are not as they should be")
    eq(len(state["numbers"]), seen, "images of known content")
    print(f"  {len(leftovers.objects())} images, {seen} of known content")


@check(limit=200)
def nothing_is_left_behind():
    leftovers.none(60)  # what belongs to nothing goes when it is 10 s old
    for s in subjects():
        for name in os.listdir(path("snapshots", s.box.name)):
            if not name.startswith("auto-"):
                remove(f"snapshots/{s.box.name}", name)
        s.box.remove()
    for name in os.listdir(path("snapshots")):  # of what was removed while a daemon was away, or is on its way out
        with contextlib.suppress(FileNotFoundError):
            for snap in os.listdir(path("snapshots", name)):
                remove(f"snapshots/{name}", snap)
    leftovers.none(60)


main()
