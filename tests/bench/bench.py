# SPDX-License-Identifier: Apache-2.0
"""What tests/bench/run measures, through the mount. Standard library only."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
import p9  # noqa: E402
from guest_vm import Vm  # noqa: E402

import instant
import restore
import snapshots
import volumes
from measure import BULK, MIB, RUN, SPACE, job, note, ratio, read, rows, timed, write



@contextlib.contextmanager
def hello_fs():
    """The simplest FUSE file system there is: the path of its one file."""
    at = os.path.join(os.environ["TESTTMP"], "hello")
    os.makedirs(at)
    server = subprocess.Popen([os.path.join(os.environ["BUILD"], "tests/hello-fuse"), at])
    try:
        end = time.monotonic() + 10
        while not os.path.exists(f"{at}/state") and time.monotonic() < end:
            time.sleep(0.01)
        yield f"{at}/state"
    finally:
        server.terminate()
        server.wait()


def control_files():
    def cat(name):
        fd = os.open(name, os.O_RDONLY)
        assert os.read(fd, 64) == b"running\n"
        os.close(fd)

    note("stat sandboxes/b/state", timed(lambda _: os.stat(f"{SPACE}/sandboxes/b/state"), 2000), "us", 1e6)
    ours = note("cat sandboxes/b/state (look up, open, read, close)", timed(lambda _: cat(f"{SPACE}/sandboxes/b/state"), 2000), "us", 1e6)
    with hello_fs() as name:
        base = note("the same in the simplest FUSE file system", timed(lambda _: cat(name), 2000), "us", 1e6)
    ratio("cat / simplest", ours / base)
    handle = os.open(f"{SPACE}/sandboxes/b/state", os.O_RDONLY)
    note("read of an open control file", timed(lambda _: os.pread(handle, 64, 0), 2000), "us", 1e6)
    os.close(handle)


def many_sandboxes():
    """1,000 sandboxes that are held by an open #copy, so that none of them boots; they go when the connection closes."""
    client = p9.Client.unix(f"{RUN}/hostd.sock")
    root = client.attach()
    dirs = root.walk("sandboxes")
    for i in range(1000):
        dirs.mkdir(f"many{i}")
        dirs.walk(f"many{i}", "#copy").open(p9.O_WRONLY)

    def listing(_):
        assert len(os.listdir(f"{SPACE}/sandboxes")) >= 1001

    note("readdir of sandboxes/ with 1,000 entries", timed(listing, 20), "ms", 1e3)
    client.close()
    end = time.monotonic() + 60
    while len(os.listdir(f"{SPACE}/sandboxes")) > 100 and time.monotonic() < end:
        time.sleep(0.1)


def timed_rate(act):
    begin = time.perf_counter()
    act()
    return BULK / 1e6 / (time.perf_counter() - begin)


class CopyLoop:
    """dd in a guest of the same machine type, over a virtio-serial port of its own: what a plain copy loop reaches, in MB/s."""

    FIND = "for d in /sys/class/virtio-ports/*; do [ $(cat $d/name) = raw ] && p=/dev/${d##*/}; done; "

    def __init__(self, vm):
        _, self.control = vm.control()
        self.port = socket.socket(socket.AF_UNIX)
        self.port.connect(f"{vm.dir}/raw")
        self.jobs = 0

    def spawn(self, command):
        self.jobs += 1
        self.control.walk("spawn").open(p9.O_WRONLY).write(b"".join(
            x.encode() + b"\0" for x in (f"id={self.jobs}", "arg=/bin/sh", "arg=-c", "arg=" + self.FIND + command)))

    def ended(self):
        said = self.control.walk("jobs", str(self.jobs), "wait").open().read(timeout=120)
        assert said.startswith(b"exit 0 "), said

    def out(self, source):
        """The guest's `source` through the port to the host."""
        self.spawn(f"echo 3 > /proc/sys/vm/drop_caches; dd if={source} of=$p bs=65536 count={BULK // 65536}")
        left = BULK - len(self.port.recv(1))  # its start is not the port's

        def receive():
            nonlocal left
            while left:
                left -= len(self.port.recv(MIB))

        rate = timed_rate(receive)
        self.ended()
        return rate

    def into(self, target, options=""):
        """From the host through the port into the guest's `target`, until the loop ends."""
        self.spawn(f"rm -f /root/into; exec 3<>$p; dd bs=1 count=1 of=/dev/null <&3; echo >&3; dd <&3 of={target} bs=65536 iflag=fullblock count={BULK // 65536} {options}")
        self.port.sendall(b"x")
        assert self.port.recv(1) == b"\n"  # it reads

        def send():
            self.port.sendall(bytes(BULK))
            self.ended()

        return timed_rate(send)


def copy_loops():
    """Rates of copy loops over the port alone, and of those that do what root/ does: from the host into a file, and from a file to the host."""
    with Vm(size="192M", extra=["-chardev", "socket,id=raw,path={dir}/raw,server=on,wait=off", "-device", "virtserialport,chardev=raw,name=raw"]) as vm:
        loop = CopyLoop(vm)
        rates = {"in": [], "out": [], "in to file": [], "in to file, fsync": [], "out of file": []}
        for _ in range(3):
            rates["out"].append(loop.out("/dev/zero"))
            rates["in"].append(loop.into("/dev/null"))
            rates["in to file"].append(loop.into("/root/into"))
            rates["in to file, fsync"].append(loop.into("/root/into", "conv=fsync"))
            rates["out of file"].append(loop.out("/root/into"))
        return rates


def files():
    path = f"{SPACE}/root/b/root/bulk"
    data = os.urandom(MIB)
    wrote, synced, got = [], [], []
    for _ in range(5):
        begin = time.perf_counter()
        with open(path, "wb", buffering=0) as f:
            for _ in range(BULK // MIB):
                f.write(data)
            wrote.append(BULK / 1e6 / (time.perf_counter() - begin))
            os.fsync(f.fileno())
        synced.append(BULK / 1e6 / (time.perf_counter() - begin))
        begin = time.perf_counter()
        with open(path, "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # nothing from the host's cache
            while f.read(MIB):
                pass
        got.append(BULK / 1e6 / (time.perf_counter() - begin))
    os.unlink(path)
    loop = copy_loops()
    w = note("root/: sequential write of 64 MiB", wrote, "MB/s")
    ws = note("root/: the same with fsync", synced, "MB/s")
    r = note("root/: sequential read of 64 MiB", got, "MB/s")
    base = {name: note(f"copy loop over a port, {name}", rates, "MB/s") for name, rates in loop.items()}
    for name, value in (("root/ write / copy loop into a file", w / base["in to file"]),
                        ("root/ write with fsync / the same with fsync", ws / base["in to file, fsync"]),
                        ("root/ read / copy loop out of a file", r / base["out of file"])):
        rows.append({"name": name, "value": value, "at_least": 0.5})
        print(f"  {name:<58} {value:>10.2f}            (at least 0.50)")
    ratio("root/ write / copy loop that drops the bytes", w / base["in"])
    ratio("root/ read / copy loop of zeros", r / base["out"])


def job_output():
    def run(i):
        os.mkdir(f"{SPACE}/proc/b/out{i}")
        write(f"proc/b/out{i}/cmd", b"exec dd if=/dev/zero bs=65536 count=512 2>/dev/null")
        with open(f"{SPACE}/proc/b/out{i}/stdout", "rb", buffering=0) as f:
            left = 512 * 65536 - len(f.read(1))
            begin = time.perf_counter()
            while data := f.read(MIB):
                left -= len(data)
        assert left == 0, left
        rate = (512 * 65536) / 1e6 / (time.perf_counter() - begin)
        os.rmdir(f"{SPACE}/proc/b/out{i}")
        return rate

    note("a job's output, 32 MiB", [run(i) for i in range(3)], "MB/s")


def small(i):
    with open(f"{SPACE}/root/b/root/small{i}", "wb") as f:
        f.write(b"x" * 100)


def cold():
    def boot(_):
        write("sandboxes/b/state", b"start")
        job("b", "j", "true")

    times = []
    for _ in range(5):
        write("sandboxes/b/state", b"kill")
        times += timed(boot, 1)
    note("cold boot (start) to first command's exit status", times, "ms", 1e3)


def commands():
    note("exec round trip (mkdir, cmd, wait, rmdir)", timed(lambda i: job("b", f"j{i}", "true"), 100), "ms", 1e3)
    note("the same by spacectl exec", timed(lambda _: subprocess.run(["spacectl", "exec", "b", "--", "true"], check=True), 20), "ms", 1e3)
    job_output()


def control():
    note("mkdir and rmdir of a sandbox, each", timed(lambda i: (os.rmdir if i % 2 else os.mkdir)(f"{SPACE}/sandboxes/m{i // 2}"), 40), "ms", 1e3)
    control_files()
    many_sandboxes()


def root():
    note("root/: stat of a file", timed(lambda _: os.stat(f"{SPACE}/root/b/etc/passwd"), 300), "ms", 1e3)
    made = note("root/: a new file of 100 bytes", timed(small, 200), "ms", 1e3)
    rows.append({"name": "root/: new files of 100 bytes", "value": 1e3 / made, "unit": "1/s"})
    print(f"  {'root/: new files of 100 bytes':<58} {1e3 / made:>10.0f}            1/s")
    files()


SECTIONS = {"root": root, "commands": commands, "control": control, "cold": cold, "create": instant.creating, "fork": instant.forking, "forks": instant.forks,
            "snapshots": snapshots.snapshots, "volumes": volumes.volumes, "restore": restore.restoring}


def main():
    chosen = sys.argv[2:] or list(SECTIONS)
    if not set(chosen) <= set(SECTIONS):
        sys.exit(f"the sections are {' '.join(SECTIONS)}")
    load, began = os.getloadavg(), time.monotonic()
    print(f"  load {load[0]:.1f} {load[1]:.1f} {load[2]:.1f} at the start, {os.cpu_count()} processors\n  {'':<58} {'p50':>10} {'p90':>10}")
    os.mkdir(f"{SPACE}/sandboxes/b")
    job("b", "warm", "true")
    for name in chosen:
        SECTIONS[name]()
    os.rmdir(f"{SPACE}/sandboxes/b")
    with open(sys.argv[1], "w", encoding="ascii") as f:
        json.dump({"rows": rows, "cpus": os.cpu_count(), "kernel": os.uname().release, "load_before": load, "load_after": os.getloadavg()}, f, indent=1)
    print(f"  load {os.getloadavg()[0]:.1f} at the end, after {time.monotonic() - began:.0f} s")


main()
