# SPDX-License-Identifier: Apache-2.0
"""Restore of a suspended sandbox: from the pool, from the store before its disk is there, and the download of all of it. Called by bench.py. RESTORE_MIB is
what is written to its disk (default 512; the bar is stated for 2048)."""

import json
import os
import sqlite3
import subprocess
import time

from measure import MIB, RUN, SPACE, job, note, ratio, read, write

ROUNDS = 3
DIR = os.path.dirname(RUN)


def first_command(box):
    """From the verb to the exit status of a command."""
    begin = time.perf_counter()
    write(f"sandboxes/{box}/state", b"resume")
    job(box, "j", "true")
    return time.perf_counter() - begin


def suspend(box):
    while b"fill_total" in read(f"sandboxes/{box}/stats"):
        time.sleep(0.1)
    write(f"sandboxes/{box}/state", b"suspend")


def restores(box):
    times = []
    for _ in range(ROUNDS):
        suspend(box)
        times.append(first_command(box))
    return times


def make(box, mib):
    os.mkdir(f"{SPACE}/sandboxes/{box}")
    write(f"sandboxes/{box}/keep", b"none")
    job(box, "warm", "true")
    with open(f"{SPACE}/root/{box}/data", "wb", buffering=0) as f:
        for _ in range(mib):
            f.write(os.urandom(MIB))
        os.fsync(f.fileno())


def leave_nothing():
    """From now on what is suspended is in the store only."""
    with open(f"{DIR}/space.conf", "a", encoding="ascii") as f:
        f.write("suspend_keep = no\n")
    subprocess.run(["sv", "-w", "20", "restart", f"{DIR}/sv/hostd"], check=True, capture_output=True)
    end = time.monotonic() + 20
    while subprocess.run(["timeout", "2", "cat", f"{SPACE}/version"], capture_output=True, check=False).returncode and time.monotonic() < end:
        time.sleep(0.1)


def download(box):
    """All of what it is suspended to, by opening its disk."""
    db = sqlite3.connect(f"file:{DIR}/state/space.db?mode=ro", uri=True)
    name = db.execute("SELECT name FROM snapshots WHERE id = (SELECT suspended FROM sandboxes WHERE name = ?)", (box,)).fetchone()[0]
    db.close()
    events = os.open(f"{SPACE}/events", os.O_RDONLY)
    with open(f"{SPACE}/snapshots/{box}/{name}/disk.raw", "rb") as f:
        f.read(4096)
    text = b""
    while b'"kind":"download"' not in text:
        text += os.read(events, 1 << 16)
    os.close(events)
    return next(e["msec"] for e in map(json.loads, text.decode().splitlines()) if e["kind"] == "download") / 1000


def restoring():
    mib = int(os.environ.get("RESTORE_MIB") or 512)
    boxes = {"small": 0, f"with {mib} MiB written": mib}
    here, there = {}, {}
    for i, (what, size) in enumerate(boxes.items()):
        make(f"r{i}", size)
        here[what] = note(f"restore from the pool to first command, {what}", restores(f"r{i}"), "ms", 1e3)
    leave_nothing()
    for i, what in enumerate(boxes):
        there[what] = note(f"restore from the store to first command, {what}", restores(f"r{i}"), "ms", 1e3)
        ratio("from the store / from the pool (bar 3 for 128 MiB of memory)", there[what] / here[what])
    suspend("r1")
    everything = note(f"download of all of it, {what}", [download("r1")], "ms", 1e3)
    ratio("first command / download of all (bar 0.25)", there[what] / everything)
    for i in range(len(boxes)):
        os.rmdir(f"{SPACE}/sandboxes/r{i}")
