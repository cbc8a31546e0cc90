#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 240
"""Heads that an older build made still load. Each archive in older.d is a prepared template's head (tests/older made it), with Debian's kernel and busybox in its
memory, whose sources are at snapshot.debian.org."""
import glob
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

FAR = 17 << 20  # a head that differs so much from its base is mapped itself, as one whose base is not here


def put_in_place(archive, snapshot):
    """The archive's head instead of what `snapshot` holds; its boot id."""
    ro = lambda value: subprocess.run(["btrfs", "property", "set", "-ts", snapshot, "ro", value], check=True)
    ro("false")
    subprocess.run(["tar", "-C", snapshot, "-xJSf", archive], check=True)
    with open(f"{snapshot}/boot_id", encoding="ascii") as f:
        boot = f.read().strip()
    os.unlink(f"{snapshot}/boot_id")
    ro("true")
    return boot


def boot_id(box):
    return box.out("cat /proc/sys/kernel/random/boot_id")


def works(box, boot):
    eq(boot, boot_id(box), "boot id: that of the older build's machine")
    eq("kept", box.out("echo kept > /mark; sync; cat /mark"), "what a command in it says")
    with open(box.root("mark")) as f:
        eq("kept\n", f.read(), "its file, from outside")


def copy(source, target):
    subprocess.run(["cp", "-r", path(*source), path(*target)], check=True, timeout=60)


def loads(archive):
    source, name, fork = Box(), fresh_name(), fresh_name()
    source.out(f"head -c {FAR} /dev/urandom > /dev/shm/x")
    copy(("sandboxes", source.name), ("snapshots", source.name, "s"))
    boot = put_in_place(archive, os.path.join(config()["pool"], "snapshots", line("snapshots", source.name, "s", "id")))
    ne(boot, boot_id(source), "boot id of a machine of today")
    copy(("snapshots", source.name, "s"), ("sandboxes", name))
    box = Box.known(name)
    works(box, boot)
    copy(("sandboxes", name), ("sandboxes", fork))
    eq("kept", Box.known(fork).out("cat /mark"), "disk of a fork of it")
    eq(boot, boot_id(Box.known(fork)), "boot id of a fork of it")
    os.rmdir(path("snapshots", source.name, "s"))


@check
def heads_of_older_builds_load():
    if "acceleration tcg\n" not in read("version"):
        skip("the head in older.d is of an emulated processor")
    archives = glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "older.d", "*.tar.xz"))
    ne([], archives, "heads of older builds")
    for archive in archives:
        loads(archive)


main()
