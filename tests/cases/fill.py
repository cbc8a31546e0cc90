#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 240
"""A disk that arrives while its sandbox runs: what is not there yet is waited for, whatever is killed, and nothing is lost when the store is gone."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

MIB = 1 << 20
SIZE = 24  # MiB of the file

shared = None


def rows(query, *args):
    with contextlib.closing(database()) as db:
        return db.execute(query, args).fetchall()


def restart_with(**settings):
    """hostd, with other values in the configuration; None takes one out."""
    name = os.environ["SPACE_CONFIG"]
    with open(name) as f:
        kept = [text for text in f if text.split("=")[0].strip() not in settings]
    with open(name, "w") as f:
        f.writelines(kept + [f"{k} = {v}\n" for k, v in settings.items() if v is not None])
    daemon_back("hostd", kill_daemon("hostd"))
    settled()


def stats(b):
    return dict(text.split(None, 1) for text in read("sandboxes", b.name, "stats").splitlines())


def box():
    """One for all checks, with a file that its memory does not hold; suspended, and nothing of it is in the pool."""
    global shared
    if shared is None:
        wait_until(lambda: line("templates", default_template(), "prepared"), 120, "the template is prepared")
        defer(lambda: restart_with(suspend_keep=None))
        restart_with(suspend_keep="no")
        shared = Box()
        shared.set("keep", "none")
        shared.out(f"dd if=/dev/urandom of=/big bs=1M count={SIZE}; mkdir -p /dev/shm; mountpoint -q /dev/shm || mount -t tmpfs -o size=100m none /dev/shm; echo unsaved > /dev/shm/memory; sync")
        shared.sum = shared.out("sha256sum < /big")
        shared.counter = Job(shared, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done", name="count")
    if shared.state == "paused":
        shared.verb("resume")
    if shared.state == "running":
        wait_until(lambda: "fill_total" not in stats(shared), 30, "its disk is there")
        eq("unsaved", shared.out("cat /dev/shm/memory"), "its memory")
        shared.out("sync; echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/zero of=/dev/shm/wipe bs=1M count=72; rm /dev/shm/wipe")  # of what was in its cache
        shared.verb("suspend")
    eq("suspended", shared.state)
    return shared


class Hidden:
    """The chunks of its disk cannot be had."""

    def __init__(self, b):
        suspended = "SELECT suspended FROM sandboxes WHERE id = ?"
        self.tenant, self.name = rows(f"SELECT tenant, name FROM artifacts WHERE file = 1 AND object = ({suspended})", int(b.get("id"), 16))[0]
        self.at = os.path.join(config()["store"], self.tenant, "packs", self.name)
        os.rename(self.at, self.at + ".hidden")
        defer(self.show)

    def show(self):
        if os.path.exists(self.at + ".hidden"):
            os.rename(self.at + ".hidden", self.at)


def filled(b):
    wait_until(lambda: "fill_total" not in stats(b), 60, "all of its disk is there")
    eq([(0,)], rows("SELECT suspended FROM sandboxes WHERE id = ?", int(b.get("id"), 16)), "what it is suspended to")


@check
def it_runs_before_its_disk_is_there():
    b = box()
    hidden = Hidden(b)
    with Events() as events:
        b.verb("resume")
        print(b.state, b.get("error"), time.monotonic())
        job = Job(b, "sha256sum < /big")
        wait_until(lambda: b.state == "paused", 40, "paused")
        print(b.state, b.get("error"), time.monotonic())
        print(refused(errno.EAGAIN, os.listdir, b.root("etc")))
        hidden.show()
        wait_until(lambda: b.state == "running", 40, "running")
        print(b.state, b.get("error"), time.monotonic())
        eq(b.sum, job.result().out.strip(), "the file that arrives")
        print(stats(b), time.monotonic())
    filled(b)
    eq("", b.get("error"))


main()
