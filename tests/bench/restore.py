# SPDX-License-Identifier: Apache-2.0
"""Restore of a suspended sandbox: from the pool, from the store before its disk and its memory are there, and the download of all of it. Called by bench.py. RESTORE_MIB is
what is written to its disk (default 512; the bar is stated for 2048), RESTORE_MEMORY_MIB to its memory (600)."""

import contextlib
import json
import os
import pwd
import sqlite3
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../unit/volumed"))
import rgw  # noqa: E402
from bad_proxy import Proxy  # noqa: E402

from instant import settle
from measure import MIB, RUN, SPACE, job, note, ratio, read, write

ROUNDS = 3
DIR = os.path.dirname(RUN)


def first_command(box):
    """From the verb to the exit status of a command."""
    settle()
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


def restart_with(**settings):
    with open(f"{DIR}/space.conf", encoding="ascii") as f:
        kept = [line for line in f if line.split("=")[0].strip() not in settings]
    with open(f"{DIR}/space.conf", "w", encoding="ascii") as f:
        f.writelines(kept + [f"{key} = {value}\n" for key, value in settings.items()])
    for daemon in ("volumed", "hostd"):
        subprocess.run(["sv", "-w", "20", "restart", f"{DIR}/sv/{daemon}"], check=True, capture_output=True)
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


@contextlib.contextmanager
def gateway():
    """Ceph's, on loopback, behind a proxy."""
    server = rgw.Rgw(f"{DIR}/rgw")
    try:
        assert server.request("PUT", "/bucket")[0] == 200
        proxy = Proxy(server)
        yield server, proxy
        proxy.stop()
    finally:
        server.stop()


def from_s3(local):
    """A sandbox that only changed what its start and a command change, as above."""
    credentials = f"{DIR}/s3.credentials"
    with open(os.open(credentials, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as f:
        f.write(f"access_key = {rgw.ACCESS}\nsecret_key = {rgw.SECRET}\n")
    who = pwd.getpwnam("space-vol")
    os.chown(credentials, who.pw_uid, who.pw_gid)
    with gateway() as (server, proxy):
        for box, port, delay, what in (("s0", server.port, 0, "S3 on loopback"), ("s1", proxy.port, 0.2, "S3 with 200 ms more a request")):
            restart_with(suspend_keep="no", store=f"http://127.0.0.1:{port}/bucket/{box}", store_credentials=credentials)
            make(box, 0)
            suspend(box)
            proxy.delay = delay
            times = [first_command(box)]
            proxy.delay = 0
            ratio(f"from {what} / from the pool (bar 3 without latency)", note(f"restore from {what} to first command", times, "ms", 1e3) / local)
            os.rmdir(f"{SPACE}/sandboxes/{box}")
        large_memory(server, proxy, credentials)


def large_memory(server, proxy, credentials):
    """A guest of 1 GiB, of which much was written, from a store over a line: 20 ms, 40 MB/s."""
    mib = int(os.environ.get("RESTORE_MEMORY_MIB") or 600)
    restart_with(suspend_keep="no", store=f"http://127.0.0.1:{proxy.port}/bucket/m", store_credentials=credentials)
    os.mkdir(f"{SPACE}/sandboxes/m")
    write("sandboxes/m/memory", b"1G")
    write("sandboxes/m/keep", b"none")
    job("m", "w", f"mkdir -p /m && mount -t tmpfs -o size=90% none /m && dd if=/dev/urandom of=/m/data bs=1M count={mib}")
    suspend("m")
    proxy.delay, proxy.rate = 0.02, 40e6
    settle()
    events = os.open(f"{SPACE}/events", os.O_RDONLY)
    taken = proxy.count("GET")
    begin = time.perf_counter()
    write("sandboxes/m/state", b"resume")
    job("m", "j", "true")
    first, asked = time.perf_counter() - begin, proxy.count("GET") - taken
    text = b""
    while b'"state":"complete"' not in text:
        text += os.read(events, 1 << 16)
    there = time.perf_counter() - begin
    os.close(events)
    proxy.delay = proxy.rate = 0
    suspend("m")
    proxy.delay, proxy.rate = 0.02, 40e6
    what = f"{mib} MiB of memory written, S3 with 20 ms and 40 MB/s"
    note(f"restore to first command, {what}", [first], "ms", 1e3)
    note(f"until all of it is there, {what}", [there], "ms", 1e3)
    everything = note(f"download of all of it, {what}", [download("m")], "ms", 1e3) / 1e3
    ratio(f"first command / download of all (bar 0.25), {asked} requests until then", first / everything)
    proxy.delay = proxy.rate = 0
    os.rmdir(f"{SPACE}/sandboxes/m")


def restoring():
    mib = int(os.environ.get("RESTORE_MIB") or 512)
    boxes = {"small": 0, f"with {mib} MiB written": mib}
    here, there = {}, {}
    for i, (what, size) in enumerate(boxes.items()):
        make(f"r{i}", size)
        here[what] = note(f"restore from the pool to first command, {what}", restores(f"r{i}"), "ms", 1e3)
    restart_with(suspend_keep="no")
    for i, what in enumerate(boxes):
        there[what] = note(f"restore from the store to first command, {what}", restores(f"r{i}"), "ms", 1e3)
        ratio("from the store / from the pool (bar 3 for 128 MiB of memory)", there[what] / here[what])
    suspend("r1")
    everything = note(f"download of all of it, {what}", [download("r1")], "ms", 1e3)
    ratio("first command / download of all (bar 0.25)", there[what] / everything)
    for i in range(len(boxes)):
        os.rmdir(f"{SPACE}/sandboxes/r{i}")
    from_s3(here["small"])
