#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-browse on images that someone made to break it: what is wrong is EIO for who asks for it, everything else is answered, and nothing
hangs or dies unless it says so here. As root. Arguments: the program, then parts of names of tests to run."""

import errno
import os
import random
import re
import shutil
import struct
import sys
import time

from browser import Browser, fails, same
from trees import acl, image, main, run, test, TESTS

TESTS.clear()  # trees.py's own
PROGRAM = sys.argv[1]
PLAIN = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit,^has_journal", "-N", "256"]


class Image:
    """An image of a small tree without checksums, and ways to spoil it."""

    def __init__(self, tmp, options=PLAIN, size="4M", fill=None):
        self.source, self.path = f"{tmp}/source", f"{tmp}/image"
        os.makedirs(f"{self.source}/a/b/c")
        with open(f"{self.source}/file", "wb") as f:
            f.write(b"0123456789" * 1000)
        os.symlink("s" * 100, f"{self.source}/slow")
        os.symlink("s" * 10, f"{self.source}/fast")
        if fill:
            fill(self.source)
        image(self.path, options, size, self.source)
        self.block = int(re.search(r"Block size: +(\d+)", run("dumpe2fs", "-h", self.path))[1])

    def debugfs(self, *commands):
        for c in commands:
            run("debugfs", "-w", "-R", c, self.path)

    def inode(self, name):
        return int(re.search(r"Inode: +(\d+)", run("debugfs", "-R", f"stat {name}", self.path))[1])

    def blocks(self, name):
        return [int(x) for x in run("debugfs", "-R", f"blocks {name}", self.path).splitlines()[-1].split()]

    def inode_at(self, name):
        found = re.search(r"located at block (\d+), offset (0x[0-9a-f]+)", run("debugfs", "-R", f"imap {name}", self.path))
        return int(found[1]) * self.block + int(found[2], 16)

    def read(self, at, n):
        with open(self.path, "rb") as f:
            f.seek(at)
            return f.read(n)

    def write(self, at, data):
        with open(self.path, "r+b") as f:
            f.seek(at)
            f.write(data)

    def replace(self, old, new):
        same("lengths", len(old), len(new))
        with open(self.path, "rb") as f:
            data = f.read()
        same(f"occurrences of {old}", True, data.count(old) > 0)
        with open(self.path, "wb") as f:
            f.write(data.replace(old, new))

    def browse(self):
        return Browser(PROGRAM, self.path)


def listing(fid):
    return sorted(e[0] for e in fid.walk().open().readdir())


def rest_works(b, missing=()):
    """What was not touched is as it should be."""
    for name, size in (("file", 10000), ("slow", 100), ("fast", 10)):
        if name not in missing:
            same(f"size of {name}", size, b.root.walk(name).getattr()["size"])
    if "file" not in missing:
        same("file", b"0123456789" * 1000, b.root.walk("file").open().read_all())
    if "slow" not in missing:
        same("slow", b"s" * 100, b.root.walk("slow").readlink())


# ---- directories ----


def touch(*names):
    def fill(top):
        os.mkdir(f"{top}/d")
        for name in names:
            with open(f"{top}/d/{name}", "w") as f:
                f.write(name)
    return fill


@test
def names_with_slash_or_nul(tmp):
    for n, bad in enumerate((b"na/me", b"na\0me", b"/////", b"/etc/")):
        os.mkdir(f"{tmp}/{n}")
        i = Image(f"{tmp}/{n}", fill=touch("before", "naXme"))
        i.replace(b"naXme", bad)
        with i.browse() as b:
            d = b.root.walk("d")
            fails(errno.EIO, listing, d)
            fails(errno.EINVAL if b"/" in bad else errno.EIO, d.walk, bad.replace(b"\0", b"?"))
            rest_works(b)
            same("a neighbour", b"before", d.walk("before").open().read_all())


@test
def dot_and_dot_dot_are_not_walked(tmp):
    with Image(tmp).browse() as b:
        for name in (".", "..", "", "a/b"):
            fails(errno.EINVAL if name else errno.ENOENT, b.root.walk, name)
            fails(errno.EINVAL if name else errno.ENOENT, b.root.walk("a").walk, name)


@test
def a_directory_in_itself(tmp):
    i = Image(tmp)
    i.debugfs("link a a/b/c/loop", "link / a/root", "link a/b a/b/self")
    with i.browse() as b:
        fails(errno.EIO, b.root.walk("a", "b", "c").walk, "loop")
        fails(errno.EIO, b.root.walk("a").walk, "root")
        fails(errno.EIO, b.root.walk("a", "b").walk, "self")
        rest_works(b)


@test
def a_directory_with_two_names(tmp):
    i = Image(tmp)
    i.debugfs("link a second", "link a/b b")
    with i.browse() as b:
        fails(errno.EIO, b.root.walk, "b")  # its parent is another
        b.root.walk("a", "b")
        fails(errno.EIO, b.root.walk, "second")
        b.root.walk("a", "b", "c")
    with i.browse() as b:  # the first that is used is the only one
        b.root.walk("second")
        fails(errno.EIO, b.root.walk, "a")


@test
def a_wrong_parent(tmp):
    i = Image(tmp)
    at = i.blocks("a/b")[0] * i.block + 12
    same("..", i.inode("a"), struct.unpack("<I", i.read(at, 4))[0])
    i.write(at, struct.pack("<I", 2))
    with i.browse() as b:
        fails(errno.EIO, b.root.walk("a").walk, "b")
        rest_works(b)


@test
def entries_that_lead_nowhere(tmp):
    i = Image(tmp, fill=touch("f1", "f2", "f3", "f4", "f5", "good"))
    at = i.blocks("d")[0] * i.block
    data = bytearray(i.read(at, i.block))
    free = max(i.inode(f"d/f{n}") for n in range(1, 6)) + 10
    for name, number in ((b"f1", 0xFFFFFFFF), (b"f2", 1), (b"f3", 7), (b"f4", free), (b"f5", 257)):
        where = data.index(name) - 8
        data[where:where + 4] = struct.pack("<I", number)
    i.write(at, data)
    with i.browse() as b:
        d = b.root.walk("d")
        same("names", 8, len(listing(d)))
        for n in range(1, 6):
            fails(errno.EIO, d.walk, f"f{n}")
        same("good", b"good", d.walk("good").open().read_all())


@test
def another_type_than_the_entry_says(tmp):
    i = Image(tmp, fill=touch("f1", "good"))
    at = i.blocks("d")[0] * i.block
    data = bytearray(i.read(at, i.block))
    data[data.index(b"f1") - 1] = 2  # a directory
    i.write(at, data)
    with i.browse() as b:
        fails(errno.EIO, b.root.walk("d").walk, "f1")
        b.root.walk("d", "good")


@test
def damaged_entries(tmp):
    for n, length in enumerate((0, 1, 4, 7, 11, 2000, 65535)):
        os.mkdir(f"{tmp}/{n}")
        i = Image(f"{tmp}/{n}", fill=touch("name", "other"))
        at = i.blocks("d")[0] * i.block
        where = i.read(at, i.block).index(b"name") - 8
        i.write(at + where + 4, struct.pack("<H", length))
        with i.browse() as b:
            fails(errno.EIO, b.root.walk, "d")  # not even its ".." is believed
            rest_works(b)


@test
def offsets_from_outside(tmp):
    with Image(tmp, fill=touch(*(f"n{x:03}" for x in range(100)))).browse() as b:
        d = b.root.walk("d").open()
        entries = d.readdir()
        for count in (40, 100, 1000):  # in any portions it is the same
            got, at = [], 0
            while True:
                data = b.client.call("Treaddir", d.n, at, count)[0]
                if not data:
                    break
                while data:
                    kind, version, path, at, dt, n = struct.unpack_from("<BIQQBH", data)
                    got.append(os.fsdecode(bytes(data[24:24 + n])))
                    data = data[24 + n:]
            same(f"in portions of {count}", [e[0] for e in entries], got)
        fails(errno.EINVAL, b.client.call, "Treaddir", d.n, 0, 10)
        for offset in [1, 2, 3, 5, 13, 25, *(e[3] + x for e in entries[:-1] for x in (1, 2, 4)), 1 << 20 | 1, (1 << 64) - 1, 1 << 63]:
            try:
                b.client.call("Treaddir", d.n, offset, 1000)
            except OSError as e:
                same("errno", errno.EINVAL, e.errno)
        rest_works(b)


@test
def a_huge_directory_without_anything_in_it(tmp):
    for n, options in enumerate((PLAIN, [*PLAIN[:-3], PLAIN[-3] + ",^extent", *PLAIN[-2:]])):
        os.mkdir(f"{tmp}/{n}")
        i = Image(f"{tmp}/{n}", options, fill=touch("one"))
        i.debugfs("set_inode_field d size 4611686018427386880")
        with i.browse() as b:
            began = time.monotonic()
            d = b.root.walk("d")
            try:
                same("names", [".", "..", "one"], listing(d))
            except OSError as e:
                same("errno", errno.EIO, e.errno)
            for name in ("one", "two"):
                try:
                    d.walk(name)
                except OSError as e:
                    same("errno", True, e.errno in (errno.EIO, errno.ENOENT))
            rest_works(b)
            if time.monotonic() - began > 20:
                raise AssertionError("it took too long")


# ---- files ----


@test
def sixteen_tebibytes(tmp):
    i = Image(tmp)
    i.debugfs("set_inode_field file size 17592186044416")
    with i.browse() as b:
        f = b.root.walk("file").open()
        same("size", 1 << 44, f.getattr()["size"])
        same("its data", b"0123456789", f.read(10))
        for at in (1 << 20, 1 << 40, (1 << 44) - 1000):
            same(f"at {at}", b"\0" * 1000, f.read(1000, offset=at))
        same("the end", b"", f.read(10, offset=1 << 44))
        rest_works(b, ["file"])


@test
def sizes_that_cannot_be(tmp):
    i = Image(tmp)
    i.debugfs("set_inode_field file size 18446744073709551615")
    with i.browse() as b:
        fails(errno.EIO, b.root.walk, "file")
        rest_works(b, ["file"])


def extents(entries, depth=0, most=4):
    """The beginning of a node: entries are (block, length, at), or (block, at) of an inner one."""
    out = struct.pack("<HHHHI", 0xF30A, len(entries), most, depth, 0)
    for e in entries:
        out += struct.pack("<IHHI", e[0], e[1], 0, e[2]) if depth == 0 else struct.pack("<IIHH", e[0], e[1], 0, 0)
    return out


@test
def extents_that_make_no_sense(tmp):
    cases = {
        "outside": extents([(0, 10, 1 << 31)]),
        "over the end": extents([(0, 10, 4090)]),
        "before the beginning": extents([(0, 10, 0)]),
        "of no length": extents([(0, 0, 100)]),
        "too many": extents([(0, 1, 100)] * 4, most=4)[:2] + struct.pack("<H", 900) + extents([(0, 1, 100)] * 4)[4:],
        "more than there is room for": extents([(0, 1, 100)] * 4)[:2] + struct.pack("<HH", 900, 900) + extents([(0, 1, 100)] * 4)[6:],
        "too deep": extents([(0, 100)], depth=6),
        "as deep as can be": extents([(0, 100)], depth=65535),
        "without the magic number": b"\0\0" + extents([(0, 1, 100)])[2:],
        "out of order": extents([(5, 1, 100), (0, 1, 101)]),
        "an index to nowhere": extents([(0, 1 << 30)], depth=1),
    }
    i = Image(tmp)
    at = i.inode_at("file") + 40
    for name, node in cases.items():
        i.write(at, node.ljust(60, b"\0"))
        with i.browse() as b:
            f = b.root.walk("file").open()
            try:
                f.read(10000)
            except OSError as e:
                same(name, errno.EIO, e.errno)
            else:
                same(name, "out of order", name)
            rest_works(b, ["file"])


@test
def an_extent_tree_that_leads_to_itself(tmp):
    i = Image(tmp)
    node = i.blocks("file")[0]
    i.write(i.inode_at("file") + 40, extents([(0, node)], depth=5).ljust(60, b"\0"))
    for depth in range(6):
        i.write(node * i.block, extents([(0, node)] if depth else [(1, 1, node)], depth=depth, most=80))
        with i.browse() as b:
            fails(errno.EIO, b.root.walk("file").open().read)
            rest_works(b, ["file"])


@test
def indirect_blocks_that_lead_to_themselves(tmp):
    i = Image(tmp, [*PLAIN[:-3], PLAIN[-3] + ",^extent", *PLAIN[-2:]])
    node = i.blocks("file")[0]
    for target in (node, 0xFFFFFFFF, 5000):
        i.write(node * i.block, struct.pack("<I", target) * (i.block // 4))
        i.write(i.inode_at("file") + 40, struct.pack("<15I", *[target] * 12, node, node, node))
        i.debugfs("set_inode_field file size 1099511627776")
        with i.browse() as b:
            f = b.root.walk("file").open()
            for at in (0, 13 << 10, 300 << 10, 80 << 20, 1 << 34, (1 << 40) - 4096):
                try:
                    f.read(1 << 20, offset=at)
                except OSError as e:
                    same("errno", errno.EIO, e.errno)
            rest_works(b, ["file"])


@test
def symlinks_that_are_none(tmp):
    i = Image(tmp)
    i.debugfs("set_inode_field slow size 5000", "set_inode_field fast size 0")
    with i.browse() as b:
        fails(errno.EIO, b.root.walk("slow").readlink)
        fails(errno.EIO, b.root.walk("fast").readlink)
        fails(errno.EINVAL, b.root.walk("file").readlink)
        rest_works(b, ["slow", "fast"])
    i.debugfs("set_inode_field slow size 100", "set_inode_field fast size 10")
    i.write(i.blocks("slow")[0] * i.block + 50, b"\0")
    i.write(i.inode_at("fast") + 42, b"\0")
    with i.browse() as b:
        fails(errno.EIO, b.root.walk("slow").readlink)
        fails(errno.EIO, b.root.walk("fast").readlink)


@test
def times_and_modes_that_cannot_be(tmp):
    i = Image(tmp)
    at = i.inode_at("file")
    i.write(at + 136, b"\xff\xff\xff\xff")
    i.write(i.inode_at("slow"), struct.pack("<H", 0o030777))
    with i.browse() as b:
        fails(errno.EIO, b.root.walk("file").getattr)
        fails(errno.EIO, b.root.walk, "slow")


@test
def attributes_that_make_no_sense(tmp):
    def fill(top):
        for n in range(12):
            with open(f"{top}/x{n}", "w") as f:
                f.write("x" * 20)
            os.setxattr(f"{top}/x{n}", "user.name", b"the value %02d" % n)
            os.setxattr(f"{top}/x{n}", "system.posix_acl_access", acl((1, 7, 0xFFFFFFFF), (2, 6, 1000), (4, 5, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF),
                                                                      (32, 0, 0xFFFFFFFF)))
    i = Image(tmp, fill=fill)
    rng = random.Random(5)
    for n in range(1, 12):
        at = i.inode_at(f"x{n}") + 160
        for _ in range(n):
            i.write(at + rng.randrange(96), bytes([rng.choice((0, 1, 255, 128, rng.randrange(256)))]))
    with i.browse() as b:
        same("value", b"the value 00", b.root.walk("x0").getxattr("user.name"))
        same("list", ["system.posix_acl_access", "user.name"], sorted(b.root.walk("x0").listxattr()))
        fails(errno.ENODATA, b.root.walk("x0").getxattr, "user.other")
        fails(errno.ENODATA, b.root.walk("x0").getxattr, "system.data")
        for n in range(1, 12):
            for name in ("", "user.name", "system.posix_acl_access"):
                try:
                    b.root.walk(f"x{n}").getxattr(name)
                except OSError as e:
                    same("errno", True, e.errno in (errno.EIO, errno.ENODATA))
        rest_works(b)


# ---- whole images ----


def crawl(fid, budget):
    """Asks for everything once; how many answers were not EIO."""
    good = 0

    def ask(f, *args):
        nonlocal good
        try:
            got = f(*args)
            good += 1
            return got
        except OSError as e:
            if isinstance(e, ConnectionError):
                raise
            if e.errno not in (errno.EIO, errno.ENODATA, errno.ENOENT, errno.EINVAL, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENOKEY, errno.EBADF):
                raise
            return None

    budget[0] -= 1
    if budget[0] < 0:
        return good
    a = ask(fid.getattr)
    ask(fid.listxattr)
    ask(fid.readlink)
    opened = ask(lambda: fid.walk().open())
    if not opened or not a:
        return good
    if a["mode"] >> 12 == 8:
        for at in (0, a["size"] // 2, max(0, a["size"] - 1000)):
            ask(opened.read, 70000, at)
            for kind in ("data", "hole"):
                ask(opened.getxattr, f"space.seek.{kind}.{at}")
        return good
    offset, names = 0, []
    for _ in range(30):
        data = ask(fid.c.call, "Treaddir", opened.n, offset, 4000)
        data = data[0] if data else b""
        while data:
            _, _, _, offset, _, n = struct.unpack_from("<BIQQBH", data)
            names.append(bytes(data[24:24 + n]))
            data = data[24 + n:]
    for name in names[:40]:
        if name not in (b".", b".."):
            child = ask(fid.walk, name)
            if child:
                good += crawl(child, budget)
    return good


def survey(path, died):
    """A bounded walk through an image of any kind. It may be refused; the browser may die of it, but not hang."""
    began = time.monotonic()
    b = Browser(PROGRAM, path, attach=False)
    try:
        good = crawl(b.client.attach(""), [60])
    except ConnectionError:
        died.append(path)
        good = 0
    except OSError as e:
        same("errno of the attach", True, e.errno in (errno.EIO, errno.ENOMEM, errno.EINVAL))
        good = 0
    b.client.close()
    code = b.process.wait(30)
    said = b.process.stderr.read().decode()
    b.process.stderr.close()
    if code not in (0, 1):
        died.append(f"{code} {said}")
    if time.monotonic() - began > 40:
        raise AssertionError(f"{path} took {time.monotonic() - began} s")
    return good


def spoil(path, rng, places, count):
    with open(path, "r+b") as f:
        for _ in range(count):
            f.seek(rng.choice(places)())
            f.write(rng.choice((b"\0", b"\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", bytes([rng.randrange(256)]), rng.randbytes(4), b"\x80", b"\1")))


def spoiled(name, options, seed, places, rounds=30):
    def body(tmp):
        rng, died, good = random.Random(seed), [], 0
        i = Image(tmp, options, "8M", touch(*(f"name-{x}" for x in range(60))))
        original = f"{tmp}/original"
        shutil.copyfile(i.path, original)
        for _ in range(rounds):
            shutil.copyfile(original, i.path)
            spoil(i.path, rng, places(i, rng), rng.randrange(1, 40))
            good += survey(i.path, died)
        print(f"      {good} answers; {len(died)} died", *died[:3])
        if not good:
            raise AssertionError("nothing could be read of any of them")

    body.__name__ = "spoiled_" + name
    return body


def superblock(_, rng):
    return [lambda: 1024 + rng.randrange(0, 360)]


def descriptors(i, rng):
    return [lambda: max(2048, i.block) + rng.randrange(64)]


def inodes(i, rng):
    first = i.inode_at("<2>")
    return [lambda: first + rng.randrange(24 * 256)]


def directories(i, rng):
    at = [b * i.block for name in ("/", "a", "a/b", "d") for b in i.blocks(name)]
    return [lambda: rng.choice(at) + rng.randrange(100)]


def anywhere(i, rng):
    return [lambda: rng.randrange(200 << 10), *superblock(i, rng)] + inodes(i, rng) + directories(i, rng)


for kind, where in (("superblock", superblock), ("descriptors", descriptors), ("inodes", inodes), ("directories", directories)):
    test(spoiled(kind, PLAIN, kind, where))
test(spoiled("with_checksums", ["-t", "ext4", "-b", "1024", "-O", "^has_journal"], 1, anywhere))
test(spoiled("inline_data", ["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data,^metadata_csum,^has_journal"], 2, anywhere))
test(spoiled("indirect", ["-t", "ext2", "-b", "1024"], 3, anywhere))
test(spoiled("large", ["-t", "ext4", "-O", "^metadata_csum,^has_journal,ea_inode,bigalloc", "-b", "1024"], 4, anywhere))


@test
def no_file_system_at_all(tmp):
    rng = random.Random(6)
    for n, data in enumerate((b"", b"x", bytes(1 << 20), rng.randbytes(1 << 20))):
        with open(f"{tmp}/{n}", "wb") as f:
            f.write(data)
        b = Browser(PROGRAM, f"{tmp}/{n}", attach=False)
        fails(errno.EIO, b.client.attach, "")
        fails(errno.EIO, b.client.attach, "")
        b.client.close()
        same("exit", 0, b.process.wait(10))
        b.process.stderr.close()


@test
def journals_that_make_no_sense(tmp):
    from trees import mounted, commit
    i = Image(tmp, ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-J", "size=1"], "16M")
    with mounted(i.path) as where:
        for n in range(30):
            os.mkdir(f"{where}/new-{n}")
            commit(f"{where}/new-{n}")
        shutil.copyfile(i.path, f"{tmp}/original")
    log = [b * i.block for b in i.blocks("<8>")][:200]
    rng, died, good = random.Random(7), [], 0
    for n in range(30):
        shutil.copyfile(f"{tmp}/original", i.path)
        spoil(i.path, rng, [lambda: log[0] + rng.randrange(88)] if n % 3 == 0 else [lambda: rng.choice(log) + rng.randrange(60)], rng.randrange(1, 12))
        good += survey(i.path, died)
    print(f"      {good} answers; {len(died)} died", *died[:3])


@test
def a_log_that_goes_round_and_round(tmp):
    """Descriptor blocks of one number all over it: no commit ends the transaction, and no pass the search."""
    i = Image(tmp, ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit", "-J", "size=1"], "16M")
    log = i.blocks("<8>")
    tag = struct.pack(">IHH", 100, 0, 0x2 | 0x8)
    for b in log[1:]:
        i.write(b * i.block, struct.pack(">III", 0xC03B3998, 1, 9) + tag)
    i.write(log[0] * i.block + 24, struct.pack(">II", 9, 1))
    i.debugfs("feature needs_recovery")
    with i.browse() as b:
        rest_works(b)


def write_log(i, transactions):
    """A log of these, from block 1 on; each ("revoke", block), ("write", block, bytes) or ("commit",)."""
    log, n, sequence = i.blocks("<8>"), 1, 9
    for kind, *rest in transactions:
        head = struct.pack(">III", 0xC03B3998, {"write": 1, "commit": 2, "revoke": 5}[kind], sequence)
        if kind == "revoke":
            head += struct.pack(">II", 20, rest[0])
        elif kind == "write":
            head += struct.pack(">IHH", rest[0], 0, 0x2 | 0x8)
            i.write(log[n + 1] * i.block, rest[1])
        i.write(log[n] * i.block, head.ljust(i.block, b"\0"))
        n += 2 if kind == "write" else 1
        sequence += kind == "commit"
    i.write(log[0] * i.block + 24, struct.pack(">II", 9, 1))
    i.debugfs("feature needs_recovery")


@test
def what_is_revoked_is_not_replayed(tmp):
    for n, (name, log, want) in enumerate((
            ("revoked later", lambda x, y: [("write", x, b"O" * 1024), ("commit",), ("revoke", x), ("write", y, b"N" * 1024), ("commit",)], (False, True)),
            ("revoked in the same transaction", lambda x, y: [("write", x, b"O" * 1024), ("revoke", x), ("commit",)], (False, False)),
            ("revoked before", lambda x, y: [("revoke", x), ("commit",), ("write", x, b"N" * 1024), ("commit",)], (True, False)),
            ("written twice", lambda x, y: [("write", x, b"O" * 1024), ("commit",), ("write", x, b"N" * 1024), ("commit",)], (True, False)),
            ("revoked by what was not committed", lambda x, y: [("write", x, b"N" * 1024), ("commit",), ("revoke", x)], (True, False)))):
        os.mkdir(f"{tmp}/{n}")
        i = Image(f"{tmp}/{n}", ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit", "-J", "size=1"], "16M")
        original = (b"0123456789" * 1000)[:2048]
        write_log(i, log(*i.blocks("file")[:2]))
        with i.browse() as b:
            got = b.root.walk("file").open().read(2048)
        same(name, b"".join(b"N" * 1024 if new else original[at:at + 1024] for at, new in zip((0, 1024), want)), got)


@test
def a_request_that_never_ends_is_ended(tmp):
    """A directory of 39 billion names, put together from one block: looking for one that is not there takes minutes. The process is given up."""
    i = Image(tmp, ["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,^64bit,^has_journal"], "16M", touch("name"))
    # 1000 blocks of 300 names, behind all that mke2fs made; then leaves of 340 extents that each are these
    first = 1200
    block = b"".join(struct.pack("<IHBB4s", 12, 12, 4, 1, b"%04d" % n) for n in range(340)) + struct.pack("<IHBB8s", 12, 16, 4, 1, b"last")
    same("block", 4096, len(block))
    i.write(first * 4096, block * 1000)
    dots = struct.pack("<IHBB4s", i.inode("d"), 12, 1, 2, b".") + struct.pack("<IHBB4s", 2, 4084, 2, 2, b"..")
    i.write((first + 1000) * 4096, dots.ljust(4096, b"\0"))
    top, leaves = first + 1001, first + 1002
    for n in range(340):
        start = 1 + n * 340000
        i.write((leaves + n) * 4096, extents([(start + m * 1000, 1000, first) for m in range(340)], most=340))
    i.write(leaves * 4096, extents([(0, 1, first + 1000)] + [(1 + m * 1000, 1000, first) for m in range(339)], most=340))
    i.write(top * 4096, extents([(n * 340000 + 1 if n else 0, leaves + n) for n in range(340)], depth=1, most=340))
    i.write(i.inode_at("d") + 40, extents([(0, top)], depth=2).ljust(60, b"\0"))
    i.debugfs(f"set_inode_field d size {(340 * 340000) * 4096}")
    b = Browser(PROGRAM, i.path)
    d = b.root.walk("d")
    same("names", True, len(b.client.call("Treaddir", d.walk().open().n, 0, 4000)[0]) > 3000)
    try:
        b.client.call("Twalk", d.n, b.client.new_fid(), ["no-such-name"], timeout=120)
    except ConnectionError:
        pass
    else:
        raise AssertionError("it ended by itself")
    b.client.close()
    same("exit status", 3, b.process.wait(10))
    same("what it says", True, "takes too long" in b.process.stderr.read().decode())
    b.process.stderr.close()


# ---- rules ----


@test
def nothing_is_written(tmp):
    i = Image(tmp)
    before = i.read(0, 4 << 20)
    with i.browse() as b:
        f, d, s = b.root.walk("file"), b.root.walk("a"), b.root.walk("slow")
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_APPEND):
            fails(errno.EROFS, f.walk().open, flags)
        for call in (lambda: d.walk().create("new"), lambda: d.mkdir("new"), lambda: d.symlink("new", "x"), lambda: d.mknod("new", 0o010600),
                     lambda: d.link("new", f), lambda: d.unlink("b"), lambda: d.rmdir("b"), lambda: d.rename("b", b.root, "new"),
                     lambda: f.setattr(what="mode", mode=0), lambda: f.walk().open().write(b"x"), lambda: f.setxattr("user.x", b"y")):
            fails(errno.EROFS, call)
        same("a lock for reading", 0, f.walk().open().lock(0))
        fails(errno.EROFS, f.walk().open().lock, 1)
        fails(errno.ELOOP, s.walk().open)
        fails(errno.EBADF, f.read)
        fails(errno.EISDIR, d.walk().open().read)
        fails(errno.ENOTDIR, f.walk, "x")
        fails(errno.ENOENT, d.walk, "x")
        rest_works(b)
    same("the image", before, i.read(0, 4 << 20))


@test
def a_writable_image_is_refused(tmp):
    import socket
    import subprocess
    i = Image(tmp)
    fd = os.open(i.path, os.O_RDWR)
    a, c = socket.socketpair()

    def place():
        os.dup2(fd, 3)
        os.dup2(c.fileno(), 4)

    done = subprocess.run([PROGRAM], preexec_fn=place, close_fds=False, stderr=subprocess.PIPE, check=False, timeout=20)
    same("exit status", 1, done.returncode)


@test
def it_is_confined(tmp):
    with Image(tmp).browse() as b:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in open(f"/proc/{b.process.pid}/status"))
        for name, want in (("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapEff", "0" * 16), ("CapPrm", "0" * 16)):
            same(name, want, status[name].strip())
        limits = open(f"/proc/{b.process.pid}/limits").read()
        sanitized = "libasan" in open(f"/proc/{b.process.pid}/maps").read()  # whose shadow memory takes terabytes of addresses
        same("address space", "unlimited" if sanitized else str(512 << 20), re.search(r"Max address space +(\S+)", limits)[1])
        same("descriptors", ["0", "1", "2", "3", "4"], sorted(os.listdir(f"/proc/{b.process.pid}/fd")))


@test
def fids_are_bounded(tmp):
    with Image(tmp).browse() as b:
        held = []
        try:
            for _ in range(70000):
                held.append(b.client.start("Twalk", b.root.n, b.client.new_fid(), []))
                if len(held) % 100 == 0:
                    held[-1].result()
            for call in held:
                call.result()
        except OSError as e:
            same("errno", errno.ENFILE, e.errno)
        else:
            raise AssertionError("70,000 fids")
        rest = [h for h in held if h.done.is_set()]
        same("at least", True, len(rest) > 60000)
        b.client.call("Tgetattr", b.root.n, 0x7FF)


if __name__ == "__main__":
    sys.exit(main())
