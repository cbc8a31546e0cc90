#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes inputs of the fuzz target browse.c: small images of every kind, and spoiled ones. As root.

    tests/fuzz/browse_corpus.py DIRECTORY            # what corpus/browse was begun with
    tests/fuzz/browse_corpus.py --pack IMAGE FILE    # one image of at most 4 MiB
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile

KINDS = {
    "plain": ["-t", "ext4", "-O", "^metadata_csum,^64bit,^has_journal"],
    "checksums": ["-t", "ext4", "-O", "^has_journal"],
    "indirect": ["-t", "ext2"],
    "inline": ["-t", "ext4", "-I", "256", "-O", "^metadata_csum,^has_journal,inline_data"],
    "xattr": ["-t", "ext4", "-I", "256", "-O", "^metadata_csum,^has_journal,ea_inode"],
    "meta-bg": ["-t", "ext4", "-O", "^metadata_csum,^has_journal,^resize_inode,meta_bg"],
    "bigalloc": ["-t", "ext4", "-O", "^metadata_csum,^has_journal,^resize_inode,bigalloc"],
    "journal": ["-t", "ext4", "-O", "^metadata_csum,^64bit", "-J", "size=1"],
}


def pack(image):
    unit = 32 << 10
    out = bytearray([(len(image) + unit - 1) // unit - 1])
    at = 0
    while at < len(image):
        end = at
        while end < len(image) and end - at < 192 and image[end:end + 64].strip(b"\0"):
            end += 64
        piece = image[at:end].rstrip(b"\0")
        if piece:
            out += (at // 64).to_bytes(2, "little") + bytes([len(piece)]) + piece
        at = max(end, at + 64)
    return bytes(out)


def populate(top):
    os.makedirs(f"{top}/d/e")
    for name, data in (("empty", b""), ("short", b"short"), ("d/page", b"p" * 1500), ("d/e/x", b"x")):
        with open(f"{top}/{name}", "wb") as f:
            f.write(data)
    with open(f"{top}/sparse", "wb") as f:
        for at in (0, 20 << 10, 600 << 10):
            f.seek(at)
            f.write(b"data")
    for i in range(12):
        with open(f"{top}/d/a-longer-name-{i}", "w"):
            pass
    os.symlink("target", f"{top}/fast")
    os.symlink("t" * 90, f"{top}/slow")
    os.mkfifo(f"{top}/fifo")
    os.setxattr(f"{top}/short", "user.x", b"value")
    os.setxattr(f"{top}/d", "user.x", b"v" * 300)
    os.setxattr(f"{top}/short", "system.posix_acl_access", bytes.fromhex("0200000001000700ffffffff02000600e803000004000500ffffffff10000700ffffffff20000000ffffffff"))


def make(kind, tmp):
    path = f"{tmp}/{kind}"
    size = "4M" if kind == "journal" else "512K"
    subprocess.run(["mke2fs", "-q", "-F", "-b", "1024", "-N", "40", "-d", f"{tmp}/tree", *KINDS[kind], path, size], check=True, stdout=subprocess.DEVNULL)
    if kind == "journal":
        mount = f"{tmp}/mnt"
        os.mkdir(mount)
        subprocess.run(["mount", "-o", "loop", path, mount], check=True)
        for name in ("new", "newer"):
            os.mkdir(f"{mount}/{name}")
            fd = os.open(mount, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        shutil.copyfile(path, f"{path}.copy")
        subprocess.run(["umount", mount], check=True)
        path += ".copy"
    with open(path, "rb") as f:
        return pack(f.read())


def spoil(data, rng):
    out = bytearray(data)
    for _ in range(rng.randrange(1, 12)):
        out[rng.randrange(1, len(out))] = rng.choice((0, 1, 2, 4, 127, 128, 255, rng.randrange(256)))
    return bytes(out)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--pack":
        with open(sys.argv[2], "rb") as f, open(sys.argv[3], "wb") as out:
            out.write(pack(f.read()))
        return
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as tmp:
        populate(f"{tmp}/tree")
        for kind in KINDS:
            data = make(kind, tmp)
            for n in range(4):
                with open(f"{sys.argv[1]}/{kind}{'-spoiled-%d' % n if n else ''}", "wb") as out:
                    out.write(spoil(data, rng) if n else data)


main()
