# SPDX-License-Identifier: Apache-2.0
"""space-volumed for tests: the daemon with a directory as store, and a client of its socket (lib/ipc/volumed.h)."""
import array
import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

HELLO, UPLOAD, DOWNLOAD, FETCH, CANCEL, VERIFY, DELETE, LIST, GC, FSCK, STAT, KEY, REPAIR = range(1, 14)
HAVE, READ_ALL, ROTATE, REVOKE, FRESH, MEND, FILL, HOLD, FORGET, CLOSE = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512
DATA, ZEROS = 1, 2
CHUNK = 65536
REF = "68s16s"
REQUEST = struct.Struct("=IIQQIIQQQ" + REF * 3 + "4x")
REPLY = struct.Struct("=IIQiI128s256s")
FIELDS = {
    UPLOAD: ("read zero reused new stored inherited msec", "=7Q"),
    REPAIR: ("read zero reused new stored inherited msec", "=7Q"),
    DOWNLOAD: ("chunks fetched written zero had msec", "=6Q"),
    VERIFY: ("chunks fetched written zero had msec", "=6Q"),
    GC: ("artifacts packs stored condemned deleted deleted_bytes others waiting replaced", "=9Q"),
    FSCK: ("artifacts packs chunks read wrong affected", "=6Q"),
    STAT: ("artifacts files chunks unique packs stored", "=6Q"),
    KEY: ("policy id wrapped_by own unpacked", "=I16s80sII"),
}


class Failed(OSError):
    """A request's answer with an error."""


class Answer(dict):
    """Fields of a reply; `fd` is a file's content, when one came along."""

    __getattr__ = dict.__getitem__


def ref(tenant, ident):
    return (tenant.encode(), ident) if tenant else (b"", bytes(16))


class Client:
    def __init__(self, path, wait=10):
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
        self.tag = 0
        self.answers = {}
        self.progress = {}
        self.call(HELLO)

    def close(self):
        self.sock.close()

    def send(self, op, tenant="", ident=bytes(16), base=("", None), parent=("", None), size=0, offset=0, length=0, flags=0, file=0, tag2=0, fds=()):
        self.tag += 1
        packet = REQUEST.pack(1, op, self.tag, tag2, flags, file, size, offset, length, *ref(tenant, ident) if tenant else (b"", ident), *ref(*base), *ref(*parent))
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([packet], control)
        return self.tag, op

    def receive(self):
        data, control, _, _ = self.sock.recvmsg(REPLY.size + 1, socket.CMSG_SPACE(4))
        if not data:
            raise ConnectionResetError("space-volumed hung up")
        _, event, tag, error, _, union, sentence = REPLY.unpack(data)
        if event == 1:
            self.progress[tag] = struct.unpack_from("=2Q", union)
            return
        fd = None
        for _, _, bytes_ in control:
            fd = array.array("i", bytes_)[0]
        self.answers[tag] = (error, union, sentence.rstrip(b"\0").decode(), fd)

    def wait(self, request, limit=120):
        tag, op = request
        end = time.monotonic() + limit
        while tag not in self.answers:
            if not select.select([self.sock], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no answer to operation {op} within {limit} s")
            self.receive()
        error, union, sentence, fd = self.answers.pop(tag)
        answer = Answer(error=error, sentence=sentence, text=None)
        names, form = FIELDS.get(op, ("", "="))
        answer.update(zip(names.split(), struct.unpack_from(form, union)))
        if fd is not None:
            with os.fdopen(fd, "r") as f:
                f.seek(0)
                answer["text"] = f.read()
        if error:
            failure = Failed(-error, sentence)
            failure.answer = answer
            raise failure
        return answer

    def call(self, op, *args, limit=120, **kwargs):
        return self.wait(self.send(op, *args, **kwargs), limit)

    # ---- files ----

    def send_upload(self, tenant, ident, path, ranges=None, size=None, op=UPLOAD, **kwargs):
        with open(path, "rb") as f:
            fds = [f.fileno()]
            size = os.fstat(fds[0]).st_size if size is None else size
            if ranges is None:
                return self.send(op, tenant, ident, size=size, fds=fds, **kwargs)
            memory = os.memfd_create("ranges")
            try:
                os.write(memory, b"".join(struct.pack("=QQQ", *r) for r in ranges))
                return self.send(op, tenant, ident, size=size, fds=fds + [memory], **kwargs)
            finally:
                os.close(memory)

    def upload(self, tenant, ident, path, limit=120, **kwargs):
        return self.wait(self.send_upload(tenant, ident, path, **kwargs), limit)

    def repair(self, tenant, ident, path=None, **kwargs):
        return self.upload(tenant, ident, path, op=REPAIR, **kwargs) if path else self.call(REPAIR, tenant, ident, **kwargs)

    def send_download(self, tenant, ident, path, **kwargs):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            return self.send(DOWNLOAD, tenant, ident, fds=[fd], **kwargs)
        finally:
            os.close(fd)

    def download(self, tenant, ident, path, limit=120, **kwargs):
        return self.wait(self.send_download(tenant, ident, path, **kwargs), limit)


class Daemon:
    """One space-volumed on folders of its own."""

    def __init__(self, program, folder=None, user="nobody", conf=""):
        self.program = program
        self.folder = folder or tempfile.mkdtemp(prefix="volumed-", dir="/var/tmp")
        self.made = folder is None
        os.chmod(self.folder, 0o755)
        self.store = f"{self.folder}/store"
        for name in ("run", "keys"):
            os.makedirs(f"{self.folder}/{name}", exist_ok=True)
        who = pwd.getpwnam(user)
        for name, text in (("default.key", "service = file\nkey = k1\nfile = wrapping\n"), ("wrapping", f"k1 = {secrets.token_hex(32)}\n")):
            path = f"{self.folder}/keys/{name}"
            if not os.path.exists(path):
                with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
                    f.write(text)
                os.chown(path, who.pw_uid, who.pw_gid)
        os.chown(f"{self.folder}/keys", who.pw_uid, who.pw_gid)
        self.conf = f"{self.folder}/space.conf"
        with open(self.conf, "w") as f:
            f.write(f"run = {self.folder}/run\nstore = {self.store}\nstore_cache = {self.folder}/cache\nkeys = {self.folder}/keys\nuser = root\nvolume_user = {user}\n{conf}")
        self.path = f"{self.folder}/run/volumed.sock"
        self.process = None
        self.log = open(f"{self.folder}/log", "ab")

    def start(self, wrapper=()):
        self.process = subprocess.Popen([*wrapper, self.program, "--config", self.conf], stderr=self.log, stdout=self.log)
        return self

    def client(self):
        return Client(self.path)

    def kill(self, number=signal.SIGKILL):
        if self.process:
            self.process.send_signal(number)
            self.process.wait(15)
            self.process = None

    def memory(self):
        """Peak resident KiB."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))

    def output(self):
        with open(f"{self.folder}/log") as f:
            return f.read()

    def objects(self, prefix=""):
        """Paths of the store's objects, below the store."""
        found = []
        for where, _, names in os.walk(self.store):
            found += [os.path.relpath(os.path.join(where, name), self.store) for name in names if not name.startswith(".")]
        return sorted(p for p in found if p.startswith(prefix))

    def finish(self):
        self.kill()
        self.log.close()
        if self.made:
            shutil.rmtree(self.folder)

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, value, trace):
        if kind:
            print(self.output()[-4000:])
        self.finish()


def ident():
    return secrets.token_bytes(16)
