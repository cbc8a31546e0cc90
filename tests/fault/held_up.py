#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 120
"""space-hostd is held up again and again, as on a busy machine, so that several requests wait for it at once, in any order: another size, a copy or a
head that follows a mkdir at once finds a load that has not even begun."""

import os
import random
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

ROUNDS = 30


@contextlib.contextmanager
def held_up():
    pid, done = daemon_pid("hostd"), threading.Event()

    def hold():
        while not done.is_set():
            for number in (signal.SIGSTOP, signal.SIGCONT):
                os.kill(pid, number)
                time.sleep(random.random() / 500)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    eq(pid, daemon_pid("hostd"), "space-hostd, which should have gone on")


@check
def another_size_at_once():
    boxes = []
    with held_up():
        for i in range(ROUNDS):
            box = Box(wait=False)
            box.set("memory", "192M")
            if i % 2:
                box.set("vcpus", "2")
            if i % 10:
                box.remove()
            else:
                boxes.append(box)
    for box in boxes:
        total = int(box.out("awk '/MemTotal/ { print $2 }' /proc/meminfo"))
        if not 140 * 1024 < total <= 192 * 1024:
            fail(f"memory seen in the guest: want about 192 MiB, got {total} KiB")
        box.remove()


@check
def copies_at_once():
    source = Box()
    source.out("echo this > /made")
    copies = [fresh_name() for _ in range(ROUNDS)]
    with held_up():
        for name in copies:
            subprocess.run(["cp", "-r", path("sandboxes", source.name), path("sandboxes", name)], check=True, timeout=60)
            if name != copies[-1]:
                os.rmdir(path("sandboxes", name))
    box = Box.known(copies[-1])
    eq("this", box.out("cat /made"))
    box.remove()
    source.remove()


main()
