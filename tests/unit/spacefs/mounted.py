#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""spacefs over a small 9P server that has the manners of space-hostd (treed.h): everything that needs no virtual machine.

mounted.py TREED SPACEFS [PATTERN...]   as root; exits 77 where nothing can be mounted
"""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

if len(sys.argv) < 3:
    sys.exit(__doc__)
TREED, SPACEFS = (os.path.abspath(p) for p in sys.argv[1:3]) # some checks change directory
WORK = DATA = MOUNT = A = G = ""
_libc = ctypes.CDLL(None, use_errno=True)
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2


# --- the instance ---


class Instance:
    def __init__(self):
        self.server = self.mount = None

    def start_server(self):
        self.server = subprocess.Popen([TREED, DATA, WORK + "/run/hostd.sock"])

    def kill_server(self):
        self.server.kill()
        self.server.wait()

    def start(self):
        self.start_server()
        self.mount = subprocess.Popen([SPACEFS, "--config", WORK + "/space.conf"])
        until(lambda: self.mount.poll() is not None or answers(), 10, "the mount answers")

    def stop(self):
        for process in (self.mount, self.server):
            if process and process.poll() is None:
                process.terminate()
        if self.mount:
            eq(0, self.mount.wait(10), "exit status of spacefs after SIGTERM")
        subprocess.run(["umount", "-l", MOUNT], stderr=subprocess.DEVNULL)


instance = Instance()


def set_up():
    global WORK, DATA, MOUNT, A, G
    WORK = tempfile.mkdtemp(prefix="spacefs-")
    os.chmod(WORK, 0o755)
    DATA, MOUNT = WORK + "/data", WORK + "/mnt"
    A, G = MOUNT + "/sandboxes/a", MOUNT + "/root/a"
    for name in ("run", "data", "mnt", *("data/" + t for t in ("sandboxes", "templates", "snapshots", "root", "proc"))):
        os.mkdir(f"{WORK}/{name}")
    put(DATA + "/version", "1\n")
    put(DATA + "/events", "")
    put(WORK + "/space.conf", f"run = {WORK}/run\nmount = {MOUNT}\nuser = nobody\ngroup = nogroup\n")
    instance.start()
    os.mkdir(A)
    os.mkdir(MOUNT + "/sandboxes/m")


def answers():
    try:
        return os.stat(MOUNT + "/version").st_size == 2
    except OSError:
        return False


# --- helpers ---


class Failed(Exception):
    pass


def eq(want, got, what="value"):
    if want != got:
        raise Failed(f"{what}: want {want!r}, got {got!r}")


def at_most(limit, got, what):
    if got > limit:
        raise Failed(f"{what}: want at most {limit}, got {got}")


def until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def fails(code, function, *args):
    try:
        result = function(*args)
    except OSError as e:
        eq(errno.errorcode[code], errno.errorcode[e.errno], f"{function.__name__}{args!r}")
        return
    raise Failed(f"{function.__name__}{args!r}: want {errno.errorcode[code]}, got {result!r}")


def put(path, data, mode="w"):
    with open(path, mode + ("b" if isinstance(data, bytes) else "")) as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def seconds(function, *args):
    began = time.monotonic()
    function(*args)
    return time.monotonic() - began


def write_once(path, data, flags=0):
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | flags)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


READ, WRITE, FLOCK, STATX = 0, 1, 73, 332  # x86-64


def blocked(process, call):
    """Waits until the process waits for the mount in this system call."""

    def sleeps():
        with open(f"/proc/{process.pid}/wchan") as wchan, open(f"/proc/{process.pid}/syscall") as number:
            return "request_wait" in wchan.read() and number.read().split()[0] == str(call)

    until(sleeps, 5, f"process {process.pid} waits in the mount")


def shell(line):
    return subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(process, number):
    process.send_signal(number)
    began = time.monotonic()
    process.wait(5)
    at_most(1, time.monotonic() - began, f"seconds after {number.name}")


def new_sandbox():
    new_sandbox.count = getattr(new_sandbox, "count", 0) + 1
    return f"{MOUNT}/sandboxes/x{new_sandbox.count}"


# --- waiting ---


def a_hanging_write_holds_up_nobody():
    hung = [shell(f"echo hang > {A}/state") for _ in range(20)]
    for process in hung:
        blocked(process, WRITE)
    at_most(0.5, seconds(get, A + "/state"), "seconds of reading state")
    at_most(0.5, seconds(os.mkdir, new_sandbox()), "seconds of another mkdir")
    at_most(0.5, seconds(write_once, A + "/state", b"hang", os.O_NONBLOCK), "seconds of O_NONBLOCK")
    ends(hung[0], signal.SIGINT)
    ends(hung[1], signal.SIGKILL)
    at_most(0.5, seconds(write_once, A + "/state", b"release"), "seconds of a second verb")
    for process in hung[2:]:
        eq(0, process.wait(5), "a released write")


def a_blocked_read_can_be_interrupted():
    put(DATA + "/sandboxes/m/mute", "")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen(["cat", MOUNT + "/sandboxes/m/mute"])
        blocked(process, READ)
        ends(process, number)


def poll_on_state_and_events():
    state = os.open(A + "/state", os.O_RDONLY)
    poll = select.poll()
    poll.register(state, select.POLLIN)
    eq(1, len(poll.poll(2000)), "unread")
    os.read(state, 100)
    eq([], poll.poll(100), "read")
    other = new_sandbox()
    os.mkdir(other)
    write_once(other + "/state", b"running\n")
    eq([], poll.poll(200), "another object's change")
    write_once(A + "/state", b"paused\n")
    eq(1, len(poll.poll(2000)), "changed")
    eq(b"paused\n", os.pread(state, 100, 0), "text after the change")
    os.close(state)
    events = os.open(MOUNT + "/events", os.O_RDONLY | os.O_NONBLOCK)
    while select.select([events], [], [], 0.1)[0]:
        os.read(events, 65536)
    fails(errno.EAGAIN, os.read, events, 100)
    write_once(A + "/state", b"running\n")
    eq([events], select.select([events], [], [], 2)[0])
    eq(1, os.read(events, 65536).count(b"\n"), "lines for one change")
    os.close(events)


def what_has_happened_is_read_without_waiting():
    """Also by a spacefs that is held up again and again and has other things to do, so that several answers wait for it at once."""
    done = threading.Event()

    def ask():
        while not done.is_set():
            get(A + "/state")

    def hold_up():
        while not done.is_set():
            for number in (signal.SIGSTOP, signal.SIGCONT):
                instance.mount.send_signal(number)
                time.sleep(random.random() / 1000)

    write_once(A + "/state", b"paused\n")
    threads = [threading.Thread(target=t) for t in (hold_up, ask, ask)]
    for thread in threads:
        thread.start()
    try:
        for i in range(1000):
            events = os.open(MOUNT + "/events", os.O_RDONLY | os.O_NONBLOCK)
            if not os.read(events, 65536):  # EAGAIN
                raise Failed(f"the end of events, in round {i}")
            os.close(events)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def streams_block_and_poll():
    os.makedirs(DATA + "/proc/a/j")
    put(DATA + "/proc/a/j/stdout", "one\n")
    out = os.open(MOUNT + "/proc/a/j/stdout", os.O_RDONLY)
    eq(b"one\n", os.read(out, 100))
    eq([], select.select([out], [], [], 0.1)[0])
    put(DATA + "/proc/a/j/stdout", "two\n", "a")
    write_once(A + "/state", b"running\n")  # the server looks again
    eq([out], select.select([out], [], [], 2)[0])
    eq(b"two\n", os.read(out, 100))
    os.set_blocking(out, False)
    fails(errno.EAGAIN, os.read, out, 100)
    eq(b"one\ntwo\n", os.pread(out, 100, 0))
    os.close(out)


# --- the guest's files ---


def files_and_their_attributes():
    os.chdir(G)
    fd = os.open("f", os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o640)
    os.write(fd, b"hello world")
    eq(b"world", os.pread(fd, 5, 6))
    os.close(fd)
    fails(errno.EEXIST, os.open, "f", os.O_CREAT | os.O_EXCL)
    eq(0o100640, os.stat("f").st_mode)
    os.truncate("f", 5)
    eq(b"hello", get("f"))
    os.truncate("f", 8192)
    eq(8192, os.stat("f").st_size)
    os.chmod("f", 0o4755)
    os.chown("f", 1234, 5678)
    os.utime("f", ns=(123456789123456789, 987654321987654321))
    s = os.stat("f")
    eq((1234, 5678, 123456789123456789, 987654321987654321), (s.st_uid, s.st_gid, s.st_atime_ns, s.st_mtime_ns))
    os.utime("f")
    at_most(5, abs(os.stat("f").st_mtime - time.time()), "seconds that utime(now) is off")
    for i in range(3):
        put("log", f"{i}\n", "a")
    eq(b"0\n1\n2\n", get("log"))
    eq((True, False), (os.access("f", os.W_OK), os.access("log", os.X_OK)))


def rename2(a, b, flags):
    if _libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


def names_links_and_nodes():
    os.chdir(G)
    put("g", "g")
    put("h", "h")
    fails(errno.EEXIST, rename2, "g", "h", RENAME_NOREPLACE)
    fails(errno.EINVAL, rename2, "g", "h", RENAME_EXCHANGE)
    rename2("g", "g2", RENAME_NOREPLACE)
    os.rename("g2", "h")
    eq(b"g", get("h"))
    os.link("h", "h2")
    eq((2, os.stat("h").st_ino), (os.stat("h2").st_nlink, os.stat("h2").st_ino))
    os.symlink("h", "l")
    eq(("h", b"g"), (os.readlink("l"), get("l")))
    os.mkfifo("p")
    os.mknod("dev", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    eq(os.makedev(1, 3), os.stat("dev").st_rdev)
    fails(errno.EACCES, os.open, "dev", os.O_RDONLY)
    for name in ("a b", "new\nline", "é€", "x" * 255):
        put(name, name)
        eq(name, get(name).decode())
        eq(True, name in os.listdir("."), f"{name!r} is listed")
        os.unlink(name)
    fails(errno.ENAMETOOLONG, open, "x" * 256, "w")


def what_is_open_outlives_its_name():
    os.chdir(G)
    fd = os.open("u", os.O_CREAT | os.O_RDWR)
    os.unlink("u")
    os.write(fd, b"abc")
    os.fchmod(fd, 0o600)
    os.ftruncate(fd, 2)
    eq((2, b"ab"), (os.fstat(fd).st_size, os.pread(fd, 9, 0)))
    os.fsync(fd)
    os.close(fd)
    os.mkdir("d")
    fd = os.open("d/y", os.O_CREAT | os.O_RDWR)
    os.rename("d", "e")
    os.write(fd, b"1")
    eq((1, ["y"]), (os.stat("e/y").st_size, os.listdir("e")))
    os.close(fd)
    fails(errno.ENOTEMPTY, os.rmdir, "e")


def xattrs():
    os.chdir(G)
    put("x", "")
    os.setxattr("x", "user.a", b"1")
    eq((b"1", ["user.a"]), (os.getxattr("x", "user.a"), os.listxattr("x")))
    fails(errno.EEXIST, os.setxattr, "x", "user.a", b"2", os.XATTR_CREATE)
    os.setxattr("x", "user.empty", b"")
    eq(b"", os.getxattr("x", "user.empty"))
    os.removexattr("x", "user.a")
    fails(errno.ENODATA, os.getxattr, "x", "user.a")
    fails(errno.ENODATA, os.removexattr, "x", "user.a")
    large = os.urandom(3000)
    os.setxattr("x", "user.large", large)
    eq(large, os.getxattr("x", "user.large"))


def what_a_guest_says_of_holes_is_judged():
    """Every place in a file is behind the one asked for, and a program that goes from data to hole comes to an end."""
    os.chdir(G)
    put("holes", "x" * 20000)
    fd = os.open("holes", os.O_RDONLY)

    def says(kind, offset, answer):
        os.setxattr(DATA + "/root/a/holes", f"user.space.seek.{kind}.{offset}", answer)

    eq((5, 20000), (os.lseek(fd, 5, os.SEEK_DATA), os.lseek(fd, 5, os.SEEK_HOLE)), "of a file whose server knows nothing of holes")
    fails(errno.ENXIO, os.lseek, fd, 20000, os.SEEK_DATA)
    says("data", 0, b"4096")
    says("hole", 4096, b"8192")
    eq((4096, 8192), (os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 4096, os.SEEK_HOLE)))
    for answer in (b"", b"x", b"-1", b"4096 ", b"99999999999999999999", b"9223372036854775808", b"4095"):
        for kind, whence in (("data", os.SEEK_DATA), ("hole", os.SEEK_HOLE)):
            says(kind, 4097, answer)
            fails(errno.EIO, os.lseek, fd, 4097, whence)
    for at in range(0, 20000, 1000):
        says("data", at, str(at).encode())
        says("hole", at, str(at).encode())
    at = turns = 0
    while turns < 100:
        try:
            at = os.lseek(fd, os.lseek(fd, at, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as e:
            eq(errno.ENXIO, e.errno)
            break
        turns += 1
    at_most(20, turns, "turns of a program that copies what is no hole")
    os.close(fd)


def mappings_and_caches_show_what_is_there():
    os.chdir(G)
    data = os.urandom(3 << 20)
    put("m", data)
    with open("m", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        eq(True, m[:] == data, "mapped data is the file's")
    with open("m", "r+b") as f:
        fails(errno.ENODEV, mmap.mmap, f.fileno(), 0)
    put("c", "one")
    with open("c") as reader:
        eq("one", reader.read())
        put("c", "two!")
        reader.seek(0)
        eq("two!", reader.read())
        put(DATA + "/root/a/c", "by the guest")
        eq(b"by the guest", get("c"))
    fd = os.open("c", os.O_RDWR)
    os.pwrite(fd, b"BY", 0)
    eq(b"BY the guest", get("c"))
    os.close(fd)


def ten_thousand_names_are_listed_exactly():
    os.mkdir(G + "/many")
    for i in range(10000):
        put(f"{DATA}/root/a/many/{i:05}", "")
    eq([f"{i:05}" for i in range(10000)], sorted(os.listdir(G + "/many")))


TRY = """
import errno, fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.{0}(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("had")
except OSError as e:
    print(errno.errorcode[e.errno])
"""


def try_lock(path, kind):
    return subprocess.run([sys.executable, "-c", TRY.format(kind), path], capture_output=True, text=True).stdout.strip()


def locks():
    path = G + "/lock"
    put(path, "")
    one, two = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    fcntl.lockf(one, fcntl.LOCK_EX)
    eq("EAGAIN", try_lock(path, "lockf"))
    fcntl.lockf(two, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the same owner
    os.close(two)
    eq("had", try_lock(path, "lockf"), "after the owner closed a descriptor")
    two = os.open(path, os.O_RDWR)
    fcntl.flock(one, fcntl.LOCK_EX)
    fails(errno.EAGAIN, fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    waiting = shell(f"exec flock {path} true")
    blocked(waiting, FLOCK)
    fcntl.flock(one, fcntl.LOCK_UN)
    eq(0, waiting.wait(5), "whoever waited for the lock")
    fcntl.flock(one, fcntl.LOCK_EX)
    waiting = shell(f"exec flock {path} true")
    blocked(waiting, FLOCK)
    ends(waiting, signal.SIGTERM)
    os.close(one)
    os.close(two)


def spacefs_is_confined():
    with open(f"/proc/{instance.mount.pid}/status") as f:
        status = dict(line.split(":\t") for line in f.read().splitlines() if ":\t" in line)
    eq("2", status["Seccomp"], "Seccomp (2: a filter)")
    eq("1", status["NoNewPrivs"], "NoNewPrivs")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        eq(0, int(status[name], 16), name)
    eq("", status["Groups"].strip(), "Groups")
    eq(1, len(set(status["Uid"].split())), "different user ids")
    eq(False, "0" in status["Uid"].split() + status["Gid"].split(), "root among its ids")
    with open(f"/proc/{instance.mount.pid}/limits") as f:
        core = next(line for line in f if line.startswith("Max core file size"))
    eq(["0", "0"], core.split()[4:6], "limits of a core dump")


# --- the copy gesture (with real sandboxes: tests/cases/fuse_copy.py) ---


def sources():
    for name, text in (("head", "sandbox/a1@1\n"), ("memory", "512M\n"), ("labels", "k=v\n"), ("id", "source\n")):
        put(f"{DATA}/sandboxes/a/{name}", text)


def real(x, name):
    return get(x.replace(MOUNT, DATA) + "/" + name).decode()


def copies_collect_and_commit():
    sources()
    python = [sys.executable, "-c", "import shutil, sys; shutil.copytree(*sys.argv[1:])"]
    for command in (["cp", "-r"], ["cp", "-a"], ["busybox", "cp", "-r"], python):
        if not shutil.which(command[0]):
            continue
        x = new_sandbox()
        result = subprocess.run(command + [A, x], capture_output=True, text=True)
        eq((0, ""), (result.returncode, result.stderr), f"{command[:2]}")
        eq(["sandbox/a1@1\n", "512M\n", "k=v\n", "id\n", "running\n"], [real(x, f) for f in ("head", "memory", "labels", "id", "state")])


def a_failing_commit_is_told_at_close():
    sources()
    put(DATA + "/sandboxes/a/head", "stale\n")
    result = subprocess.run(["cp", "-r", A, new_sandbox()], capture_output=True, text=True)
    eq(1, result.returncode, "status of cp")
    eq(True, os.strerror(errno.ESTALE) in result.stderr, f"ESTALE in {result.stderr!r}")


def a_copied_image_is_not_read():
    d = DATA + "/snapshots/a/s"
    os.makedirs(d)
    for name in ("id", "kind", "disk.raw", "head"):
        put(f"{d}/{name}", "snapshot/1\n")
    os.truncate(d + "/disk.raw", 64 << 30)
    x = new_sandbox()
    began = time.monotonic()
    result = subprocess.run(["cp", "-r", MOUNT + "/snapshots/a/s", x], capture_output=True, text=True)
    eq((0, ""), (result.returncode, result.stderr))
    at_most(3, time.monotonic() - began, "seconds for a copy beside an image of 64 GiB")
    eq("snapshot/1\n", real(x, "head"))
    eq(64 << 30, os.stat(MOUNT + "/snapshots/a/s/disk.raw").st_size, "its size for others")


def in_a_child(function, *args):
    """Its exit status: 0, or the errno that it failed with."""
    pid = os.fork()
    if pid == 0:
        try:
            function(*args)
            os._exit(0)
        except OSError as e:
            os._exit(e.errno)
        except BaseException:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def looking_at_what_one_made_is_no_copy():
    sources()

    def look(x):
        os.mkdir(x)
        with open(A + "/labels"):
            fails(errno.ENOENT, open, x + "/labels")  # it could be a copy

    def watch(x):
        os.mkdir(x)
        with open(A + "/state"), open(A + "/error"):
            eq("running\n", get(x + "/state").decode())

    for function in (look, watch):
        x = new_sandbox()
        eq(0, in_a_child(function, x), function.__name__)
        eq("running\n", get(x + "/state").decode(), f"state of what {function.__name__} left")


def many_threads_may_copy_state_first():
    sources()

    def copy(x):
        os.mkdir(x)
        names = ["state", "error"] + [n for n in os.listdir(A) if n not in ("state", "error")]
        held = [open(f"{A}/{n}", "rb") for n in names]
        for name, source in zip(names, held):
            fd = os.open(f"{x}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(fd, source.read())
            os.close(fd)

    x = new_sandbox()
    eq(0, in_a_child(copy, x))
    eq("sandbox/a1@1\n", real(x, "head"))


def a_create_that_is_no_copy_opens_what_is_there():
    sources()

    def create(x, flags):
        os.mkdir(x)
        put(x.replace(MOUNT, DATA) + "/.touched", "")  # the server refuses to hold it
        with open(A + "/labels"):
            fd = os.open(x + "/labels", os.O_WRONLY | os.O_CREAT | flags)
            eq(4, os.write(fd, b"x=1\n"))
            os.close(fd)

    x = new_sandbox()
    eq(0, in_a_child(create, x, os.O_TRUNC))
    eq("x=1\n", real(x, "labels"))
    eq(errno.EEXIST, in_a_child(create, new_sandbox(), os.O_EXCL))


# --- reconnecting ---


def everything_goes_on_when_the_server_is_back():
    put(DATA + "/root/a/r", b"0123456789" * 1000000)  # by the guest: more than what is read ahead
    reader, directory = os.open(G + "/r", os.O_RDONLY), os.open(A, os.O_RDONLY)
    eq(b"01234", os.read(reader, 5))
    writer = os.open(G + "/w", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(writer, b"one ")
    hung = shell(f"echo hang > {A}/state")
    blocked(hung, WRITE)
    instance.kill_server()
    eq(True, hung.wait(5) != 0, "a failure of a writer whose write was in flight")
    back = threading.Timer(0.5, instance.start_server)
    back.start()
    eq(10000000, os.stat(G + "/r").st_size, "stat while it was away")
    eq(b"56789", os.read(reader, 5))
    os.write(writer, b"two")
    eq(b"one two", get(G + "/w"))
    os.rename(DATA + "/sandboxes/a", DATA + "/sandboxes/b")
    instance.kill_server()
    instance.start_server()
    with os.fdopen(os.open("id", os.O_RDONLY, dir_fd=directory)) as f:
        f.read()  # by its id, under another name
    os.rename(DATA + "/sandboxes/b", DATA + "/sandboxes/a")
    os.rename(DATA + "/root/a/w", DATA + "/root/a/r")
    instance.kill_server()
    instance.start_server()
    fails(errno.ESTALE, os.pread, reader, 5, 9000000)
    for fd in (reader, writer, directory):
        os.close(fd)


def without_a_server_calls_fail_in_five_seconds():
    state = os.open(A + "/state", os.O_RDONLY)
    os.read(state, 100)
    instance.kill_server()
    poll = select.poll()
    poll.register(state, select.POLLIN)
    polling = threading.Thread(target=lambda: poll.poll(5000))
    polling.start()
    process = subprocess.Popen(["stat", A], stdout=subprocess.DEVNULL)
    blocked(process, STATX)
    ends(process, signal.SIGINT)
    began = time.monotonic()
    fails(errno.EIO, os.stat, A)
    at_most(5, time.monotonic() - began, "seconds until EIO")
    polling.join()
    put(DATA + "/sandboxes/a/state", "stopped\n")
    put(DATA + "/events", "")  # space-hostd's events begin at their opening
    instance.start_server()
    until(answers, 5, "the mount answers again")
    eq(1, len(poll.poll(2000)), "a change that came when poll could not watch")
    eq(b"stopped\n", os.pread(state, 100, 0))
    os.close(state)


def nothing_sticks_under_load_and_signals():
    """Many processes, interrupted all the time: each of them must end."""
    children = []
    for seed in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                load(seed)
            finally:
                os._exit(0)
        children.append(pid)
    deadline = time.monotonic() + 15
    for pid in children:
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                raise Failed(f"process {pid} hangs")
            time.sleep(0.05)
    eq(None, instance.mount.poll(), "spacefs runs")


class Rung(Exception):
    pass


def ring(number, frame):
    raise Rung()


def load(seed):
    random.seed(seed)
    signal.signal(signal.SIGALRM, ring)
    end = time.monotonic() + 4
    while time.monotonic() < end:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.random() * 0.02, 0.02)
                one_operation(seed)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (Rung, OSError):
            pass


def one_operation(seed):
    path = f"{G}/load{seed}-{random.randrange(5)}"
    x = f"{MOUNT}/sandboxes/load{seed}"
    random.choice(
        [
            lambda: os.listdir(MOUNT + "/sandboxes"),
            lambda: get(A + "/labels"),
            lambda: get(MOUNT + "/sandboxes/m/mute"),
            lambda: get(MOUNT + "/events"),
            lambda: os.mkdir(x),
            lambda: os.rmdir(x),
            lambda: put(path, os.urandom(30000), "a"),
            lambda: get(path),
            lambda: os.unlink(path),
            lambda: os.rename(path, path + "r"),
            lambda: os.truncate(path, 10),
        ]
    )()


CHECKS = [
    spacefs_is_confined,
    a_hanging_write_holds_up_nobody,
    a_blocked_read_can_be_interrupted,
    poll_on_state_and_events,
    what_has_happened_is_read_without_waiting,
    streams_block_and_poll,
    files_and_their_attributes,
    names_links_and_nodes,
    what_is_open_outlives_its_name,
    xattrs,
    what_a_guest_says_of_holes_is_judged,
    mappings_and_caches_show_what_is_there,
    ten_thousand_names_are_listed_exactly,
    locks,
    copies_collect_and_commit,
    a_failing_commit_is_told_at_close,
    a_copied_image_is_not_read,
    looking_at_what_one_made_is_no_copy,
    many_threads_may_copy_state_first,
    a_create_that_is_no_copy_opens_what_is_there,
    everything_goes_on_when_the_server_is_back,
    without_a_server_calls_fail_in_five_seconds,
    nothing_sticks_under_load_and_signals,
]


def main():
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK):
        print("mounting needs root and /dev/fuse")
        return 77
    failed = 0
    chosen = [c for c in CHECKS if len(sys.argv) < 4 or any(p in c.__name__ for p in sys.argv[3:])]
    try:
        set_up()
        for check in chosen:
            began = time.monotonic()
            try:
                check()
                verdict = "ok"
            except (Failed, OSError, subprocess.TimeoutExpired) as e:
                failed += 1
                verdict = f"FAIL: {type(e).__name__}: {e}"
            os.chdir("/")
            print(f"{check.__name__} ({time.monotonic() - began:.1f} s): {verdict}", flush=True)
        eq(None, instance.mount.poll(), "exit status of spacefs, which should run")
    finally:
        os.chdir("/")
        instance.stop()
        shutil.rmtree(WORK, ignore_errors=True)
    return 1 if failed else 0


sys.exit(main())
