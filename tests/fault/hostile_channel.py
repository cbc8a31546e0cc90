#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""A guest that answers garbage, floods, lies or falls silent on its channel: that sandbox fails or its calls do; nothing else notices.

The guest's root takes the ports over from the agent (hostile.d/hostile.c).
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import leftovers
from lib import *

GROWTH_MIB = 96  # of space-hostd's memory, whatever a guest does


def program(made=[]):
    if not made:
        made.append(os.path.join(TESTTMP, "hostile"))
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile.d", "hostile.c")
        subprocess.run(["cc", "-O1", "-static", "-o", made[0], source], check=True)
    return made[0]


def hostile_box():
    box = Box()
    with open(program(), "rb") as source, open(box.root("root", "hostile"), "wb") as target:
        target.write(source.read())
    os.chmod(box.root("root", "hostile"), 0o755)
    # What it has written is on its disk when the machine ends.
    eq(0, box.run("sync").status)
    return box


def attack(box, mode, port):
    """Begins; its own cmd or output may fail with the channel."""
    with contextlib.suppress(OSError):
        job = Job(box, f"exec /root/hostile {mode} {port}")
        fd = os.open(job.at("stdout"), os.O_RDONLY)
        try:
            if mode != "garbage":
                eq(b"begun\n", os.read(fd, 100), "the attack's output")
        finally:
            os.close(fd)


def memory_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) // 1024


def bystander(made=[]):
    if not made:
        made.append(Box())
    return made[0]


def unharmed():
    """Another sandbox works as ever."""
    box = bystander()
    began = time.monotonic()
    eq("fine", box.out("echo fine"))
    eq(True, len(os.listdir(box.root("etc"))) > 0)
    eq("running", box.state)
    at_most(10, time.monotonic() - began, "seconds for the bystander's operations")


def fails_and_starts(box, seconds=30):
    box.wait_state("failed", seconds)
    has("guest", box.get("error"))
    refused(errno.ENOTCONN, os.listdir, box.root("etc"))
    box.verb("start")
    eq("again", box.out("echo again"))


@check(limit=200)
def garbage_on_either_port_fails_that_sandbox_alone():
    box = hostile_box()
    before, hostd = memory_mib(daemon_pid("hostd")), daemon_pid("hostd")
    unharmed()
    for port in ("space.0", "space.1"):
        attack(box, "garbage", port)
        if port == "space.1":  # the file server's own session notices only what is read
            with contextlib.suppress(OSError):
                os.listdir(box.root("etc"))
        unharmed()
        fails_and_starts(box)
    attack(box, "lie", "space.1")
    refused((errno.EIO, errno.ENOTCONN), os.listdir, box.root("usr"))
    unharmed()
    fails_and_starts(box)
    eq(hostd, daemon_pid("hostd"), "space-hostd")
    at_most(before + GROWTH_MIB, memory_mib(hostd), "MiB of space-hostd")
    box.remove()


@check(limit=200)
def a_flood_ends_at_its_bound():
    box = hostile_box()
    attack(box, "flood", "space.1")
    old = kill_daemon("hostd")
    new = daemon_back("hostd", old)
    settled()
    unharmed()
    most = 0
    deadline = time.monotonic() + 90
    while box.state != "failed" and time.monotonic() < deadline:
        most = max(most, memory_mib(new))
        time.sleep(0.05)
    at_most(GROWTH_MIB, most, "MiB of space-hostd during the flood")
    unharmed()
    fails_and_starts(box)
    box.remove()


@check(limit=200)
def a_mute_guest_costs_only_who_asks_it():
    box = hostile_box()
    hostd = daemon_pid("hostd")
    before = memory_mib(hostd)
    attack(box, "mute", "space.1")
    began = time.monotonic()
    readers = [Child(os.listdir, box.root(d)) for d in ("etc", "usr", "var")]
    writers = [Child(fill, box.root("root", f"f{i}")) for i in range(16)]
    for reader in readers:
        reader.blocked()
    unharmed()
    at_most(1000, millis(lambda: box.state), "ms to read its state")
    impatient = Child(os.stat, box.root("sbin"))
    impatient.blocked()
    impatient.kill(signal.SIGINT)
    wait_until(impatient.ended, 2, "SIGINT ends who waits")
    eq("still", box.out("echo still"), "jobs use the other port")
    for child in readers + writers:
        eq(("errno", errno.EIO), child.answer(60))
    at_most(60, time.monotonic() - began, "seconds until all have failed")
    at_most(before + GROWTH_MIB, memory_mib(hostd), "MiB of space-hostd")
    unharmed()
    box.verb("kill")
    box.verb("start")
    eq(True, len(os.listdir(box.root("etc"))) > 0)
    box.remove()


def fill(name):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(fd, b"x" * (1 << 20))
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def port(box, number):
    fd = os.open(path("ports", box.name, str(number)), os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def what_opening_says(box, number):
    try:
        with port(box, number):
            return 0
    except OSError as e:
        return e.errno


@check
def an_agent_that_lies_about_a_port_ends_that_connection():
    """What it does at which port: hostile.d/hostile.c."""
    box = hostile_box()
    hostd = daemon_pid("hostd")
    before = memory_mib(hostd)
    attack(box, "tcp", "space.0")
    with open(box.root("go"), "w"):
        pass
    wait_until(lambda: os.path.exists(box.root("stopped")), 60, "the agent is another")
    for number in (1, 2):
        eq(errno.EIO, what_opening_says(box, number), "what opening says when the guest gives no error number")
    with port(box, 3) as fd:
        left = 4 << 20
        while left > 0:
            left -= len(os.read(fd, 1 << 16))
        at_most(before + GROWTH_MIB, memory_mib(hostd), "MiB of space-hostd while something never ends")
    with port(box, 4) as fd:
        os.write(fd, b"nobody takes it")
        refused(errno.ECONNRESET, os.read, fd, 1)
    with port(box, 5) as fd:
        refused(errno.ECONNRESET, os.read, fd, 1)
    with port(box, 6) as fd:
        eq([b"", b""], [os.read(fd, 1), os.read(fd, 1)], "its end, and what is behind it")
    eq("running", box.state)
    unharmed()
    with port(box, 8) as silent, port(box, 7) as more:
        for fd in (more, silent):  # a session with such an agent is none
            refused(errno.ECONNRESET, os.read, fd, 1)
    box.wait_state("failed")
    eq(hostd, daemon_pid("hostd"), "space-hostd")
    box.remove()


@check
def nothing_is_left_behind():
    bystander().remove()
    leftovers.none()


main()
