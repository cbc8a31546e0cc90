#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
"""Each daemon is killed during each operation, over and over, at moments that differ each time.

Whoever waits gets the right answer, or an error within 5 s; the machines live on; what was under way ends as done or as undone; and nothing
is left in the pool, in libvirt, or beside the database. The moments are random: SEED=N repeats the order and the moments of a run.
"""

import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import leftovers
from lib import *

SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
LOOP_SECONDS = int(os.environ.get("LOOP_SECONDS") or 40)
ROUNDS_LEAST = 12  # on a loaded machine
ERROR_SECONDS = 5 + 2  # what a caller may wait for an error once a daemon is gone; two for a loaded machine
BOOT_SECONDS = 120
MOMENTS = (0, 0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1)  # seconds between the operation's begin and the kill
STEADY = ("running", "paused", "stopped", "failed", "suspended")
DAEMONS = ("hostd", "noded", "spacefs", "netd", "volumed", "credd")


class Ground:
    """What the operations work on: a machine that is never ended, with a job that streams; and another one that is."""

    def __init__(self):
        self.keep, self.other = Box(), Box()
        self.qemu = self.keep.qemu()
        self.stream = Job(self.keep, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done")
        for box in (self.keep, self.other):
            os.mkdir(path("snapshots", box.name, "base"))
            defer(remove_from, box.name, box.get("id"), "base")
            wait_until(lambda: line("snapshots", box.name, "base", "state") == "ready", 20, "snapshot base")
        self.made = []

    def name(self):
        self.made.append(fresh_name())
        return self.made[-1]


# Each gives (function, arguments) to be run while a daemon is killed, and a sentence's check of what may be true afterwards.


def op_mkdir(g):
    name = g.name()
    return os.mkdir, (path("sandboxes", name),), lambda: leave(name)


def op_rmdir(g):
    name = g.name()
    os.mkdir(path("sandboxes", name))
    return os.rmdir, (path("sandboxes", name),), lambda: leave(name)


def op_mv(g):
    name, new = g.name(), g.name()
    os.mkdir(path("sandboxes", name))
    wanted = line("sandboxes", name, "id")

    def after():
        there = [n for n in (name, new) if exists("sandboxes", n)]
        eq(1, len(there), f"names {name}, {new} that are there")
        eq(wanted, line("sandboxes", there[0], "id"))
        leave(there[0])

    return os.rename, (path("sandboxes", name), path("sandboxes", new)), after


def op_copy(g):
    name = g.name()

    def after():
        if exists("sandboxes", name):
            matches("^(sandbox|template)/", line("sandboxes", name, "origin") or "sandbox/")
        leave(name)

    return program, ("cp", "-r", path("sandboxes", g.keep.name), path("sandboxes", name)), after


def op_template_copy(g):
    name = g.name()
    defer(remove, "templates", name)

    def after():
        if exists("templates", name):
            wait_until(lambda: line("templates", name, "state") in ("ready", "failed", "empty"), 30, f"template {name} settles")
            remove("templates", name)

    return program, ("cp", "-r", path("snapshots", g.keep.name, "base"), path("templates", name)), after


def op_pause(g):
    return g.keep.verb, ("pause",), lambda: in_states(g.keep, "running", "paused")


def op_resume(g):
    return g.keep.verb, ("resume",), lambda: in_states(g.keep, "running", "paused")


def op_stop(g):
    return g.other.verb, ("stop",), lambda: in_states(g.other, *STEADY)


def op_start(g):
    return g.other.verb, ("start",), lambda: in_states(g.other, *STEADY)


def op_suspend(g):
    return g.other.verb, ("suspend",), lambda: in_states(g.other, *STEADY)


def op_credential(g):
    name = g.name()

    def gone():
        try:
            os.rmdir(path("credentials", "platform", name))
        except FileNotFoundError:
            return True
        except OSError as e:
            if e.errno != errno.ENOTCONN:
                raise
            return False  # space-hostd or space-credd runs again, and they have not met yet
        return True

    def after():
        wait_until(gone, 15, "credentials can be removed again")
        eq(False, name in os.listdir(path("credentials", "platform")), "a credential that was removed is there")

    return os.mkdir, (path("credentials", "platform", name),), after


def op_kill(g):
    return g.other.verb, ("kill",), lambda: in_states(g.other, *STEADY)


def op_head(g):
    head = read("snapshots", g.other.name, "base", "head")
    before = line("sandboxes", g.other.name, "head")

    def after():
        in_states(g.other, *STEADY)
        if line("sandboxes", g.other.name, "head") != before:
            eq(head.strip(), line("sandboxes", g.other.name, "origin"), "origin of what was moved")

    return write, (head, "sandboxes", g.other.name, "head"), after


def op_egress(g):
    policy = f"allow tcp *:{random.randrange(1, 65536)}"
    before = g.keep.get("egress")

    def after():
        has(g.keep.get("egress"), (before, policy), "egress")

    return write, (policy, "sandboxes", g.keep.name, "egress"), after


def op_snapshot(g):
    def after():
        if exists("snapshots", g.keep.name, "s"):
            wait_until(lambda: line("snapshots", g.keep.name, "s", "state") in ("ready", "failed"), 30, "the snapshot settles")
            os.rmdir(path("snapshots", g.keep.name, "s"))

    return os.mkdir, (path("snapshots", g.keep.name, "s"),), after


def op_snapshot_rmdir(g):
    os.mkdir(path("snapshots", g.keep.name, "r"))

    def after():
        remove_from(g.keep.name, g.keep.get("id"), "r")

    return os.rmdir, (path("snapshots", g.keep.name, "r"),), after


def op_job(g):
    job = Job(g.keep)

    def after():
        # A cmd that failed may have started it all the same: what was in flight is not known to spacefs.
        status = job.get("status")
        if status != "new":
            eq("exit 7", job.wait(), f"end of a job that was {status}")
            eq("out\n", job.output())
        job.remove()

    return job.start, ("echo out; exit 7",), after


def remove_from(name, sandbox_id, snapshot):
    """Of a sandbox that is there or gone."""
    remove(f"snapshots/{name}", snapshot)
    remove(f"snapshots/{name}~{sandbox_id}", snapshot)


OPS = {name[3:]: function for name, function in list(globals().items()) if name.startswith("op_")}


def program(*argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise OSError(errno.EIO, done.stderr.strip())


def in_states(box, *states):
    wait_until(lambda: box.state in states, BOOT_SECONDS, f"{box.name} in one of {states}, not {box.state}")


def leave(name):
    """Removes what may be there or not. rmdir may meet one that is on its way out."""
    remove("sandboxes", name)
    eq(False, exists("sandboxes", name), f"{name} after rmdir")


def one_round(g, op, daemon, delay):
    """The operation, the kill, the answer, and what holds afterwards."""
    function, args, after = OPS[op](g)
    caller = Child(function, *args)
    time.sleep(delay)
    old, killed = kill_daemon(daemon), time.monotonic()
    # An operation of libvirt or a boot may take its time and succeed; an error may not.
    kind, value = caller.answer(BOOT_SECONDS)
    took = time.monotonic() - killed
    if kind == "errno":
        at_most(ERROR_SECONDS, took, f"seconds until {errno_name(value)}")
    elif kind != "value":
        fail(f"the caller: {kind} {value}")
    daemon_back(daemon, old, 20)
    settled()
    answers(g)
    after()
    return f"{kind} {errno_name(value) if kind == 'errno' else ''} after {took:.2f} s"


def answers(g):
    """The machine that nobody ends is the same, and hostd has found its guest again."""
    eq(g.qemu, qemu_of(line("sandboxes", g.keep.name, "id")), "QEMU of the kept one")
    if g.keep.state == "paused":
        g.keep.verb("resume")
    wait_until(lambda: os.access(g.keep.root("etc"), os.R_OK), 30, "the guest answers")


def ground(made=[]):
    if not made:
        made.append(Ground())
    return made[0]


@check(limit=300)
def each_daemon_during_each_operation():
    dice = random.Random(SEED)
    print(f"SEED={SEED}")
    g = ground()
    rounds = []
    for _ in range(10):
        once = [(op, daemon) for op in OPS for daemon in DAEMONS]
        dice.shuffle(once)
        rounds += once
    end = time.monotonic() + LOOP_SECONDS
    count = 0
    for op, daemon in rounds:
        delay = dice.choice(MOMENTS) * dice.random() * 2
        if time.monotonic() > end and count >= ROUNDS_LEAST:
            break
        told = f"{daemon} killed {delay * 1000:.1f} ms into {op}"
        try:
            print(f"{told}: {one_round(g, op, daemon, delay)}", flush=True)
        except Failed as e:
            fail(f"{told}: {e}")
        count += 1
    print(f"{count} rounds")


@check(limit=60)
def a_job_streams_through_all_of_it_without_a_gap():
    g = ground()
    text = None
    fd = os.open(g.stream.at("stdout"), os.O_RDONLY | os.O_NONBLOCK)
    text = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(fd, 65536):
            text += data
    os.close(fd)
    lines = text.decode().split("\n")[:-1]
    eq([str(i + 1) for i in range(len(lines))], lines, "lines of the job")
    eq(True, len(lines) > 20, f"{len(lines)} lines")
    eq("running", g.stream.get("status"))


@check(limit=200)
def nothing_is_left_behind():
    g = ground()
    in_states(g.other, *STEADY)
    g.other.remove()
    leftovers.none(60)  # an object that belongs to nothing goes when it is 10 s old
    eq("running", g.keep.state)
    g.keep.remove()
    leftovers.none(30)


main()
