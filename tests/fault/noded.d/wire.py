# SPDX-License-Identifier: Apache-2.0
"""The client's side of lib/ipc/noded.h, which says what all of this means."""
import array
import os
import socket
import struct

TEMPLATE, SANDBOX, SNAPSHOT = 1, 2, 3
DISK, RAM, STATE, KERNEL, INITRD, META = 1, 2, 3, 4, 5, 6
(HELLO, OBJECT_CREATE, OBJECT_SNAPSHOT, OBJECT_SEAL, OBJECT_DELETE, OBJECT_LIST, FILE_OPEN, TEMPLATE_KERNEL, DISK_GROW, VM_START, VM_CAPTURE,
 VM_LOAD, VM_KILL, VM_PAUSE, VM_RESUME, VM_STATS, VM_LIST, CHANNEL_OPEN, POOL_STAT, FILE_COMPARE, NET_SOCKET, VM_FILL,
 VM_FILLED) = range(1, 24)
READ_ONLY, WRITABLE, PROBE, INCOMING, OWN_DISK, RANGES = 1, 2, 4, 8, 16, 32
TCG, KVM = 1, 2
REPLY, EVENT_VM, EVENT_RESYNC = 0, 1, 2
GONE, CRASHED, PAUSED, RESUMED, IO_ERROR, GUEST_PANIC = 1, 2, 3, 4, 5, 6

REQUEST = struct.Struct("=IIQIIQQIIQQIIII")
FIELDS = ("version", "op", "tag", "kind", "kind2", "id", "id2", "file", "flags", "size", "memory", "vcpus", "accel", "slot", "port")
UNION = struct.Struct("=QII32s65s65sB5x")
REPLY_HEAD = struct.Struct("=IIQiIQ")
REPLY_SIZE = REPLY_HEAD.size + UNION.size + 256


def request(op, **fields):
    values = dict.fromkeys(FIELDS, 0)
    values.update(version=1, op=op, **fields)
    return REQUEST.pack(*(values[f] for f in FIELDS))


def text(raw):
    return raw.split(b"\0")[0].decode()


class Reply:
    def __init__(self, raw, fd):
        assert len(raw) == REPLY_SIZE, len(raw)
        self.version, self.event, self.tag, self.error, self.vm_event, self.id = REPLY_HEAD.unpack_from(raw)
        self.union = raw[REPLY_HEAD.size:REPLY_HEAD.size + UNION.size]
        self.sentence = text(raw[-256:])
        self.fd = fd

    def node(self):
        memory, cpus, kvm, qemu, kernel, model, arrives = UNION.unpack(self.union)
        return dict(memory=memory, cpus=cpus, kvm=kvm, qemu=text(qemu), kernel=text(kernel), model=text(model), arrives=arrives)

    def stats(self):
        return dict(zip(("cpu_nsec", "rss_bytes", "running"), struct.unpack_from("=QQI", self.union)))

    def capture(self):
        return dict(zip(("pause_nsec", "changed_bytes", "state_bytes"), struct.unpack_from("=QQQ", self.union)))

    def pool(self):
        return dict(zip(("size_bytes", "free_bytes"), struct.unpack_from("=QQ", self.union)))

    def extents(self):
        return dict(zip(("size", "held", "changed", "emptied", "next"), struct.unpack_from("=QQQQQ", self.union)))

    def read(self):
        """All of the descriptor that came along."""
        with os.fdopen(self.fd, "rb") as f:
            return f.read()

    def __repr__(self):
        return f"<event {self.event} tag {self.tag} error {self.error} vm_event {self.vm_event} id {self.id:x} {self.sentence!r}>"


class Failed(Exception):
    def __init__(self, reply):
        super().__init__(f"{os.strerror(-reply.error)}: {reply.sentence}")
        self.errno = -reply.error
        self.sentence = reply.sentence


class Client:
    """Requests one at a time, or many with send() and reply(); events are kept until event() takes them."""

    def __init__(self, sock):
        self.sock = sock
        self.tag = 0
        self.replies = {}
        self.events = []

    def close(self):
        self.sock.close()

    def send(self, op, **fields):
        self.tag += 1
        self.sock.send(request(op, tag=self.tag, **fields))
        return self.tag

    def receive(self):
        fds = array.array("i")
        raw, control, _, _ = self.sock.recvmsg(REPLY_SIZE + 1, socket.CMSG_SPACE(4))
        if not raw:
            raise ConnectionResetError("space-noded hung up")
        for _, kind, data in control:
            if kind == socket.SCM_RIGHTS:
                fds.frombytes(data[:4])
        r = Reply(raw, fds[0] if fds else -1)
        if r.event == REPLY:
            self.replies[r.tag] = r
        else:
            self.events.append(r)
        return r

    def reply(self, tag):
        while tag not in self.replies:
            self.receive()
        r = self.replies.pop(tag)
        if r.error:
            raise Failed(r)
        return r

    def call(self, op, **fields):
        return self.reply(self.send(op, **fields))

    def event(self, wanted, id=None):
        """The next event of this kind (vm_event, or "resync"), which may have come already."""
        def match(e):
            if wanted == "resync":
                return e.event == EVENT_RESYNC
            return e.event == EVENT_VM and e.vm_event == wanted and (id is None or e.id == id)
        while not any(match(e) for e in self.events):
            self.receive()
        e = next(e for e in self.events if match(e))
        self.events.remove(e)
        return e

    def start(self, id, slot=0, memory=128 << 20, **fields):
        return self.call(VM_START, **{**dict(id=id, slot=slot, memory=memory, vcpus=1, accel=TCG), **fields})
