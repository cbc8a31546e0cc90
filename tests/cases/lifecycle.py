#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 500
# alone: yes
"""A sandbox's life: verbs, mv while jobs run, rmdir from every state, disk kept over stop and start, wake, events."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *


def shared(made=[]):
    if not made:
        made.append(Box())
    return made[0]


@check
def a_new_one_is_creating_and_the_first_use_waits_for_it():
    began = time.monotonic()
    box = Box(wait=False)
    at_most(0.5, time.monotonic() - began, "seconds of mkdir")
    eq("creating", box.state)
    eq("template", box.get("origin").split("/")[0])
    eq(True, is_id(box.get("id")), "id is 12 hex digits")
    eq("root", box.get("owner"))
    matches(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", box.get("created"))
    eq("hello", box.out("echo hello"))
    eq("running", box.state)
    eq(f"sandbox/{box.get('id')}@1", box.get("head"))
    stats = dict(text.split(" ", 1) for text in read("sandboxes", box.name, "stats").splitlines())
    for key in ["cpu_usec", "memory_bytes", "disk_bytes", "jobs", "loads", "acceleration", "agent", "kernel"]:
        has(key, stats, "keys of stats")
    if int(stats["cpu_usec"]) <= 0:
        fail(f"cpu_usec is {stats['cpu_usec']}")
    box.remove()


@check
def pause_stops_time_for_it_and_resume_goes_on():
    box = shared()
    job = Job(box, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done")
    wait_until(lambda: "3\n" in job.so_far(), 20, "the job counts")
    box.verb("pause")
    eq("paused", box.state)
    seen = os.path.getmtime(path("sandboxes", box.name, "state"))
    if seen < time.time() - 30:
        fail(f"mtime of state is {time.time() - seen} s old, though it moved just now")
    first = settled_output(job)
    box.verb("resume")
    eq("running", box.state)
    wait_until(lambda: len(job.so_far()) > len(first), 20, "the job goes on after resume")
    eq("running", job.get("status"))
    box.clock_is_right()
    job.remove()


def settled_output(job):
    """Of a paused sandbox: what the guest had sent is here when two looks half a second apart agree."""
    deadline = time.monotonic() + 10
    before = job.so_far()
    while time.monotonic() < deadline:
        select.select([], [], [], 0.5)
        now = job.so_far()
        if now == before:
            return now
        before = now
    fail("a paused sandbox goes on writing")


@check
def wake_auto_resumes_and_manual_refuses():
    box = shared()
    eq("auto", box.get("wake"))
    box.verb("pause")
    eq(True, "etc" in os.listdir(box.root()), "root/ of a paused sandbox")
    eq("running", box.state, "state after root/ was opened")
    box.verb("pause")
    eq("x", box.out("echo x"))
    eq("running", box.state, "state after a job")
    box.set("wake", "manual")
    box.verb("pause")
    refused(errno.EAGAIN, os.listdir, box.root())
    refused(errno.EAGAIN, Job, box, "echo")
    eq("paused", box.state)
    for harmless in (lambda: os.stat(box.root()), lambda: os.listdir(path("root")), lambda: os.statvfs(path()), os.sync,
                     lambda: os.listdir(path("proc", box.name))):
        harmless()
    box.set("wake", "auto")
    for harmless in (lambda: os.stat(box.root()), lambda: os.listdir(path("root")), lambda: os.statvfs(path()), os.sync,
                     lambda: os.listdir(path("proc", box.name)), lambda: os.statvfs(box.root())):
        harmless()
    eq("paused", box.state, "state after df, sync, stat and listings")
    box.verb("resume")


@check
def stop_and_start_keep_the_disk_and_lose_the_jobs():
    box = shared()
    box.out("echo kept > /root/kept; echo gone > /dev/shm/gone 2>/dev/null || echo gone > /tmp/gone")
    running, done = Job(box, "echo before; sleep 1000"), Job(box, "echo done")
    eq("exit 0", done.wait())
    wait_until(lambda: "before" in running.so_far(), 20, "output of the running job")
    box.verb("stop")
    eq("stopped", box.state)
    end = running.wait()
    matches(r"^(lost|signal (15|9))$", end, "wait of the job that ran: what the shutdown did to it, or lost")
    eq("before\n", running.output(), "its spooled output")
    eq(("exit 0", "done\n"), (done.wait(), done.output()), "the job that had ended")
    refused(errno.ENOTCONN, os.listdir, box.root("etc"))
    refused(errno.ENOTCONN, Job, box, "true")
    os.stat(box.root())
    box.verb("start")
    eq("running", box.state)
    eq("kept", box.out("cat /root/kept"))
    eq((end, "before\n"), (running.wait(), running.output()), "the lost job after a start")
    eq("done\n", done.output())
    running.remove()
    done.remove()
    refused(errno.ENOENT, os.stat, done.at())


@check
def stop_shuts_the_guest_down_so_that_nothing_written_is_lost():
    box = shared()
    job = Job(box, "trap 'echo term > /root/was; exit 7' TERM; echo ready; while :; do sleep 0.1; done")
    wait_until(lambda: "ready" in job.so_far(), 20, "the job is ready")
    box.out("for i in $(seq 200); do echo $i > /root/n$i; done")  # no sync
    box.verb("stop")
    box.verb("start")
    eq("term", box.out("cat /root/was"), "what the job wrote at TERM")
    eq("200", box.out("ls /root/n* | wc -l"), "files written just before the stop")
    eq("200", box.out("cat /root/n200"))
    job.remove()


@check
def kill_ends_at_once_and_start_boots_again():
    box = shared()
    job = Job(box, "echo before; sleep 1000")
    wait_until(lambda: "before" in job.so_far(), 20, "output of the running job")
    began = time.monotonic()
    box.verb("kill")
    eq("stopped", box.state)
    at_most(5, time.monotonic() - began, "seconds of kill")
    eq(("lost", "before\n"), (job.wait(), job.output()), "the job that ran")
    box.verb("start")
    eq("ok", box.out("echo ok"))


@check
def mv_while_it_runs_and_jobs_and_open_files_live_on():
    box = Box()
    old, new = box.name, fresh_name()
    identity = box.get("id")
    box.out("echo content > /root/file")
    job = Job(box, "cat; echo end")
    stdin = os.open(job.at("stdin"), os.O_WRONLY)
    stdout = os.open(job.at("stdout"), os.O_RDONLY)
    state = os.open(path("sandboxes", old, "state"), os.O_RDONLY)
    file = os.open(box.root("root", "file"), os.O_RDONLY)
    directory = os.open(box.root("root"), os.O_RDONLY)
    with Events() as events:
        os.rename(path("sandboxes", old), path("sandboxes", new))
        eq(old, events.next(kind="renamed", name=new)["from"], "from in the event")
    for tree in ["sandboxes", "root", "proc", "snapshots"]:
        eq(False, exists(tree, old), f"{tree}/{old} is there")
        eq(True, exists(tree, new), f"{tree}/{new} is there")
    box.name = new
    eq(identity, box.get("id"), "id under the new name")
    os.write(stdin, b"through\n")
    eq(b"through\n", os.read(stdout, 100), "an open stream after mv")
    os.close(stdin)
    eq(b"content\n", os.read(file, 100), "an open file after mv")
    eq(b"running\n", os.read(state, 100), "an open attribute after mv")
    fd = os.open("file", os.O_RDONLY, dir_fd=directory)
    eq(b"content\n", os.read(fd, 100), "a file below an open directory after mv")
    eq("exit 0", job.wait())
    for fd in (stdout, state, file, directory, fd):
        os.close(fd)
    fresh = Box(name=old, wait=False)  # the old name is free
    ne(identity, fresh.get("id"), "id of a new one of the old name")
    fresh.remove()
    box.remove()


def creating(box):
    eq("creating", box.state)


def running(box):
    box.touch()


def paused(box):
    box.touch()
    box.verb("pause")


def stopped(box):
    box.touch()
    box.verb("kill")


def begin(box, state, value, file):
    """Writes what leads to a state that passes by."""
    with Events() as events:
        write(value, "sandboxes", box.name, file, flags=os.O_NONBLOCK)
        events.next(5, kind="state", name=box.name, state=state)


def stopping(box):
    box.touch()
    Job(box, "trap : TERM; while :; do sleep 1; done")  # makes the shutdown take its three seconds
    begin(box, "stopping", "stop", "state")


def starting(box):
    stopped(box)
    begin(box, "starting", "start", "state")


def rolling_back(box):
    box.touch()
    begin(box, "rolling-back", read("templates", "tiny", "head"), "head")


def power_off(box):
    """From inside: it ends and stays ended."""
    Job(box, "poweroff -f || busybox poweroff -f || echo o > /proc/sysrq-trigger")


def failed(box):
    box.touch()
    power_off(box)
    box.wait_state("failed", 15)


def crashed(box):
    """Failed for a moment, for it is about to be revived."""
    box.touch()
    with Events() as events:
        os.kill(box.qemu(), signal.SIGKILL)
        events.next(15, kind="state", name=box.name, state="failed")


@check(limit=300)
def rmdir_from_every_state():
    for reach in (creating, running, paused, stopped, stopping, starting, rolling_back, failed, crashed):
        box = Box(wait=False)
        identity = box.get("id")
        reach(box)
        pid = qemu_of(identity)
        with Events() as events:
            took = millis(box.remove)
            at_most(300, took, f"milliseconds of rmdir when {reach.__name__}")
            eq(False, exists("sandboxes", box.name), f"its name after rmdir when {reach.__name__}")
            events.next(30, kind="destroyed", name=box.name)
        if pid:
            wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 10, f"QEMU {pid} ends after rmdir when {reach.__name__}")
        eq([], rows("SELECT id FROM sandboxes WHERE id = ?", int(identity, 16)), "rows left")


@check
def rmdir_leaves_no_disk_behind():
    box = Box()
    disk = os.path.join(config()["pool"], "sandboxes", object_name(box.get("id")))
    eq(True, os.path.exists(f"{disk}/disk.raw"), "its disk")
    with Events() as events:
        box.remove()
        events.next(30, kind="destroyed", name=box.name)
    eq(False, os.path.exists(disk), "its disk after rmdir")


@check
def a_guest_that_powers_itself_off_is_failed_and_starts_again():
    box = shared()
    with Events() as events:
        power_off(box)
        events.next(30, kind="state", name=box.name, state="failed")
    ne("", box.get("error"), "error")
    box.verb("start")
    eq("ok", box.out("echo ok"))


@check
def a_verb_with_o_nonblock_returns_once_recorded():
    box = shared()
    with Events() as events:
        took = millis(lambda: write("kill", "sandboxes", box.name, "state", flags=os.O_NONBLOCK))
        events.next(30, kind="state", name=box.name, state="stopped")
        took2 = millis(lambda: write("start", "sandboxes", box.name, "state", flags=os.O_NONBLOCK))
        events.next(60, kind="state", name=box.name, state="running")
    at_most(500, max(took, took2), "milliseconds of a verb with O_NONBLOCK")


def domain_state(box):
    return subprocess.run(["virsh", "-q", "-c", "qemu:///system", "domstate", f"{config()['vm_prefix']}-{object_name(box.get('id'))}"],
                          capture_output=True, text=True, timeout=20).stdout


@check
def kill_does_not_wait_for_a_start_that_hangs():
    box = shared()
    box.verb("kill")
    starter = Child(box.verb, "start")
    box.wait_state("starting", 10)
    wait_until(lambda: "running" in domain_state(box), 20, "libvirt has started the machine")
    os.kill(box.qemu(), signal.SIGSTOP)  # the guest will never say hello
    began = time.monotonic()
    box.verb("kill")
    at_most(40, time.monotonic() - began, "seconds of kill while a start hangs")
    eq("stopped", box.state)
    eq(("errno", errno.EBUSY), starter.answer(5), "answer to the start")
    box.verb("start")
    eq("ok", box.out("echo ok"))


main()
