#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 900
"""snapshots/NAME/SNAP/files: the guest's file system as it was, to browse and to copy from, whatever the image holds."""

import fcntl
import filecmp
import os
import signal
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

ACL = bytes.fromhex("0200000001000700ffffffff02000600e803000004000500ffffffff10000700ffffffff20000000ffffffff")
MANY = 3000
state = {}


def snapshot(box, name):
    os.mkdir(path("snapshots", box.name, name))
    wait_until(lambda: line("snapshots", box.name, name, "state") == "ready", 60, "the snapshot")
    return path("snapshots", box.name, name, "files")


def fill(top):
    """Everything that a tree can hold, through root/NAME."""
    os.mkdir(top)
    with open(f"{top}/data", "wb") as f:
        f.write(os.urandom(3_000_001))
    with open(f"{top}/cold", "wb") as f:
        f.write(bytes(3_000_000))
    with open(f"{top}/sparse", "wb") as f:
        for at in (0, 5 << 20, (3 << 30) + 17):
            f.seek(at)
            f.write(b"island")
        f.truncate(4 << 30)
    with open(f"{top}/holes", "wb") as f:  # for programs that read holes, too
        f.seek(9 << 20)
        f.write(b"island")
        f.truncate(16 << 20)
    os.link(f"{top}/data", f"{top}/hard")
    os.symlink("data", f"{top}/inside")
    os.symlink("/etc/passwd", f"{top}/absolute")
    os.symlink("../../../../../../etc/passwd", f"{top}/climbing")
    os.mkfifo(f"{top}/fifo")
    os.mkdir(f"{top}/dir", 0o2750)
    for name, mode in (("a", 0o4755), ("b", 0o600), ("c", 0o444)):
        with open(f"{top}/dir/{name}", "w") as f:
            f.write(name)
        os.chown(f"{top}/dir/{name}", 70000, 1234)
        os.chmod(f"{top}/dir/{name}", mode)
    os.setxattr(f"{top}/dir/b", "user.colour", b"blue")
    os.setxattr(f"{top}/dir/b", "trusted.t", b"\0\1")
    os.setxattr(f"{top}/dir/b", "system.posix_acl_access", ACL)
    with open(os.fsencode(top) + b"/\xff\xfe odd\n", "w"):
        pass
    os.utime(f"{top}/data", ns=(1_000_000_007, 1_234_567_890_123_456_789))


def readers(snap=""):
    """Process ids of space-browse of this instance, or of one snapshot."""
    out, where = [], f"snapshots/{line('snapshots', state['box'].name, snap, 'id')}/" if snap else SPACE_DIR
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.path.realpath(f"/proc/{pid}/exe").removesuffix(" (deleted)").endswith("/space-browse") and os.stat(f"/proc/{pid}/fd/3").st_size >= 0 \
                    and where in os.readlink(f"/proc/{pid}/fd/3"):
                out.append(int(pid))
    return out


@check(limit=300)
def the_files_are_the_guests():
    box = state["box"] = Box()
    fill(box.root("root/t"))
    box.out(f"mkdir /root/many && cd /root/many && seq 0 {MANY - 1} | sed s/^/name-/ | xargs touch; sync")
    files = state["files"] = snapshot(box, "s")
    os.unlink(box.root("root/t/dir/a"))  # what is done afterwards does not show
    eq(True, stat.S_ISDIR(os.lstat(files).st_mode), "files is a directory")
    eq("a", open(f"{files}/root/t/dir/a").read(), "what was removed")
    with open(box.root("root/t/dir/a"), "w") as f:
        f.write("a")
    os.chown(box.root("root/t/dir/a"), 70000, 1234)
    os.chmod(box.root("root/t/dir/a"), 0o4755)
    for name in ("dir/a", "dir"):
        os.utime(box.root(f"root/t/{name}"), ns=(0, os.lstat(f"{files}/root/t/{name}").st_mtime_ns))
    eq(15, same_tree(box.root("root/t"), f"{files}/root/t", large=1 << 30), "objects")
    same_tree(box.root("etc"), f"{files}/etc")
    eq(sorted(f"name-{i}" for i in range(MANY)), sorted(os.listdir(f"{files}/root/many")), "names")
    os.stat(f"{files}/root/many/name-2777")
    refused(errno.ENOENT, os.stat, f"{files}/root/many/name-x")
    eq(os.lstat(f"{files}/root/t/data").st_ino, os.lstat(f"{files}/root/t/hard").st_ino, "inode of a hard link")


@check
def readers_begin_to_idle():
    """Those of two more snapshots: a file of `held` stays open. See the last check."""
    for name in ("held", "unused"):
        os.listdir(snapshot(state["box"], name))
        eq(1, len(readers(name)), f"processes of {name}")
    state["open"] = open(path("snapshots", state["box"].name, "held", "files/etc/passwd"))
    state["held"], state["since"] = readers("held"), time.monotonic()


@check
def holes_stay_holes():
    with open(f"{state['files']}/root/t/sparse", "rb") as f:
        at_most(1 << 20, os.fstat(f.fileno()).st_blocks * 512, "bytes on the disk")
        eq(b"island", os.pread(f.fileno(), 6, (3 << 30) + 17), "data")
        eq(bytes(4096), os.pread(f.fileno(), 4096, 1 << 30), "a hole")
        fd = f.fileno()
        for offset, data, hole in ((0, 0, 4096), (100, 100, 4096), (5000, 5 << 20, 5000), (5 << 20, 5 << 20, (5 << 20) + 4096), (1 << 30, 3 << 30, 1 << 30)):
            eq(data, os.lseek(fd, offset, os.SEEK_DATA), f"the next data from {offset} on")
            eq(hole, os.lseek(fd, offset, os.SEEK_HOLE), f"the next hole from {offset} on")
        refused(errno.ENXIO, os.lseek, fd, (3 << 30) + 4096, os.SEEK_DATA)
        refused(errno.ENXIO, os.lseek, fd, 4 << 30, os.SEEK_HOLE)
        eq(b"", os.pread(f.fileno(), 10, 4 << 30), "the end")


@check
def symlinks_do_not_lead_out():
    top = f"{state['files']}/root/t"
    real = os.path.realpath(state["files"])
    for name in ("absolute", "climbing"):
        eq(f"{real}/etc/passwd", os.path.realpath(f"{top}/{name}"), name)
    eq(b"/etc/passwd", os.getxattr(f"{top}/absolute", "security.space.target", follow_symlinks=False), "the raw target")
    eq("data", os.readlink(f"{top}/inside"), "a target that is safe")
    eq(os.path.realpath(path("snapshots", state["box"].name, "s")), os.path.realpath(f"{state['files']}/.."), "..")


@check
def nothing_can_be_changed():
    top = f"{state['files']}/root/t"
    refused(errno.EROFS, open, f"{top}/data", "r+")
    refused(errno.EROFS, open, f"{top}/new", "w")
    for call in ((os.mkdir, f"{top}/new"), (os.rmdir, f"{top}/dir"), (os.unlink, f"{top}/data"), (os.rename, f"{top}/data", f"{top}/new"),
                 (os.link, f"{top}/data", f"{top}/new"), (os.symlink, "x", f"{top}/new"), (os.chmod, f"{top}/data", 0), (os.truncate, f"{top}/data", 0),
                 (os.setxattr, f"{top}/data", "user.x", b"y"), (os.mkdir, f"{state['files']}/new")):
        refused(errno.EROFS, *call)
    with open(f"{top}/data", "rb") as f:
        fcntl.flock(f, fcntl.LOCK_SH)
        fcntl.lockf(f, fcntl.LOCK_SH, 10)
        refused(errno.EROFS, fcntl.flock, f, fcntl.LOCK_EX | fcntl.LOCK_NB)


@check
def it_is_not_listed_and_a_copy_does_not_go_down_there():
    eq(False, "files" in os.listdir(path("snapshots", state["box"].name, "s")), "listed")
    name = fresh_name()
    began = time.monotonic()
    subprocess.run(["cp", "-r", path("snapshots", state["box"].name, "s"), path("sandboxes", name)], check=True, timeout=60)
    at_most(20, time.monotonic() - began, "seconds that the copy took")
    eq(f"snapshot/{line('snapshots', state['box'].name, 's', 'id')}", line("sandboxes", name, "origin"), "origin")
    os.rmdir(path("sandboxes", name))


@check(limit=300)
def programs_copy_from_it():
    source, box = f"{state['files']}/root/t", state["box"]
    for name, command in (("rsync", ["rsync", "-aHAXS", "--exclude=/sparse", f"{source}/", f"{TESTTMP}/rsync"]),
                          ("tar", ["sh", "-c", f"mkdir {TESTTMP}/tar && tar -C {source} --xattrs --xattrs-include='*' --acls -Scf - . | tar -C {TESTTMP}/tar --xattrs --xattrs-include='*' --acls -Sxpf -"]),
                          ("cp", ["cp", "-a", "--sparse=always", source, f"{TESTTMP}/cp"])):
        began = time.monotonic()
        subprocess.run(command, check=True, timeout=200)
        copy = f"{TESTTMP}/{name}"
        for below in ("data", "hard", "dir", "dir/a", "dir/b", "dir/c", "inside"):
            eq(attributes(f"{source}/{below}"), attributes(f"{copy}/{below}"), f"{below} copied by {name}")
        eq(True, filecmp.cmp(f"{source}/data", f"{copy}/data", shallow=False), f"data copied by {name}")
        for sparse, size in (("holes", 16 << 20), ("sparse", 4 << 30)):
            if name == "rsync" and sparse == "sparse":  # it reads all of it
                continue
            eq(size, os.stat(f"{copy}/{sparse}").st_size, f"size of {sparse} copied by {name}")
            at_most(1 << 20, os.stat(f"{copy}/{sparse}").st_blocks * 512, f"room that {sparse} copied by {name} takes")
            at_most(10, time.monotonic() - began, f"seconds that {name} took")
    eq("", subprocess.run(["diff", "-r", "--no-dereference", f"{state['files']}/etc", box.root("etc")], capture_output=True, text=True, check=False).stdout, "diff")


def stretches(name):
    """[(begin, end)] of the data of a file."""
    out, at = [], 0
    with open(name, "rb") as f:
        while True:
            try:
                begin = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError as e:
                eq(errno.ENXIO, e.errno, f"errno behind the last data of {name}")
                return out
            at = os.lseek(f.fileno(), begin, os.SEEK_HOLE)
            out.append((begin, at))


def same_data(want, got, where):
    with open(want, "rb") as a, open(got, "rb") as b:
        eq(os.fstat(a.fileno()).st_size, os.fstat(b.fileno()).st_size, f"size of {got}")
        for begin, end in where:
            for at in range(begin, end, 1 << 20):
                n = min(1 << 20, end - at)
                if os.pread(a.fileno(), n, at) != os.pread(b.fileno(), n, at):
                    fail(f"{got} differs within {n} bytes from {at} on")


def room(name):
    """Bytes that it takes up, as said of the open file."""
    with open(name, "rb") as f:
        return os.fstat(f.fileno()).st_blocks * 512


@check
def images_show_their_holes_and_copies_cost_what_they_hold():
    box, top, took = state["box"], path("snapshots", state["box"].name, "full"), {}
    box.set("disk", "10G")
    os.mkdir(top)
    write(read("sandboxes", box.name, "head"), "snapshots", box.name, "full", "head")
    eq("full", line("snapshots", box.name, "full", "kind"), "kind")
    stored = os.path.join(config()["pool"], "snapshots", line("snapshots", box.name, "full", "id"))
    for name in ("disk.raw", "ram.raw"):
        where = stretches(f"{stored}/{name}")
        eq(where, stretches(f"{top}/{name}"), f"data of {name}")
        eq(room(f"{stored}/{name}"), room(f"{top}/{name}"), f"room that {name} takes")
        wait_until(lambda: os.stat(f"{top}/{name}").st_blocks * 512 == room(f"{stored}/{name}"), 30, f"st_blocks of {name} that is not open")
        for how, command in (("cp", ["cp", "--sparse=auto", f"{top}/{name}", f"{TESTTMP}/{name}"]),
                             ("tar", ["sh", "-c", f"tar -C {top} -Scf - {name} | tar -C {TESTTMP} -Sxf -"])):
            began = time.monotonic()
            subprocess.run(command, check=True, timeout=100)
            took[f"{name} by {how}"] = time.monotonic() - began
            same_data(f"{stored}/{name}", f"{TESTTMP}/{name}", where)
            at_most(room(f"{stored}/{name}") + (2 << 20), room(f"{TESTTMP}/{name}"), f"room that {name} copied by {how} takes")
            os.unlink(f"{TESTTMP}/{name}")
    print(f"  {room(f'{top}/disk.raw') >> 20} MiB in 10 GiB, {room(f'{top}/ram.raw') >> 20} MiB of memory: "
          + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in took.items()))
    for what, seconds in took.items():
        at_most(15, seconds, f"seconds for {what}")  # to read 10 GiB of zeros, or memory by tar's 512 bytes without a cache, takes longer
    os.rmdir(top)


def walk(top):
    """{path below top: (mode, uid, gid, size of files)} of everything."""
    out = {}

    def visit(directory, below):
        with os.scandir(directory) as entries:
            for e in entries:
                st = e.stat(follow_symlinks=False)
                out[below + os.fsencode(e.name)] = (st.st_mode, st.st_uid, st.st_gid, st.st_size if stat.S_ISREG(st.st_mode) else 0)
                if stat.S_ISDIR(st.st_mode):
                    visit(e.path, below + os.fsencode(e.name) + b"/")

    visit(top, b"")
    return out


def walk_by_debugfs(image):
    """The same, as debugfs sees an image; a process for each level of directories."""
    out, level = {}, [(2, b"")]
    while level:
        with open(f"{TESTTMP}/commands", "w") as f:
            f.writelines(f"ls -p <{ino}>\n" for ino, _ in level)
        said = subprocess.run(["debugfs", "-f", f"{TESTTMP}/commands", image], check=True, capture_output=True, timeout=200).stdout
        said = said.replace(b"\xff\xfe odd\n/", b"\xff\xfe odd?/")  # the one name with a newline
        following = []
        for (_, below), part in zip(level, said.split(b"debugfs: ls -p ")[1:], strict=True):
            for entry in part.split(b"\n")[1:]:
                fields = entry.split(b"/")
                if len(fields) < 7 or fields[5] in (b"", b".", b".."):
                    continue
                mode, name = int(fields[2], 8), below + fields[5].replace(b" odd?", b" odd\n")
                out[name] = (mode, int(fields[3]), int(fields[4]), int(fields[6]) if stat.S_ISREG(mode) else 0)
                if stat.S_ISDIR(mode):
                    following.append((int(fields[1]), name + b"/"))
        level = following
    return out


@check(limit=300)
def debugfs_sees_the_same_tree():
    image = f"{TESTTMP}/disk"
    disk = os.path.join(config()["pool"], "snapshots", line("snapshots", state["box"].name, "s", "id"), "disk.raw")
    subprocess.run(["cp", "--sparse=auto", disk, image], check=True, timeout=200)
    subprocess.run(["e2fsck", "-E", "journal_only", image], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=100)
    began = time.monotonic()
    want = walk_by_debugfs(image)
    between = time.monotonic()
    got = walk(state["files"])
    print(f"  {len(got)} objects: debugfs {between - began:.2f} s, files/ {time.monotonic() - between:.2f} s")
    eq([], sorted(set(want) ^ set(got))[:5], "names that only one of them has")
    eq([], [(n, want[n], got[n]) for n in sorted(want) if want[n] != got[n]][:5], "attributes that differ")
    eq(True, len(got) > MANY, "objects")
    os.unlink(image)


@check
def two_readers_share_one_reader():
    os.listdir(state["files"])
    with open(f"{state['files']}/etc/passwd") as a, open(f"{state['files']}/etc/passwd") as b:
        eq(a.read(), b.read(), "text")
        pids = readers("s")
        eq(1, len(pids), "processes")
        status = open(f"/proc/{pids[0]}/status").read()
        for want in ("NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", f"Uid:\t{pwd.getpwnam('space').pw_uid}\t"):
            has(want, status, "its status")


@check
def a_reader_that_is_killed_costs_one_request():
    files = state["files"]
    with open(f"{files}/root/t/cold", "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for pid in readers("s"):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not readers("s"), 10)
        refused(errno.EIO, os.pread, f.fileno(), 10, 2 << 20)
    wait_until(lambda: attempt(os.listdir, files), 10, "a new reader")
    eq(True, len(os.listdir(f"{files}/etc")) > 2, "names")
    eq("0", state["box"].out("echo 0"), "the sandbox goes on")


def attempt(f, *args):
    try:
        return f(*args)
    except OSError:
        return None


@check
def other_users_do_not_see_it():
    refused(errno.ENOENT, as_user, 65534, 65534, os.listdir, state["files"])


@check(limit=300)
def a_broken_image_is_eio_and_nothing_else():
    """A template whose disk has no sound directory but the top."""
    box = state["box"]
    image = f"{TESTTMP}/image"
    os.makedirs(f"{TESTTMP}/tree/etc")
    with open(f"{TESTTMP}/tree/etc/file", "w") as f:
        f.write("x")
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^metadata_csum", "-d", f"{TESTTMP}/tree", image, "16M"], check=True, stdout=subprocess.DEVNULL)
    block = int(subprocess.run(["debugfs", "-R", "blocks etc", image], check=True, capture_output=True, text=True).stdout.split()[0])
    size = int(re.search(r"Block size: +(\d+)", subprocess.run(["dumpe2fs", "-h", image], capture_output=True, text=True, check=True).stdout)[1])
    with open(image, "r+b") as f:
        f.seek(block * size)
        f.write(b"\xff" * size)
    name = fresh_name()
    os.mkdir(path("templates", name))
    defer(remove, "templates", name)
    with open(path("templates", name, "disk.raw"), "wb", buffering=0) as out, open(image, "rb") as f:
        eq(16 << 20, out.write(f.read()), "bytes written at once")
    write("ready", "templates", name, "state")
    broken = fresh_name()
    os.mkdir(path("sandboxes", broken))
    write(read("templates", name, "head"), "sandboxes", broken, "head", flags=os.O_NONBLOCK)
    wait_until(lambda: line("sandboxes", broken, "origin").startswith("template/") and line("sandboxes", broken, "origin") == line("templates", name, "head"), 60,
               "its origin")
    write("kill", "sandboxes", broken, "state")  # it would never boot
    wait_until(lambda: attempt(os.mkdir, path("snapshots", broken, "b")) or exists("snapshots", broken, "b"), 60, "a snapshot")
    files = path("snapshots", broken, "b", "files")
    eq(["etc", "lost+found"], sorted(os.listdir(files)), "the top")
    refused(errno.EIO, os.listdir, f"{files}/etc")
    refused(errno.EIO, os.stat, f"{files}/etc/file")
    eq("root", open(f"{state['files']}/etc/passwd").read().split(":")[0], "another snapshot")
    eq("1", box.out("echo 1"), "another sandbox")
    os.rmdir(path("snapshots", broken, "b"))
    os.rmdir(path("sandboxes", broken))


@check
def the_journal_of_a_running_guest_is_replayed():
    """A paused guest is not frozen: what it synced is in the log of its file system, and nowhere else yet."""
    box = Box()
    os.mkdir(box.root("root/new"))
    for i in range(50):
        with open(box.root(f"root/new/{i}"), "w") as f:
            f.write(f"text {i}")
            f.flush()
            os.fsync(f.fileno())
    fd = os.open(box.root("root/new"), os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    box.verb("pause")
    os.mkdir(path("snapshots", box.name, "crash"))
    files = path("snapshots", box.name, "crash", "files")  # which waits until it is ready
    eq({str(i): f"text {i}" for i in range(50)}, {n: open(f"{files}/root/new/{n}").read() for n in os.listdir(f"{files}/root/new")}, "files")
    eq("disk crash", line("snapshots", box.name, "crash", "kind"), "kind")
    disk = os.path.join(config()["pool"], "snapshots", line("snapshots", box.name, "crash", "id"), "disk.raw")
    has("needs_recovery", subprocess.run(["dumpe2fs", "-h", disk], capture_output=True, text=True, check=True).stdout, "the image")
    if "49" in subprocess.run(["debugfs", "-R", "ls /root/new", disk], capture_output=True, text=True, check=True).stdout:
        print("  (it was on the disk already)")
    os.rmdir(path("snapshots", box.name, "crash"))
    os.rmdir(path("sandboxes", box.name))


AGENT = b" is PID 1 of a guest and does nothing else"  # what only the agent says


def holds_agent(image):
    """Any block of the image that is no hole, whether a file has it or not."""
    with open(image, "rb") as f:
        end, at = os.fstat(f.fileno()).st_size, 0
        while at < end:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError as e:
                eq(errno.ENXIO, e.errno, "errno at the end of the data")
                return False
            hole = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            while at < hole:
                if AGENT in os.pread(f.fileno(), min(4 << 20, hole - at) + len(AGENT), at):
                    return True
                at = min(at + (4 << 20), hole)
    return False


@check
def the_agent_is_on_no_disk():
    """It comes with the initramfs: neither a template's image has it nor, after its boot, a sandbox's. Where somebody copied it to, it is found."""
    box, pool = state["box"], config()["pool"]
    for name in os.listdir(path("templates")):
        eq(False, holds_agent(os.path.join(pool, "templates", line("templates", name, "id"), "disk.raw")), f"the agent is in template {name}")
    eq(False, holds_agent(os.path.join(pool, "snapshots", line("snapshots", box.name, "s", "id"), "disk.raw")), "the agent is on the disk of a sandbox")
    with open(os.path.join(os.environ["BUILD"], "guest", "space-daemon"), "rb") as source, open(box.root("copied"), "wb") as target:
        target.write(source.read())
    snapshot(box, "copied")
    eq(True, holds_agent(os.path.join(pool, "snapshots", line("snapshots", box.name, "copied", "id"), "disk.raw")), "a copy of it was found")
    os.unlink(box.root("copied"))
    os.rmdir(path("snapshots", box.name, "copied"))


@check
def a_snapshot_that_goes_takes_its_reader_along():
    box = state["box"]
    files = snapshot(box, "brief")
    os.listdir(files)
    with open(f"{files}/root/t/data") as f:
        pid, = readers("brief")
        os.rmdir(path("snapshots", box.name, "brief"))
        wait_until(lambda: pid not in readers(), 20, "its reader to end")
        refused((errno.EIO, errno.ESTALE), os.pread, f.fileno(), 10, 2 << 20)
    refused(errno.ENOENT, os.listdir, files)


@check
def a_reader_ends_when_unused_and_an_open_file_holds_it():
    """Both were last used at the beginning."""
    wait_until(lambda: readers("unused") == [], 90, "the reader to end")
    at_most(60, time.monotonic() - state["since"], "seconds until then")
    wait_until(lambda: time.monotonic() - state["since"] > 33, 40, "longer than that without use")
    eq(state["held"], readers("held"), "the reader of which a file is open")
    eq("root", state["open"].read(4), "what is read then")
    eq(True, os.path.exists(path("snapshots", state["box"].name, "unused", "files/etc/passwd")), "it is there again")
    eq(1, len(readers("unused")), "processes")
    state["open"].close()


main()
