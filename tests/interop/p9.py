# SPDX-License-Identifier: Apache-2.0
"""A small 9P2000.L client for tests: blocking calls over any socket, pipelining and flush by tag. Standard library only.

    c = Client.unix("/run/space/hostd.sock")       # or Client(connected_socket)
    root = c.attach("", uid=0)                     # a Fid
    f = root.walk("sandboxes", "a", "state").open(O_RDONLY)
    print(f.read_all())

An Rlerror is raised as OSError. Client.start(...) sends without waiting and gives a Call; Call.result(timeout), Call.flush().
"""

import errno
import os
import socket
import struct
import threading

NOTAG, NOFID, NONUNAME = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
O_RDONLY, O_WRONLY, O_RDWR = os.O_RDONLY, os.O_WRONLY, os.O_RDWR

TYPES = {
    "Rlerror": 7, "Tstatfs": 8, "Tlopen": 12, "Tlcreate": 14, "Tsymlink": 16, "Tmknod": 18, "Trename": 20, "Treadlink": 22,
    "Tgetattr": 24, "Tsetattr": 26, "Txattrwalk": 30, "Txattrcreate": 32, "Treaddir": 40, "Tfsync": 50, "Tlock": 52, "Tgetlock": 54,
    "Tlink": 70, "Tmkdir": 72, "Trenameat": 74, "Tunlinkat": 76, "Tversion": 100, "Tauth": 102, "Tattach": 104, "Tflush": 108,
    "Twalk": 110, "Tread": 116, "Twrite": 118, "Tclunk": 120, "Tremove": 122,
}

# Fields of each message in order: b w d q integers, s string, D data, N names, and for replies Q a qid, W qids.
T_FIELDS = {
    "Tstatfs": "d", "Tlopen": "dd", "Tlcreate": "dsddd", "Tsymlink": "dssd", "Tmknod": "dsdddd", "Trename": "dds", "Treadlink": "d",
    "Tgetattr": "dq", "Tsetattr": "ddddd" + "q" * 5, "Txattrwalk": "dds", "Txattrcreate": "dsqd", "Treaddir": "dqd", "Tfsync": "dd",
    "Tlock": "dbdqqds", "Tgetlock": "dbqqds", "Tlink": "dds", "Tmkdir": "dsdd", "Trenameat": "dsds", "Tunlinkat": "dsd",
    "Tversion": "ds", "Tauth": "dssd", "Tattach": "ddssd", "Tflush": "w", "Twalk": "ddN", "Tread": "dqd", "Twrite": "dqD",
    "Tclunk": "d", "Tremove": "d",
}
R_FIELDS = {
    "Tstatfs": "ddqqqqqqd", "Tlopen": "Qd", "Tlcreate": "Qd", "Tsymlink": "Q", "Tmknod": "Q", "Treadlink": "s",
    "Tgetattr": "qQdddqqqqqqqqqqqqqqq", "Txattrwalk": "q", "Treaddir": "D", "Tlock": "b", "Tgetlock": "bqqds", "Tmkdir": "Q",
    "Tversion": "ds", "Tauth": "Q", "Tattach": "Q", "Twalk": "W", "Tread": "D", "Twrite": "d",
}
INTEGERS = {"b": "<B", "w": "<H", "d": "<I", "q": "<Q"}
ATTR = ("valid", "qid", "mode", "uid", "gid", "nlink", "rdev", "size", "blksize", "blocks", "atime", "atime_nsec", "mtime", "mtime_nsec",
        "ctime", "ctime_nsec", "btime", "btime_nsec", "gen", "data_version")
STATFS = ("type", "bsize", "blocks", "bfree", "bavail", "files", "ffree", "fsid", "namelen")
SETATTR = {"mode": 1, "uid": 2, "gid": 4, "size": 8, "atime": 0x90, "mtime": 0x120}


def to_bytes(s):
    return s.encode("utf-8", "surrogateescape") if isinstance(s, str) else bytes(s)


def pack(fields, values):
    out = bytearray()
    for kind, v in zip(fields, values, strict=True):
        if kind in INTEGERS:
            out += struct.pack(INTEGERS[kind], v)
        elif kind == "s":
            v = to_bytes(v)
            out += struct.pack("<H", len(v)) + v
        elif kind == "D":
            out += struct.pack("<I", len(v))
            out += v
        else:
            out += struct.pack("<H", len(v))
            for name in v:
                name = to_bytes(name)
                out += struct.pack("<H", len(name)) + name
    return out


def unpack(fields, body):
    at, out = 0, []

    def take(form):
        nonlocal at
        v = struct.unpack_from(form, body, at)
        at += struct.calcsize(form)
        return v if len(v) > 1 else v[0]

    for kind in fields:
        if kind in INTEGERS:
            out.append(take(INTEGERS[kind]))
        elif kind == "Q":
            out.append(take("<BIQ"))
        elif kind == "W":
            out.append([take("<BIQ") for _ in range(take("<H"))])
        else:
            n = take("<H" if kind == "s" else "<I")
            out.append(bytes(body[at:at + n]))
            at += n
    if at != len(body):
        raise ConnectionError(f"a reply has {len(body) - at} bytes too many")
    return out


class Call:
    """A request in flight."""

    def __init__(self, client, name, tag):
        self.client, self.name, self.tag = client, name, tag
        self.done = threading.Event()
        self.reply = None

    def result(self, timeout=30):
        if not self.done.wait(timeout):
            raise TimeoutError(f"no reply to {self.name} in {timeout} s")
        kind, body = self.reply
        if kind is None:
            raise ConnectionResetError("the 9P connection ended")
        if kind == TYPES["Rlerror"]:
            code = unpack("d", body)[0]
            raise OSError(code, f"{self.name}: {os.strerror(code)}")
        if kind != TYPES[self.name] + 1:
            raise ConnectionError(f"{self.name} was answered by type {kind}")
        return unpack(R_FIELDS.get(self.name, ""), body)

    def flush(self, timeout=30):
        """Sends Tflush and waits for Rflush; then the call is over: result() raises or not at once."""
        self.client.call("Tflush", self.tag, timeout=timeout)
        if not self.done.is_set():  # the server dropped it
            self.reply = (TYPES["Rlerror"], struct.pack("<I", errno.EINTR))
            self.client.forget(self)
            self.done.set()


class Client:
    def __init__(self, sock, msize=1 << 19, version=True):
        self.sock = sock
        self.lock = threading.Lock()
        self.calls, self.free_tags, self.next_tag, self.next_fid = {}, [], 0, 0
        self.closed = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.msize = msize
        if version:
            self.msize, name = self.start("Tversion", msize, "9P2000.L", tag=NOTAG).result()
            if name != b"9P2000.L":
                raise ConnectionError(f"the server speaks {name!r}")

    @classmethod
    def unix(cls, path, **options):
        s = socket.socket(socket.AF_UNIX)
        s.connect(path)
        return cls(s, **options)

    def close(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.reader.join(5)
        self.sock.close()

    def _exactly(self, n):
        buf = bytearray(n)
        view, at = memoryview(buf), 0
        while at < n:
            got = self.sock.recv_into(view[at:])
            if got == 0:
                raise ConnectionResetError
            at += got
        return buf

    def _read(self):
        try:
            while True:
                size, kind, tag = struct.unpack("<IBH", self._exactly(7))
                body = self._exactly(size - 7)
                with self.lock:
                    call = self.calls.pop(tag, None)
                    if call is not None and tag != NOTAG:
                        self.free_tags.append(tag)
                if call is not None:
                    call.reply = (kind, body)
                    call.done.set()
        except OSError:
            pass
        with self.lock:
            self.closed = True
            left, self.calls = list(self.calls.values()), {}
        for call in left:
            call.reply = (None, b"")
            call.done.set()

    def forget(self, call):
        with self.lock:
            if self.calls.pop(call.tag, None) is not None:
                self.free_tags.append(call.tag)

    def start(self, name, *values, tag=None):
        body = pack(T_FIELDS[name], values)
        with self.lock:
            if self.closed:
                raise ConnectionResetError("the 9P connection ended")
            if tag is None:
                if self.free_tags:
                    tag = self.free_tags.pop()
                else:
                    tag, self.next_tag = self.next_tag, self.next_tag + 1
            call = self.calls[tag] = Call(self, name, tag)
            self.sock.sendall(struct.pack("<IBH", 7 + len(body), TYPES[name], tag) + body)
        return call

    def call(self, name, *values, timeout=30):
        return self.start(name, *values).result(timeout)

    def new_fid(self):
        with self.lock:
            self.next_fid += 1
            return self.next_fid

    def attach(self, aname="", uid=NONUNAME, uname=""):
        fid = self.new_fid()
        return Fid(self, fid, self.call("Tattach", fid, NOFID, uname, aname, uid)[0])


class Fid:
    def __init__(self, client, number, qid=None):
        self.c, self.n, self.qid = client, number, qid
        self.pending, self.walked = [], 0  # calls that begin() sent

    @property
    def room(self):
        return self.c.msize - 24

    def walk(self, *names):
        """A new fid. More than 16 names are several walks."""
        names = list(names)
        new = self.c.new_fid()
        at, qids = self.n, []
        while True:
            part, names = names[:16], names[16:]
            qids = self.c.call("Twalk", at, new, part)[0]
            if len(qids) < len(part):
                if at == new:
                    self.c.call("Tclunk", new)
                raise OSError(errno.ENOENT, f"walk: no {part[len(qids)]!r}")
            at = new
            if not names:
                return Fid(self.c, new, qids[-1] if qids else self.qid)

    def begin(self, names, flags):
        """Walk and open in one burst, unanswered yet: for pipelining. Check with .check()."""
        new = Fid(self.c, self.c.new_fid())
        new.walked = len(names)
        new.pending = [self.c.start("Twalk", self.n, new.n, names), self.c.start("Tlopen", new.n, flags)]
        return new

    def check(self, timeout=30):
        pending, self.pending = self.pending, []
        for call in pending:
            got = call.result(timeout)
            if call.name == "Twalk" and len(got[0]) < self.walked:
                raise OSError(errno.ENOENT, "walk: no such name")
        return self

    def open(self, flags=O_RDONLY):
        self.qid = self.c.call("Tlopen", self.n, flags)[0]
        return self

    def create(self, name, flags=O_RDWR, mode=0o644, gid=0):
        self.qid = self.c.call("Tlcreate", self.n, name, flags, mode, gid)[0]
        return self

    def start_read(self, count=None, offset=0):
        return self.c.start("Tread", self.n, offset, min(count or self.room, self.room))

    def read(self, count=None, offset=0, timeout=30):
        return self.start_read(count, offset).result(timeout)[0]

    def read_all(self, offset=0, timeout=30):
        out = bytearray()
        while True:
            data = self.read(offset=offset + len(out), timeout=timeout)
            if not data:
                return bytes(out)
            out += data

    def start_write(self, data, offset=0):
        return self.c.start("Twrite", self.n, offset, to_bytes(data))

    def write(self, data, offset=0, timeout=30):
        data, at = to_bytes(data), 0
        while True:
            at += self.start_write(data[at:at + self.room], offset + at).result(timeout)[0]
            if at >= len(data):
                return at

    def readdir(self, count=None):
        """[(name, qid, type, offset)] of an opened directory."""
        out, offset = [], 0
        while True:
            data = self.c.call("Treaddir", self.n, offset, min(count or self.room, self.room))[0]
            if not data:
                return out
            at = 0
            while at < len(data):
                kind, version, path, offset, dtype, n = struct.unpack_from("<BIQQBH", data, at)
                at += 24
                out.append((os.fsdecode(data[at:at + n]), (kind, version, path), dtype, offset))
                at += n

    def getattr(self, mask=0x3FFF):
        return dict(zip(ATTR, self.c.call("Tgetattr", self.n, mask), strict=True))

    def setattr(self, mode=0, uid=0, gid=0, size=0, atime=None, mtime=None, **given):
        """setattr(what="mode size", mode=…): only what is named counts. Times are in nanoseconds."""
        valid = 0
        for word in given.pop("what").split():
            valid |= SETATTR[word]
        atime, mtime = atime or 0, mtime or 0
        billion = 10**9
        self.c.call("Tsetattr", self.n, valid, mode, uid, gid, size, atime // billion, atime % billion, mtime // billion, mtime % billion)

    def statfs(self):
        return dict(zip(STATFS, self.c.call("Tstatfs", self.n), strict=True))

    def mkdir(self, name, mode=0o755, gid=0):
        return self.c.call("Tmkdir", self.n, name, mode, gid)[0]

    def symlink(self, name, target, gid=0):
        return self.c.call("Tsymlink", self.n, name, target, gid)[0]

    def readlink(self):
        return self.c.call("Treadlink", self.n)[0]

    def link(self, name, target):
        """A hard link `name` in this directory to the fid `target`."""
        self.c.call("Tlink", self.n, target.n, name)

    def mknod(self, name, mode, major=0, minor=0, gid=0):
        return self.c.call("Tmknod", self.n, name, mode, major, minor, gid)[0]

    def unlink(self, name, flags=0):
        self.c.call("Tunlinkat", self.n, name, flags)

    def rmdir(self, name):
        self.unlink(name, 0x200)

    def rename(self, old, to_dir, new):
        self.c.call("Trenameat", self.n, old, to_dir.n, new)

    def fsync(self, datasync=0):
        self.c.call("Tfsync", self.n, datasync)

    def lock(self, kind, start=0, length=0, flags=0):
        """kind 0 read, 1 write, 2 unlock; 0 success, 1 blocked."""
        return self.c.call("Tlock", self.n, kind, flags, start, length, 1, "test")[0]

    def getxattr(self, name):
        fid = Fid(self.c, self.c.new_fid())
        size = self.c.call("Txattrwalk", self.n, fid.n, name)[0]
        data = b""
        while len(data) < size:
            data += fid.read(offset=len(data))
        fid.clunk()
        return data

    def listxattr(self):
        return [n.decode() for n in self.getxattr("").split(b"\0") if n]

    def setxattr(self, name, value, flags=0):
        fid = self.walk()
        self.c.call("Txattrcreate", fid.n, name, len(value), flags)
        if value:
            fid.write(value)
        fid.clunk()

    def removexattr(self, name):
        self.setxattr(name, b"", flags=2)

    def clunk(self):
        self.c.call("Tclunk", self.n)
