#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
"""`max_disk`: who holds that much makes nothing new until something is removed. And `stats` of a thousand sandboxes."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

MIB = 1 << 20


def held(owner=0):
    return sum(rows(f"SELECT coalesce(sum(max(delta, 0)), 0) FROM {t} WHERE owner = ?", owner)[0][0] for t in ("sandboxes", "snapshots", "templates"))


@check(limit=200)
def who_holds_too_much_makes_nothing_new():
    box, small = Box(), Box()
    small.touch()
    box.out("dd if=/dev/urandom of=/x bs=1M count=40 2>/dev/null; sync")
    wait_until(lambda: int(stats(box.name).get("disk_delta_bytes", 0)) >= 40 * MIB, 30, "it is measured")
    defer(lambda: restart_with(max_disk=None))
    Job(small, "while :; do date > /mark; sync; sleep 0.2; done")
    restart_with(max_disk=(held() - 10 * MIB) // 4096 * 4096)
    name = fresh_name()
    for parts in (("sandboxes", name), ("templates", name), ("snapshots", small.name, "s")):
        refused(errno.EDQUOT, os.mkdir, path(*parts))
        explained("/".join(parts[:-1]), errno.EDQUOT)
        eq(False, exists(*parts), f"{parts} after it")
    small.set("keep", "disk every 1s for 1h")
    time_of_three = time.monotonic() + 4
    wait_until(lambda: time.monotonic() > time_of_three, 10, "some periods")
    eq([], os.listdir(path("snapshots", small.name)), "automatic snapshots")
    small.set("keep", "none")
    box.remove()
    wait_until(lambda: made(name), 30, "room again")
    eq(True, exists("sandboxes", name), "a new one")
    restart_with(max_disk=None)


def made(name):
    try:
        os.mkdir(path("sandboxes", name))
        return True
    except OSError as e:
        eq(errno.EDQUOT, e.errno, "errno until what was removed is")
        return False


@check(limit=300)
def stats_of_a_thousand_take_less_than_a_second():
    box = Box()
    box.out("dd if=/dev/urandom of=/x bs=1M count=4 2>/dev/null; sync")
    box.verb("stop")
    template = int(box.get("id"), 16)
    pool, conf = config()["pool"], config()
    names, ids = [f"many-{os.getpid()}-{i}" for i in range(1000)], [0x100000000000 + os.getpid() * 65536 + i for i in range(1000)]
    with contextlib.closing(sqlite3.connect(os.path.join(conf["state"], "space.db"), timeout=20)) as db:
        columns = [r[1] for r in db.execute("PRAGMA table_info(sandboxes)")]
        row = dict(zip(columns, db.execute("SELECT * FROM sandboxes WHERE id = ?", (template,)).fetchone()))
        source = f"{pool}/sandboxes/{row['object']:012x}"
        for name, id in zip(names, ids):  # as they would be: real disks, and nobody has measured them
            subprocess.run(["btrfs", "-q", "subvolume", "snapshot", source, f"{pool}/sandboxes/{id:012x}"], check=True, stdout=subprocess.DEVNULL)
            row.update(id=id, object=id, name=name, delta=-1)
            db.execute(f"INSERT INTO sandboxes({','.join(columns)}) VALUES({','.join('?' * len(columns))})", [row[c] for c in columns])
        db.commit()
    restart_with()
    try:
        for name in names[:10]:
            eq("stopped", line("sandboxes", name, "state"), "state")
        seconds = min(read_all(names) for _ in range(3))
        print(f"stats of {len(names)}: {seconds:.2f} s", flush=True)
        at_most(1.0, seconds, "seconds for the stats of 1,000")
        wait_until(lambda: all("disk_delta_bytes" in stats(n) for n in names[::50]), 120, "all are measured meanwhile")
        wait_until(lambda: int(stats(names[-1]).get("disk_delta_bytes", 0)) >= 4 * MIB, 60, "the last one's number")
    finally:
        for name in names:
            os.rmdir(path("sandboxes", name))
        wait_until(lambda: not any(os.path.exists(f"{pool}/sandboxes/{id:012x}") for id in ids), 120, "they are gone")


def read_all(names):
    began = time.monotonic()
    for name in names:
        has("disk_bytes", read("sandboxes", name, "stats"))
    return time.monotonic() - began


main()
