#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 600
# instance: none
"""A full pool: what needs room is refused with its reason and leaves nothing, what frees room works, and a guest that writes waits for it.

On an instance of its own, whose pool is small.
"""

import os
import signal
import subprocess
import sys
import tempfile

POOL_MIB = 1000


def own_instance():
    """Starts this script again with the environment of a small instance, which goes when it ends."""
    source, build = os.environ["SOURCE"], os.environ["BUILD"]
    directory = tempfile.mkdtemp(prefix="space-full-", dir="/var/tmp")
    os.chmod(directory, 0o755)
    instance = os.path.join(directory, "i")
    quickstart = [os.path.join(source, "ctl", "quickstart"), "--instance", instance, "--build", build]
    os.makedirs(instance)
    image = os.path.join(instance, "pool.img")
    with open(image, "wb") as f:
        f.truncate(POOL_MIB << 20)
    status = 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # over its limit: the instance goes all the same
    try:
        subprocess.run(["mkfs.btrfs", "-q", image], check=True, stdin=subprocess.DEVNULL)
        subprocess.run(quickstart + ["--templates", "tiny"], check=True, stdin=subprocess.DEVNULL)
        env = dict(os.environ, SPACE=f"{instance}/space", SPACE_CONFIG=f"{instance}/space.conf", SPACE_DIR=instance, SPACE_FULL="1")
        status = subprocess.run([sys.executable] + sys.argv, env=env, stdin=subprocess.DEVNULL).returncode
    finally:
        if status:
            subprocess.run(["tail", "-n", "30", f"{instance}/log/hostd/current", f"{instance}/log/noded/current"])
        down = subprocess.run(quickstart + ["--down"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if down.returncode:
            print(down.stdout, down.stderr)
            status = status or 1
        else:
            os.rmdir(directory) if not os.listdir(directory) else None
    sys.exit(status)


if os.environ.get("SPACE_FULL") != "1":
    own_instance()

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import leftovers
from lib import *


def ballast():
    return os.path.join(config()["pool"], "ballast")


def free_bytes():
    v = os.statvfs(config()["pool"])
    return v.f_bavail * v.f_frsize


def fill_pool(leave=0):
    """Until nothing is left (or so many bytes), as other data on the same file system would."""
    with open(ballast(), "ab", buffering=0) as f:
        size = 8 << 20
        while size >= 4096 and free_bytes() > leave:
            try:
                f.write(os.urandom(min(size, max(4096, free_bytes() - leave))))
                os.fsync(f.fileno())
            except OSError as e:
                eq(errno.ENOSPC, e.errno, "errno of the ballast")
                size //= 2


def make_room():
    with contextlib.suppress(FileNotFoundError):
        os.unlink(ballast())
    subprocess.run(["btrfs", "filesystem", "sync", config()["pool"]], check=True, capture_output=True)
    wait_until(lambda: free_bytes() > 200 << 20, 60, "room in the pool")


defer(make_room)


def shared(made=[]):
    if not made:
        made.append(Box(wait=False))
        wait_until(lambda: made[0].state in ("running", "failed"), 120, "it boots")
        eq(("running", ""), (made[0].state, made[0].get("error")), "state and error of the first one")
    return made[0]


@check(limit=150)
def what_needs_room_is_refused_and_leaves_nothing():
    box = shared()
    os.mkdir(path("snapshots", box.name, "before"))
    wait_until(lambda: line("snapshots", box.name, "before", "state") == "ready", 20, "snapshot before")
    fill_pool()
    try:
        before = leftovers.objects()
        name, template = fresh_name(), fresh_name()
        for tree, parts in (("sandboxes", (name,)), ("templates", (template,)), ("snapshots", (box.name, "full"))):
            refused(errno.ENOSPC, os.mkdir, path(tree, *parts))
            explained("/".join((tree, *parts[:-1])), errno.ENOSPC)
            eq(False, exists(tree, *parts), f"{tree}/{parts} after it")
        copy = subprocess.run(["cp", "-r", path("sandboxes", box.name), path("sandboxes", name)], capture_output=True, text=True)
        ne(0, copy.returncode, "cp's status")
        has("No space left", copy.stderr)
        eq(False, exists("sandboxes", name), "the copy")
        eq(set(), leftovers.objects() - before, "objects that came")
        eq("running", box.state, "the running one")
        at_most(1000, millis(os.rmdir, path("snapshots", box.name, "before")), "ms for rmdir of a snapshot")
        eq(False, exists("snapshots", box.name, "before"))
    finally:
        make_room()
    eq("on", shared().out("echo on"))


@check(limit=150)
def a_restore_without_room_waits_for_it():
    box = Box()
    box.out("echo kept > /kept; sync")
    box.verb("suspend")
    ((number,),) = rows("SELECT suspended FROM sandboxes WHERE id = ?", int(box.get("id"), 16))
    subprocess.run(["btrfs", "subvolume", "delete", os.path.join(config()["pool"], "snapshots", f"{number:012x}")], check=True, capture_output=True)
    fill_pool()
    try:
        refused(errno.ENOSPC, box.verb, "resume")
        eq("suspended", box.state)
        refused(errno.ENOSPC, os.listdir, box.root("etc"))
    finally:
        make_room()
    eq("kept", box.touch().out("cat /kept"))
    box.remove()


@check(limit=200)
def a_guest_that_writes_is_paused_and_goes_on():
    box = shared()
    fill_pool(leave=24 << 20)
    job = Job(box, "dd if=/dev/urandom of=/root/big bs=64k count=800 conv=fsync 2>/dev/null; echo wrote $?; sha1sum < /root/big; sync; "
                   "echo 3 > /proc/sys/vm/drop_caches; sha1sum < /root/big")
    job.no_input()
    with Events(since=0) as events:
        events.next(90, kind="io-error", name=box.name)
    box.wait_state("paused", 10)
    if len(box.get("error").split()) < 6:
        fail(f"error holds no sentence: {box.get('error')!r}")
    eq("running", job.get("status"), "the job")
    make_room()
    box.verb("resume")
    eq("exit 0", job.wait())
    out = job.output().split("\n")
    eq("wrote 0", out[0], "what dd said: no error reached the guest")
    eq(out[1], out[2], "its sum before and after the cache")
    job.remove()


@check(limit=150)
def rmdir_works_in_a_full_pool_and_gives_room():
    box = shared()
    fill_pool()
    at_most(1000, millis(box.remove), "ms for rmdir")
    wait_until(lambda: not [d for d in leftovers.objects() if d.startswith("sandboxes/") and d in gone_candidates()], 30, "its disk goes")
    wait_until(lambda: free_bytes() > 32 << 20, 60, "room comes")
    make_room()
    leftovers.none(60)
    fresh = Box()
    eq("fine", fresh.out("echo fine"))
    fresh.remove()


@check(limit=60)
def a_deletion_that_fails_is_tried_again():
    box = Box()
    folder = os.path.join(config()["pool"], "sandboxes")
    subprocess.run(["chattr", "+i", folder], check=True)
    try:
        box.remove()
        wait_until(lambda: metric("space_deletes_queued") > 0, 20, "its disk waits for its removal")
    finally:
        subprocess.run(["chattr", "-i", folder], check=True)
    wait_until(lambda: metric("space_deletes_queued") == 0, 20, "it is tried again")
    leftovers.none(20)
    nothing_crashed(SPACE_DIR)


def gone_candidates():
    """Objects of rows on their way out."""
    return {f"sandboxes/{o:012x}" for (o,) in leftovers.rows("SELECT object FROM sandboxes WHERE state = 9")}


main()
