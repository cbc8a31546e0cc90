#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 900
"""Backup programs on snapshots/NAME/SNAP/files: what they restore is the guest's tree, and what did not change is not stored twice."""

import os
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

ACL = bytes.fromhex("0200000001000700ffffffff02000600e803000004000500ffffffff10000700ffffffff20000000ffffffff")
MANY = 1000
ISLANDS = (0, 5 << 20, (200 << 20) + 17)
SPARSE = 256 << 20
# The programs decide by path what they know already, so a snapshot is bound to one place, in a mount namespace that ends with the program.
PLACE = f"{TESTTMP}/place"
ENVIRONMENT = {**os.environ, "RESTIC_PASSWORD": "x", "RESTIC_REPOSITORY": f"{TESTTMP}/restic", "RESTIC_CACHE_DIR": f"{TESTTMP}/cache", "BORG_REPO": f"{TESTTMP}/borg",
               "BORG_BASE_DIR": f"{TESTTMP}/base", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
state = {}


def snapshot(name):
    os.mkdir(path("snapshots", state["box"].name, name))
    wait_until(lambda: line("snapshots", state["box"].name, name, "state") == "ready", 60, "the snapshot")


def files_of(name):
    return path("snapshots", state["box"].name, name, "files")


def command(*words, cwd=None, ok=(0,)):
    p = subprocess.run(words, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, errors="surrogateescape", timeout=200, check=False)
    if p.returncode not in ok:
        fail(f"{' '.join(words)}: exit {p.returncode}: {p.stdout[-1000:]} {p.stderr[-1500:]}")
    return p


def bound(source, line, **options):
    """A shell line with `source` at PLACE, which is its directory too."""
    os.makedirs(PLACE, exist_ok=True)
    return command("unshare", "-m", "sh", "-ec", f'mount --bind "$1" {PLACE}; cd {PLACE}; {line}', "sh", source, **options)


# --- trees ---


def fill(top):
    """Everything that a tree can hold, through root/NAME. How many objects."""
    os.mkdir(top)
    with open(f"{top}/data", "wb") as f:
        f.write(os.urandom(3_000_001))
    with open(f"{top}/zeros", "wb") as f:
        f.write(bytes(3_000_000))
    with open(f"{top}/sparse", "wb") as f:
        for at in ISLANDS:
            f.seek(at)
            f.write(b"island")
        f.truncate(SPARSE)
    os.mkdir(f"{top}/dir", 0o2750)
    os.mkdir(f"{top}/empty", 0o1711)
    os.link(f"{top}/data", f"{top}/dir/hard")
    os.symlink("data", f"{top}/inside")
    os.symlink("/etc/passwd", f"{top}/absolute")
    os.symlink("../../../../../../etc/passwd", f"{top}/climbing")
    os.symlink("nowhere/at all", f"{top}/dangling")
    os.mkfifo(f"{top}/fifo", 0o620)
    os.mknod(f"{top}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for name, mode in (("a", 0o4755), ("b", 0o600), ("c", 0o444)):
        with open(f"{top}/dir/{name}", "w") as f:
            f.write(name)
        os.chown(f"{top}/dir/{name}", 70000, 1234)
        os.chmod(f"{top}/dir/{name}", mode)
    os.setxattr(f"{top}/dir/b", "user.colour", b"blue")
    os.setxattr(f"{top}/dir/b", "trusted.t", b"\0\1")
    os.setxattr(f"{top}/dir/b", "system.posix_acl_access", ACL)
    os.setxattr(f"{top}/dir", "system.posix_acl_default", ACL)
    os.lchown(f"{top}/inside", 70000, 1234)
    for name in (b"\xff\xfe odd\n", b" ", b"-rf", b"*", "\u00e9\u4e16".encode(), b"n" * 255, b"back\\slash\"'"):
        with open(os.fsencode(top) + b"/" + name, "wb") as f:
            f.write(name)
    os.utime(f"{top}/data", ns=(1_000_000_007, 1_234_567_890_123_456_789))
    os.utime(f"{top}/empty", ns=(1_000_000_007, 1_000_000_000_000_000_001))
    os.utime(f"{top}/absolute", ns=(1_000_000_007, 1_111_111_111_111_111_111), follow_symlinks=False)


def is_restored(top, room=4 << 20):
    """`top` is the guest's /root: as files/ shows it, which was compared with root/NAME. Symlinks stay within, in both."""
    names = sorted(os.listdir(files_of("one") + "/root"))
    eq(names, sorted(os.listdir(top)), f"names in {top}")
    eq(state["count"], 1 + sum(same_tree(f"{files_of('one')}/root/{name}", f"{top}/{name}", link_sizes=False) for name in names), "objects")
    eq(os.lstat(f"{top}/t/data").st_ino, os.lstat(f"{top}/t/dir/hard").st_ino, "inode of a hard link")
    at_most(room, os.lstat(f"{top}/t/sparse").st_blocks * 512, "room that the sparse file takes")
    subprocess.run(["rm", "-r", top], check=True)


# --- checks ---


@check(limit=300)
def a_guest_makes_a_tree():
    box = state["box"] = Box()
    fill(box.root("root/t"))
    box.out(f"mkdir -p /root/many && cd /root/many && i=0; while [ $i -lt {MANY} ]; do echo $i > name-$i; i=$((i+1)); done; sync")
    with open(box.root("root/last"), "w"):  # borg looks again at what is as new as the newest
        pass
    snapshot("one")
    state["count"] = same_tree(box.root("root"), files_of("one") + "/root", link_sizes=False)
    eq(True, state["count"] > MANY + 20, "objects")
    for name, target in (("absolute", b"/etc/passwd"), ("climbing", b"../../../../../../etc/passwd")):
        eq("../../etc/passwd", os.readlink(f"{files_of('one')}/root/t/{name}"), "a target that would lead out")
        eq(target, os.getxattr(f"{files_of('one')}/root/t/{name}", "security.space.target", follow_symlinks=False), "the raw one")


@check(limit=300)
def rsync_copies_it():
    command("rsync", "-aHAXS", "--numeric-ids", f"{files_of('one')}/root/", f"{TESTTMP}/rsync")
    again = command("rsync", "-aHAXS", "--numeric-ids", "--itemize-changes", f"{files_of('one')}/root/", f"{TESTTMP}/rsync")
    eq("", again.stdout, "what a second rsync does")
    is_restored(f"{TESTTMP}/rsync")


@check(limit=300)
def tar_keeps_it():
    os.mkdir(f"{TESTTMP}/tar")
    command("tar", "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "--format=posix", "-Scf", f"{TESTTMP}/tar.tar", ".", cwd=f"{files_of('one')}/root")
    at_most(8_000_000, os.stat(f"{TESTTMP}/tar.tar").st_size - MANY * 4096, "bytes of the archive")
    command("tar", "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-Sxpf", f"{TESTTMP}/tar.tar", cwd=f"{TESTTMP}/tar")
    os.unlink(f"{TESTTMP}/tar.tar")
    is_restored(f"{TESTTMP}/tar")


def restic(name):
    """A backup; what it says of itself."""
    out = bound(files_of(name) + "/root", f"exec restic backup --json {PLACE}").stdout
    said = [m for m in map(json.loads, out.splitlines()) if m["message_type"] == "summary"][0]
    print("  restic:", {k: said[k] for k in ("files_new", "files_changed", "files_unmodified", "dirs_changed", "data_added")}, f"{said['total_duration']:.1f} s")
    return said


@check(limit=300)
def restic_keeps_it():
    command("restic", "init")
    restic("one")
    command("restic", "restore", "latest", "--target", f"{TESTTMP}/restored")
    is_restored(f"{TESTTMP}/restored{PLACE}", room=SPARSE + (1 << 20))  # it writes zeros before its version 0.15


def borg(name, archive):
    """An archive; the files that were read, and what it says of itself."""
    out = bound(files_of(name) + "/root", f"exec borg create --numeric-ids --json --list --filter=AM ::{archive} .")
    stats = json.loads(out.stdout)["archive"]["stats"]
    looked = out.stderr.splitlines()
    print(f"  borg: {len(looked)} of {stats['nfiles']} files read, {stats['deduplicated_size']} bytes stored")
    return looked, stats


@check(limit=300)
def borg_keeps_it():
    command("borg", "init", "-e", "none")
    borg("one", "one")
    os.mkdir(f"{TESTTMP}/extracted")
    command("borg", "extract", "--numeric-ids", "--sparse", "::one", cwd=f"{TESTTMP}/extracted")
    is_restored(f"{TESTTMP}/extracted", room=len(ISLANDS) * (8 << 20))  # holes of whole chunks


@check(limit=300)
def the_same_snapshot_again_stores_nothing():
    """Also by a reader that is new, after which nothing is remembered of the first."""
    for pid in readers():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not readers(), 10, "the reader to end")
    wait_until(lambda: os.path.exists(files_of("one") + "/etc"), 10, "a new reader")
    said = restic("one")
    eq((0, 0), (said["files_new"], said["files_changed"]), "new and changed, says restic")
    eq(True, said["files_unmodified"] > MANY, "files known, says restic")
    at_most(5000, said["data_added"], "bytes that restic stored")  # the directories that lead to PLACE
    looked, stats = borg("one", "again")
    at_most(2, len(looked), f"files that borg read: {looked[:5]}")
    at_most(2000, stats["deduplicated_size"], "bytes that borg stored")


def readers():
    """Process ids of space-browse of this instance."""
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.path.realpath(f"/proc/{pid}/exe").removesuffix(" (deleted)").endswith("/space-browse") and SPACE_DIR in os.readlink(f"/proc/{pid}/fd/3"):
                out.append(int(pid))
    return out


@check(limit=300)
def a_later_snapshot_stores_what_changed():
    with open(state["box"].root("root/many/name-7"), "w") as f:
        f.write("seven")
    with open(state["box"].root("root/many/name-new"), "w") as f:
        f.write("new")
    snapshot("two")
    first, second = files_of("one") + "/root", files_of("two") + "/root"
    for below in ("t/dir/a", "t/absolute", "t/fifo", "many/name-8"):
        eq(os.lstat(f"{first}/{below}").st_ino, os.lstat(f"{second}/{below}").st_ino, f"inode of {below}")
        eq(os.lstat(f"{first}/{below}").st_ctime_ns, os.lstat(f"{second}/{below}").st_ctime_ns, f"ctime of {below}")
    for top in (first, second):
        for e in os.scandir(f"{top}/t"):
            eq(e.inode(), e.stat(follow_symlinks=False).st_ino, f"inode of {e.path} in a listing")
    said = restic("two")
    eq(1, said["files_new"], "new files, says restic")
    at_most(4, said["files_changed"], "changed files, says restic")  # and the three names of links
    looked, _ = borg("two", "two")
    at_most(5, len(looked), f"files that borg read: {looked[:5]}")
    has("name-7", " ".join(looked), "files that borg read")


@check(limit=300)
def two_snapshots_in_one_copy_do_not_become_one():
    """What has several names in both is one file in each, though the guest's inode is the same; and directories are not taken for one."""
    with open(state["box"].root("root/t/dir/hard"), "r+b") as f:
        f.write(b"later")
    snapshot("three")
    os.mkdir(f"{TESTTMP}/both")
    for name in ("one", "three"):
        os.makedirs(f"{PLACE}/{name}", exist_ok=True)
    bind = " && ".join(f"mount --bind {files_of(n)}/root/t {PLACE}/{n}" for n in ("one", "three"))
    command("unshare", "-m", "sh", "-ec", f"{bind} && cp -a {PLACE}/one {PLACE}/three {TESTTMP}/both/ && rsync -aH {PLACE}/ {TESTTMP}/both-rsync/")
    for top in (f"{TESTTMP}/both", f"{TESTTMP}/both-rsync"):
        eq(b"later", open(f"{top}/three/data", "rb").read(5), "the later content")
        eq(False, open(f"{top}/one/data", "rb").read(5) == b"later", "it is the earlier content too")
        eq(True, os.path.exists(f"{top}/three/dir/c"), "all of both")
        eq(True, os.path.samefile(f"{top}/one/data", f"{top}/one/dir/hard"), "links within one")
    said = command("diff", "-rq", "--no-dereference", files_of("one") + "/root", files_of("three") + "/root", ok=(1,)).stdout
    differ = sorted(os.path.basename(text.split()[3]) for text in said.splitlines() if text.endswith("differ") and text.startswith("Files"))
    eq(["data", "hard", "name-7"], differ, "files that differ, says diff")


main()
