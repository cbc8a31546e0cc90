# SPDX-License-Identifier: Apache-2.0
"""Boots a guest with space-daemon under QEMU's emulation, without any other part of spacefs. For tests."""

import ctypes
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import p9  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.abspath(f"{HERE}/../..")
BUILD = os.environ.get("BUILD", f"{SOURCE}/build")
DAEMON = f"{BUILD}/guest/space-daemon"


def command_line():
    """The kernel command line that space-noded gives a guest under emulation."""
    with open(f"{SOURCE}/hostd/noded/domain_xml.c", encoding="utf-8") as f:
        source = f.read()
    return "".join(re.search(rf'#define {name}[\s\\]+"(.*)"', source)[1] for name in ("CMDLINE", "CMDLINE_TCG"))


CMDLINE = command_line()


def die_with_parent():
    """However a test ends, no machine of its is left."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def guest_files():
    """Kernel and initramfs, made once a build."""
    cache = f"{BUILD}/guest-files"
    subprocess.run([f"{SOURCE}/guest/kernel.sh", DAEMON, cache], check=True, stdin=subprocess.DEVNULL)
    return cache


def make_root(directory, size="64M"):
    """A root file system of nothing but busybox. Returns the image."""
    tree, image = f"{directory}/tree", f"{directory}/disk.raw"
    for d in ("bin", "sbin", "usr/bin", "usr/sbin", "dev", "proc", "sys", "run", "etc", "root", "home/user", "tmp"):
        os.makedirs(f"{tree}/{d}")
    shutil.copy("/bin/busybox", f"{tree}/bin/busybox")
    for applet in subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True).stdout.split():
        if applet != "busybox":
            os.symlink("busybox", f"{tree}/bin/{applet}")
    with open(f"{tree}/etc/passwd", "w", encoding="ascii") as f:
        f.write("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n")
    with open(f"{tree}/etc/group", "w", encoding="ascii") as f:
        f.write("root:x:0:\ntty:x:5:\nuser:x:1000:\nextra:x:1001:other,user\n")
    with open(f"{tree}/etc/hostname", "w", encoding="ascii") as f:
        f.write("of-the-disk\n")
    os.chown(f"{tree}/home/user", 1000, 1000)
    os.chmod(f"{tree}/tmp", 0o1777)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", tree, image, size], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return image


class Head:
    """A machine as it stood in one moment: ram.raw, disk.raw and vm.state in a directory. Any number of Vm(head=…) go on from it."""

    def __init__(self, parent, memory):
        self.dir, self.memory = tempfile.mkdtemp(prefix="head-", dir=parent), memory


def copy(source, target):
    subprocess.run(["cp", "--reflink=auto", "--sparse=always", source, target], check=True)


class Vm:
    """Boots a machine, or with `head` loads one, which then waits for `cont`."""

    def __init__(self, memory=256, extra_cmdline="", size="64M", disk=True, extra=(), head=None, vcpus=1):
        self.dir = tempfile.mkdtemp(prefix="space-guest-", dir=os.environ.get("TESTTMP"))
        self.memory = memory = head.memory if head else memory
        files, image, ram = guest_files(), f"{self.dir}/disk.raw", f"{self.dir}/ram.raw"
        if head:
            copy(f"{head.dir}/disk.raw", image)
            ram = f"{head.dir}/ram.raw"
        else:
            make_root(self.dir, size)
        self.began = time.monotonic()
        self.log = open(f"{self.dir}/qemu.log", "wb")
        args = ["qemu-system-x86_64", "-accel", "tcg", "-machine", "pc-q35-7.2,memory-backend=ram0", "-cpu", "Nehalem", "-nodefaults", "-display", "none",
                "-object", f"memory-backend-file,id=ram0,size={memory}M,mem-path={ram},share={'off' if head else 'on'}", "-no-reboot",
                "-m", str(memory), "-smp", str(vcpus), "-kernel", f"{files}/vmlinuz", "-initrd", f"{files}/initrd", "-append", f"{CMDLINE} {extra_cmdline}",
                "-object", "rng-random,id=r,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=r",
                "-serial", f"file:{self.dir}/console", "-monitor", f"unix:{self.dir}/monitor,server=on,wait=off", "-device", "virtio-serial-pci"]
        if disk:
            args += ["-drive", f"file={image},format=raw,if=none,id=d,cache=unsafe,discard=unmap", "-device", "virtio-blk-pci,drive=d"]
        for n in (0, 1):
            args += ["-chardev", f"socket,id=c{n},path={self.dir}/port{n},server=on,wait=off",
                     "-device", f"virtserialport,chardev=c{n},name=space.{n}"]
        args += [a.format(dir=self.dir) for a in extra] + (["-incoming", "defer"] if head else [])
        self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, preexec_fn=die_with_parent)
        try:
            if head:
                self.load(head)
        except BaseException:
            self.close()
            raise

    def wait_for_monitor(self):
        end = time.monotonic() + 30
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as s:
                    s.connect(f"{self.dir}/monitor")
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.005)  # QEMU has no way to tell that it listens

    def said(self, command):
        """A monitor command that must not fail."""
        text = self.monitor(command)
        if "Error" in text or "rror:" in text:
            raise RuntimeError(f"{command}: {text}")
        return text

    def load(self, head):
        """Feeds a head's device state to a machine that waits for it."""
        self.wait_for_monitor()
        self.said("migrate_set_capability x-ignore-shared on")
        self.said(f"migrate_incoming unix:{self.dir}/incoming")
        with socket.socket(socket.AF_UNIX) as s, open(f"{head.dir}/vm.state", "rb") as f:
            s.connect(f"{self.dir}/incoming")
            s.sendall(f.read())
        self.migration_over()

    def migration_over(self):
        end = time.monotonic() + 30
        while True:
            text = self.said("info migrate")
            if "completed" in text:
                return
            if "failed" in text or time.monotonic() > end:
                raise RuntimeError(f"migration: {text}")
            time.sleep(0.002)

    def capture(self, resume=True):
        """The machine's head of now: it stands still while that is taken. Only for one that was booted."""
        head = Head(self.dir, self.memory)
        self.said("stop")
        self.said("migrate_set_capability x-ignore-shared on")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{head.dir}/socket")
            listener.listen()
            self.said(f"migrate -d unix:{head.dir}/socket")
            with listener.accept()[0] as s, open(f"{head.dir}/vm.state", "wb") as f:
                while data := s.recv(1 << 20):
                    f.write(data)
        self.migration_over()
        copy(f"{self.dir}/ram.raw", f"{head.dir}/ram.raw")
        copy(f"{self.dir}/disk.raw", f"{head.dir}/disk.raw")
        if resume:
            self.said("cont")
        return head

    def connect(self, port, timeout=60):
        """A fresh connection with the echo of its preamble awaited: a socket."""
        end = time.monotonic() + timeout
        while True:
            s = socket.socket(socket.AF_UNIX)
            try:
                s.connect(f"{self.dir}/port{port}")
                break
            except OSError:
                s.close()
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.01)  # QEMU has no way to tell that it listens
        self.hello(s, timeout)
        return s

    @staticmethod
    def hello(s, timeout=60, before=b""):
        preamble = b"SPACE1 " + secrets.token_hex(15).encode() + b"\n"
        s.sendall(before + preamble)
        s.settimeout(timeout)
        got = b""
        while not got.endswith(preamble):
            data = s.recv(1)
            if not data:
                raise ConnectionResetError("the port closed before the echo")
            got += data
        s.settimeout(None)

    def control(self, timeout=60, msize=1 << 19):
        client = p9.Client(self.connect(0, timeout), msize=msize)
        return client, client.attach("control", uid=0)

    def files(self, timeout=60, msize=1 << 19):
        client = p9.Client(self.connect(1, timeout), msize=msize)
        return client, client.attach("root", uid=0)

    def monitor(self, command):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(f"{self.dir}/monitor")
            stream = s.makefile("rwb")

            def prompt():
                text = b""
                while not text.endswith(b"(qemu) "):
                    c = stream.read(1)
                    if not c:
                        break
                    text += c
                return text.decode(errors="replace")

            prompt()
            stream.write(command.encode() + b"\n")
            stream.flush()
            return prompt()

    def console(self):
        with open(f"{self.dir}/console", encoding="utf-8", errors="replace") as f:
            return f.read()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
