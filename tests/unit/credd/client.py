# SPDX-License-Identifier: Apache-2.0
"""space-credd for tests: the daemon with folders of its own, a client of its socket (lib/ipc/credd.h), and libsodium's boxes."""
import array
import base64
import ctypes
import errno
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

HELLO, MAKE, SET, VALUE, REMOVE, LOG, KNOW, FORGET, LOGIN, DENIED, AUDIT, TRUST, PACK, TAKE = range(1, 15)
KEEP, MOVED, GONE = range(3)  # of FORGET
PLATFORM, TENANT, LABELLED, SANDBOX = range(1, 5)
HOSTS, METHOD, EXPIRES, RATE = range(1, 5)
SCOPE = struct.Struct("=IIQ129s7x")
REQUEST = struct.Struct("=IIQQQIIQ152s65s512s7x")
RECORD = struct.Struct("=Q152sIIqqII65s256s4096s7xQI4x")
REPLY = struct.Struct("=IIQQiI32sQ32s480s")
USER = "nobody"
sodium = ctypes.CDLL("libsodium.so.23")


class Failed(OSError):
    """A request's answer with an error."""


def fails(code, what, *args, **kwargs):
    """It is refused with that errno; the sentence."""
    try:
        what(*args, **kwargs)
    except Failed as e:
        assert e.errno == code, (errno.errorcode[code], e)
        return e.strerror
    raise AssertionError(f"{errno.errorcode[code]} was expected")


class Record:
    def __init__(self, data):
        self.id, scope, self.maker, self.has_value, self.created, self.expires, self.uses, self.seconds, name, method, hosts, self.number, self.removed = RECORD.unpack(data)
        self.kind, self.tenant, self.sandbox, label = SCOPE.unpack(scope)
        self.name, self.method, self.hosts, self.label = (t.rstrip(b"\0").decode() for t in (name, method, hosts, label))


def scope(kind, tenant=0, sandbox=0, label=""):
    return SCOPE.pack(kind, tenant, sandbox, label.encode())


def keypair():
    public, secret = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
    sodium.crypto_box_keypair(public, secret)
    return public.raw, secret.raw


def seal(value, public):
    box = ctypes.create_string_buffer(len(value) + 48)
    assert sodium.crypto_box_seal(box, value, ctypes.c_ulonglong(len(value)), public) == 0
    return "sealed1:" + base64.b64encode(box.raw).decode()


def unseal(text, public, secret):
    box = base64.b64decode(text.strip().removeprefix("sealed1:"), validate=True)
    value = ctypes.create_string_buffer(len(box) - 48)
    assert sodium.crypto_box_seal_open(value, box, ctypes.c_ulonglong(len(box)), public, secret) == 0
    return value.raw


class Client:
    def __init__(self, path, wait=10, hostd=1):
        end = time.monotonic() + wait
        while True:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                self.sock.connect(path)
                break
            except OSError:
                self.sock.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
        self.sock.settimeout(20)
        self.tag = 0
        reply, text = self.call(HELLO, field=hostd)
        self.key = reply[6]
        self.all = [Record(text[i : i + RECORD.size]) for i in range(0, len(text), RECORD.size)]
        assert len(self.all) == reply[5], (len(self.all), reply[5])
        self.records, self.removed = ([r for r in self.all if bool(r.removed) == gone] for gone in (False, True))

    def close(self):
        self.sock.close()

    def call(self, op, credential=0, sandbox=0, uid=0, field=0, count=0, where=bytes(152), name="", text=""):
        self.tag += 1
        payload, control = text.encode() if isinstance(text, str) else text, []
        memory = -1
        if len(payload) >= 512:
            memory = os.memfd_create("payload")
            os.write(memory, payload)
            payload, control = b"", [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))]
        self.sock.sendmsg([REQUEST.pack(2, op, self.tag, credential, sandbox, uid, field, count, where, name.encode(), payload)], control)
        if memory >= 0:
            os.close(memory)
        data, control, _, _ = self.sock.recvmsg(REPLY.size + 1, socket.CMSG_SPACE(4))
        if not data:
            raise ConnectionResetError("space-credd hung up")
        reply = REPLY.unpack(data)
        assert reply[2] == self.tag, (reply[2], self.tag)
        content = b""
        for _, _, fds in control:
            with os.fdopen(array.array("i", fds)[0], "rb") as f:
                f.seek(0)
                content = f.read()
        if reply[4]:
            raise Failed(-reply[4], reply[9].rstrip(b"\0").decode())
        return reply, content

    def make(self, where, name, uid=1000):
        return Record(self.call(MAKE, where=where, name=name, uid=uid)[1])

    def set(self, ident, field, text):
        return Record(self.call(SET, ident, field=field, text=text, uid=1000)[1])

    def value(self, ident, value, public=None):
        return Record(self.call(VALUE, ident, text=seal(value, public or self.key) if value else "", uid=1000)[1])

    def add(self, where, name, hosts, value, method="autofill ann", **fields):
        ident = self.make(where, name).id
        self.set(ident, HOSTS, hosts)
        self.set(ident, METHOD, method)
        for field, text in fields.items():
            self.set(ident, {"expires": EXPIRES, "rate": RATE}[field], text)
        self.value(ident, value)
        return ident

    def know(self, sandbox, uid, labels=""):
        self.call(KNOW, sandbox=sandbox, uid=uid, text=labels)

    def login(self, sandbox, origin, uid=1000):
        public, secret = keypair()
        return unseal(self.call(LOGIN, sandbox=sandbox, uid=uid, text=f"{origin} {base64.b64encode(public).decode()}")[1].decode(), public, secret).decode()

    def pack(self, ident):
        """The record, and the packed one."""
        content = self.call(PACK, ident)[1]
        return Record(content[: RECORD.size]), content[RECORD.size :].decode()

    def take(self, sandbox, packed):
        return Record(self.call(TAKE, sandbox=sandbox, text=packed)[1])

    def log(self, ident):
        return self.call(LOG, ident)[1].decode()


class Daemon:
    """A space-credd that runs while this is entered."""

    def __init__(self, program, config=""):
        self.folder = tempfile.mkdtemp(prefix="credd-")
        os.chmod(self.folder, 0o711)
        self.program, self.process = program, None
        self.state, self.keys = f"{self.folder}/state", f"{self.folder}/keys"
        os.mkdir(f"{self.folder}/run", 0o755)
        os.mkdir(self.keys, 0o700)
        shutil.chown(self.keys, USER)
        self.write_key("default.wrapping", f"k1 = {secrets.token_hex(32)}\n")
        self.write_key("credentials.key", "service = file\nkey = k1\nfile = default.wrapping\n")
        self.config = f"{self.folder}/space.conf"
        with open(self.config, "w", encoding="utf-8") as f:
            f.write(f"run = {self.folder}/run\ncredentials = {self.state}\ncredential_keys = {self.keys}\nuser = root\ncred_user = {USER}\n{config or 'inject = no' + chr(10)}")
        self.output_path = f"{self.folder}/output"

    def write_key(self, name, text):
        with open(f"{self.keys}/{name}", "w", encoding="ascii") as f:
            f.write(text)
        os.chmod(f.name, 0o600)
        shutil.chown(f.name, USER)

    def start(self, env=None):
        with open(self.output_path, "ab") as out:
            self.process = subprocess.Popen([self.program, "--config", self.config], stdout=out, stderr=out, env=env)

    def kill(self):
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def ends(self):
        """It does not come up: its output."""
        assert self.process.wait(20) == 1
        self.process = None
        return self.output().splitlines()[-1]

    def client(self, **kwargs):
        return Client(f"{self.folder}/run/credd.sock", **kwargs)

    def output(self):
        with open(self.output_path, encoding="utf-8") as f:
            return f.read()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *failure):
        self.kill()
        if failure[0]:
            print(self.output())
        shutil.rmtree(self.folder)
