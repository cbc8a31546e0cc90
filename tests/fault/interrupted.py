#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 200
"""What was promised a sandbox's state gets that state or nothing: space-hostd is killed before it is captured, and space-noded fails to capture it."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import leftovers
from lib import *


@contextlib.contextmanager
def nothing_captured():
    """space-noded stands still."""
    pid = daemon_pid("noded")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


COPIER = """
import os, sys
source, target = sys.argv[1:]
os.mkdir(target)
for name in ("egress", "head", "idle", "keep", "labels", "memory", "vcpus", "wake"):
    data = os.open(f"{source}/{name}", os.O_RDONLY)
    try:
        out = os.open(f"{target}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except PermissionError:
        continue  # no such in a snapshot
    os.write(out, os.read(data, 65536))
    os.close(out)
    os.close(data)
"""


def copy(source, target):
    """As cp -r, but for `stats`, which space-noded is asked for."""
    subprocess.run([sys.executable, "-c", COPIER, path(*source), path(*target)], check=True, timeout=30)


def marked(text):
    """A sandbox with that text in memory and on the disk."""
    box = Box()
    box.out(f"echo {text} > /dev/shm/mark; echo {text} > /mark; sync")
    return box


def says(text, box):
    eq(f"{text} {text}", box.out("echo $(cat /dev/shm/mark /mark)"), f"memory and disk of {box.name}")


@check
def a_removed_source_is_there_until_it_was_copied_though_hostd_is_killed():
    texts = ("fork", "paused", "disk")
    boxes = [marked(text) for text in texts]
    ids, names = [b.get("id") for b in boxes], [fresh_name(), fresh_name()]
    boxes[1].verb("pause")
    with nothing_captured():
        copy(("sandboxes", boxes[0].name), ("sandboxes", names[0]))
        copy(("sandboxes", boxes[1].name), ("sandboxes", names[1]))
        os.mkdir(path("snapshots", boxes[2].name, "s"))
        for box in boxes:
            box.remove()
        daemon_back("hostd", kill_daemon("hostd"))
    settled()
    for name, text in zip(names, texts):
        says(text, Box.known(name))
    kept = f"{boxes[2].name}~{ids[2]}"
    wait_until(lambda: line("snapshots", kept, "s", "state") != "creating", 60, "the snapshot")
    eq(("ready", ""), (line("snapshots", kept, "s", "state"), line("snapshots", kept, "s", "error")), "state and error of the snapshot")
    eq("disk\n", open(path("snapshots", kept, "s", "files/mark")).read(), "what it holds")
    remove(f"snapshots/{kept}", "s")
    wait_until(lambda: not any(qemu_of(i) for i in ids), 60, "the sources' machines end")
    for name in names:
        remove("sandboxes", name)


@check
def a_paused_one_keeps_its_memory_across_a_restart_and_a_copy():
    """Whose guest space-hostd has not heard of since it started."""
    box = marked("kept")
    box.verb("pause")
    child = Box.known(fresh_name())
    daemon_back("hostd", kill_daemon("hostd"))
    settled()
    copy(("sandboxes", box.name), ("sandboxes", child.name))
    says("kept", child)
    eq("paused", box.state, "the source")
    child.remove()
    daemon_back("hostd", kill_daemon("hostd"))
    settled()
    copy(("sandboxes", box.name), ("snapshots", box.name, "s"))
    wait_until(lambda: line("snapshots", box.name, "s", "state") != "creating", 60, "the checkpoint")
    eq(("full", "paused"), (line("snapshots", box.name, "s", "kind"), box.state), "kind of a checkpoint, and state of its source")
    remove(f"snapshots/{box.name}", "s")
    box.remove()


@check
def a_fork_that_failed_is_not_what_its_source_became():
    box = marked("early")
    child = Box.known(fresh_name())
    folder = os.path.join(config()["pool"], "snapshots")
    subprocess.run(["chattr", "+i", folder], check=True)
    try:
        subprocess.run(["cp", "-r", path("sandboxes", box.name), path("sandboxes", child.name)], capture_output=True, check=False, timeout=60)
        wait_until(lambda: child.state == "failed", 60, "the fork fails")
    finally:
        subprocess.run(["chattr", "-i", folder], check=True)
    box.out("echo late > /dev/shm/mark; echo late > /mark; sync")
    refused(errno.ESTALE, child.verb, "start")
    explained(f"sandboxes/{child.name}/state", errno.ESTALE)
    eq("failed", child.state, "its state")
    child.set("head", box.get("head"))
    says("late", child)
    child.remove()
    box.remove()


KNOWN_SECONDS = 3  # for so long an open waits for the first look at what runs


@check
def what_is_asked_for_at_once_is_judged_by_what_runs():
    box = Box()
    box.verb("pause")

    def state():
        began = time.monotonic()
        return box.state, time.monotonic() - began

    with nothing_captured():
        domains = set(leftovers.domains())
        os.kill(box.qemu(), signal.SIGKILL)
        wait_until(lambda: domains - set(leftovers.domains()), 30, "libvirt has given it up")
        daemon_back("hostd", kill_daemon("hostd"))
        settled()
        said, verb = Child(state), Child(box.verb, "resume")
        verb.blocked()
    kind, (name, seconds) = said.answer()
    if kind != "value" or (name != "failed" and seconds < KNOWN_SECONDS):
        fail(f"state of before: {name} after {seconds:.1f} s")
    eq(("errno", errno.EBUSY), verb.answer(), "resume of one whose machine is gone")
    has("it is failed", failures()[-1])
    box.remove()


main()
