# SPDX-License-Identifier: Apache-2.0
"""Create, fork, checkpoint, roll back and wake, beside a bare container and libvirt's own start and restore. Called by bench.py."""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import threading
import time

from guest_vm import CMDLINE, Vm
from measure import MIB, RUN, SPACE, job, note, ratio, read, timed, write

POOL = os.path.join(os.path.dirname(RUN), "pool")
GUEST = os.path.join(os.path.dirname(RUN), "guest")


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
    """Until the pool makes nothing more."""
    quiet, end = 0, time.monotonic() + 120
    while quiet < 10 and time.monotonic() < end:
        busy = [line for line in read("metrics").decode().splitlines()
                if line.startswith(('space_pool_machines{state="starting"}', "space_operations ", "space_deletes_queued ")) and not line.endswith(" 0")]
        quiet = 0 if busy else quiet + 1
        time.sleep(0.3)


# --- (b) a bare container on the same pool ---


def leave_hybrid_cgroups():
    """crun refuses a host whose cgroups are half version 1 and half 2. We see no version 2 from here on: in a mount namespace of our own."""
    if os.path.ismount("/sys/fs/cgroup/unified"):
        if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) < 0:  # CLONE_NEWNS
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["umount", "/sys/fs/cgroup/unified"], check=True)


class Container:
    def __init__(self):
        leave_hybrid_cgroups()
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

DOMAIN = """<domain type='qemu'><name>{name}</name><memory unit='MiB'>128</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type><kernel>{guest}/vmlinuz</kernel><initrd>{guest}/initrd</initrd><cmdline>{cmdline} root=/dev/vda</cmdline></os>
<features><acpi/><apic/></features><cpu mode='custom' match='exact' check='none'><model fallback='forbid'>Nehalem</model></cpu>
<on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</on_crash><devices>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{disk}'/><target dev='vda' bus='virtio'/></disk>
<channel type='unix'><source mode='bind' path='{port}'/><target type='virtio' name='space.0'/></channel>
<controller type='usb' model='none'/><memballoon model='none'/></devices><seclabel type='none'/></domain>"""


def virsh(*args):
    subprocess.run(["virsh", "-q", "-c", "qemu:///system", *args], check=True, stdout=subprocess.DEVNULL)


def hello(port):
    """Until the agent echoes."""
    while True:
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(port)
            Vm.hello(s, 60)
            return
        except (FileNotFoundError, ConnectionError):
            time.sleep(0.005)
        finally:
            s.close()


def libvirt_baseline():
    """The same guest without us: a cold start, and virsh restore of what virsh save wrote; each until the agent answers."""
    where = os.path.join(os.environ["TESTTMP"], "libvirt")
    os.makedirs(where)
    os.chmod(where, 0o777)
    name, port, saved = f"bench-{os.getpid()}", f"{where}/port", f"{where}/saved"
    template = next(t for t in os.listdir(f"{POOL}/templates") if not os.path.exists(f"{POOL}/templates/{t}/ram.raw"))
    subprocess.run(["cp", "--reflink=auto", "--sparse=always", f"{POOL}/templates/{template}/disk.raw", f"{POOL}/bench-disk"], check=True)
    os.chmod(f"{POOL}/bench-disk", 0o666)
    with open(f"{where}/domain.xml", "w", encoding="ascii") as f:
        f.write(DOMAIN.format(name=name, guest=GUEST, cmdline=CMDLINE, disk=f"{POOL}/bench-disk", port=port))

    def start(*command):
        begin = time.perf_counter()
        virsh(*command)
        hello(port)
        return time.perf_counter() - begin

    try:
        note("libvirt: cold start of the guest, to its agent", [start("create", f"{where}/domain.xml")], "ms", 1e3)
        times = []
        for _ in range(3):
            virsh("save", name, saved)
            times.append(start("restore", saved))
        note("libvirt: virsh restore of the guest, to its agent", times, "ms", 1e3)
    finally:
        subprocess.run(["virsh", "-q", "-c", "qemu:///system", "destroy", name], check=False, capture_output=True)
        os.unlink(f"{POOL}/bench-disk")


# --- sandboxes ---


def create_and_run(i):
    os.mkdir(f"{SPACE}/sandboxes/n{i}")
    job(f"n{i}", "j", "true")


def remove(names):
    for name in names:
        os.rmdir(f"{SPACE}/sandboxes/{name}")


def create(container, n=20):
    events, times = Events(), []
    for i in range(n):
        times += timed(lambda _: create_and_run(i), 1)
        remove([f"n{i}"])
        time.sleep(1)
    loads = events.drain("load")
    events.close()
    ready = sum(e["machine"] == "ready" for e in loads)
    ours = note("mkdir to the first command's exit status, 1 a second", times, "ms", 1e3, ready=ready, loads=len(loads))
    bare = note("container: snapshot, crun run, end", timed(container.run, n), "ms", 1e3)
    print(f"    {ready} of {len(loads)} were ready; of the time {loads[-1]['identity_usec'] / 1e3:.1f} ms were for the identity")
    ratio("create / container, p50", ours / bare)
    ratio("create / container, p90", sorted(times)[int(n * 0.9)] * 1e3 / bare)


def create_many(container, n=16):
    for _ in range(2):  # the first burst tells the pool what to expect
        settle()
        times, _ = at_once(n, create_and_run)
        remove(f"n{i}" for i in range(n))
    bare, _ = at_once(n, container.run)
    note(f"{n} at once: mkdir to exit status", times, "ms", 1e3)
    note(f"{n} containers at once", bare, "ms", 1e3)
    ratio(f"{n} at once, p90 / containers' p90", sorted(times)[int(n * 0.9)] / sorted(bare)[int(n * 0.9)])


def dirty(box, mib):
    """A process of the guest holds so much memory that it has filled; the one before ends."""
    name = f"{SPACE}/proc/{box}/dirty"
    if os.path.exists(name):
        os.rmdir(name)
    if not mib:
        return
    os.mkdir(name)
    write(f"proc/{box}/dirty/cmd", f"dd if=/dev/urandom bs={mib}M count=1 2>/dev/null | {{ read -n 1 x; echo filled; sleep 10000; }}".encode())
    with open(f"{name}/stdout", "rb", buffering=0) as f:
        assert f.read(7) == b"filled\n"


def live_fork(n=5):
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
        ratio(f"fork with {mib} MiB: first command / pause", first / pause)


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
    ratio("checkpoint: bytes stored / bytes of memory changed", used / captures[0]["changed_bytes"])


def stored(snapshot):
    """Bytes that only this snapshot's memory holds, by btrfs's own count."""
    subprocess.run(["sync", "-f", POOL], check=True)
    total = 0
    for name in ("ram.raw", "vm.state"):
        out = subprocess.run(["btrfs", "filesystem", "du", "--raw", "-s", f"{POOL}/snapshots/{snapshot}/{name}"], check=True, capture_output=True, text=True)
        total += int(out.stdout.splitlines()[1].split()[1])
    return total


@contextlib.contextmanager
def without_pool():
    """Nothing waits for anybody meanwhile: each fork starts a QEMU of its own."""
    config, service = os.path.join(os.path.dirname(RUN), "space.conf"), os.path.join(os.path.dirname(RUN), "sv/hostd")
    with open(config, encoding="utf-8") as f:
        before = f.read()

    def take(text):
        with open(config, "w", encoding="utf-8") as f:
            f.write(text)
        subprocess.run(["sv", "-w", "30", "restart", service], check=True, stdout=subprocess.DEVNULL)
        prepared()

    take("".join(line for line in before.splitlines(True) if not line.startswith("pool_max")) + "pool_max = 0\n")
    try:
        yield
    finally:
        take(before)


def memory_of(names):
    return [int(dict(line.split() for line in read(f"sandboxes/{name}/stats").decode().splitlines())["memory_bytes"]) for name in names]


def fork_at_once(count):
    """Time for each, until it runs; nothing is run in it."""

    def fork(i):
        os.mkdir(f"{SPACE}/sandboxes/m{i}")
        write(f"sandboxes/m{i}/head", read("snapshots/src/c0/head"))

    settle()
    events = Events()
    _, total = at_once(count, fork)
    came = {e["machine"] for e in events.drain("load")}
    events.close()
    assert came == {"new"}, came
    return total / count


def many_forks(n=32):
    """No command is run in them at first: that is another 250 ms of an emulator's time, whoever starts it."""
    with without_pool():
        each = {}
        for count, times in ((1, 7), (8, 3), (n, 1)):
            samples = []
            for _ in range(times):
                samples.append(fork_at_once(count))
                names = [f"m{i}" for i in range(count)]
                if count < n:
                    remove(names)
            each[count] = note(f"{count} forks of one head at once, no machine waiting: time for each", samples, "ms", 1e3)
        settle()
        note("memory (Pss) of each of them, idle", memory_of(names), "MiB", 1 / MIB)
        for name in names:
            job(name, "j", "true")
        note("memory (Pss) of each of them, after a command", memory_of(names), "MiB", 1 / MIB)
        remove(names)
        ratio("8 forks at once / one, time for each", each[8] / each[1])
        ratio(f"{n} forks at once / one, time for each", each[n] / each[1])


def wake(n=10):
    times = []
    for _ in range(n):
        write("sandboxes/src/state", b"pause")
        begin = time.perf_counter()
        job("src", "j", "true")
        times.append(time.perf_counter() - begin)
    note("wake: a job in a paused sandbox, to its exit status", times, "ms", 1e3)


def prepared():
    """Waits for the template's head, and for the pool."""
    end = time.monotonic() + 120
    while not read("templates/tiny/prepared") and time.monotonic() < end:
        time.sleep(0.2)
    settle()


def creating():
    prepared()
    container = Container()
    try:
        create(container)
        create_many(container)
    finally:
        container.close()
    libvirt_baseline()


def forking():
    prepared()
    os.mkdir(f"{SPACE}/sandboxes/src")
    job("src", "j", "true")
    live_fork()
    checkpoint_and_roll_back()
    wake()
    remove(["src"])


def forks():
    prepared()
    os.mkdir(f"{SPACE}/sandboxes/src")
    job("src", "j", "true")
    os.mkdir(f"{SPACE}/snapshots/src/c0")
    write("snapshots/src/c0/head", read("sandboxes/src/head"))
    many_forks()
    remove(["src"])
