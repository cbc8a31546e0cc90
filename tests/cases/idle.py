#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What happens to a sandbox that nobody uses, and to one whose machine crashes."""
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *


@check
def values_of_idle():
    box = Box(wait=False)
    eq("never", box.get("idle"), "idle of a new one")
    box.set("idle", "pause 5m\nstop 1d\n")
    eq("pause 5m\nstop 1d", box.get("idle"), "idle")
    for bad in ("pause", "pause 0", "sleep 5m", "pause five", "pause 5m 6m", "5m pause"):
        refused(errno.EINVAL, box.set, "idle", bad)
    explained(f"sandboxes/{box.name}/idle", errno.EINVAL)
    eq("pause 5m\nstop 1d", box.get("idle"), "idle after refused values")
    box.set("idle", "never")
    eq("never", box.get("idle"), "idle")
    fork = fresh_name()
    box.set("idle", "pause 1h")
    subprocess.run(["cp", "-r", path("sandboxes", box.name), path("sandboxes", fork)], check=True)
    eq("pause 1h", line("sandboxes", fork, "idle"), "idle of a copy")


@check
def an_idle_one_is_paused_and_wakes():
    box = Box()
    box.set("idle", "pause 2s")
    box.wait_state("paused", 20)
    eq("woken", box.out("echo woken"), "a job wakes it")
    eq("running", box.state, "state after its use")
    box.wait_state("paused", 20)


@check
def a_silent_job_is_use():
    box = Box()
    job = Job(box, "sleep 8")
    box.set("idle", "pause 2s")
    eq("exit 0", job.wait(), "end of a job that says nothing for 8 s")
    box.wait_state("paused", 20)


@check
def a_blocked_read_is_no_use():
    box = Box()
    job = Job(box)
    reader = Child(job.get, "wait")
    box.set("idle", "pause 2s")
    box.wait_state("paused", 20)
    reader.stop()


@check
def the_last_line_counts_on():
    box = Box()
    box.set("idle", "pause 1s\ndestroy 4s\n")
    box.wait_state("paused", 20)
    wait_until(lambda: not exists("sandboxes", box.name), 20, "it is destroyed")


@check
def a_crashed_one_boots_again():
    box = Box()
    box.out("echo kept > /mark; sync")
    job = Job(box, "sleep 1000")
    with Events() as events:
        os.kill(box.qemu(), signal.SIGKILL)
        events.next(10, kind="state", name=box.name, state="failed")
        has("boots from its disk", events.next(10, kind="state", name=box.name, state="starting")["reason"], "reason")
        events.next(60, kind="state", name=box.name, state="running")
    eq("lost", job.get("wait"), "its job")
    eq("kept", box.out("cat /mark"), "its disk")


@check(limit=300)
def not_for_ever():
    box = Box()
    for round in range(3):
        with Events() as events:
            os.kill(box.qemu(), signal.SIGKILL)
            events.next(60, kind="state", name=box.name, state="running")
    os.kill(box.qemu(), signal.SIGKILL)
    box.wait_state("failed", 20)
    time.sleep(1)
    eq("failed", box.state, "state after the fourth crash")
    box.verb("start")


main()
