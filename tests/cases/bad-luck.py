#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 240
"""Bad luck that needs no killed daemon: what is given up half-way leaves nothing behind, and a guest without memory still answers."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fault"))
import leftovers
from lib import *


def shared(made=[]):
    if not made:
        made.append(Box())
    return made[0]


def object_of(tree, *name):
    return f"{tree}/{line(tree, *name, 'id')}"


def half_a_copy(source, target):
    """What cp -r has done before its second file."""
    os.mkdir(target)
    with open(os.path.join(source, "head"), "rb"):
        fd = os.open(os.path.join(target, "head"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        time.sleep(600)
        os.close(fd)


@check(limit=60)
def a_copy_to_a_template_that_is_given_up_leaves_no_object():
    name = fresh_name()
    defer(remove, "templates", name)
    copier = Child(half_a_copy, path("sandboxes", shared().name), path("templates", name))
    wait_until(lambda: exists("templates", name), 10, "the copy begins")
    mine = object_of("templates", name)
    wait_until(lambda: mine in leftovers.objects(), 10, "its object is made")
    wait_until(lambda: line("templates", name, "state") == "creating", 10, "the copy is recognised")
    copier.kill()
    wait_until(lambda: not exists("templates", name), 10, "the template goes with its copier")
    wait_until(lambda: mine not in leftovers.objects(), 5, f"{mine} goes, too")


@check(limit=60)
def what_is_removed_while_it_is_made_leaves_no_object():
    box = shared()
    for tree, parts in (("templates", (fresh_name(),)), ("snapshots", (box.name, "s"))):
        for _ in range(10):
            os.mkdir(path(tree, *parts))
            os.rmdir(path(tree, *parts))
    leftovers.none()


@check(limit=200)
def a_guest_short_of_memory_says_so_and_goes_on_answering():
    box = Box(wait=False)
    box.set("memory", "96M")
    jobs = []
    try:
        while len(jobs) < 1000:
            jobs.append(Job(box, "sleep 1000"))
    except OSError as e:
        eq(errno.ENOMEM, e.errno, f"errno of job {len(jobs) + 1}")
    explained(box.name, errno.ENOMEM)
    eq(True, 50 <= len(jobs) < 1000, f"{len(jobs)} jobs is a sensible bound")
    eq({"running"}, {job.get("status") for job in jobs}, "states of those that started")
    at_most(5000, millis(os.listdir, box.root("etc")), "ms for a directory of the guest")
    at_most(10000, millis(jobs[0].signal, "KILL"), "ms to signal a job")
    eq("signal 9", jobs[0].wait())
    for job in jobs[:30]:
        job.remove()
    eq("on\n", wait_until(lambda: short_job(box), 30, "there is memory for another job").out)
    box.verb("kill")


def short_job(box):
    try:
        return box.run("echo on")
    except OSError as e:
        eq(errno.ENOMEM, e.errno)
        return None


main()
