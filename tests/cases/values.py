#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
"""Values that an attribute does not take, refs that name nothing, and verbs that the state does not allow: errno, a sentence, no change."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

ATTRIBUTES = ["memory", "vcpus", "disk", "labels", "wake", "head", "origin", "state"]


def snapshot_of(box):
    return {name: box.get(name) for name in ATTRIBUTES}


def refuses(box, file, value, code):
    before = snapshot_of(box)
    refused(code, box.set, file, value)
    explained(box.name, code if not isinstance(code, tuple) else code[0])
    eq(before, snapshot_of(box), f"attributes after writing {value[:40]!r} to {file}")


def unused(made=[]):
    """A sandbox that runs and that nothing has used: the one in which everything can still be set."""
    if not made:
        made.append(Box(wait=False))
        made[0].wait_state("running")
    return made[0]


@check
def sizes_and_counts_out_of_range():
    box = unused()
    for value in ["0", "-1", "12Q", "1T", "abc", "63M", "128M 1", "1.5G", "100000001", "513G", "99999999999999999999", "0x40000000", "128m128"]:
        refuses(box, "memory", value + "\n", errno.EINVAL)
        has("no memory size", box.get("error"), "the sandbox's error")
    for value in ["0", "-1", "65", "two", "", "1.5", "99999999999"]:
        refuses(box, "vcpus", value + "\n", errno.EINVAL)
    for value in ["0", "-1", "1", "4097", "12Q", "65T", "", "abc", "64M"]:  # 64M is less than it has
        refuses(box, "disk", value + "\n", errno.EINVAL)


@check
def more_memory_than_the_host_has():
    box = unused()
    refuses(box, "memory", "400G\n", errno.ENOMEM)
    has("no room", box.get("error"), "the sandbox's error")


@check
def values_that_are_none():
    box = unused()
    for value in ["novalue", "=x", "a=1\nb", " \nx"]:
        refuses(box, "labels", value + "\n", errno.EINVAL)
    refuses(box, "labels", "a=" + "x" * 4100, errno.E2BIG)
    for value in ["", "yes", "Auto", "auto manual"]:
        refuses(box, "wake", value + "\n", errno.EINVAL)
    for value in ["", "fly", "START", "start pause", "suspended"]:
        refuses(box, "state", value + "\n", errno.EINVAL)
    for file in ["memory", "labels", "state", "head"]:
        refuses(box, file, b"128M\0", errno.EINVAL) if file == "memory" else refused(errno.EINVAL, box.set, file, b"start\0")
        refused(errno.E2BIG, box.set, file, "a" * 65537)


@check
def attributes_open_only_in_their_direction():
    box = Box(wait=False)
    for file in ["id", "origin", "owner", "created", "stats", "error"]:
        refused(errno.EACCES, box.set, file, "x\n")
    refused(errno.EACCES, write, "x\n", "version")
    job = Job(box)
    for file in ["cmd", "stdin", "signal"]:
        refused(errno.EACCES, job.get, file)
    for file in ["stdout", "stderr", "wait", "status"]:
        refused(errno.EACCES, write, "x", "proc", box.name, job.name, file)
    box.remove()


@check
def refs_that_name_nothing():
    box = unused()
    for value in ["\n", "tiny", "template/", "template/tiny", "template/00000000000", "sandbox/000000000001", "sandbox/000000000001@", "snapshot/x",
                  "template/000000000001\ntemplate/000000000001", "template/00000000000G", "/etc/passwd", "../templates/tiny"]:
        refuses(box, "head", value, errno.EINVAL)
    for value in ["template/000000000001", "snapshot/000000000001", "sandbox/000000000001@1"]:
        refuses(box, "head", value, errno.ESTALE)
    other = Box(wait=False)
    stale = f"sandbox/{other.get('id')}@{int(other.get('head').split('@')[1]) + 7}"
    refused(errno.ESTALE, box.set, "head", stale)
    other.remove()


@check
def a_ref_to_an_earlier_load_is_stale():
    source, box = Box(), Box(wait=False)
    old = source.get("head")
    source.set("head", read("templates", "tiny", "head"))
    ne(old, source.get("head"), "head after a load")
    refused(errno.ESTALE, box.set, "head", old)
    refused(errno.ESTALE, source.set, "head", old)
    eq("running", source.state)
    source.remove()
    box.remove()


@check
def an_unknown_template():
    name = fresh_name()
    got = spacectl("create", "--template", "no-such", name)
    ne(0, got.returncode, "status of spacectl create")
    has("No such file", got.stderr)
    eq(False, exists("sandboxes", name), "a sandbox that could not be made is there")
    refused(errno.ENOENT, read, "templates", "no-such", "head")


@check
def verbs_that_the_state_does_not_allow():
    box = Box()
    box.set("state", "start")  # done already
    box.set("state", "resume")
    box.verb("pause")
    box.verb("pause")
    for verb in ["start"]:
        refuses(box, "state", verb, errno.EBUSY)
        has("it is paused", box.get("error"), "the sandbox's error")
    box.verb("resume")
    box.verb("stop")
    box.verb("stop")
    box.verb("kill")
    for verb in ["pause", "resume"]:
        refuses(box, "state", verb, errno.EBUSY)
        has("it is stopped", box.get("error"), "the sandbox's error")
    eq("stopped", box.state)
    box.remove()


@check
def memory_and_vcpus_are_settable_until_it_is_used_and_when_stopped():
    box = Box(wait=False)
    box.set("memory", "192M\n")
    box.set("vcpus", "2\n")
    eq(("192M", "2"), (box.get("memory"), box.get("vcpus")))
    total = int(box.out("awk '/MemTotal/ { print $2 }' /proc/meminfo"))
    if not 140 * 1024 < total <= 192 * 1024:
        fail(f"memory seen in the guest: want about 192 MiB, got {total} KiB")
    eq("2", box.out("grep -c ^processor /proc/cpuinfo"), "processors seen in the guest")
    refuses(box, "memory", "128M", errno.EBUSY)
    refuses(box, "vcpus", "1", errno.EBUSY)
    box.verb("kill")
    box.set("memory", "128M")
    box.set("vcpus", "1")
    box.verb("start")
    eq("1", box.out("grep -c ^processor /proc/cpuinfo"), "processors seen in the guest")
    box.remove()


@check
def the_disk_grows_while_it_runs_and_never_shrinks():
    box = Box()
    size = int(box.out("df -k / | awk 'NR == 2 { print $2 }'"))
    was = box.get("disk")
    box.set("disk", "20G")
    eq("20G", box.get("disk"))
    grown = int(box.out("df -k / | awk 'NR == 2 { print $2 }'"))
    if grown < size * 1.5:
        fail(f"size of the guest's file system: {size} KiB before, {grown} KiB after growing the disk from {was} to 20G")
    refuses(box, "disk", was, errno.EINVAL)
    box.remove()


@check
def a_value_takes_effect_once_however_the_shell_writes_it():
    box = Box(wait=False)
    shell = lambda text: subprocess.run(["bash", "-c", text], cwd=path("sandboxes", box.name), capture_output=True, text=True, timeout=20)
    eq(0, shell("echo a=1 > labels").returncode)
    eq("a=1", box.get("labels"))
    eq(0, shell("(echo a=1; echo b=2) > labels").returncode)
    eq("a=1\nb=2", box.get("labels"))
    eq(0, shell("echo c=3 >> labels").returncode)
    eq("a=1\nb=2\nc=3", box.get("labels"))
    eq(0, shell(": > labels").returncode)
    eq("", box.get("labels"))
    got = shell("echo 12Q > memory")
    ne(0, got.returncode, "status of echo 12Q > memory")
    has("Invalid argument", got.stderr)
    eq(0, shell("printf '  160M  \\n' > memory").returncode)
    eq("160M", box.get("memory"))
    box.remove()


@check
def memory_set_while_it_is_made_stays():
    for wait in (0.0, 0.035, 0.05, 0.07, 0.1):  # the load of a machine of the default size is over, or just going on
        box = Box(wait=False)
        time.sleep(wait)
        box.set("memory", "160M")
        time.sleep(0.4)
        eq("160M", box.get("memory"), f"memory, set after {wait} s")
        box.remove()


@check
def every_attribute_reports_its_true_size():
    box = Box()
    box.set("labels", "one=1\ntwo=2")
    for file in os.listdir(path("sandboxes", box.name)):
        fd = os.open(path("sandboxes", box.name, file), os.O_RDONLY)
        try:
            size, data = os.fstat(fd).st_size, os.read(fd, 65536)
        finally:
            os.close(fd)
        if file != "stats":  # made anew at each open
            eq(os.stat(path("sandboxes", box.name, file)).st_size, len(data), f"st_size of {file} by path")
        eq(size, len(data), f"st_size of the open {file}")
    box.remove()


main()
