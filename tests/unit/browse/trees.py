#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-browse on images of every kind that mke2fs makes, and on what a kernel left behind: each tree is compared with its source, byte by
byte and attribute by attribute. As root. Arguments: the program, then parts of names of tests to run."""

import contextlib
import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

from browser import Browser, compare, fails, same

PROGRAM = sys.argv[1]
TESTS = []
LARGE = "small-blocks"  # with a directory of thousands, whose index has two levels
FEATURES = {  # name: (mke2fs options, size)
    "default": (["-t", "ext4"], "96M"),
    "small-blocks": (["-t", "ext4", "-b", "1024"], "96M"),
    "indirect": (["-t", "ext4", "-O", "^extent,^64bit,^metadata_csum,^flex_bg", "-b", "1024"], "96M"),
    "ext2": (["-t", "ext2", "-I", "128"], "96M"),
    "inline-data": (["-t", "ext4", "-O", "inline_data", "-I", "512"], "96M"),
    "large-inodes": (["-t", "ext4", "-I", "1024", "-O", "ea_inode"], "96M"),
    "bigalloc": (["-t", "ext4", "-O", "bigalloc", "-C", "16384"], "128M"),
    "meta-bg": (["-t", "ext4", "-O", "meta_bg,^resize_inode,metadata_csum_seed"], "96M"),
    "no-filetype": (["-t", "ext4", "-O", "^filetype,^dir_index"], "96M"),
}


def test(f):
    TESTS.append(f)
    return f


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}")
    return done.stdout


def acl(*entries):
    """system.posix_acl_access as system calls have it."""
    return b"\2\0\0\0" + b"".join(tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + who.to_bytes(4, "little") for tag, bits, who in entries)


NOBODY = 0xFFFFFFFF
ACL = acl((1, 7, NOBODY), (2, 6, 1000), (2, 4, 70000), (4, 5, NOBODY), (8, 1, 50), (16, 7, NOBODY), (32, 0, NOBODY))


def many(name):
    return 3000 if name == LARGE else 300


def populate(top, features, sparse=5 << 30):
    """A tree with everything that a file system of these features can hold."""
    rng = random.Random(4)
    xattr_size = 100 if "128" in FEATURES[features][0] else 900
    os.mkdir(top)
    for size in (0, 1, 59, 60, 61, 100, 159, 160, 400, 1023, 1024, 4095, 4096, 4097, 65536, 1 << 20, 5_000_001):
        with open(f"{top}/size-{size}", "wb") as f:
            f.write(rng.randbytes(size))
    with open(f"{top}/sparse", "wb") as f:
        for at in (0, 12 * 4096, 1 << 20, 70 << 20, (3 << 30) + 5):
            f.seek(at)
            f.write(rng.randbytes(5000))
        f.truncate(sparse)
    with open(f"{top}/all-hole", "wb") as f:
        f.truncate(123_456_789)
    with open(f"{top}/many-extents", "wb") as f:
        for i in range(1500):
            f.seek(i * 8192)
            f.write(rng.randbytes(4096))
    os.mkdir(f"{top}/links")
    for i in range(5):
        os.link(f"{top}/size-4097", f"{top}/links/hard-{i}")
    for n in (1, 58, 59, 60, 61, 500, 1000):
        os.symlink("t" * n if n < 200 else "/".join(["n" * 99] * (n // 100)), f"{top}/links/symlink-{n}")
    os.symlink("/etc/passwd", f"{top}/links/absolute")
    os.symlink("../../../../etc", f"{top}/links/climbing")
    os.mkdir(f"{top}/modes")
    for mode in (0, 0o7777, 0o4755, 0o2755, 0o1777, 0o640):
        with open(f"{top}/modes/{mode:o}", "w") as f:
            f.write(oct(mode))
        os.chown(f"{top}/modes/{mode:o}", mode * 1000 + 70000, 3_000_000_000 - mode)
        os.chmod(f"{top}/modes/{mode:o}", mode)
    os.mkdir(f"{top}/special", 0o1700)
    os.mkfifo(f"{top}/special/fifo", 0o600)
    os.mknod(f"{top}/special/null", 0o020666, os.makedev(1, 3))
    os.mknod(f"{top}/special/disk", 0o060660, os.makedev(259, 70000))
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as s:
        s.bind(f"{top}/special/socket")
    os.mkdir(f"{top}/xattrs")
    for name, value in (("user.short", b"v"), ("user.empty", b""), ("user.long", rng.randbytes(xattr_size)), ("trusted.t", b"\0\1\2"),
                        ("security.capability", bytes.fromhex("010000020004000000000000") + bytes(8)), ("system.posix_acl_access", ACL)):
        path = f"{top}/xattrs/{name}"
        with open(path, "w") as f:
            f.write(name)
        os.chmod(path, 0o770)
        os.setxattr(path, name, value)
    with open(f"{top}/xattrs/several", "w") as f:
        f.write("x" * 70)
    for i in range(8):
        os.setxattr(f"{top}/xattrs/several", f"user.number-{i}", b"%d" % i * 10)
    os.mkdir(f"{top}/xattrs/dir")
    os.setxattr(f"{top}/xattrs/dir", "system.posix_acl_default", ACL)
    os.setxattr(f"{top}/xattrs/dir", "user.of-a-directory", b"yes")
    deep = f"{top}/deep"
    for i in range(30):
        deep += f"/{i}" if i else ""
        os.mkdir(deep)
    os.mkdir(f"{top}/names")
    for name in (b"x" * 255, b"new\nline", b" ", b"...", b"\xff\xfe\x80", "ü".encode(), b"a" * 100 + b"\x01"):
        with open(os.path.join(os.fsencode(top), b"names", name), "wb") as f:
            f.write(name)
    os.mkdir(f"{top}/many")
    for i in range(many(features)):
        with open(f"{top}/many/a-file-with-a-longer-name-{i:06}", "w") as f:
            f.write(str(i) if i % 10 == 0 else "")
    for base, dirs, files in os.walk(top):
        for name in dirs + files:
            os.utime(os.path.join(base, name), ns=(rng.randrange(2**31) * 10**9 + 7, rng.randrange(2**33) * 10**9 + rng.randrange(10**9)),
                     follow_symlinks=False)
    os.utime(top, ns=(1, 2_000_000_000_123_456_789))


def image(path, options, size, source=None):
    run("mke2fs", "-q", "-F", *options, *(["-d", source] if source else []), path, size)
    return path


@contextlib.contextmanager
def mounted(path, options="loop", clean=True):
    where = path + ".mnt"
    os.mkdir(where)
    run("mount", "-o", options, path, where)
    try:
        yield where
    finally:
        run("umount", where)
        os.rmdir(where)


# ---- trees ----


def made_by_mke2fs(name):
    """mke2fs -d keeps whole seconds only, and none of the top directory's times."""
    options, size = FEATURES[name]

    def body(tmp):
        source = f"{tmp}/source"
        populate(source, name, (3 << 30) + 5005 if "inline_data" in options else 5 << 30)  # mke2fs forgets a hole at the end
        path = image(f"{tmp}/image", options, size, source)
        with Browser(PROGRAM, path) as b:
            count = compare(b.root, source, times=False)
        if count < many(name) + 90:
            raise AssertionError(f"only {count} objects")

    body.__name__ = "made_by_mke2fs_" + name.replace("-", "_")
    return body


def made_by_linux(name):
    options, size = FEATURES[name]

    def body(tmp):
        path = image(f"{tmp}/image", options, size)
        with mounted(path) as where:
            populate(f"{where}/top", name)
        with mounted(path, "loop,ro,noload" if "ext2" not in options else "loop,ro") as where, Browser(PROGRAM, path) as b:
            compare(b.root, where, skip=(), holes=6 if name in ("indirect", "ext2") else 24)  # of blocks that are listed one by one, large holes take long
            compare_statfs(b.root.statfs(), os.statvfs(where))

    body.__name__ = "made_by_linux_" + name.replace("-", "_")
    return body


def compare_statfs(got, want):
    same("block size", want.f_bsize, got["bsize"])
    same("inodes", want.f_files, got["files"])
    for name, value in (("blocks", want.f_blocks), ("bfree", want.f_bfree)):
        if abs(got[name] - value) > want.f_blocks // 20:
            raise AssertionError(f"{name} of statfs: {got[name]}, Linux says {value}")


for each in FEATURES:
    test(made_by_mke2fs(each))
    test(made_by_linux(each))

# ---- journals ----

JOURNALS = {  # name: (mke2fs options, mount options)
    "default": ([], "loop"),
    "without_checksums": (["-O", "^metadata_csum"], "loop"),
    "with_checksums_of_version_1": (["-O", "^metadata_csum"], "loop,journal_checksum"),
    "of_32_bits": (["-O", "^metadata_csum,^64bit"], "loop"),
    "of_32_bits_with_checksums": (["-O", "^64bit"], "loop"),
    "of_data": (["-b", "1024"], "loop,data=journal"),
    "of_data_without_checksums": (["-O", "^metadata_csum,^64bit"], "loop,data=journal"),
    "async": ([], "loop,journal_async_commit,data=writeback"),
}
MAGIC = bytes.fromhex("c03b3998")


def change(top, rounds):
    """Many transactions: what is removed is revoked, its blocks are used again."""
    rng = random.Random(rounds)
    for n in range(rounds):
        os.mkdir(f"{top}/round-{n}")
        for i in range(40):
            with open(f"{top}/round-{n}/{i}", "wb") as f:
                f.write(MAGIC + rng.randbytes(rng.randrange(9000)))
                os.fsync(f.fileno()) if i % 8 == 0 or n > rounds - 3 else None
        os.symlink("x" * 200, f"{top}/round-{n}/slow")
        os.setxattr(f"{top}/round-{n}", "user.long", rng.randbytes(600))
        if n % 3 == 1:
            shutil.rmtree(f"{top}/round-{n - 1}")


def commit(top):
    """All of it into the journal, and no further, as sync(2) would."""
    for base, _, files in os.walk(top):
        for path in [base] + [os.path.join(base, f) for f in files]:
            if not os.path.islink(path):
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)


def journal(name):
    options, mount = JOURNALS[name]

    def body(tmp):
        path = image(f"{tmp}/image", ["-t", "ext4", "-J", "size=8", *options], "64M")
        with mounted(path, mount) as where:
            change(where, 20)
            run("fsfreeze", "-f", where)  # which empties the log: it is full again after the next
            run("fsfreeze", "-u", where)
            change_more(where)
            commit(where)
            run("cp", "--reflink=auto", path, f"{path}.copy")
            same("the journal is needed", True, "needs_recovery" in run("dumpe2fs", "-h", f"{path}.copy"))
            with Browser(PROGRAM, f"{path}.copy") as b:
                compare(b.root, where, skip=())
        same("without the journal it is stale", False, "newest" in run("debugfs", "-R", "ls /", f"{path}.copy"))

    body.__name__ = "journal_" + name
    return body


def change_more(where):
    os.mkdir(f"{where}/again")
    change(f"{where}/again", 7)
    with open(f"{where}/newest", "w") as f:
        f.write("news")
    os.rename(f"{where}/round-19", f"{where}/moved")


for each in JOURNALS:
    test(journal(each))


@test
def a_transaction_that_is_not_whole_did_not_happen(tmp):
    path = image(f"{tmp}/image", ["-t", "ext4", "-J", "size=8"], "64M")
    with mounted(path) as where:
        os.mkdir(f"{where}/old")
        run("fsfreeze", "-f", where)
        run("fsfreeze", "-u", where)
        os.mkdir(f"{where}/new")
        fd = os.open(where, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        shutil.copyfile(path, f"{path}.copy")
    block, _ = last_commit(f"{path}.copy")
    with open(f"{path}.copy", "r+b") as f:
        f.seek(block + 48)  # its time, which the checksum covers
        f.write(b"\xff" * 8)
    with Browser(PROGRAM, f"{path}.copy") as b:
        names = [e[0] for e in b.root.walk().open().readdir()]
    same("names", [".", "..", "lost+found", "old"], sorted(names))


def last_commit(path):
    """Where the newest commit block of the journal is, and its number."""
    blocks = [int(x) for x in run("debugfs", "-R", "blocks <8>", path).splitlines()[-1].split()]
    size = int(run("dumpe2fs", "-h", path).split("Block size:")[1].split()[0])
    best = (0, 0)
    with open(path, "rb") as f:
        for n in blocks:
            f.seek(n * size)
            head = f.read(12)
            if head[:8] == MAGIC + bytes([0, 0, 0, 2]):
                best = max(best, (int.from_bytes(head[8:], "big"), n * size))
    return best[1], best[0]


# ---- main ----


def main():
    wanted, failed = sys.argv[2:], 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is mounted is unmounted on the way out
    for f in TESTS:
        if wanted and not any(w in f.__name__ for w in wanted):
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="browse-", dir=os.environ.get("TESTTMP", "/var/tmp")) as tmp:
            try:
                f(tmp)
                print(f"ok    {f.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
            except Exception:  # noqa: BLE001
                failed += 1
                print(f"FAIL  {f.__name__}\n{traceback.format_exc()}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
