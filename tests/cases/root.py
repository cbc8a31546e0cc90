#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
"""root/NAME/ as a file system: what POSIX programs expect of it, seen from the host and from the guest."""

import fcntl
import mmap
import os
import stat
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

NAMES = [b"with space", b" leading and trailing ", b"new\nline", b"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", b"not \xff\xfe utf-8", b"-dash", b"*?[x]", b"'\"`$(x)",
         b"tab\t", b"back\\slash", b"#id", b"a:b", b"~", b"...", b"x" * 255, "\u00e4".encode() * 127, b"\x01\x7f"]


def box(made=[]):
    if not made:
        made.append(Box())
        made[0].out("mkdir /t")
    return made[0]


def at(*parts):
    return box().root("t", *parts)


def put(data, *parts):
    with open(at(*parts), "wb") as f:
        f.write(data)


def get(*parts):
    with open(at(*parts), "rb") as f:
        return f.read()


@check
def any_name_works_in_both_directions():
    os.mkdir(at("names"))
    directory = os.fsencode(at("names"))
    for name in NAMES:
        with open(os.path.join(directory, name), "wb") as f:
            f.write(name)
    eq(sorted(NAMES), sorted(os.listdir(directory)), "names seen by the host")
    job = Job(box(), "cd /t/names; for f in * .*; do [ -f \"$f\" ] && printf '%s\\0' \"$f\"; done")
    eq(sorted(NAMES), sorted(read_bytes("proc", box().name, job.name, "stdout").split(b"\0")[:-1]), "names seen by the guest")
    for name in NAMES:
        with open(os.path.join(directory, name), "rb") as f:
            eq(name, f.read(), "content")
        os.rename(os.path.join(directory, name), os.path.join(directory, b"renamed"))
        os.rename(os.path.join(directory, b"renamed"), os.path.join(directory, name))
        os.unlink(os.path.join(directory, name))
    eq([], os.listdir(directory))
    refused(errno.ENAMETOOLONG, open, os.path.join(directory, b"x" * 256), "wb")
    os.rmdir(directory)


@check
def files_directories_modes_owners_and_times():
    put(b"data", "file")
    os.chmod(at("file"), 0o640)
    os.chown(at("file"), 1000, 1001)
    os.utime(at("file"), ns=(1234567890123456789, 1500000000987654321))
    st = os.stat(at("file"))
    eq((0o640, 1000, 1001, 4, 1234567890123456789, 1500000000987654321),
       (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid, st.st_size, st.st_atime_ns, st.st_mtime_ns), "stat by the host")
    eq("640 1000 1001 4 1500000000", box().out("stat -c '%a %u %g %s %Y' /t/file"), "stat by the guest")
    os.mkdir(at("d"), 0o711)
    eq(0o711, stat.S_IMODE(os.stat(at("d")).st_mode))
    refused(errno.ENOTEMPTY, os.rmdir, at())
    refused(errno.EEXIST, os.mkdir, at("d"))
    refused(errno.ENOTDIR, os.listdir, at("file"))
    refused(errno.EISDIR, open, at("d"), "wb")
    refused(errno.ENOENT, os.stat, at("nothing"))
    refused(errno.ENOTDIR, os.stat, at("file", "x"))
    refused(errno.EISDIR, os.unlink, at("d"))
    os.rmdir(at("d"))
    os.unlink(at("file"))


@check
def reads_writes_append_truncate_and_exclusive_create():
    put(b"0123456789", "f")
    with open(at("f"), "r+b") as f:
        f.seek(3)
        f.write(b"abc")
        f.flush()
        eq(b"012abc6789", get("f"))
        f.truncate(5)
    eq(b"012ab", get("f"))
    with open(at("f"), "ab") as f:
        f.write(b"END")
    eq(b"012abEND", get("f"))
    os.truncate(at("f"), 12)
    eq(b"012abEND\0\0\0\0", get("f"))
    refused(errno.EEXIST, os.open, at("f"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    fd = os.open(at("f"), os.O_RDONLY)
    refused(errno.EBADF, os.write, fd, b"x")
    os.close(fd)
    eq("012abEND", box().out("tr -d '\\0' < /t/f"))
    fd = os.open(at("f"), os.O_RDWR)  # unlinked but open
    os.unlink(at("f"))
    os.pwrite(fd, b"still", 0)
    eq(b"stillEND", os.pread(fd, 8, 0)[:5] + b"END")
    os.fsync(fd)
    os.close(fd)


@check
def what_the_guest_changes_the_host_sees_and_the_other_way():
    put(b"from the host", "shared")
    eq("from the host", box().out("cat /t/shared"))
    eq(b"from the host", get("shared"))  # now in the host's page cache
    box().out("echo -n FROM THE GUEST > /t/shared")
    eq(b"FROM THE GUEST", get("shared"), "content after the guest wrote")
    box().out("echo -n SAME THE GUEST > /t/shared")  # the same size
    eq(b"SAME THE GUEST", get("shared"), "content after the guest wrote the same size")
    box().out("rm /t/shared; mkdir /t/shared")
    eq(True, stat.S_ISDIR(os.stat(at("shared")).st_mode), "a file that became a directory")
    os.rmdir(at("shared"))
    eq("gone", box().out("test -e /t/shared || echo gone"))


@check
def rename_within_and_between():
    put(b"a", "a")
    put(b"b", "b")
    os.rename(at("a"), at("b"))
    eq(b"a", get("b"))
    os.mkdir(at("d1"))
    os.rename(at("b"), at("d1", "c"))
    eq(b"a", get("d1", "c"))
    os.mkdir(at("d2"))
    os.rename(at("d1"), at("d2", "d1"))
    eq(b"a", get("d2", "d1", "c"))
    refused(errno.EINVAL, os.rename, at("d2"), at("d2", "d1", "x"))
    refused(errno.EXDEV, os.rename, at("d2"), os.path.join(TESTTMP, "x"))
    refused(errno.EXDEV, os.rename, at("d2"), path("sandboxes", "x"))
    os.unlink(at("d2", "d1", "c"))
    os.rmdir(at("d2", "d1"))
    os.rmdir(at("d2"))


@check
def attributes_are_set_while_others_open_and_close():
    put(b"x", "busy")
    os.mkdir(at("busy-directory"))
    over = threading.Event()

    def opens():
        while not over.is_set():
            os.close(os.open(at("busy"), os.O_RDWR))
            os.listdir(at("busy-directory"))

    opener = threading.Thread(target=opens)
    opener.start()
    try:
        for i in range(20):
            for name in ("busy", "busy-directory"):
                os.chmod(at(name), 0o700 + i % 8)
                eq(0o700 + i % 8, stat.S_IMODE(os.stat(at(name)).st_mode), f"mode of {name}")
    finally:
        over.set()
        opener.join()


@check
def hard_links_are_one_file():
    put(b"one", "l1")
    os.link(at("l1"), at("l2"))
    eq((2, os.stat(at("l1")).st_ino), (os.stat(at("l2")).st_nlink, os.stat(at("l2")).st_ino))
    with open(at("l2"), "ab") as f:
        f.write(b"two")
    eq(b"onetwo", get("l1"))
    eq("2", box().out("stat -c %h /t/l1"), "links seen by the guest")
    os.unlink(at("l1"))
    eq((1, b"onetwo"), (os.stat(at("l2")).st_nlink, get("l2")))
    os.unlink(at("l2"))


@check
def sparse_files_stay_sparse():
    with open(at("sparse"), "wb") as f:
        f.write(b"start")
        f.seek(1 << 30)
        f.write(b"end")
    st = os.stat(at("sparse"))
    eq((1 << 30) + 3, st.st_size)
    at_most(1 << 20, st.st_blocks * 512, "bytes of blocks seen by the host")
    at_most(1024, int(box().out("du -k /t/sparse | cut -f 1")), "KiB of blocks in the guest")
    with open(at("sparse"), "rb") as f:
        f.seek((1 << 30) - 4)
        eq(b"\0\0\0\0end", f.read())
    os.unlink(at("sparse"))


@check
def special_nodes_can_be_made_and_devices_not_opened():
    os.mkfifo(at("fifo"))
    eq(True, stat.S_ISFIFO(os.stat(at("fifo")).st_mode))
    root = p9().walk("root", box().name, "t", "fifo")  # the kernel opens FIFOs by itself; other clients must not reach the guest's
    refused(errno.ENXIO, root.open)
    box().out("mknod /t/mem c 1 1; mknod /t/disk b 254 0")
    for name in ["mem", "disk"]:
        refused((errno.ENXIO, errno.EACCES), os.open, at(name), os.O_RDONLY)
    for name in ["fifo", "mem", "disk"]:
        os.unlink(at(name))


@check
def extended_attributes():
    put(b"", "x")
    os.setxattr(at("x"), "user.colour", b"blue")
    os.setxattr(at("x"), "user.binary", bytes(range(256)))
    eq(b"blue", os.getxattr(at("x"), "user.colour"))
    eq(bytes(range(256)), os.getxattr(at("x"), "user.binary"))
    eq(["user.binary", "user.colour"], sorted(os.listxattr(at("x"))))
    os.setxattr(at("x"), "user.colour", b"red", os.XATTR_REPLACE)
    refused(errno.EEXIST, os.setxattr, at("x"), "user.colour", b"green", os.XATTR_CREATE)
    refused(errno.ENODATA, os.setxattr, at("x"), "user.none", b"green", os.XATTR_REPLACE)
    refused(errno.ENODATA, os.getxattr, at("x"), "user.none")
    eq(b"red", os.getxattr(at("x"), "user.colour"))
    os.removexattr(at("x"), "user.binary")
    eq(["user.colour"], os.listxattr(at("x")))
    os.setxattr(at("x"), "trusted.t", b"1")
    eq(b"1", os.getxattr(at("x"), "trusted.t"))
    os.unlink(at("x"))


@check
def private_mappings_read_what_the_file_holds():
    data = os.urandom(3 << 20)
    put(data, "m")
    fd = os.open(at("m"), os.O_RDONLY)
    with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as m:
        eq(True, m[:] == data, "the mapping equals the file")
        eq(data[-10:], m[-10:])
    with mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as m:
        eq(True, m[4096:8192] == data[4096:8192], "a shared read-only mapping")
    os.close(fd)
    box().out("echo CHANGED > /t/m")
    fd = os.open(at("m"), os.O_RDONLY)
    with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as m:
        eq(b"CHANGED\n", m[:], "a new mapping after the guest wrote")
    os.close(fd)
    os.unlink(at("m"))


@check
def locks_exclude_each_other():
    put(b"x" * 100, "lock")

    def try_lock(function, *args):
        fd = os.open(at("lock"), os.O_RDWR)
        try:
            function(fd, *args)
            return "locked"
        except OSError as e:
            return errno_name(e.errno)
        finally:
            os.close(fd)

    fd = os.open(at("lock"), os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
    other = lambda *args: Child(try_lock, *args).answer(20)[1]
    eq("EAGAIN", other(fcntl.lockf, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 25), "an overlapping POSIX lock")
    eq("locked", other(fcntl.lockf, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 40), "a POSIX lock elsewhere in the file")
    waiting = Child(try_lock, fcntl.lockf, fcntl.LOCK_EX, 10, 20)
    waiting.blocked()
    fcntl.lockf(fd, fcntl.LOCK_UN, 10, 20)
    eq(("value", "locked"), waiting.answer(35), "a waiting lock after the release")
    fcntl.flock(fd, fcntl.LOCK_EX)
    eq("EAGAIN", other(fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB), "flock")
    waiting = Child(try_lock, fcntl.flock, fcntl.LOCK_EX)
    waiting.blocked()
    began = time.monotonic()
    waiting.kill(signal.SIGINT)
    wait_until(waiting.ended, 5, "the interrupted waiter ends")
    at_most(1.0, time.monotonic() - began, "seconds until SIGINT ended the waiter")
    fcntl.flock(fd, fcntl.LOCK_UN)
    eq("locked", other(fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB), "flock after the release")
    os.close(fd)
    os.unlink(at("lock"))


@check
def statfs_is_the_guests():
    v = os.statvfs(at())
    total = int(box().out("df -k / | awk 'NR == 2 { print $2 }'"))
    at_most(1, abs(v.f_blocks * v.f_frsize // 1024 - total), "KiB between statvfs and df in the guest")
    eq(255, v.f_namemax)


@check(limit=180)
def ten_thousand_files_are_listed_exactly():
    os.mkdir(at("many"))
    box().out("cd /t/many; seq -f 'file with a longer name %05g' 1 10000 2>/dev/null | tr '\\n' '\\0' | xargs -0 touch || "
              "for i in $(seq 10000); do : > \"file $i\"; done")
    want = sorted(box().out("ls /t/many").split("\n"))
    eq(10000, len(want), "files that the guest sees")
    for _ in range(2):
        got = os.listdir(at("many"))
        eq(10000, len(got), "entries")
        eq(want, sorted(got), "names")
    with os.scandir(at("many")) as entries:  # files come while it is read: what was there is listed exactly once
        names = [next(entries).name for _ in range(10)]
        box().out("cd /t/many; for i in $(seq 100); do : > new$i; done")
        names += [e.name for e in entries]
    eq(len(names), len(set(names)), "names of a slow listing, each once")
    eq(set(), set(want) - set(names), "names that a slow listing missed")
    box().out("rm -r /t/many")


def files_server():
    """The pid of the guest's files server."""
    return int(box().out("for p in /proc/[0-9]*; do [ \"$(readlink $p/exe)\" = /init ] && ls -l $p/fd 2>/dev/null | grep -q vport.*p2 && echo ${p#/proc/}; done; true"))


@check
def the_end_of_the_guests_files_server_is_noticed_at_once():
    put(b"here", "end")
    for name in "one", "two":
        pid, fd = files_server(), os.open(at("end"), os.O_RDWR)
        box().out(f"kill -STOP {pid}")
        asking = Child(os.pwrite, fd, b"h", 0)
        asking.blocked()
        began = time.monotonic()
        box().out(f"kill -KILL {pid}")
        eq(("errno", errno.EIO), asking.answer(10), "what was asked of the server that died")
        at_most(2.0, time.monotonic() - began, "seconds until it was answered, with the job that killed the server")
        os.close(fd)
        began = time.monotonic()
        os.mkdir(at(name))
        eq(b"here", get("end"), "the next requests")
        at_most(3.0, time.monotonic() - began, "seconds that the next requests took")
        os.rmdir(at(name))
    os.unlink(at("end"))


main()
