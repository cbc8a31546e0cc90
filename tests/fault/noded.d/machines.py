# SPDX-License-Identifier: Apache-2.0
"""Sandboxes for tests with virtual machines."""
import os
import socket
import subprocess

import env
from wire import *


def template(c, id=1, mib=64):
    c.call(OBJECT_CREATE, kind=TEMPLATE, id=id)
    fd = c.call(FILE_OPEN, kind=TEMPLATE, id=id, file=DISK, flags=WRITABLE).fd
    os.ftruncate(fd, mib << 20)
    os.close(fd)
    c.call(TEMPLATE_KERNEL, id=id)
    c.call(OBJECT_SEAL, kind=TEMPLATE, id=id)


def sandbox(c, id, template=1):
    c.call(OBJECT_SNAPSHOT, kind=SANDBOX, id=id, kind2=TEMPLATE, id2=template)
    return id


def remove(c, *ids):
    for id in ids:
        c.call(VM_KILL, id=id)
        c.call(OBJECT_DELETE, kind=SANDBOX, id=id)


def remove_all(e):
    """After a failed test: every machine, and what it was made from, but for templates."""
    c = e.client()
    remove(c, *listed(c))
    for line in c.call(OBJECT_LIST).read().decode().splitlines():
        kind, id, _ = line.split()
        if kind == "sandbox":
            remove(c, int(id, 16))
        elif kind == "snapshot":
            c.call(OBJECT_DELETE, kind=SNAPSHOT, id=int(id, 16))


class Guest:
    """The guest of init.c, by its channel."""

    def __init__(self, c, id):
        self.sock = socket.socket(fileno=c.call(CHANNEL_OPEN, id=id).fd)
        self.sock.settimeout(env.DEADLINE)
        self.file = self.sock.makefile("rwb", buffering=0)

    def tell(self, line):
        self.sock.sendall(line.encode() + b"\n")

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def answer(self):
        return self.file.readline().decode().rstrip("\n")

    def close(self):
        self.file.close()
        self.sock.close()


def boot(c, id, slot=0, **fields):
    """Started, and says hello."""
    c.start(id, slot=slot, **fields)
    g = Guest(c, id)
    env.eq("hello", g.ask("hello"), "answer of the guest")
    return g


def load(c, id, head, slot, kind=SNAPSHOT, base=None, own_disk=True, **fields):
    """A new sandbox from a head (kind, head): its QEMU waits on `base` (kind, id), or on the head itself. Answers its guest."""
    kind2, id2 = base or (kind, head)
    c.call(OBJECT_SNAPSHOT, kind=SANDBOX, id=id, kind2=kind2, id2=id2)
    c.start(id, slot=slot, flags=INCOMING, kind2=kind2, id2=id2, **fields)
    c.call(VM_LOAD, id=id, kind2=kind, id2=head, flags=OWN_DISK if own_disk else 0)
    return Guest(c, id)


def capture(c, id, head, kind=SNAPSHOT):
    return c.call(VM_CAPTURE, kind=kind, id=head, id2=id).capture()


def qemu_pid(id):
    with open(f"/run/libvirt/qemu/{env.PREFIX}-{id:012x}.pid") as f:
        return int(f.read())


def listed(c):
    """{id: (state, slot)} of the domains."""
    rows = (line.split() for line in c.call(VM_LIST).read().decode().splitlines())
    return {int(id, 16): (state, int(slot)) for id, state, slot in rows if state != "held"}


def owner(e, id):
    return os.stat(f"{e.pool}/sandboxes/{id:012x}/disk.raw").st_uid
