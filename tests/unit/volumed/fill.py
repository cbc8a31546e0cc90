#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that are filled while others use them (VOLUMED_FILL, lib/ipc/fill.h): fill.py SPACE_VOLUMED [SEED]. As root.

The guest is a thread here, which writes to chunks as soon as their bits are set, as a guest may. What it wrote must be there at the end, and everything else must be
what was stored, however often space-volumed was killed or asked anew in between.
"""
import errno
import os
import random
import struct
import sys
import threading
import time

from client import CHUNK, DOWNLOAD, FETCH, Daemon, Failed, ident

FILL = 64
MIB = 1 << 20
SIZE = 48 * MIB + 12345
CHUNKS = -(-SIZE // CHUNK)
BITS = 4096


def fail(text):
    sys.exit(f"fill.py: {text}")


def eq(want, got, what):
    if want != got:
        fail(f"{what}: want {want!r}, got {got!r}")


def refused(code, what, function, *args):
    try:
        function(*args)
    except Failed as e:
        eq(errno.errorcode[code], errno.errorcode[e.errno], what)
        return
    fail(f"{what}: success")


class Disk:
    """A file and its bits."""

    def __init__(self, folder, content=b"", size=SIZE):
        self.path, self.bits = f"{folder}/disk", f"{folder}/fill"
        with open(self.path, "wb") as f:
            f.write(content)
            f.truncate(size)
        with open(self.bits, "wb") as f:
            f.write(struct.pack("=8sIIQ", b"spcfill\n", 1, 1, size))
            f.truncate(BITS + -(-size // CHUNK) // 8 + 1)
        self.fds = [os.open(self.path, os.O_RDWR), os.open(self.bits, os.O_RDWR)]

    def close(self):
        for fd in self.fds:
            os.close(fd)

    def there(self, chunk):
        return os.pread(self.fds[1], 1, BITS + chunk // 8)[0] >> chunk % 8 & 1

    def show(self, chunk):
        byte = os.pread(self.fds[1], 1, BITS + chunk // 8)[0] | 1 << chunk % 8
        os.pwrite(self.fds[1], bytes([byte]), BITS + chunk // 8)

    def send(self, client, artifact, base=("", None), flags=FILL, fds=None):
        return client.send(DOWNLOAD, "t", artifact, base=base, flags=flags, fds=self.fds if fds is None else fds)

    def fill(self, client, artifact, **kwargs):
        return client.wait(self.send(client, artifact, **kwargs))

    def content(self):
        return os.pread(self.fds[0], SIZE + 1, 0)

    def whole(self, want, what):
        eq([1] * CHUNKS, [self.there(i) for i in range(CHUNKS)], f"{what}: bits")
        got = self.content()
        if got != want:
            at = next(i for i in range(CHUNKS) if got[i * CHUNK:(i + 1) * CHUNK] != want[i * CHUNK:(i + 1) * CHUNK])
            fail(f"{what}: chunk {at} of {CHUNKS} is not what it should be")


def make(rng, old=None):
    """Data, zeros in runs, and here and there a repeated block."""
    out = bytearray(old or bytes(SIZE))
    for at in range(0, SIZE, 256 << 10):
        kind = rng.random()
        n = min(256 << 10, SIZE - at)
        if kind < (0.3 if old else 0.7):
            out[at:at + n] = rng.randbytes(n)
        elif kind < 0.4 and old:
            out[at:at + n] = bytes(n)
    return bytes(out)


def changes(old, new):
    """Ranges as space-noded gives them."""
    out = []
    for i in range(CHUNKS):
        a, b = old[i * CHUNK:(i + 1) * CHUNK], new[i * CHUNK:(i + 1) * CHUNK]
        if a != b:
            out.append((i * CHUNK, len(b), 1 if any(b) else 2))
    return out


class Guest(threading.Thread):
    """Writes to chunks that are there, and remembers what."""

    def __init__(self, disk, seed):
        super().__init__(daemon=True)
        self.disk, self.rng, self.stop, self.wrote = disk, random.Random(seed), threading.Event(), {}

    def run(self):
        while not self.stop.is_set():
            chunk = self.rng.randrange(CHUNKS - 1)
            if self.disk.there(chunk):
                self.wrote[chunk] = self.rng.randbytes(16) * (CHUNK // 16)
                os.pwrite(self.disk.fds[0], self.wrote[chunk], chunk * CHUNK)

    def end(self, want):
        self.stop.set()
        self.join()
        out = bytearray(want)
        for chunk, text in self.wrote.items():
            out[chunk * CHUNK:(chunk + 1) * CHUNK] = text
        return bytes(out)


def plain(d, client, rng):
    data, name = make(rng), ident()
    write(f"{d.folder}/a", data)
    client.upload("t", name, f"{d.folder}/a")
    disk = Disk(d.folder)
    for chunk in (0, 7, CHUNKS - 1):
        disk.show(chunk)
    os.pwrite(disk.fds[0], b"x" * CHUNK, 7 * CHUNK)
    want = bytearray(data)
    want[:CHUNK], want[7 * CHUNK:8 * CHUNK], want[(CHUNKS - 1) * CHUNK:] = bytes(CHUNK), b"x" * CHUNK, bytes(SIZE - (CHUNKS - 1) * CHUNK)
    disk.fill(client, name)
    disk.whole(bytes(want), "chunks whose bit was set are left alone")
    answer = disk.fill(client, name)
    eq(0, answer.written, "bytes written by a second one")
    refused(errno.EINVAL, "without bits", lambda: disk.fill(client, name, fds=disk.fds[:1]))
    refused(errno.EINVAL, "bits without the flag", lambda: disk.fill(client, name, flags=0))
    refused(errno.EINVAL, "bits that are none", lambda: disk.fill(client, name, fds=[disk.fds[0], disk.fds[0]]))
    disk.close()
    small = Disk(d.folder, size=SIZE - CHUNK)
    refused(errno.EINVAL, "bits of another size", lambda: small.fill(client, name))
    small.close()
    return data, name


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def derived(d, client, rng, base, base_name):
    data, name = make(rng, base), ident()
    write(f"{d.folder}/b", data)
    client.upload("t", name, f"{d.folder}/b", ranges=changes(base, data), base=("t", base_name))
    disk = Disk(d.folder, base)
    disk.fill(client, name, base=("t", base_name))
    disk.whole(data, "what differs from a base")
    disk.close()
    return data, name


def fetched(d, client, rng, base, base_name, data, name):
    """A range first: its bits are set when it is answered, whatever it consists of."""
    disk = Disk(d.folder, base)
    request = disk.send(client, name, base=("t", base_name))
    for _ in range(20):
        first = rng.randrange(CHUNKS - 16)
        try:
            client.call(FETCH, tag2=request[0], offset=first * CHUNK + 100, length=8 * CHUNK)
        except Failed as e:
            eq(errno.ESRCH, e.errno, "a fetch of a fill that has ended")
            break
        eq([1] * 9, [disk.there(i) for i in range(first, first + 9)], "bits of a range that was fetched")
    client.wait(request)
    disk.whole(data, "with ranges fetched")
    disk.close()


def partly(d, client, data, name):
    """A pack that is missing keeps nothing else away; nor a fetch of what it has."""
    disk = Disk(d.folder)
    pack = os.path.join(d.store, d.objects(f"t/packs/{name.hex()}/")[0])
    os.rename(pack, pack + ".hidden")
    refused(errno.EBADMSG, "a fill without one pack", disk.fill, client, name)
    there = [disk.there(i) for i in range(CHUNKS)]
    if not 0 < sum(there) < CHUNKS:
        fail(f"without one pack: {sum(there)} chunks of {CHUNKS} are there")
    content = disk.content()
    wrong = [i for i in range(CHUNKS) if there[i] and content[i * CHUNK:(i + 1) * CHUNK] != data[i * CHUNK:(i + 1) * CHUNK]]
    eq([], wrong, "chunks that are said to be there, and are not")
    os.rename(pack + ".hidden", pack)
    answer = disk.fill(client, name)
    at_most = sum(1 for i in range(CHUNKS) if not there[i]) * CHUNK
    if answer.written > at_most:
        fail(f"bytes written again: {answer.written}, where {at_most} were missing")
    disk.whole(data, "with the pack again")
    disk.close()


def interrupted(d, rng, base, base_name, data, name):
    disk = Disk(d.folder, base)
    guest = Guest(disk, rng.randrange(1 << 30))
    guest.start()
    killed = anew = 0
    client = d.client()
    while True:
        request = disk.send(client, name, base=("t", base_name))
        try:
            client.wait(request, limit=rng.random() * 0.25)
            break
        except (TimeoutError, ConnectionError):
            pass
        client.close()
        if rng.random() < 0.5:
            d.kill()
            d.start()
            killed += 1
        else:
            anew += 1  # the one before may still write
        client = d.client()
    disk.whole(guest.end(data), f"killed {killed} times, asked anew {anew} times, {len(guest.wrote)} chunks written by the guest")
    disk.close()
    client.close()
    return killed + anew


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Daemon(sys.argv[1]) as d:
        client = d.client()
        base, base_name = plain(d, client, rng)
        data, name = derived(d, client, rng, base, base_name)
        fetched(d, client, rng, base, base_name, data, name)
        partly(d, client, base, base_name)
        client.close()
        began, times = time.monotonic(), 0
        while time.monotonic() - began < 6 or times < 3:
            times += interrupted(d, rng, base, base_name, data, name)
        print(f"interrupted {times} times")


main()
