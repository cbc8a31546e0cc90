# SPDX-License-Identifier: Apache-2.0
"""Uploads of a disk image by space-volumed beside restic and borg, each to a local repository. Called by bench.py; needs no instance. VOLUMES_GIB is the size of the image (default
4), VOLUMES_FROM are the folders whose files are in it (default /usr/bin); with VOLUMES_ALONE, space-volumed only."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../unit/volumed"))
from client import Daemon, ident  # noqa: E402

from measure import MIB, note, ratio  # noqa: E402

CHUNK = 65536
DISK = int(os.environ.get("VOLUMES_GIB") or 4) << 30
FROM = (os.environ.get("VOLUMES_FROM") or "/usr/bin").split()
CHANGED = 100 * MIB


def make_disk(path):
    """A file system with real files, in a sparse image as guests have. Returns its bytes."""
    with open(path, "wb") as f:
        f.truncate(DISK)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as tree:
        subprocess.run(["cp", "-a", *FROM, tree], check=True)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, path], check=True)
    return os.stat(path).st_blocks * 512


def change(path, seed):
    """Half of it in runs of 1 MiB, half in pages of 4 KiB that lie in chunks of their own. Returns ranges, and the bytes of changed chunks."""
    rng, ranges, chunks = random.Random(seed), [], set()
    with open(path, "r+b") as f:
        for at in rng.sample(range(0, DISK, MIB), CHANGED // 2 // MIB):
            f.seek(at)
            f.write(rng.randbytes(MIB))
            ranges.append((at, MIB, 1))
            chunks.update(range(at // CHUNK, (at + MIB) // CHUNK))
        for index in rng.sample(range(DISK // CHUNK), CHANGED // 2 // CHUNK):
            if index not in chunks:
                f.seek(index * CHUNK + 8192)
                f.write(rng.randbytes(4096))
                ranges.append((index * CHUNK + 8192, 4096, 1))
                chunks.add(index)
    os.sync()
    return sorted(ranges), len(chunks) * CHUNK


def cached(path):
    with open(path, "rb") as f:
        while f.read(16 * MIB):
            pass


def cpu_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def by_volumed(program, disk):
    with Daemon(program) as d:
        client, first = d.client(), ident()
        cached(disk)
        pid, begin, used = d.process.pid, time.perf_counter(), cpu_of(d.process.pid)
        client.upload("bench", first, disk, limit=600)
        times = [time.perf_counter() - begin]
        used = [cpu_of(pid) - used]
        ranges, changed = change(disk, 1)
        begin, before = time.perf_counter(), cpu_of(pid)
        answer = client.upload("bench", ident(), disk, ranges=ranges, parent=("bench", first), limit=600)
        times.append(time.perf_counter() - begin)
        used.append(cpu_of(pid) - before)
        ratio("incremental upload: read / changed chunks (bar 1.1)", answer.read / changed)
        ratio("incremental upload: stored / changed chunks (bar 1.3)", answer.stored / changed)
        ratio("space-volumed: peak memory in MiB (bar 256)", d.memory() / 1024)
        out = f"{d.folder}/out"
        begin = time.perf_counter()
        client.download("bench", first, out, limit=600)
        note("space-volumed: download of the first", [time.perf_counter() - begin], "s")
        os.unlink(out)
    return times, used


def by_command(disk, seed, env, setup, backup):
    def run(command):
        before, begin = os.times(), time.perf_counter()
        subprocess.run(command, env={**os.environ, **env}, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = os.times()
        return time.perf_counter() - begin, after.children_user + after.children_system - before.children_user - before.children_system

    run(setup)
    cached(disk)
    one = run(backup(1))
    change(disk, seed)
    two = run(backup(2))
    return (one[0], two[0]), (one[1], two[1])


def volumes():
    program = os.path.join(os.environ["BUILD"], "hostd/volumed/space-volumed")
    folder = tempfile.mkdtemp(prefix="space-bench-", dir="/var/tmp")
    disk = f"{folder}/disk.raw"
    try:
        data = make_disk(disk)
        ratio("disk image: MiB that are no hole", data / MIB)
        ours, used = by_volumed(program, disk)
        others = {} if os.environ.get("VOLUMES_ALONE") else {
            "restic": by_command(disk, 2, {"RESTIC_PASSWORD": "x", "RESTIC_REPOSITORY": f"{folder}/restic"}, ["restic", "init"],
                                 lambda _: ["restic", "backup", "--no-cache", disk]),
            "borg": by_command(disk, 3, {"BORG_PASSPHRASE": "x", "BORG_REPO": f"{folder}/borg", "BORG_BASE_DIR": f"{folder}/base"}, ["borg", "init", "-e", "repokey"],
                               lambda n: ["borg", "create", f"::{n}", disk]),
        }
        for i, name in enumerate(("first upload", "incremental upload, 100 MiB changed")):
            note(f"space-volumed: {name}", [ours[i]], "s", cores=used[i] / ours[i])
            print(f"    {used[i] / ours[i]:.2f} processors used")
            for other, (times, cpu) in others.items():
                note(f"{other}: {name}", [times[i]], "s", cores=cpu[i] / times[i])
                ratio(f"{name}: times as fast as {other} (bar 3)", times[i] / ours[i])
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    volumes()
