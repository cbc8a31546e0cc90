#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 240
"""The host goes down: what has a machine is suspended to the pool, all machines end, none is started any more, and what ran goes on with the next
space-hostd."""

import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import leftovers
from lib import *


def host_goes_down():
    """The process id of space-hostd, which is there still."""
    old = daemon_pid("hostd")
    os.kill(old, signal.SIGUSR1)
    wait_until(lambda: not set(qemus()) and not leftovers.domains(), 60, "all machines end")
    return old


def host_is_back(old):
    kill_daemon("hostd")
    daemon_back("hostd", old)
    settled()


@check(limit=200)
def what_ran_goes_on_where_it_was():
    ran, paused, stopped = boxes = [Box() for _ in range(3)]
    for box in boxes:
        box.out("echo unsynced > /root/u; echo memory > /dev/shm/m")
    job = Job(ran, "read line; echo $line; exit 3")
    before = [ran.get(name) for name in ("origin", "head")]
    paused.verb("pause")
    stopped.verb("stop")
    old = host_goes_down()
    wait_until(lambda: [box.state for box in boxes] == ["suspended", "suspended", "stopped"], 10, "states, once the machines have ended")
    refused(errno.ESHUTDOWN, stopped.verb, "start")
    refused(errno.ESHUTDOWN, ran.touch)
    for box in (ran, stopped):
        has("the host goes down", box.get("error") or failures()[-1])
    host_is_back(old)
    ran.wait_state("running")
    eq("unsynced memory", ran.out("echo $(cat /root/u /dev/shm/m)"), "disk and memory")
    eq(before[0], ran.get("origin"), "origin")
    write("on\n", "proc", ran.name, job.name, "stdin")
    eq(("exit 3", "on\n"), (job.wait(), job.output()), "a job that waited for a line")
    eq("suspended", paused.state, "one that was paused")
    eq("unsynced memory", paused.out("echo $(cat /root/u /dev/shm/m)"), "disk and memory of the paused one, which that wakes")
    eq(False, stopped.state == "running", "what did not run was started")
    for box in boxes:
        box.remove()


@check(limit=150)
def what_cannot_be_suspended_is_flushed_and_comes_back_as_after_a_crash():
    box = Box()
    box.set("keep", "")
    eq("", box.out("echo unsynced > /root/u"))
    folder = os.path.join(config()["pool"], "snapshots")
    subprocess.run(["chattr", "+i", folder], check=True)
    try:
        old = host_goes_down()
        eq("running", box.state, "state, which says what is to be")
    finally:
        subprocess.run(["chattr", "-i", folder], check=True)
    host_is_back(old)
    wait_until(lambda: box.get("error"), 60, "it is looked at")
    box.wait_state("running")
    eq("unsynced", box.out("cat /root/u"))
    box.remove()


main()
