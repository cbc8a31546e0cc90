# SPDX-License-Identifier: Apache-2.0
"""A guest under QEMU without libvirt: kernel and initramfs of guest/kernel.sh, a small ext4 disk of busybox, both ports as unix sockets."""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.dirname(HERE))
import p9  # noqa: E402  (lies beside guest_test.py)

BOOT_TIMEOUT = 60.0
# What space-noded gives its domains (docs/protocol/guest.md recommends it).
CMDLINE = "quiet loglevel=0 panic=-1 tsc=reliable no_timer_check random.trust_cpu=on rdinit=/init mitigations=off cryptomgr.notests"


class Skip(Exception):
    """The test cannot run here; its text says why."""


def run(*argv, **kw):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw).stdout


class Kit:
    """What machines boot from, made once for all of them in `work`."""

    def __init__(self, build, work):
        self.work = work
        self.daemon = os.path.join(build, "guest", "space-daemon")
        if not os.path.exists(self.daemon):
            raise Skip(f"{self.daemon} is not built")
        for tool in ("qemu-system-x86_64", "mke2fs", "busybox"):
            if not shutil.which(tool):
                raise Skip(f"{tool} is not installed")
        self.boot = os.path.join(build, "test-kernel")
        try:
            run(os.path.join(SOURCE, "guest", "kernel.sh"), self.daemon, self.boot)
        except subprocess.CalledProcessError as e:
            raise Skip(f"no kernel for guests: {e.output.strip()}") from e
        self.tree = os.path.join(work, "tree")
        self._make_tree()

    def _make_tree(self):
        t = self.tree
        for d in ("bin sbin usr/bin usr/sbin dev proc sys run etc root tmp home/user var mnt").split():
            os.makedirs(f"{t}/{d}")
        shutil.copy(shutil.which("busybox"), f"{t}/bin/busybox")
        for applet in run(f"{t}/bin/busybox", "--list-full").split():
            if applet != "bin/busybox":
                os.symlink("/bin/busybox", f"{t}/{applet}")
        files = {
            "passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/ash\n",
            "group": "root:x:0:\ntty:x:5:\nuser:x:1000:\nwheel:x:10:root,user\nstaff:x:50:user\n",
        }
        for name, text in files.items():
            with open(f"{t}/etc/{name}", "w", encoding="ascii") as f:
                f.write(text)
        with open(f"{t}/etc/not-a-program", "w", encoding="ascii") as f:
            f.write("text\n")
        os.chmod(f"{t}/tmp", 0o1777)
        os.chown(f"{t}/home/user", 1000, 1000)

    def disk(self, path, size="128M"):
        run("mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,resize=4G", "-d", self.tree, path, size)


class Machine:
    """One guest. `control` and `files` are attached 9P fids, `c` and `f` their clients; made anew after reconnect()."""

    def __init__(self, kit, disk=True, extra=(), cmdline=CMDLINE):
        self.dir = tempfile.mkdtemp(dir=kit.work)
        self.console = os.path.join(self.dir, "console")
        self.c = self.f = self.control = self.files = None
        argv = ["qemu-system-x86_64", "-accel", "tcg,tb-size=64", "-machine", "pc-q35-7.2", "-cpu", "Nehalem", "-m", "256", "-nodefaults",
                "-no-user-config", "-display", "none", "-no-reboot", "-kernel", f"{kit.boot}/vmlinuz", "-initrd", f"{kit.boot}/initrd",
                "-append", cmdline, "-qmp", f"unix:{self.dir}/qmp,server=on,wait=off", "-device", "virtio-rng-pci",
                "-device", "virtio-serial-pci,max_ports=3"]
        if "ttyS0" in cmdline:
            argv += ["-serial", f"file:{self.console}"]
        for n in (0, 1):
            argv += ["-chardev", f"socket,id=c{n},path={self.port(n)},server=on,wait=off",
                     "-device", f"virtserialport,nr={n + 1},chardev=c{n},name=space.{n}"]
        if disk:
            self.disk = os.path.join(self.dir, "disk.raw")
            kit.disk(self.disk)
            argv += ["-blockdev", f"driver=file,node-name=d0,filename={self.disk},discard=unmap", "-device", "virtio-blk-pci,drive=d0"]
        self.started = time.monotonic()
        self.process = subprocess.Popen(argv + list(extra), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def port(self, n):
        return os.path.join(self.dir, f"space.{n}")

    def connect(self, timeout=BOOT_TIMEOUT):
        try:
            self.connect_control(timeout)
            self.connect_files(timeout)
        except OSError:
            self.kill()
            raise
        return self

    def connect_control(self, timeout=BOOT_TIMEOUT, before=b""):
        self.c = p9.connect_guest(self.port(0), timeout=timeout, before=before)
        self.control = self.c.attach("control", 0)

    def connect_files(self, timeout=BOOT_TIMEOUT, before=b""):
        self.f = p9.connect_guest(self.port(1), timeout=timeout, before=before)
        self.files = self.f.attach("root", 0)

    def qmp(self, command, **arguments):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(f"{self.dir}/qmp")
            stream = s.makefile("rw")
            stream.readline()
            for what in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                stream.write(json.dumps(what) + "\n")
                stream.flush()
                while "event" in (reply := json.loads(stream.readline())):
                    pass
            return reply["return"]

    def ctl(self, line, timeout=None):
        with self.control.walk("ctl") as f:
            f.open(p9.WRONLY).pwrite(0, line, timeout=timeout)

    def job(self, *argv, **options):
        return Job(self.control, argv, **options)

    def sh(self, script, **options):
        """A shell command's standard output; it must succeed."""
        j = self.job("/bin/sh", "-c", script, **options)
        status, out, err = j.finish()
        assert status == "exit 0", f"{script!r}: {status}, standard error {err!r}"
        return out.decode()

    def kill(self):
        for client in (self.c, self.f):
            if client:
                client.close()
        self.c = self.f = None
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.dir, ignore_errors=True)


class Job:
    """A job of the guest's control tree."""
    last_id = 0

    def __init__(self, control, argv, **options):
        Job.last_id += 1
        self.id = options.pop("id", Job.last_id)
        self.control = control
        record = [f"id={self.id}"]
        for key, value in options.items():
            record += [f"env={v}" for v in value] if key == "env" else [f"{key}={value}"]
        record += [f"arg={a}" for a in argv]
        self.spawn(b"".join(os.fsencode(r) + b"\0" for r in record))

    def spawn(self, record):
        with self.control.walk("spawn") as f:
            f.open(p9.WRONLY).pwrite(0, record)

    def open(self, name, flags=p9.RDONLY):
        return self.control.walk("jobs", str(self.id), name).open(flags)

    def wait_line(self, timeout=None):
        with self.open("wait") as f:
            return f.read(timeout=timeout).decode()

    def wait(self, timeout=None):
        """Its status and the end marks of both streams."""
        word, number, out, err = self.wait_line(timeout).split()
        return f"{word} {number}", int(out), int(err)

    def output(self, name="stdout", offset=0, size=None):
        """From an offset to the end, or to `size` bytes."""
        data = b""
        with self.open(name) as f:
            while size is None or len(data) < size:
                piece = f.pread(offset + len(data), 1 << 20 if size is None else size - len(data))
                if not piece:
                    break
                data += piece
        return data

    def write(self, data):
        with self.open("stdin", p9.WRONLY) as f:
            return f.write(data)

    def eof(self):
        with self.open("eof", p9.WRONLY) as f:
            f.pwrite(0, b"1")

    def signal(self, number):
        with self.open("signal", p9.WRONLY) as f:
            f.pwrite(0, str(number))

    def resize(self, size):
        with self.open("tty", p9.WRONLY) as f:
            f.pwrite(0, size)

    def forget(self):
        with self.control.walk("jobs") as d:
            d.unlink(str(self.id))

    def finish(self):
        """Everything of a job that ends by itself: status, stdout, stderr. Forgets it."""
        out = self.output("stdout")
        err = self.output("stderr")
        status, out_mark, err_mark = self.wait()
        assert (out_mark, err_mark) == (len(out), len(err)), (out_mark, err_mark, len(out), len(err))
        self.forget()
        return status, out, err
