#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""spacectl diff: against what a walk over both trees finds that reads everything."""
import hashlib
import os
import stat
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

MIB = 1 << 20


def snapshot(box, name):
    os.mkdir(path("snapshots", box.name, name))
    wait_until(lambda: line("snapshots", box.name, name, "state") == "ready", 30, f"snapshot {name}")


def everything(box, snap):
    """{path: what can differ}, contents included."""
    top, out = path("snapshots", box.name, snap, "files"), {}
    for folder, dirs, files in os.walk(top):
        for name in dirs + files:
            full = os.path.join(folder, name)
            st = os.lstat(full)
            content = os.readlink(full) if stat.S_ISLNK(st.st_mode) else None
            if stat.S_ISREG(st.st_mode):
                with open(full, "rb") as f:
                    content = hashlib.sha256(f.read()).digest()
            out[os.path.relpath(full, top)] = (st.st_mode, st.st_uid, st.st_gid, st.st_nlink, st.st_size, st.st_mtime_ns, st.st_ctime_ns, content)
    return out


def diff(box, *names):
    r = spacectl("diff", "--json", box.name, *names, timeout=100)
    eq((0, ""), (r.returncode, r.stderr), "status and errors of spacectl diff")
    return {row["path"]: (row["change"], row["bytes"]) for row in json.loads(r.stdout)}


def expected(a, b):
    """As diff tells it: what is below an added or removed directory that only moved is not told name by name, so it may be there or not."""
    changes = {p: "added" for p in b if p not in a} | {p: "removed" for p in a if p not in b} | {p: "changed" for p in a if p in b and a[p] != b[p]}
    optional = {p for p in changes if any(changes.get(p[:i]) in ("added", "removed") for i, c in enumerate(p) if c == "/")}
    return changes, optional


def check_diff(box, old, new):
    got = diff(box, old, new)
    changes, optional = expected(everything(box, old), everything(box, new))
    eq({p: c for p, c in changes.items() if p not in optional}, {p: c for p, (c, _) in got.items() if p not in optional}, "what differs")
    eq({}, {p: c for p, (c, _) in got.items() if changes.get(p) != c}, "what is told and does not differ")
    return got


SETUP = r"""
mkdir -p /data/dir/sub /data/many && cd /data
dd if=/dev/urandom of=big bs=1M count=20 2>/dev/null
for i in $(seq 300); do echo $i > many/$i; done
echo a > dir/sub/file; echo x > gone; echo y > linked; echo z > mode; ln -s big link; echo n > "$(printf 'new\nline\\')"; sync
"""
CHANGE = r"""
cd /data
dd if=/dev/urandom of=big bs=4096 seek=1000 count=2 conv=notrunc 2>/dev/null
rm gone; echo added > added; ln linked linked2; chmod 600 mode; mv dir dir2; ln -sf many link; echo m >> "$(printf 'new\nline\\')"
echo changed > many/77; rm many/5; truncate -s 30M sparse; sync
"""


@check
def what_changed_is_told_and_nothing_else():
    box = Box()
    box.out(SETUP)
    snapshot(box, "one")
    box.out(CHANGE)
    snapshot(box, "two")
    got = check_diff(box, "one", "two")
    eq("changed", got["data/big"][0], "big")
    eq(8192, got["data/big"][1], "bytes of two blocks")
    eq("added", got["data/linked2"][0], "a hard link")
    eq("changed", got["data/new\nline\\"][0], "a strange name")
    eq(True, "data/many/77" in got and "data/many/78" not in got, "its neighbour in the same block of inodes is not told")
    back = check_diff(box, "two", "one")
    eq("removed", back["data/added"][0], "the other way round")
    eq({}, diff(box, "one", "one"), "a snapshot and itself")
    box.out("echo again > /data/added; rm /data/linked2; sync")
    eq({"data/added": "changed", "data/linked": "changed", "data/linked2": "removed"},
       {p: c for p, (c, _) in diff(box, "two").items() if p.startswith("data/")}, "what differs on the disk as it is now")
    eq(["one", "two"], sorted(n for n in os.listdir(path("snapshots", box.name)) if not n.startswith("auto-")), "snapshots that are left")
    for name in ("one", "two"):
        os.rmdir(path("snapshots", box.name, name))


@check
def with_what_only_the_journal_has():
    """Where a paused guest's file system was not frozen, the newest inodes and names are in its log, and no block of theirs has changed."""
    box = Box()
    box.out("mkdir /data; for i in $(seq 50); do echo $i > /data/$i; done; sync")
    snapshot(box, "one")
    with open(box.root("data/new"), "w") as f:
        f.write("new")
    os.rename(box.root("data/7"), box.root("data/seven"))
    os.chmod(box.root("data/9"), 0o600)
    os.unlink(box.root("data/11"))
    for name in ("data/new", "data"):
        fd = os.open(box.root(name), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    box.verb("pause")
    snapshot(box, "two")
    eq("disk crash", line("snapshots", box.name, "two", "kind"), "kind")
    got = check_diff(box, "one", "two")
    for name, change in (("new", "added"), ("7", "removed"), ("seven", "added"), ("9", "changed"), ("11", "removed")):
        eq(change, got[f"data/{name}"][0], name)
    for name in ("one", "two"):
        os.rmdir(path("snapshots", box.name, name))


@check
def what_is_refused():
    box = Box()
    snapshot(box, "one")
    refused(errno.EINVAL, write, "nonsense", "snapshots", box.name, "one", "changes")
    refused(errno.EINVAL, write, read("sandboxes", box.name, "head"), "snapshots", box.name, "one", "changes")
    refused(errno.ESTALE, write, "snapshot/123456789abc", "snapshots", box.name, "one", "changes")
    eq("", read("snapshots", box.name, "one", "changes"), "when nothing was asked")
    ne(0, spacectl("diff", box.name, "one", "none").returncode, "status")
    os.rmdir(path("snapshots", box.name, "one"))


main()
