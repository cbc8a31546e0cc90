#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 1200
"""root/NAME/ and the tools that people use on it: rsync, tar, cp -a, git, and a file of 2 GiB."""

import hashlib
import os
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

TMP = os.environ["TESTTMP"]
BIG = (2 << 30) + 4097
MIB = 1 << 20


def box(made=[]):
    if not made:
        made.append(Box())
        made[0].out("mkdir /t")
    return made[0]


def at(*parts):
    return box().root("t", *parts)


def tool(*args, **options):
    """Its output; it must succeed and say nothing on stderr."""
    options.setdefault("env", {**os.environ, "LC_ALL": "C.UTF-8"})
    got = subprocess.run(args, capture_output=True, check=False, **options)
    eq((0, b""), (got.returncode, got.stderr[-2000:]), f"status and complaints of {' '.join(map(str, args))!r:.200}")
    return got.stdout


# --- trees that hold one of everything ---

NAMES = [b"with space", b" around ", b"new\nline", "\u00e4\u20ac\U0001f600".encode(), b"not \xff\xfe utf-8", b"-dash", b"*?[x]", b"'\"`$(x)", b"back\\slash",
         b"x" * 255, "\u00e4".encode() * 127]


def put(top, name, data, mode=0o644):
    name = os.path.join(os.fsencode(top), os.fsencode(name))
    with open(name, "wb") as f:
        f.write(data)
    os.chmod(name, mode)
    return name


def make_tree(top):
    os.makedirs(f"{top}/deep/er/est")
    for i, name in enumerate(NAMES):
        put(f"{top}/deep", name, name * i)
    os.mkdir(os.path.join(os.fsencode(top), b"dir \xff"))
    put(top, "plain", os.urandom(300_000), 0o640)
    put(top, "empty", b"", 0o400)
    put(top, "program", b"#!/bin/sh\n", 0o4755)
    put(top, "setgid", b"", 0o2711)
    put(top, "large", os.urandom(3 * MIB + 17))
    os.link(f"{top}/plain", f"{top}/deep/er/hard link")
    os.link(f"{top}/plain", f"{top}/deep/er/est/another")
    os.symlink("plain", f"{top}/link")
    os.symlink("../../plain", f"{top}/deep/er/up")
    os.symlink("nowhere at all", f"{top}/dangling")
    os.symlink(".", f"{top}/loop")
    os.link(f"{top}/link", f"{top}/link's hard link", follow_symlinks=False)
    os.mkfifo(f"{top}/fifo", 0o620)
    with open(f"{top}/sparse", "wb") as f:
        f.truncate(16 * MIB)
        f.seek(9 * MIB)
        f.write(b"in the middle")
    for i, name in enumerate(("plain", "empty", "deep", "link", "fifo")):
        os.chown(f"{top}/{name}", 1000 + i, 2000 + i, follow_symlinks=False)
    os.chmod(f"{top}/plain", 0o640)
    os.chmod(f"{top}/deep", 0o3775)
    os.setxattr(f"{top}/plain", "user.colour", b"blue")
    os.setxattr(f"{top}/large", "user.binary", bytes(range(256)))
    os.setxattr(f"{top}/deep", "user.of a directory", b"")
    os.setxattr(f"{top}/plain", "trusted.secret", b"1")
    os.setxattr(f"{top}/program", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    tool("setfacl", "-m", "u:1005:rw,g:2005:r", f"{top}/plain", f"{top}/large")
    tool("setfacl", "-m", "u:1005:rwx,d:u:1006:rx", f"{top}/deep/er")
    for root, directories, files in os.walk(os.fsencode(top), topdown=False):
        for n, name in enumerate(sorted(files) + sorted(directories)):
            os.utime(os.path.join(root, name), ns=(0, 1_500_000_000_123_456_789 + n * 10**9 + 7 * n), follow_symlinks=False)
    os.utime(top, ns=(0, 1_400_000_000_987_654_321))


def source(made=[]):
    if not made:
        made.append(f"{TMP}/source")
        make_tree(made[0])
    return made[0]


def stream_hash(f, limit=1 << 62):
    h, n = hashlib.sha256(), 0
    while n < limit and (data := f.read(min(MIB, limit - n))):
        h.update(data)
        n += len(data)
    return h.hexdigest(), n


def sparse_hash(f):
    """The same of a file that is read where it has data; and how much that was."""
    h, at, size = hashlib.sha256(), 0, os.fstat(f.fileno()).st_size
    read = 0
    while at < size:
        end = os.lseek(f.fileno(), at, os.SEEK_DATA)
        for zeros in range(at, end, MIB):
            h.update(bytes(min(MIB, end - zeros)))
        at, end = end, os.lseek(f.fileno(), end, os.SEEK_HOLE)
        read += end - at
        while at < end:
            data = os.pread(f.fileno(), min(MIB, end - at), at)
            h.update(data)
            at += len(data) or fail(f"{f.name} ends at {at}, not at {end}")
    return h.hexdigest(), size, read


def sha256_of(name):
    with open(name, "rb") as f:
        return stream_hash(f)


def describe(top):
    """Every object below `top` with all that a copy has to carry."""
    top, out, links = os.fsencode(top), {}, {}
    names = [b"."] + [os.path.join(root, name)[len(top) + 1:] for root, directories, files in os.walk(top) for name in directories + files]
    for name in sorted(names):
        full = os.path.join(top, name)
        st = os.lstat(full)
        what = [stat.S_IFMT(st.st_mode), stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid, st.st_mtime_ns]
        if not stat.S_ISDIR(st.st_mode):
            what += [st.st_nlink, links.setdefault(st.st_ino, name)]
        if stat.S_ISLNK(st.st_mode):
            what.append(os.readlink(full))
        else:
            what.append({n: os.getxattr(full, n) for n in sorted(os.listxattr(full))})
        if stat.S_ISREG(st.st_mode):
            what.append(sha256_of(full))
        out[name] = what
    return out


def same_trees(want, got, what):
    want, got = describe(want), describe(got)
    eq(sorted(want), sorted(got), f"names, {what}")
    for name, value in want.items():
        eq(value, got[name], f"{name!r:.60}, {what}")


def blocks(*parts):
    return os.lstat(os.path.join(*parts)).st_blocks * 512


@check(limit=300)
def rsync_in_and_out_carries_everything():
    flags = ["-aHAX", "--numeric-ids"]
    back = f"{TMP}/rsync"
    tool("rsync", *flags, "-S", f"{source()}/", f"{at('rsync')}/")
    same_trees(source(), at("rsync"), "after rsync into root/")
    eq(b"", tool("rsync", *flags, "-n", "-i", "--delete", f"{source()}/", f"{at('rsync')}/"), "changes that a second run reports")
    eq(b"", tool("rsync", *flags, "-c", "-n", "-i", "--delete", f"{source()}/", f"{at('rsync')}/"), "changes by checksum")
    at_most(1 * MIB, blocks(at("rsync"), "sparse"), "bytes of the sparse file in the guest")
    tool("rsync", *flags, "-S", f"{at('rsync')}/", f"{back}/")
    eq(b"", tool("rsync", *flags, "-n", "-i", "--delete", f"{at('rsync')}/", f"{back}/"), "changes on the way out")
    same_trees(source(), back, "after rsync out of root/")
    at_most(1 * MIB, blocks(back, "sparse"), "bytes of the sparse file outside")
    put(at("rsync"), "plain", b"changed")  # and one that is there is seen
    has(b"plain", tool("rsync", *flags, "-n", "-i", f"{source()}/", f"{at('rsync')}/"), "a change")
    box().out("rm -r /t/rsync")


@check(limit=300)
def cp_a_in_and_out_carries_everything():
    back = f"{TMP}/cp"
    tool("cp", "-a", "--sparse=always", source(), at("cp"))
    same_trees(source(), at("cp"), "after cp -a into root/")
    at_most(1 * MIB, blocks(at("cp"), "sparse"), "bytes of the sparse file in the guest")
    tool("cp", "-a", at("cp"), back)
    same_trees(source(), back, "after cp -a out of root/")
    eq(b"", tool("diff", "-r", "--no-dereference", source(), back, "--exclude=fifo"), "differences")
    box().out("rm -r /t/cp")


@check(limit=300)
def tar_in_and_out_carries_everything():
    flags = ["--format=pax", "--acls", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--sparse"]
    os.mkdir(at("tar"))
    back = f"{TMP}/tar"
    os.mkdir(back)
    tool("tar", *flags, "-C", source(), "-cf", f"{TMP}/in.tar", ".")
    tool("tar", *flags, "-C", at("tar"), "-xpf", f"{TMP}/in.tar")
    same_trees(source(), at("tar"), "after tar -x into root/")
    eq(b"", tool("tar", *flags, "-C", at("tar"), "-df", f"{TMP}/in.tar"), "differences that tar -d sees")
    tool("tar", *flags, "-C", at("tar"), "-cf", at("out.tar"), ".")  # the archive is in there as well
    tool("tar", *flags, "-C", back, "-xpf", at("out.tar"))
    same_trees(source(), back, "after tar out of root/")
    eq("ok", box().out("cd /t && mkdir by-guest && tar -C by-guest -xf out.tar ./plain ./deep && cmp by-guest/plain tar/plain && echo ok"), "the guest's tar")
    box().out("rm -r /t/tar /t/by-guest /t/out.tar")


# --- git ---


@check(limit=400)
def git_in_the_sandbox_and_from_the_host():
    debian = Box("debian")
    work = debian.root("root", "work")
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "HOME": TMP, "LC_ALL": "C.UTF-8"}
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "safe.directory=*", "-c", "init.defaultBranch=main"]

    def inside(*args):
        r = subprocess.run(["spacectl", "exec", debian.name, "--", "git", *who, "-C", "/root/work", *args], capture_output=True, check=False)
        eq((0, b""), (r.returncode, r.stderr if args[0] not in ("checkout", "clone") else b""), f"git {args} by spacectl exec")
        return r.stdout.decode()

    # a repository of the host is cloned to the sandbox by the host's git
    origin = f"{TMP}/origin"
    tool("git", *who, "init", "-q", origin, env=env)
    for i in range(60):
        os.makedirs(f"{origin}/d{i % 10}", exist_ok=True)
        put(f"{origin}/d{i % 10}", f"file {i}", b"line\n" * i)
    os.symlink("d1/file 1", f"{origin}/link")
    put(origin, "run", b"#!/bin/sh\n", 0o755)
    tool("git", *who, "-C", origin, "add", "-A", env=env)
    tool("git", *who, "-C", origin, "commit", "-q", "-m", "first", env=env)
    tool("git", *who, "clone", "-q", "--no-hardlinks", origin, work, env=env)
    eq(b"", tool("git", *who, "-C", work, "status", "--porcelain", env=env), "git status by the host")
    tool("git", *who, "-C", work, "fsck", "--full", "--strict", "--no-progress", env=env)
    # ... used by the sandbox's own
    eq("", inside("status", "--porcelain"), "git status by spacectl exec")
    put(f"{work}/d3", "file 3", b"changed by the host\n")
    put(f"{work}/d4", "new", b"made by the host\n")
    os.chmod(f"{work}/run", 0o644)
    eq(" M d3/file 3\n M run\n?? d4/new\n".replace("d3/file 3", '"d3/file 3"'), inside("status", "--porcelain"), "changes of the host, in the guest")
    inside("add", "-A")
    inside("commit", "-q", "-m", "second")
    eq(b"", tool("git", *who, "-C", work, "status", "--porcelain", env=env), "the guest's commit, seen by the host")
    eq(b"2\n", tool("git", *who, "-C", work, "rev-list", "--count", "HEAD", env=env))
    # ... and cloned back out, and inside
    tool("git", *who, "clone", "-q", work, f"{TMP}/clone", env=env)
    with open(f"{TMP}/clone/d3/file 3", "rb") as f:
        eq(b"changed by the host\n", f.read())
    r = subprocess.run(["spacectl", "exec", debian.name, "--", "git", *who, "clone", "-q", "/root/work", "/root/second"], capture_output=True, check=False)
    eq((0, b""), (r.returncode, r.stderr), "git clone by spacectl exec")
    os.unlink(f"{work}/.git/HEAD")  # what is broken is seen as broken
    r = subprocess.run(["spacectl", "exec", debian.name, "--", "git", *who, "-C", "/root/work", "status"], capture_output=True, check=False)
    ne(0, r.returncode, "git status of a repository without HEAD")
    debian.remove()


# --- two gigabytes ---


@check(limit=600)
def a_file_of_two_gigabytes():
    """Every third MiB of it is data, and what is around its first and second gigabyte. An emulated guest needs minutes to hash it itself: what
    the guest has is taken from a snapshot of its disk, and looked at in places by the guest."""
    piece, h, written = os.urandom(MIB), hashlib.sha256(), 0
    began = time.monotonic()
    with open(at("big"), "wb", buffering=0) as f:
        for i in range(0, BIG, MIB):
            data = bytes(MIB)
            if i // MIB % 3 == 0 or i % (1 << 30) in (0, (1 << 30) - MIB):
                data = (i.to_bytes(8, "big") + piece[8:])[:BIG - i]
                f.seek(i)
                eq(len(data), f.write(data), "bytes written")
                written += len(data)
            h.update(data)
        os.fsync(f.fileno())
    wrote = time.monotonic()
    want = (h.hexdigest(), BIG)
    eq(BIG, os.stat(at("big")).st_size, "size")
    eq(str(BIG), box().out("stat -c %s /t/big"), "size in the guest")
    for offset in (0, 1 << 30, (1 << 31) - MIB, 1 << 31):
        data = (offset.to_bytes(8, "big") + piece[8:])[:BIG - offset]
        eq(hashlib.sha256(data).hexdigest(), box().out(f"dd if=/t/big bs=1M skip={offset >> 20} count=1 2>/dev/null | sha256sum").split()[0], f"what the guest reads at {offset}")
    reading = time.monotonic()
    with open(at("big"), "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # nothing from the host's cache
        digest, size, read = sparse_hash(f)
        eq(want, (digest, size), "sha256 and size on the way back")
        at_most(written + MIB, read, "bytes that are no hole")
    print(f"    {written / 1e6 / (wrote - began):.0f} MB/s in, {read / 1e6 / (time.monotonic() - reading):.0f} MB/s out, both with sha256 on the host")
    os.mkdir(path("snapshots", box().name, "big"))
    wait_until(lambda: line("snapshots", box().name, "big", "state") == "ready", 60, "the snapshot ready")
    disk = os.path.join(config()["pool"], "snapshots", line("snapshots", box().name, "big", "id"), "disk.raw")
    with subprocess.Popen(["debugfs", "-R", "cat /t/big", disk], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
        eq(want, stream_hash(p.stdout), "sha256 and size on the guest's disk")
    os.rmdir(path("snapshots", box().name, "big"))
    print(f"    {time.monotonic() - reading:.0f} s to read it both ways")
    # and what the guest changes, on both sides of the second gigabyte, arrives outside
    box().out("for at in 6 1023 2047; do echo changed | dd of=/t/big bs=1M seek=$at conv=notrunc 2>/dev/null; done; printf end >> /t/big")
    with open(at("big"), "rb", buffering=0) as f:
        for offset in (6 << 20, 1023 << 20, 2047 << 20):
            eq(b"changed\n" + piece[8:100], os.pread(f.fileno(), 100, offset), f"what the guest wrote at {offset}")
        eq(b"end", os.pread(f.fileno(), 100, BIG), "what the guest appended")
    os.unlink(at("big"))


main()
