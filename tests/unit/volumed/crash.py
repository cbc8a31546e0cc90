#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-volumed killed at random moments, and garbage collection against uploads of several nodes: crash.py SPACE_VOLUMED [SECONDS [SEED]]. As root.

Two daemons, as on two nodes, share one store and one tenant. What was answered with success must be there, whole, at the end, whatever was killed or collected; and
after everything was deleted, nothing may be left.
"""
import errno
import os
import random
import shutil
import sys
import threading
import time

from client import CHUNK, DELETE, FSCK, GC, HAVE, READ_ALL, VERIFY, Daemon, Failed, ident

MIB = 1 << 20
STALE = 600  # longer than the test: no claim goes for its age
POOL = 24  # blocks of content that files are made of, so that uploads share chunks


class Node(threading.Thread):
    """Uploads, downloads and deletes on one node; asks again when its daemon was killed."""

    def __init__(self, daemon, seed, blocks, stop):
        super().__init__()
        self.daemon, self.rng, self.blocks, self.stop = daemon, random.Random(seed), blocks, stop
        self.there = {}  # id: (file, parent chain's last content)
        self.client = None
        self.failure = None
        self.done = 0
        self.again = 0

    def asking(self, what):
        """Until it is answered by a daemon that lives."""
        while True:
            try:
                if not self.client:
                    self.client = self.daemon.client()
                return what(self.client)
            except (ConnectionError, BrokenPipeError):
                self.client.close() if self.client else None
                self.client = None
                self.again += 1
            except Failed as e:
                if e.errno != errno.ESTALE:  # on a busy machine an upload may stand still for so long
                    raise
                self.again += 1

    def write(self, path, old=None):
        """A file of blocks; or a copy of `old` with a few changed, and the ranges."""
        size = 4 * MIB + self.rng.randrange(2) * 777
        ranges = []
        if old:
            shutil.copy(old, path)
            size = os.path.getsize(old)
        with open(path, "r+b" if old else "wb") as f:
            for i in range(4 * MIB // (256 << 10)):
                if self.rng.random() < (0.2 if old else 0.8):
                    f.seek(i * (256 << 10))
                    f.write(self.rng.choice(self.blocks))
                    ranges.append((i * (256 << 10), 256 << 10, 1))
            f.truncate(size)
        return ranges

    def upload(self):
        path = f"{self.daemon.folder}/{self.done}"
        a = ident()
        parent = self.rng.choice(list(self.there)) if self.there and self.rng.random() < 0.5 else None
        if parent:
            ranges = self.write(path, self.there[parent])
            up = lambda c: c.upload("t", a, path, ranges=ranges, parent=("t", parent))
        else:
            self.write(path)
            up = lambda c: c.upload("t", a, path)
        self.asking(up)
        self.there[a] = path

    def delete(self):
        a = self.rng.choice(list(self.there))
        os.unlink(self.there.pop(a))
        self.asking(lambda c: c.call(DELETE, "t", a))

    def download(self, a):
        out = f"{self.daemon.folder}/out"
        if os.path.exists(out):
            os.unlink(out)
        flags = [0]

        def ask(c):
            try:
                return c.download("t", a, out, flags=flags[0])
            finally:
                flags[0] = HAVE
        self.asking(ask)
        with open(out, "rb") as f, open(self.there[a], "rb") as g:
            assert f.read() == g.read(), f"artifact {a.hex()} came back with other bytes"

    def step(self):
        kind = self.rng.random()
        if kind < 0.5 or not self.there:
            self.upload()
        elif kind < 0.7:
            self.delete()
        elif kind < 0.85:
            self.download(self.rng.choice(list(self.there)))
        else:
            self.asking(lambda c: c.call(GC, "t"))
        self.done += 1

    def run(self):
        try:
            while not self.stop.is_set():
                self.step()
        except BaseException as e:
            self.failure = e
            self.stop.set()


def killer(daemons, rng, stop):
    kills = 0
    while not stop.is_set():
        stop.wait(rng.choice((0.02, 0.1, 0.3, 0.8)) * rng.random() * 2)
        d = rng.choice(daemons)
        d.kill()
        d.start()
        kills += 1
        d.client().close()
    return kills


def settle(node):
    """All that was answered is there; then everything goes."""
    for a in node.there:
        node.download(a)
        node.asking(lambda c: c.call(VERIFY, "t", a, flags=READ_ALL))


def main(program, seconds, seed):
    rng = random.Random(seed)
    print(f"seed {seed}")
    blocks = [rng.randbytes(256 << 10) for _ in range(POOL)]
    stale = f"store_stale = {STALE}\n"
    first = Daemon(program, conf=stale).start()
    first.client().close()
    second = Daemon(program, conf=stale)
    # the second node: caches and sockets of its own, the first one's store and keys
    with open(second.conf) as f:
        text = f.read().replace(second.store, first.store).replace(f"{second.folder}/keys", f"{first.folder}/keys")
    with open(second.conf, "w") as f:
        f.write(text)
    second.start()
    stop = threading.Event()
    nodes = [Node(first, seed + 1, blocks, stop), Node(first, seed + 3, blocks, stop), Node(second, seed + 2, blocks, stop)]
    for i, n in enumerate(nodes):
        n.daemon_folder = f"{n.daemon.folder}/n{i}"
        os.makedirs(n.daemon_folder)
        n.daemon = Seat(n.daemon, n.daemon_folder)
        n.start()
    kills = []
    k = threading.Thread(target=lambda: kills.append(killer([first, second], rng, stop)))
    k.start()
    stop.wait(seconds)
    stop.set()
    k.join()
    for n in nodes:
        n.join()
    try:
        for n in nodes:
            if n.failure:
                raise n.failure
        client = second.client()
        client.call(GC, "t")
        answer = client.call(FSCK, "t", flags=READ_ALL)
        for n in nodes:
            settle(n)
        whole = sum(len(n.there) for n in nodes)
        for n in nodes:
            for a in list(n.there):
                client.call(DELETE, "t", a)
        end = time.monotonic() + 60
        while first.objects("t/claims/"):  # what killed ones claimed is free since their next start
            assert time.monotonic() < end, f"claims of killed processes stay: {first.objects('t/claims/')}"
            time.sleep(0.05)
        client.call(GC, "t")
        left = [p for p in first.objects() if p != "t/key"]
        # artifacts whose upload was given up by the test's end, and those that were there before their delete was asked for again
        ids = [p for p in left if "manifests" in p]
        for p in ids:
            client.call(DELETE, "t", bytes.fromhex(p.split("/")[-1]))
        client.call(GC, "t")
        left = [p for p in first.objects() if p != "t/key"]
        assert not left, f"left behind: {left}"
        assert not ids, f"manifests that nobody asked for: {ids}"
        print(f"{kills[0]} kills, {sum(n.done for n in nodes)} operations, {sum(n.again for n in nodes)} asked again, {whole} artifacts whole, {answer.chunks} chunks checked")
    except BaseException:
        print(first.output()[-3000:], second.output()[-3000:])
        raise
    finally:
        second.finish()
        first.finish()


class Seat:
    """A daemon with a folder of the node's own."""

    def __init__(self, daemon, folder):
        self.client, self.folder = daemon.client, folder


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 20, int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30))
