#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""What happens to a sandbox that nobody uses, and to one whose machine crashes."""
import concurrent.futures
import os
import signal
import sys
import threading

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


def an_idle_one_is_paused_and_wakes():
    box = Box()
    box.set("idle", "pause 2s")
    box.wait_state("paused", 20)
    eq("woken", box.out("echo woken"), "a job wakes it")
    eq("running", box.state, "state after its use")
    box.wait_state("paused", 20)


def a_silent_job_is_use():
    box = Box()
    job = Job(box, "sleep 8")
    box.set("idle", "pause 2s")
    eq("exit 0", job.wait(), "end of a job that says nothing for 8 s")
    box.wait_state("paused", 20)


def a_blocked_read_is_no_use():
    box = Box()
    job = Job(box)
    box.set("idle", "pause 2s")
    fd = os.open(job.at("wait"), os.O_RDONLY)
    reader = threading.Thread(target=os.read, args=(fd, 100), daemon=True)
    reader.start()
    box.wait_state("paused", 20)
    eq(True, reader.is_alive(), "the reader waits")
    job.remove()
    reader.join(10)
    os.close(fd)


def the_last_line_counts_on():
    box = Box()
    box.set("idle", "pause 1s\ndestroy 4s\n")
    box.wait_state("paused", 20)
    wait_until(lambda: not exists("sandboxes", box.name), 20, "it is destroyed")


@check
def idle_ones():
    """All of this is waiting: at the same time."""
    checks = (an_idle_one_is_paused_and_wakes, a_silent_job_is_use, a_blocked_read_is_no_use, the_last_line_counts_on)
    with concurrent.futures.ThreadPoolExecutor(len(checks)) as pool:
        for function, end in [(f, pool.submit(f)) for f in checks]:
            try:
                end.result()
            except Failed as e:
                fail(f"{function.__name__}: {e}")


@check(limit=300)
def a_crashed_one_boots_again_but_not_for_ever():
    box = Box()
    box.out("echo kept > /mark; sync")
    job = Job(box, "sleep 1000")
    for crash in range(3):
        with Events() as events:
            os.kill(box.qemu(), signal.SIGKILL)
            events.next(10, kind="state", name=box.name, state="failed")
            has("boots from its disk", events.next(10, kind="state", name=box.name, state="starting")["reason"], "reason")
            events.next(60, kind="state", name=box.name, state="running")
        if crash == 0:
            eq("lost", job.get("wait"), "its job")
            eq("kept", box.out("cat /mark"), "its disk")
    with Events() as events:
        os.kill(box.qemu(), signal.SIGKILL)
        events.next(20, kind="state", name=box.name, state="failed")
        time.sleep(1)
        eq("failed", box.state, "state after the fourth crash")
    box.verb("start")


main()
