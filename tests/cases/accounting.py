#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""What disks and snapshots hold of their own: measured from extent maps, added up without counting anything twice."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

MIB = 1 << 20


def stat_of(box, key="disk_delta_bytes"):
    pairs = dict(l.split(None, 1) for l in read("sandboxes", box.name, "stats").splitlines())
    return int(pairs[key]) if key in pairs else -1


def delta(box, snap):
    text = line("snapshots", box.name, snap, "delta")
    return -1 if text == "unknown" else int(text)


def about(want, get, what, slack=6):
    """Within some MiB, which a running guest writes by itself."""
    try:
        wait_until(lambda: want - MIB // 2 <= get() <= want + slack * MIB, 30)
    except Failed:
        fail(f"{what}: want about {want / MIB:.1f} MiB, got {get() / MIB:.1f}")


def write_mib(box, name, mib):
    box.out(f"dd if=/dev/urandom of=/{name} bs=1M count={mib} 2>/dev/null; sync")


def snapshot(box, name):
    os.mkdir(path("snapshots", box.name, name))
    wait_until(lambda: line("snapshots", box.name, name, "state") == "ready", 30, f"snapshot {name}")
    wait_until(lambda: delta(box, name) >= 0, 30, f"{name} is measured")


@check
def what_is_written_counts_once():
    box = Box()
    about(0, lambda: stat_of(box), "a new one")
    write_mib(box, "a", 20)
    about(20 * MIB, lambda: stat_of(box), "20 MiB written")
    snapshot(box, "one")
    about(20 * MIB, lambda: delta(box, "one"), "the snapshot of them")
    about(0, lambda: stat_of(box), "the disk after it")
    write_mib(box, "b", 10)
    snapshot(box, "two")
    about(10 * MIB, lambda: delta(box, "two"), "the next one")
    about(20 * MIB, lambda: delta(box, "one"), "the first one, still")
    os.rmdir(path("snapshots", box.name, "one"))
    about(30 * MIB, lambda: delta(box, "two"), "the second, once the first is gone")
    os.rmdir(path("snapshots", box.name, "two"))
    about(30 * MIB, lambda: stat_of(box), "the disk, once both are gone", 12)


@check
def what_forks_share_counts_once():
    box = Box()
    write_mib(box, "a", 20)
    fork = Box(wait=False)
    write(read("sandboxes", box.name, "head"), "sandboxes", fork.name, "head")
    fork.touch()
    about(0, lambda: stat_of(fork), "a fork")
    about(20 * MIB, lambda: stat_of(box), "its source")
    write_mib(fork, "b", 10)
    about(10 * MIB, lambda: stat_of(fork), "the fork after 10 MiB more")
    box.remove()
    about(30 * MIB, lambda: stat_of(fork), "the fork, once its source is gone", 12)


@check
def a_roll_back_starts_at_its_snapshot():
    box = Box()
    write_mib(box, "a", 10)
    snapshot(box, "base")
    write_mib(box, "b", 20)
    write(read("snapshots", box.name, "base", "head"), "sandboxes", box.name, "head")
    box.touch()
    about(0, lambda: stat_of(box), "after the roll back")
    undo = [n for n in os.listdir(path("snapshots", box.name)) if "-before-" in n][0]
    wait_until(lambda: delta(box, undo) >= 20 * MIB, 30, "what was rolled back is held by the automatic snapshot")
    os.rmdir(path("snapshots", box.name, "base"))


@check
def the_memory_of_a_checkpoint_counts():
    box = Box()
    box.out("dd if=/dev/urandom of=/dev/shm/x bs=1M count=16 2>/dev/null")
    os.mkdir(path("snapshots", box.name, "full"))
    write(read("sandboxes", box.name, "head"), "snapshots", box.name, "full", "head")
    eq("full", line("snapshots", box.name, "full", "kind"), "kind")
    wait_until(lambda: delta(box, "full") >= 16 * MIB, 30, f"memory that was changed")
    at_most(100 * MIB, delta(box, "full"), "bytes of the checkpoint")
    os.rmdir(path("snapshots", box.name, "full"))


@check
def numbers_survive_a_restart():
    box = Box()
    write_mib(box, "a", 10)
    about(10 * MIB, lambda: stat_of(box), "before")
    box.verb("stop")
    snapshot(box, "s")
    held = delta(box, "s")
    daemon_back("hostd", kill_daemon("hostd"))
    settled()
    eq(held, delta(box, "s"), "delta of the snapshot, at once")
    about(0, lambda: stat_of(box), "delta of the disk")
    os.rmdir(path("snapshots", box.name, "s"))


@check
def only_automatic_ones_have_an_end():
    box = Box()
    snapshot(box, "mine")
    eq("never", line("snapshots", box.name, "mine", "expires"), "expires")
    eq("", line("snapshots", box.name, "mine", "tier"), "tier")
    Job(box, "while :; do date +%s%N > /mark; sync; sleep 0.2; done")
    box.set("keep", "disk every 2s for 1h")
    autos = wait_until(lambda: [n for n in os.listdir(path("snapshots", box.name)) if n.startswith("auto-")], 60, "an automatic one")
    wait_until(lambda: line("snapshots", box.name, autos[0], "state") == "ready", 30, "it is ready")
    eq("disk every 2s for 1h", line("snapshots", box.name, autos[0], "tier"), "tier")

    def seconds(file):
        import calendar
        return calendar.timegm(time.strptime(line("snapshots", box.name, autos[0], file), "%Y-%m-%dT%H:%M:%SZ"))

    at_most(5, abs(seconds("expires") - seconds("created") - 3600), "seconds beside an hour")
    box.set("keep", "disk every 2s for 2h")
    at_most(5, abs(seconds("expires") - seconds("created") - 7200), "seconds beside two hours, after a change of keep")
    table = spacectl("snapshot", "ls", "--json", box.name)
    eq(0, table.returncode, f"status of spacectl ({table.stderr})")
    rows = json.loads(table.stdout)
    eq(sorted(r["created"] for r in rows), [r["created"] for r in rows], "order")
    eq({"mine": "never"}, {r["snapshot"]: r["expires"] for r in rows if not r["snapshot"].startswith("auto-")}, "expiry of those by hand")
    eq("disk every 2s for 2h", rows[-1]["tier"], "tier in the list")
    eq(int, type(rows[0]["delta"]), "type of delta")
    people = spacectl("snapshots", box.name).stdout.splitlines()
    eq("SNAPSHOT AGE KIND SIZE DELTA EXPIRES TIER STATE HEAD".split(), people[0].split(), "headings")
    matches(r"^mine +\d+[smh] +disk consistent +\d+[MG] +\S+ +never ", next(l for l in people if l.startswith("mine")))
    matches(r" (1h59m|2h00m) +disk every 2s for 2h +(ready|creating) ", people[-1])
    box.set("keep", "none")
    os.rmdir(path("snapshots", box.name, "mine"))


main()
