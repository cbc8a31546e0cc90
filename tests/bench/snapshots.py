# SPDX-License-Identifier: Apache-2.0
"""Disk snapshots: how long one takes by the size of the disk, what writers in the guest feel, what a diff costs beside reading the disk, and
a walk through files/ beside other readers of the same image. Called by bench.py."""

import contextlib
import glob
import os
import shutil
import subprocess
import time

from instant import Events, POOL
from measure import MIB, SPACE, job, note, ratio, read, rows, timed, write

BUILD, TESTTMP = os.environ["BUILD"], os.environ["TESTTMP"]
WRITTEN = int(os.environ.get("BENCH_WRITTEN") or 10 << 30)  # bytes of the disk of 100 GiB
ROUNDS = int(os.environ.get("BENCH_ROUNDS") or 30)
FILES = 3000


def bar(name, value, limit, unit=""):
    rows.append({"name": name, "value": value, "at_most": limit})
    print(f"  {name:<58} {value:>10.2f}            {unit} (at most {limit})", flush=True)


def state_of(box, snap):
    return read(f"snapshots/{box}/{snap}/state").strip()


def take(box, snap):
    """Seconds from mkdir until it is ready."""
    begin = time.perf_counter()
    os.mkdir(f"{SPACE}/snapshots/{box}/{snap}")
    while state_of(box, snap) != b"ready":
        pass
    return time.perf_counter() - begin


def forget(box, *snaps):
    for snap in snaps:
        os.rmdir(f"{SPACE}/snapshots/{box}/{snap}")


def template(name, size):
    """The tiny one with a disk of that size."""
    tarball = max(glob.glob(f"{BUILD}/cache/tiny-*.tar"), key=os.path.getmtime)
    subprocess.run(["spacectl", "--space", SPACE, "template", "build", name, "--from", tarball, "--size", size, "--skip-devices"], check=True, capture_output=True)


@contextlib.contextmanager
def sandbox(name, disk):
    template(name, disk)
    os.mkdir(f"{SPACE}/sandboxes/{name}")
    try:
        write(f"sandboxes/{name}/head", read(f"templates/{name}/head"))
        job(name, "warm", "true")
        write(f"sandboxes/{name}/keep", b"none")
        yield name
    finally:
        os.rmdir(f"{SPACE}/sandboxes/{name}")


def latency(small, big):
    """Turn by turn, so that what else the machine does meets both. Each has a file that is written to before."""
    all_, beside = {small: [], big: []}, {small: [], big: []}
    for i in range(ROUNDS):
        for box in (small, big):
            job(box, "dirty", "dd if=/dev/urandom of=/dirty bs=64k count=4 conv=notrunc 2>/dev/null")
            events = Events()
            took = take(box, f"l{i}")
            frozen = events.drain("frozen")
            events.close()
            if not frozen:  # within 5 s: on a loaded machine
                print(f"  snapshot {i} of {box} was not frozen, and is not counted")
                continue
            all_[box].append(took)
            beside[box].append(took - frozen[0]["freeze_usec"] / 1e6)
    for box in (small, big):
        note(f"disk snapshot of {box}, from mkdir to ready", all_[box], "ms", 1e3)
    medians = [note(f"the same of {box} beside the guest's freeze", beside[box], "ms", 1e3) for box in (small, big)]
    bar("disk snapshot, 100 GiB / 1 GiB", medians[1] / medians[0], 1.3)
    bar("disk snapshot beside the freeze, the larger median", max(medians), 25, "ms")
    for box in (small, big):
        forget(box, *(f"l{i}" for i in range(ROUNDS)))


def stalls(box):
    """The longest write within half a second around each snapshot, and within as long without one."""
    with open(f"{BUILD}/tests/bench-writer", "rb") as program, open(f"{SPACE}/root/{box}/writer", "wb") as f:
        shutil.copyfileobj(program, f)
    os.chmod(f"{SPACE}/root/{box}/writer", 0o755)
    spans = {True: [], False: []}
    os.mkdir(f"{SPACE}/proc/{box}/writer")
    write(f"proc/{box}/writer/cmd", f"exec /writer /written {ROUNDS + 5}".encode())
    time.sleep(1)
    for i in range(ROUNDS):
        for with_one in (True, False):
            begin = time.time()
            if with_one:
                take(box, f"w{i}")
            time.sleep(max(0, begin + 0.45 - time.time()))
            spans[with_one].append((begin, time.time()))
    read(f"proc/{box}/writer/wait")
    with open(f"{SPACE}/proc/{box}/writer/stdout", encoding="ascii") as f:
        long = [(int(a) / 1e6, int(b) / 1e6) for a, b in (line.split() for line in f)]
    os.rmdir(f"{SPACE}/proc/{box}/writer")
    for with_one, what in ((True, "during a snapshot"), (False, "without one")):
        worst = sorted(max((took for at, took in long if begin - 0.05 < at < end), default=0.001) for begin, end in spans[with_one])
        note(f"longest write of half a second in the guest, {what}", worst, "ms", 1e3, p99=worst[-1] * 1e3)
        print(f"  {'':<58} {'p99':>10} {worst[-1] * 1e3:>10.1f} ms")
    forget(box, *(f"w{i}" for i in range(ROUNDS)))


def read_data(name):
    """Reads what is no hole; bytes."""
    at = total = 0
    with open(name, "rb", buffering=0) as f:
        with contextlib.suppress(OSError):
            while True:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
                end = os.lseek(f.fileno(), at, os.SEEK_HOLE)
                while at < end:
                    n = len(os.pread(f.fileno(), min(MIB, end - at), at))
                    at, total = at + n, total + n
    return total


def diff(box):
    """10 MiB changed in the middle of what was written."""
    take(box, "d1")
    job(box, "change", f"dd if=/dev/urandom of=/bulk bs=1M count=10 seek={WRITTEN // 2 // MIB} conv=notrunc,fsync 2>/dev/null")
    take(box, "d2")
    command = ["spacectl", "--space", SPACE, "diff", box, "d1", "d2"]

    def once(_):
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "bulk" in out, out

    first = note("spacectl diff, 10 MiB changed: the first", timed(once, 1), "ms", 1e3)
    note("the same again", timed(once, 5), "ms", 1e3)
    begin = time.perf_counter()
    size = read_data(f"{SPACE}/snapshots/{box}/d2/disk.raw")
    took = time.perf_counter() - begin
    note(f"reading the {size / (1 << 30):.1f} GiB of data of disk.raw", [took], "ms", 1e3)
    note("which is", [size / MIB / took], "MiB/s")
    bar("first diff / reading the disk", first / 1e3 / took, 0.05)
    forget(box, "d1", "d2")


def walk(top):
    count = 0
    for folder, dirs, files in os.walk(top):
        for name in dirs + files:
            os.lstat(os.path.join(folder, name))
            count += 1
    return count


def walks(box):
    """On the same image, frozen when it was taken."""
    job(box, "many", f"mkdir -p /many && cd /many && for i in $(seq {FILES}); do echo $i > name-$i; done; sync")
    take(box, "t")
    image = os.path.join(POOL, "snapshots", read(f"snapshots/{box}/t/id").decode().strip(), "disk.raw")
    counts = []
    ours = note("files/: a walk with lstat of everything", timed(lambda _: counts.append(walk(f"{SPACE}/snapshots/{box}/t/files")), 3), "ms", 1e3)
    print(f"  {counts[0]} objects")
    begin = time.perf_counter()
    subprocess.run(["debugfs", "-R", "ls -p /many", image], check=True, capture_output=True)
    note("debugfs: ls -p of the directory of most of them", [time.perf_counter() - begin], "ms", 1e3)
    if not shutil.which("fuse2fs"):
        print("  fuse2fs is not installed")
    else:
        where = os.path.join(TESTTMP, "fuse2fs")
        os.makedirs(where)
        subprocess.run(["fuse2fs", "-o", "ro,norecovery,fakeroot", image, where], check=True, capture_output=True)
        try:
            theirs = note("fuse2fs: the same walk", timed(lambda _: walk(where), 3), "ms", 1e3)
            ratio("files/ / fuse2fs", ours / theirs)
        finally:
            subprocess.run(["umount", where], check=True)
    forget(box, "t")


def snapshots():
    with sandbox("disk-1G", "1G") as small, sandbox("disk-100G", "100G") as big:
        begin = time.perf_counter()
        job(big, "fill", f"dd if=/dev/zero of=/bulk bs=1M count={WRITTEN // MIB} conv=fsync 2>/dev/null")
        print(f"  {WRITTEN / (1 << 30):.1f} GiB written to the disk of 100 GiB in {time.perf_counter() - begin:.0f} s", flush=True)
        latency(small, big)
        stalls(small)
        diff(big)
        walks(small)
