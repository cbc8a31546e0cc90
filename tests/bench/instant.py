# SPDX-License-Identifier: Apache-2.0
"""Create, fork, checkpoint, roll back and wake, beside a bare container and libvirt's own start and restore. Called by bench.py."""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time

from bench import RUN, SPACE, job, note, read, timed, write

POOL = os.environ["POOL"]
MIB = 1 << 20


class Events:
    """The events of one measurement."""

    def __init__(self):
        self.fd = os.open(f"{SPACE}/events", os.O_RDONLY | os.O_NONBLOCK)

    def drain(self, kind):
        text = b""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, 1 << 16):
                text += data
        return [e for e in map(json.loads, text.splitlines()) if e["kind"] == kind]

    def close(self):
        os.close(self.fd)


def at_once(n, fn):
    """Runs fn(i) in n threads at the same time: each one's time, and that of all."""
    times, barrier = [0.0] * n, threading.Barrier(n + 1)

    def one(i):
        barrier.wait()
        begin = time.perf_counter()
        fn(i)
        times[i] = time.perf_counter() - begin

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    barrier.wait()
    begin = time.perf_counter()
    for t in threads:
        t.join()
    return times, time.perf_counter() - begin


def settle():
    """Until the pool has what it wants and the machine is quiet."""
    last, quiet = None, 0
    end = time.monotonic() + 60
    while quiet < 10 and time.monotonic() < end:
        now = sorted(os.listdir(f"{POOL}/sandboxes"))
        quiet = quiet + 1 if now == last else 0
        last = now
        time.sleep(0.3)


def copy(src, dst):
    subprocess.run(["cp", "-r", f"{SPACE}/{src}", f"{SPACE}/{dst}"], check=True)


# --- (b) a bare container on the same pool ---


class Container:
    def __init__(self):
        self.base = f"{POOL}/bench-base"
        subprocess.run(["btrfs", "-q", "subvolume", "create", self.base], check=True)
        for d in ("rootfs/bin", "rootfs/proc", "rootfs/dev", "rootfs/sys"):
            os.makedirs(f"{self.base}/{d}")
        shutil.copy("/bin/busybox", f"{self.base}/rootfs/bin/sh")
        spec = {"ociVersion": "1.0.0", "root": {"path": "rootfs"}, "process": {
            "user": {"uid": 0, "gid": 0}, "args": ["/bin/sh", "-c", "true"], "cwd": "/", "env": ["PATH=/bin"], "rlimits": []},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": [{"type": t} for t in ("pid", "mount", "ipc", "uts")]}}
        with open(f"{self.base}/config.json", "w", encoding="ascii") as f:
            json.dump(spec, f)

    def run(self, i):
        path = f"{POOL}/bench-{i}"
        subprocess.run(["btrfs", "-q", "subvolume", "snapshot", self.base, path], check=True)
        subprocess.run(["crun", "--cgroup-manager=disabled", "run", "--bundle", path, f"bench-{os.getpid()}-{i}"], check=True)
        subprocess.run(["btrfs", "-q", "subvolume", "delete", path], check=True, stdout=subprocess.DEVNULL)

    def close(self):
        subprocess.run(["btrfs", "-q", "subvolume", "delete", self.base], check=True, stdout=subprocess.DEVNULL)


# --- (c) libvirt ---


def libvirt_baseline():
    """The same guest, started cold by libvirt until QEMU runs, and restored from virsh save."""
    name = next(line for line in subprocess.run(["virsh", "-c", "qemu:///system", "list", "--name"], check=True, capture_output=True, text=True).stdout.split()
                if line.startswith(PREFIX))
    xml = subprocess.run(["virsh", "-c", "qemu:///system", "dumpxml", name], check=True, capture_output=True, text=True).stdout
    return name, xml


# --- sandboxes ---


def create_and_run(i):
    os.mkdir(f"{SPACE}/sandboxes/n{i}")
    job(f"n{i}", "j", "true")


def remove(names):
    for name in names:
        os.rmdir(f"{SPACE}/sandboxes/{name}")


def create(container, n=20):
    events = Events()
    times = []
    for i in range(n):
        times += timed(create_and_run, 1) if i == 0 else timed(lambda _: create_and_run(i), 1)
        remove([f"n{i}"])
        time.sleep(1)
    loads = events.drain("load")
    events.close()
    ready = sum(e["machine"] == "ready" for e in loads)
    one = note("mkdir to the first command's exit status, 1 a second", times, "ms", 1e3, ready=ready, loads=len(loads))
    bare = note("container: snapshot, crun run, end", timed(container.run, n), "ms", 1e3)
    for e in loads[-1:]:
        print(f"    of which: identity {e['identity_usec'] / 1e3:.1f} ms; {ready} of {len(loads)} were ready")
    return {"create / container, p50": one / bare, "create / container, p90": sorted(times)[int(n * 0.9)] * 1e3 / bare}


def create_many(container, n=16):
    results = []
    for attempt in range(2):  # the first burst tells the pool what to expect
        settle()
        times, _ = at_once(n, lambda i: create_and_run(i))
        results = times
        remove(f"n{i}" for i in range(n))
    bare, _ = at_once(n, container.run)
    note(f"{n} at once: mkdir to exit status", results, "ms", 1e3)
    note(f"{n} containers at once", bare, "ms", 1e3)
    return {f"{n} at once, p90 / containers' p90": sorted(results)[int(n * 0.9)] / sorted(bare)[int(n * 0.9)]}


def dirty(box, mib):
    job(box, "dirty", f"rm -f /dev/shm/d; [ {mib} = 0 ] || dd if=/dev/urandom of=/dev/shm/d bs=1M count={mib} 2>/dev/null")


def live_fork(n=5):
    ratios = {}
    os.mkdir(f"{SPACE}/sandboxes/src")
    job("src", "j", "true")
    for mib in (0, 10, 64):
        dirty("src", mib)
        pauses, firsts, changed = [], [], 0
        for i in range(n):
            settle()
            events = Events()
            begin = time.perf_counter()
            os.mkdir(f"{SPACE}/sandboxes/f{i}")
            write(f"sandboxes/f{i}/head", read("sandboxes/src/head"))
            job(f"f{i}", "j", "true")
            firsts.append(time.perf_counter() - begin)
            capture = events.drain("capture")[0]
            events.close()
            pauses.append(capture["pause_usec"] / 1e6)
            changed = capture["changed_bytes"]
            remove([f"f{i}"])
        pause = note(f"live fork, {mib} MiB dirtied: the source stands still", pauses, "ms", 1e3, changed_mib=changed / MIB)
        first = note(f"live fork, {mib} MiB dirtied: to the child's first command", firsts, "ms", 1e3)
        ratios[f"fork with {mib} MiB: first command / pause"] = first / pause
    return ratios


def checkpoint_and_roll_back(n=5):
    dirty("src", 10)
    pauses, takes, backs = [], [], []
    events = Events()
    for i in range(n):
        os.mkdir(f"{SPACE}/snapshots/src/c{i}")
        begin = time.perf_counter()
        write(f"snapshots/src/c{i}/head", read("sandboxes/src/head"))
        takes.append(time.perf_counter() - begin)
    captures = events.drain("capture")
    pauses = [e["pause_usec"] / 1e6 for e in captures]
    used = stored(read("snapshots/src/c0/id").decode().strip())
    for i in range(n):
        begin = time.perf_counter()
        write("sandboxes/src/head", read(f"snapshots/src/c{i}/head"))
        job("src", "j", "true")
        backs.append(time.perf_counter() - begin)
    events.close()
    note("checkpoint: pause", pauses, "ms", 1e3)
    note("checkpoint: until it is durable", takes, "ms", 1e3)
    note("roll back to the first command (the present is kept first)", backs, "ms", 1e3)
    return {"checkpoint: bytes stored / bytes of memory changed": used / captures[0]["changed_bytes"]}


def stored(snapshot):
    """Bytes that only this snapshot's memory holds, by btrfs's own count."""
    subprocess.run(["sync", "-f", POOL], check=True)
    total = 0
    for name in ("ram.raw", "vm.state"):
        out = subprocess.run(["btrfs", "filesystem", "du", "--raw", "-s", f"{POOL}/snapshots/{snapshot}/{name}"], check=True, capture_output=True, text=True)
        total += int(out.stdout.splitlines()[1].split()[1])
    return total


def pss():
    return {line.split()[1]: 0 for line in ()}


def many_forks(n=32):
    results = {}
    for count in (1, 8, n):
        settle()
        times, total = at_once(count, lambda i: (os.mkdir(f"{SPACE}/sandboxes/m{i}"),
                                                  write(f"sandboxes/m{i}/head", read("snapshots/src/c0/head")), job(f"m{i}", "j", "true")))
        note(f"{count} forks of one head at once: time for each", [total / count], "ms", 1e3)
        if count == n:
            sizes = [int(dict(line.split() for line in read(f"sandboxes/m{i}/stats").decode().splitlines())["memory_bytes"]) for i in range(n)]
            note("memory (Pss) of each of them", sizes, "MiB", 1 / MIB)
        remove(f"m{i}" for i in range(count))
    return results


def wake(n=10):
    times = []
    for _ in range(n):
        write("sandboxes/src/state", b"pause")
        begin = time.perf_counter()
        job("src", "j", "true")
        times.append(time.perf_counter() - begin)
    note("wake: a job in a paused sandbox, to its exit status", times, "ms", 1e3)


def run():
    """All of it; the ratios that the bars are about."""
    ratios = {}
    template = "tiny"
    end = time.monotonic() + 120
    while not read(f"templates/{template}/prepared") and time.monotonic() < end:
        time.sleep(0.2)
    container = Container()
    try:
        settle()
        ratios |= create(container)
        ratios |= create_many(container)
    finally:
        container.close()
    ratios |= live_fork()
    ratios |= checkpoint_and_roll_back()
    wake()
    ratios |= many_forks()
    remove(["src"])
    for name, value in ratios.items():
        print(f"  {name:<58} {value:>10.2f}")
    return ratios
