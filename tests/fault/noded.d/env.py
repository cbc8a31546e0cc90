# SPDX-License-Identifier: Apache-2.0
"""A private place for tests of space-noded: mount and process namespaces, a btrfs pool in a loop file, and a libvirtd of its own.

Everything that a test starts ends with the process namespace, and everything that it mounts with the mount namespace, however it ends.
"""
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("BUILD", os.path.normpath(f"{HERE}/../../../build"))
USER = "nobody"  # of hostd, here
PREFIX = "nodedtest"
UID_BASE, UID_COUNT = 640000, 64
DEADLINE = 60  # seconds, of everything that is waited for


def skip(reason):
    print(reason, file=sys.stderr)
    sys.exit(77)


def isolate():
    """Starts this script again in namespaces of its own, unless it is there already."""
    if os.geteuid() != 0:
        skip("needs root")
    if os.environ.get("NODED_TEST_ISOLATED") != "1":
        os.environ["NODED_TEST_ISOLATED"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
                              sys.executable] + sys.argv)
    child = os.fork()
    if child:
        reap(child)


def reap(child):
    """The first process of the namespace: collects what daemons leave behind, and ends as the test does."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xff)


def run(*argv, **kw):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw).stdout


def wait_for(what, condition, seconds=DEADLINE):
    """Polls until `condition` gives something true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


class Env:
    def __init__(self, pool_mib=1024):
        self.dir = os.environ.get("TESTTMP") or "/tmp/noded-test"
        # sun_path is short: sockets go into a short directory
        self.run_dir = f"/run/noded-test-{os.getpid()}"
        self.pool_mib = pool_mib
        self.noded = None
        self.libvirtd = None
        self.clients = []

    def __enter__(self):
        os.makedirs(self.dir, exist_ok=True)
        os.chmod(self.dir, 0o755)
        run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
        for name in ("qemu", "log", "guest"):
            os.makedirs(f"{self.dir}/{name}", exist_ok=True)
        os.makedirs(self.run_dir)
        open(f"{self.dir}/noded.log", "w").close()
        self.pool = f"{self.dir}/pool"
        os.makedirs(self.pool, exist_ok=True)
        image = f"{self.dir}/pool.img"
        with open(image, "wb") as f:
            f.truncate(self.pool_mib << 20)
        run("mkfs.btrfs", "-q", "-f", image)
        run("mount", "-o", "loop,noatime,commit=1", image, self.pool)
        os.chmod(self.pool, 0o711)
        self.config = f"{self.dir}/space.conf"
        with open(self.config, "w") as f:
            f.write(f"pool = {self.pool}\nrun = {self.run_dir}\nstate = {self.dir}/state\nguest = {self.dir}/guest\nuser = {USER}\n"
                    f"group = nogroup\nvm_prefix = {PREFIX}\nuid_base = {UID_BASE}\nuid_count = {UID_COUNT}\n")
        return self

    def __exit__(self, *exc):
        self.stop_noded()
        self.stop_libvirt()
        subprocess.run(["umount", "-l", self.pool], check=False)
        os.unlink(f"{self.dir}/pool.img")

    # ---- space-noded ----

    def start_noded(self, wait=True):
        self.noded_log = open(f"{self.dir}/noded.log", "ab")
        program = os.environ.get("NODED") or f"{BUILD}/hostd/noded/space-noded"
        self.noded = subprocess.Popen([program, "--config", self.config], stderr=self.noded_log)
        if wait:
            wait_for("space-noded listens", self._listens)

    def _listens(self):
        if self.noded.poll() is not None:
            raise AssertionError(f"space-noded ended with {self.noded.returncode}: {self.log()[-2000:]}")
        return self.connect_raw() is not None

    def connect_raw(self):
        import socket
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            s.connect(f"{self.run_dir}/noded.sock")
        except (ConnectionRefusedError, FileNotFoundError):
            s.close()
            return None
        s.settimeout(DEADLINE)
        return s

    def client(self, hello=True):
        import wire
        c = wire.Client(self.connect_raw())
        if hello:
            c.call(wire.HELLO)
        return c

    def stop_noded(self, signal=15):
        if self.noded and self.noded.poll() is None:
            self.noded.send_signal(signal)
            self.noded.wait(DEADLINE)
        self.noded = None

    def log(self):
        with open(f"{self.dir}/noded.log") as f:
            return f.read()

    # ---- libvirt ----

    def start_libvirt(self):
        for name, where in (("qemu", "/var/lib/libvirt/qemu"), ("log", "/var/log/libvirt")):
            run("mount", "--bind", f"{self.dir}/{name}", where)
        user = pwd.getpwnam("libvirt-qemu")
        os.chown(f"{self.dir}/qemu", user.pw_uid, user.pw_gid)
        os.chmod(f"{self.dir}/qemu", 0o750)  # as Debian has it
        run("virtlogd", "-d", "-p", "/run/virtlogd.pid")
        self.start_libvirtd()

    def start_libvirtd(self):
        self.libvirtd = subprocess.Popen(["libvirtd", "-p", "/run/libvirtd.pid"], stderr=subprocess.DEVNULL)
        wait_for("libvirtd answers", lambda: subprocess.run(["virsh", "-q", "version"], stdout=subprocess.DEVNULL,
                                                            stderr=subprocess.DEVNULL, check=False).returncode == 0)

    def stop_libvirtd(self, signal=15):
        if self.libvirtd and self.libvirtd.poll() is None:
            self.libvirtd.send_signal(signal)
            self.libvirtd.wait(DEADLINE)
        self.libvirtd = None

    def stop_libvirt(self):
        if not self.libvirtd:
            return
        for name in run("virsh", "-q", "list", "--name").split():
            subprocess.run(["virsh", "-q", "destroy", name], stdout=subprocess.DEVNULL, check=False)
        self.stop_libvirtd()
        # libvirt forgets the control groups of machines that end while it is away.
        for folder, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
            if f"-{PREFIX}-" in folder:
                os.rmdir(folder)

    # ---- guests ----

    def make_guest(self):
        """Kernel and modules from Debian's package, and init.c."""
        cache = f"{BUILD}/test-guest"
        made = f"{cache}/initrd"
        if not os.path.exists(made) or os.path.getmtime(made) < os.path.getmtime(f"{HERE}/init.c"):
            shutil.rmtree(cache, ignore_errors=True)
            os.makedirs(f"{cache}/tree")
            try:
                package = run("apt-cache", "depends", "linux-image-cloud-amd64").split("Depends: ")[1].split()[0]
                run("apt-get", "-q", "download", package, cwd=cache)
            except (subprocess.CalledProcessError, IndexError) as e:
                skip(f"no kernel for guests: {getattr(e, 'output', e)}")
            deb = [n for n in os.listdir(cache) if n.endswith(".deb")][0]
            run("dpkg", "-x", f"{cache}/{deb}", f"{cache}/package")
            self._pack(cache)
        for name in ("vmlinuz", "initrd"):
            shutil.copyfile(f"{cache}/{name}", f"{self.dir}/guest/{name}")
            os.chmod(f"{self.dir}/guest/{name}", 0o644)
        os.chmod(f"{self.dir}/guest", 0o755)

    def _pack(self, cache):
        tree = f"{cache}/tree"
        drivers = f"{cache}/package/lib/modules/" + os.listdir(f"{cache}/package/lib/modules")[0] + "/kernel/drivers"
        modules = ["virtio/virtio_ring", "virtio/virtio", "virtio/virtio_pci_modern_dev", "virtio/virtio_pci_legacy_dev",
                   "virtio/virtio_pci", "char/virtio_console", "block/virtio_blk", "misc/pvpanic/pvpanic", "misc/pvpanic/pvpanic-mmio"]
        for d in ("dev", "proc", "sys"):
            os.makedirs(f"{tree}/{d}")
        with open(f"{tree}/modules", "w") as f:
            for m in modules:
                shutil.copyfile(f"{drivers}/{m}.ko", f"{tree}/{os.path.basename(m)}.ko")
                f.write(f"/{os.path.basename(m)}.ko\n")
        run("cc", "-O2", "-static", "-o", f"{tree}/init", f"{HERE}/init.c")
        run("sh", "-c", f"cd {tree} && find . | cpio -o -H newc --quiet > ../initrd.new && mv ../initrd.new ../initrd")
        shutil.copyfile(f"{cache}/package/boot/" + [n for n in os.listdir(f"{cache}/package/boot") if n.startswith("vmlinuz")][0],
                        f"{cache}/vmlinuz")


def as_uid(uid, *argv):
    """Exit status of a program that runs as `uid`, with no rights."""
    return subprocess.run(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", *argv], check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT).returncode


def tests(namespace, env, clean=None):
    """Runs every test_NAME(env) in the order of the file; reports each, and ends with status 1 when one failed. `clean` comes after a
    failure. Arguments are parts of the names of those to run."""
    import traceback
    failed = 0
    for name, test in list(namespace.items()):
        if not name.startswith("test_") or (sys.argv[1:] and not any(part in name for part in sys.argv[1:])):
            continue
        start = time.monotonic()
        try:
            test(env)
            verdict = "ok  "
        except Exception:
            traceback.print_exc()
            verdict = "FAIL"
            failed += 1
            if clean:
                clean(env)
        print(f"{verdict} {name[5:].replace('_', ' ')} ({time.monotonic() - start:.2f} s)", flush=True)
        if env.noded and env.noded.poll() is not None:
            print(f"FAIL space-noded ended with {env.noded.returncode}: {env.log()[-3000:]}")
            sys.exit(1)
    if "Sanitizer" in env.log() or "runtime error" in env.log():
        print(env.log()[-6000:])
        failed += 1
    if failed:
        sys.exit(1)


def eq(want, got, what="value"):
    assert want == got, f"{what}: want {want!r}, got {got!r}"


def fails(error, what, *args, **fields):
    """The call fails with this errno, and its sentence says something."""
    import wire
    try:
        what(*args, **fields)
    except wire.Failed as e:
        assert e.errno == error, f"want {os.strerror(error)}, got {e}"
        assert len(e.sentence) > 10, f"no sentence: {e.sentence!r}"
        return e.sentence
    raise AssertionError(f"want {os.strerror(error)}, but it succeeded: {args} {fields}")
