#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""QEMU is killed or hangs at moments of all kinds: the sandbox fails and says why, it boots again (by itself when it ran, else by start), and
what had been said stays readable."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import leftovers
from lib import *

# Prints a line for ever and tells its number; a reader can tell whether anything is missing.
STREAM = "i=0; while :; do i=$((i+1)); echo $i; done"


def says_why(box):
    if len(box.get("error").split()) < 6:
        fail(f"error holds no sentence: {box.get('error')!r}")


def fails_with(box, seconds=30):
    """Its state becomes failed, and `error` holds a sentence."""
    box.wait_state("failed", seconds)
    says_why(box)
    refused(errno.ENOTCONN, os.listdir, box.root("etc"))


def starts_again(box):
    box.verb("start")
    works(box)


def works(box):
    eq("again", box.out("echo again"))
    eq("running", box.state)


def revives(box, events):
    """One that ran and whose QEMU crashed fails, with its reason, and boots again."""
    events.next(10, kind="state", name=box.name, state="failed")
    events.next(30, kind="state", name=box.name, state="starting")
    events.next(90, kind="state", name=box.name, state="running")
    works(box)


def first_qemu(box, seconds=30):
    """Of a sandbox that is being made: its QEMU as soon as there is one."""
    return wait_until(lambda: qemu_of(box.get("id")), seconds, "QEMU appears")


@check(limit=90)
def killed_while_a_job_streams():
    box = Box()
    job = Job(box, STREAM)
    stdout = os.open(job.at("stdout"), os.O_RDONLY)
    waiter = Child(job.wait)
    reader = Child(read, "proc", box.name, job.name, "stdout")
    ne(b"", os.pread(stdout, 100, 1 << 15), "what comes behind 32 KiB of output")
    with Events() as events:
        os.kill(box.qemu(), signal.SIGKILL)
        events.next(10, kind="job", name=box.name, job=job.name, status="lost")
    with Events(since=0) as events:
        revives(box, events)
    eq(("value", "lost"), waiter.answer(10))
    kind, text = reader.answer(60)
    eq("value", kind, "a reader's end")
    whole = text.split("\n")[:-1]
    eq([str(i + 1) for i in range(len(whole))], whole, "lines before the end, none missing")
    eq(text, job.output(), "who reads again")
    eq("lost", job.get("status"))
    os.close(stdout)
    eq(text, job.output(), "and after a new start")
    job.remove()
    box.remove()


@check(limit=90)
def killed_after_a_checkpoint():
    """It goes on from the newest checkpoint of `keep`; what its disk held since is kept. Without one since then, the next crash boots it."""
    box = Box()
    job = Job(box, "i=0; while :; do i=$((i+1)); echo $i > /dev/shm/next; mv /dev/shm/next /dev/shm/count; sleep 0.1; done", name="count")
    box.out("echo before > /mark; sync")
    boot = box.out("cat /proc/sys/kernel/random/boot_id")
    box.set("keep", "full every 1s for 1h")
    full = wait_until(lambda: [n for n in os.listdir(path("snapshots", box.name)) if n.endswith("-full") and line("snapshots", box.name, n, "state") == "ready"],
                      60, "an automatic checkpoint")
    box.set("keep", "disk every 1h for 2h")  # the checkpoint goes with no tier that wants it, a sweep later
    newest = max(set(full) | {n for n in os.listdir(path("snapshots", box.name)) if n.endswith("-full")})
    wait_until(lambda: line("snapshots", box.name, newest, "state") == "ready", 20, "the newest is ready")
    box.out("echo after > /mark; sync")
    waiter = Child(job.wait)
    with Events() as events:
        os.kill(box.qemu(), signal.SIGKILL)
        events.next(10, kind="state", name=box.name, state="failed")
        events.next(30, kind="state", name=box.name, state="rolling-back")
        eq(newest, events.next(60, kind="revived", name=box.name, **{"from": "checkpoint"})["snapshot"], "the checkpoint")
    eq(boot, box.out("cat /proc/sys/kernel/random/boot_id"), "boot id: it did not boot")
    eq("before", box.out("cat /mark"), "its disk is the checkpoint's")
    eq(line("snapshots", box.name, newest, "head"), box.get("origin"), "origin")
    has(newest, box.get("error"), "error says what happened")
    kept = [n for n in os.listdir(path("snapshots", box.name)) if "-before-" in n]
    eq(1, len(kept), "snapshots of what the crash left")
    eq("after", line("snapshots", box.name, kept[0], "files", "mark"), "the disk as the crash left it")
    eq("running", job.get("status"), "the job of the checkpoint")
    count = int(box.out("cat /dev/shm/count"))
    wait_until(lambda: int(box.out("cat /dev/shm/count")) > count + 3, 20, "the job goes on")
    waiter.blocked()
    with Events() as events:
        os.kill(box.qemu(), signal.SIGKILL)
        events.next(90, kind="revived", name=box.name, **{"from": "disk"})
    ne(boot, box.out("cat /proc/sys/kernel/random/boot_id"), "boot id: it booted")
    eq(("value", "lost"), waiter.answer(10))
    box.remove()


@check(limit=90)
def killed_while_it_boots():
    box = Box()
    box.verb("kill")
    starter = Child(box.verb, "start")
    wait_until(lambda: box.state == "starting", 20, "it starts")
    os.kill(first_qemu(box), signal.SIGKILL)
    eq("errno", starter.answer(30)[0], "the writer of start")
    fails_with(box)
    starts_again(box)
    box.remove()


@check(limit=90)
def killed_while_it_is_paused():
    box = Box()
    job = Job(box, "echo said; sleep 1000")
    wait_until(lambda: job.get("status") == "running", 10, "the job runs")
    os.close(os.open(job.at("stdin"), os.O_WRONLY))
    fd = os.open(job.at("stdout"), os.O_RDONLY)
    eq(b"said\n", os.read(fd, 100))
    os.close(fd)
    box.verb("pause")
    os.kill(box.qemu(), signal.SIGKILL)
    eq("lost", job.wait())
    eq("said\n", job.output())
    fails_with(box)
    starts_again(box)
    box.remove()


@check(limit=90)
def killed_while_a_verb_waits_for_it():
    box = Box()
    qemu = box.qemu()
    os.kill(qemu, signal.SIGSTOP)
    defer(wake, qemu)
    verb = Child(box.verb, "pause")
    verb.blocked()
    with Events() as events:
        os.kill(qemu, signal.SIGKILL)
        eq("errno", verb.answer(10)[0], "the verb")
        revives(box, events)
    box.remove()


@check(limit=120)
def kill_ends_one_that_hangs_in_its_own_start():
    box = Box()
    box.verb("kill")
    starter = Child(box.verb, "start")
    qemu = first_qemu(box)
    os.kill(qemu, signal.SIGSTOP)
    defer(wake, qemu)
    wait_until(lambda: box.state == "starting", 10)
    took = millis(box.verb, "kill")
    at_most(15000, took, "ms until kill was done")
    eq("stopped", box.state)
    eq(("errno", errno.EBUSY), starter.answer(5))
    wait_until(lambda: not os.path.exists(f"/proc/{qemu}"), 5, "its QEMU is gone")
    starts_again(box)
    box.remove()


@check(limit=120)
def kill_and_rmdir_end_one_that_hangs():
    box = Box()
    os.kill(box.qemu(), signal.SIGSTOP)
    at_most(8000, millis(box.verb, "kill"), "ms until kill was done")
    eq("stopped", box.state)
    starts_again(box)
    os.kill(box.qemu(), signal.SIGSTOP)
    at_most(1000, millis(box.remove), "ms for rmdir")
    leftovers.none(30)


@check
def nothing_is_left_behind():
    leftovers.none()


main()
