#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""Automatic snapshots: taken when due and something changed, thinned by tier, removed with their sandbox."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *


WRITE = "while :; do date +%s%N > /mark; sync; sleep 0.2; done"


def autos(box, kind=""):
    return sorted(name for name in os.listdir(path("snapshots", box.name)) if name.startswith("auto-") and name.endswith(kind))


@check
def values_of_keep():
    box = Box(wait=False)
    has("every", box.get("keep"), "the default")
    box.set("keep", "disk every 5m for 1h\nfull every 1h for 1d\n")
    eq("disk every 5m for 1h\nfull every 1h for 1d", box.get("keep"), "keep")
    for bad in ("disk", "disk every 1h for 5m", "full every day for 1y", "everything"):
        refused(errno.EINVAL, box.set, "keep", bad)
    explained(f"sandboxes/{box.name}/keep", errno.EINVAL)
    box.set("keep", "none")
    eq("none", box.get("keep"), "keep")
    box.set("keep", "default")
    has("every", box.get("keep"), "keep")


@check
def a_busy_one_is_kept_and_thinned():
    box = Box()
    Job(box, WRITE)
    box.set("keep", "disk every 2s for 8s")
    wait_until(lambda: len(autos(box, "-disk")) >= 3, 60, "three automatic snapshots")
    first = autos(box)[0]
    eq("disk consistent", line("snapshots", box.name, first, "kind"), "kind")
    wait_until(lambda: first not in autos(box), 60, "the first one goes")
    at_most(12, len(autos(box)), "automatic snapshots of 8 s")


@check
def an_idle_one_is_left_alone():
    box = Box()
    box.out("echo once > /mark; sync")
    box.set("keep", "disk every 1s for 1h")
    wait_until(lambda: autos(box), 60, "the first snapshot")
    last = None
    while last != autos(box):  # the guest's own writing comes to its end
        last = autos(box)
        time.sleep(6)
    box.out("echo twice > /mark; sync")
    wait_until(lambda: len(autos(box)) > len(last), 60, "a snapshot after a change")


@check
def checkpoints_by_themselves():
    box = Box()
    Job(box, "i=0; while :; do i=$((i+1)); echo $i > /dev/shm/count; done")
    box.set("keep", "full every 3s for 1h")
    wait_until(lambda: autos(box, "-full"), 60, "an automatic checkpoint")
    name = autos(box, "-full")[0]
    wait_until(lambda: line("snapshots", box.name, name, "state") == "ready", 30, "it is ready")
    eq("full", line("snapshots", box.name, name, "kind"), "kind")
    box.set("keep", "none")
    write(read("snapshots", box.name, name, "head"), "sandboxes", box.name, "head")
    eq("running", box.state, "state after a roll back to it")


@check
def one_that_the_object_store_is_to_have_gets_there():
    box = Box()
    box.out("echo once > /mark; sync")
    box.set("keep", "disk every 2s for 1h to object store")
    wait_until(lambda: any(line("snapshots", box.name, name, "durable") == "yes" for name in autos(box)), 90, "a snapshot is stored")


@check
def with_little_room_none_are_taken():
    box = Box()
    Job(box, WRITE)
    box.set("keep", "disk every 1s for 1h")
    wait_until(lambda: autos(box), 60, "the first snapshot")
    ballast = os.path.join(config()["pool"], "ballast")
    pool = os.statvfs(config()["pool"])
    with Events() as events:
        with open(ballast, "wb") as f:
            os.unlink(ballast)
            os.posix_fallocate(f.fileno(), 0, (pool.f_bavail - pool.f_blocks // 10) * pool.f_frsize)
            events.next(60, kind="low-space")
            had = None
            while had != autos(box):  # for four periods; never, should they go on
                had = autos(box)
                time.sleep(4)
        events.next(60, kind="space-again")
    wait_until(lambda: len(autos(box)) > len(had), 60, "they are taken again")


def being_taken(box):
    """Names of its automatic snapshots that are."""
    out = []
    for name in autos(box):
        with contextlib.suppress(OSError):  # it may have gone
            if line("snapshots", box.name, name, "state") == "creating":
                out.append(name)
    return out


@check
def one_that_hangs_delays_no_other():
    """A mute guest is waited for for 5 s. Five times, for on a loaded machine the other one's may take as long."""
    slow, other = Box(), Box()
    Job(other, WRITE)
    other.set("keep", "disk every 1s for 1h")
    wait_until(lambda: autos(other), 60, "the first of the other one")
    for _ in range(5):
        slow.out("date +%s%N > /mark; sync")
        pid = slow.mute()
        slow.set("keep", "disk every 1s for 1h")
        wait_until(lambda: being_taken(slow), 60, "one of the mute one begins")
        before = set(autos(other)) - set(being_taken(other))
        wait_until(lambda: not being_taken(slow), 60, "it ends")
        meanwhile = set(autos(other)) - set(being_taken(other)) - before
        slow.set("keep", "none")
        wake(pid)
        if len(meanwhile) > 1:  # one after the other there would be one
            break
    eq(True, len(meanwhile) > 1, f"those of the other one meanwhile, {meanwhile}, are more than one")
    for box in (slow, other):
        box.remove()


@check
def after_a_week_of_downtime_one_is_taken():
    box, other = Box(), Box()
    for each in (box, other):
        Job(each, WRITE)
        each.set("keep", "disk every 1s for 30d")
    wait_until(lambda: autos(box), 60, "an automatic snapshot")
    box.set("keep", "disk every 1d for 30d")
    wait_until(lambda: all(line("snapshots", box.name, n, "state") == "ready" for n in autos(box)), 30, "none is being taken")
    before = set(autos(box))
    with contextlib.closing(sqlite3.connect(os.path.join(config()["state"], "space.db"), timeout=20)) as db:
        db.execute("UPDATE snapshots SET taken = taken - 604800 WHERE sandbox = ?", (int(box.get("id"), 16),))
        db.commit()
    daemon_back("hostd", kill_daemon("hostd"))
    settled()
    wait_until(lambda: set(autos(box)) - before, 60, "one after it")
    seen = set(autos(other))
    wait_until(lambda: len(set(autos(other)) - seen) >= 3, 60, "three of the other one meanwhile")
    eq(1, len(set(autos(box)) - before), "snapshots for seven periods of downtime")
    for each in (box, other):
        each.remove()


@check
def one_that_is_read_stays_until_it_is_not_and_one_made_by_hand_for_ever():
    box = Box()
    os.mkdir(path("snapshots", box.name, "mine"))
    Job(box, WRITE)
    box.set("keep", "disk every 1s for 1s")

    def hold():
        for name in reversed(autos(box)):
            with contextlib.suppress(OSError):  # it may be on its way out
                return name, open(path("snapshots", box.name, name, "disk.raw"), "rb")
        return None

    name, held = wait_until(hold, 60, "an automatic snapshot that can be opened")
    newer = wait_until(lambda: [n for n in autos(box) if n > name], 60, "a newer one")[0]
    wait_until(lambda: newer not in autos(box), 60, "the newer one goes")
    eq(True, name in autos(box), "the one that is read is there")
    eq(b"\x53\xef", os.pread(held.fileno(), 2, 1080), "what is read of it")
    held.close()
    wait_until(lambda: name not in autos(box), 90, "it goes, once nobody reads it")
    box.set("keep", "none")
    wait_until(lambda: not autos(box), 60, "the automatic ones go")
    eq(True, exists("snapshots", box.name, "mine"), "the one made by hand")
    os.rmdir(path("snapshots", box.name, "mine"))
    box.remove()


main()
