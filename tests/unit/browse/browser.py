# SPDX-License-Identifier: Apache-2.0
"""A space-browse of one image, and the tree that it serves compared with one in a directory."""

import errno
import os
import socket
import stat
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../interop"))
import p9  # noqa: E402

ATTRIBUTES = ("mode", "uid", "gid", "nlink", "rdev", "size")


class Client(p9.Client):
    """Without a thread that reads: who waits for a reply reads until it comes. Half the time for a tree of thousands of small requests."""

    class Direct(p9.Call):
        def result(self, timeout=30):
            self.client.sock.settimeout(timeout)
            try:
                while not self.done.is_set():
                    self.client.take()
            except TimeoutError:
                raise TimeoutError(f"no reply to {self.name} in {timeout} s") from None
            return super().result(0)

    def start(self, name, *values, tag=None):
        call = super().start(name, *values, tag=tag)
        call.__class__ = self.Direct
        return call

    def _read(self):
        """The thread of p9.Client ends at once."""

    def take(self):
        """One reply, or the end of the connection for all that wait."""
        try:
            size, kind, tag = struct.unpack("<IBH", self._exactly(7))
            body = self._exactly(size - 7)
        except TimeoutError:
            raise
        except OSError:
            self.closed = True
            left, self.calls = list(self.calls.values()), {}
            kind, body = None, b""
        else:
            left = [self.calls.pop(tag)]
            if tag != p9.NOTAG:
                self.free_tags.append(tag)
        for call in left:
            call.reply = (kind, body)
            call.done.set()


class Browser:
    """with Browser(program, image) as root: a Fid of its root directory, and .process."""

    def __init__(self, program, image, attach=True):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        fd = os.open(image, os.O_RDONLY)

        def place():  # a copy first: each may be where the other belongs
            a, b = os.dup2(fd, 100), os.dup2(theirs.fileno(), 101)
            os.dup2(a, 3)
            os.dup2(b, 4)
            os.closerange(5, 4096)

        self.process = subprocess.Popen([program], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=place, close_fds=False)
        theirs.close()
        os.close(fd)
        self.client = Client(ours, msize=1 << 20)
        self.root = self.client.attach("") if attach else None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.client.close()
        code = self.process.wait(30)
        said = self.process.stderr.read().decode()
        self.process.stderr.close()
        if kind is None and code != 0:
            raise AssertionError(f"the browser ended with {code}: {said}")


def value(got):
    return got if isinstance(got, (int, str)) or len(got) < 80 else f"{got[:60]!r}… ({len(got)} bytes)"


def same(what, want, got):
    if want != got:
        raise AssertionError(f"{what}: is {value(got)!r}, should be {value(want)!r}")


def compare(fid, path, times=True, skip=("lost+found",), links=None, holes=0):
    """Everything below `path` against the tree behind `fid`: names, attributes, contents, and where their first `holes` are. How many objects that
    was."""
    st, a = os.lstat(path), fid.getattr()
    links = {} if links is None else links
    for name in ATTRIBUTES:
        if name == "size" and stat.S_ISDIR(st.st_mode) or name == "nlink" and stat.S_ISDIR(st.st_mode):
            continue
        same(f"{name} of {path}", getattr(st, "st_" + name), a[name])
    if times:
        same(f"mtime of {path}", st.st_mtime_ns, a["mtime"] * 10**9 + a["mtime_nsec"])
    same(f"the inode of the other names of {path}", links.setdefault(st.st_ino, a["qid"][2]), a["qid"][2])
    same(f"xattrs of {path}", sorted(os.listxattr(path, follow_symlinks=False)), sorted(fid.listxattr()))
    for name in os.listxattr(path, follow_symlinks=False):
        same(f"{name} of {path}", os.getxattr(path, name, follow_symlinks=False), fid.getxattr(name))
    if stat.S_ISLNK(st.st_mode):
        same(f"target of {path}", os.fsencode(os.readlink(path)), fid.readlink())
    elif stat.S_ISREG(st.st_mode):
        compare_data(fid.walk().open(), path, st, holes)
    elif stat.S_ISDIR(st.st_mode):
        return 1 + compare_directory(fid, path, times, skip, links, holes)
    return 1


def pieces(f, size, most):
    """(offset, length) that are worth reading: data, and both ends of holes."""
    at = 0
    while at < size:
        try:
            data = os.lseek(f.fileno(), at, os.SEEK_DATA)
        except OSError:  # no more
            data = size
        if data - at > 4 * most:
            yield at, most
            at = data - most
        end = size if data == size else os.lseek(f.fileno(), data, os.SEEK_HOLE)
        while at < end:
            yield at, min(most, end - at)
            at += most
        at = end


def seek(f, at, whence):
    """lseek's answer, or the name of its errno."""
    try:
        return os.lseek(f.fileno(), at, whence)
    except OSError as e:
        return errno.errorcode[e.errno]


def ask_seek(fid, at, name, size):
    """The same of the browser; what falls short after bounded work is asked on."""
    try:
        while True:
            got = int(fid.getxattr(f"space.seek.{name}.{at}"))
            if got in (at, size):
                return got
            at = got
    except OSError as e:
        return errno.errorcode[e.errno]


def compare_holes(fid, path, f, size, most):
    """The first boundaries between data and holes, and what is beside them; some `most` places."""
    places, at = {0, size, size + 4096}, 0
    while at < size and len(places) < most:
        end = seek(f, at, os.SEEK_HOLE)
        at = seek(f, end, os.SEEK_DATA)
        places |= {end, end + 1, max(end - 1, 0)}
        if not isinstance(at, int):
            break
        places |= {at, at + 1, max(at - 1, 0)}
    for at in sorted(places):
        for name, whence in (("data", os.SEEK_DATA), ("hole", os.SEEK_HOLE)):
            same(f"the next {name} in {path} from {at} on", seek(f, at, whence), ask_seek(fid, at, name, size))


def compare_data(fid, path, st, holes):
    with open(path, "rb") as f:
        if holes:
            compare_holes(fid, path, f, st.st_size, holes)
        for at, n in pieces(f, st.st_size, fid.room):
            same(f"{path} at {at}", os.pread(f.fileno(), n, at), fid.read(n, offset=at))
        same(f"the end of {path}", b"", fid.read(offset=st.st_size))
    fid.clunk()


def compare_directory(fid, path, times, skip, links, holes):
    opened = fid.walk().open()
    entries = opened.readdir()
    opened.clunk()
    names = [e[0] for e in entries if e[0] not in (".", "..")]
    same(f"names in {path}", sorted(set(os.listdir(path)) - set(skip)), sorted(set(names) - set(skip)))
    same(f"number of names in {path}", len(set(names)), len(names))
    kinds = {e[0]: e[2] for e in entries}
    count = 0
    for name in names:
        if name in skip:
            continue
        child = fid.walk(name)
        below = os.path.join(path, name)
        if kinds[name]:  # 0: not every file system says
            same(f"type of {below} in its directory", stat.S_IFMT(os.lstat(below).st_mode) >> 12, kinds[name])
        count += compare(child, below, times, skip, links, holes)
        child.clunk()
    return count


def fails(code, f, *args):
    try:
        got = f(*args)
    except OSError as e:
        same("errno", errno.errorcode[code], errno.errorcode.get(e.errno, e.errno))
        return
    raise AssertionError(f"succeeded with {got!r:.100}, not {errno.errorcode[code]}")
