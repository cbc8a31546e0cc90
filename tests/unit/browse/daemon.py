#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-browsed: who may ask it, for what, and how many. As root, with user nobody as the instance's `user`. Arguments: the program, then parts
of names of tests to run."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time

from browser import same
import p9
from trees import TESTS, image, main, test

TESTS.clear()
PROGRAM = sys.argv[1]
NOBODY, OTHER = pwd.getpwnam("nobody"), pwd.getpwnam("daemon")


class Daemon:
    def __init__(self, tmp):
        self.run, self.image = f"{tmp}/run", f"{tmp}/image"
        os.chmod(tmp, 0o755)
        os.mkdir(self.run)
        os.chown(self.run, NOBODY.pw_uid, NOBODY.pw_gid)
        with open(f"{tmp}/space.conf", "w") as f:
            f.write(f"run = {self.run}\nuser = nobody\n")
        os.mkdir(f"{tmp}/tree")
        image(self.image, ["-t", "ext4"], "8M", f"{tmp}/tree")
        self.path = f"{self.run}/browsed.sock"
        os.mkdir(f"{tmp}/bin")  # which that user can reach
        for name in ("space-browsed", "space-browse"):
            shutil.copy(os.path.join(os.path.dirname(PROGRAM), name), f"{tmp}/bin")
        self.process = subprocess.Popen([f"{tmp}/bin/space-browsed", "--config", f"{tmp}/space.conf"], user=NOBODY.pw_uid, group=NOBODY.pw_gid, extra_groups=[],
                                        stderr=subprocess.PIPE)

    def __enter__(self):
        wait(lambda: os.path.exists(self.path))
        time_limit = time.monotonic() + 10
        while True:
            try:
                self.connect().close()
                return self
            except ConnectionRefusedError:
                if time.monotonic() > time_limit:
                    raise

    def __exit__(self, *_):
        self.process.terminate()
        same("exit status", 0, self.process.wait(10))
        self.process.stderr.close()

    def connect(self):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(20)
        s.connect(self.path)
        return s

    def ask(self, *fds, data=b"\0"):
        s = self.connect()
        socket.send_fds(s, [data], list(fds)) if fds else s.sendall(data)
        return s

    def children(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
            return f.read().split()


def wait(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("not in time")
        time.sleep(0.01)


def as_user(user, f):
    """Runs f in a child of that user; its exit status."""
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
        try:
            os._exit(f())
        except BaseException:  # noqa: BLE001
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@test
def an_image_is_served_and_its_process_ends_with_the_connection(tmp):
    with Daemon(tmp) as d:
        fd = os.open(d.image, os.O_RDONLY)
        c = p9.Client(d.ask(fd), msize=1 << 20)
        same("names", [".", "..", "lost+found"], sorted(e[0] for e in c.attach("").open().readdir()))
        same("processes", 1, len(d.children()))
        pid = d.children()[0]
        same("program", "space-browse", open(f"/proc/{pid}/comm").read().strip())
        same("environment", b"", open(f"/proc/{pid}/environ", "rb").read())
        c.close()
        wait(lambda: not d.children())
        os.close(fd)


@test
def what_is_no_image_open_for_reading_is_refused(tmp):
    with Daemon(tmp) as d:
        good, writable, null, folder = (os.open(d.image, os.O_RDONLY), os.open(d.image, os.O_RDWR), os.open("/dev/zero", os.O_RDONLY),
                                        os.open(tmp, os.O_RDONLY))
        pipe = os.pipe()
        for fds in ((), (writable,), (null,), (folder,), (pipe[0],), (good, good)):
            s = d.ask(*fds)
            same(f"answer to {fds}", b"", s.recv(1))
            s.close()
        wait(lambda: not d.children())
        for fd in (good, writable, null, folder, *pipe):
            os.close(fd)


@test
def other_users_are_refused(tmp):
    with Daemon(tmp) as d:
        same("mode", 0o600, os.stat(d.path).st_mode & 0o777)

        def try_it():
            try:
                s = d.connect()
            except PermissionError:
                return 1
            fd = os.open(d.image, os.O_RDONLY)
            try:
                socket.send_fds(s, [b"\0"], [fd])
                s.sendall(b"\x15\0\0\0\x64\xff\xff\0\0\x10\0\x08\x009P2000.L")
                return 3 if s.recv(1) else 2
            except OSError:
                return 2

        os.chmod(d.image, 0o644)
        same("another user", 1, as_user(OTHER, try_it))
        os.chmod(d.path, 0o666)  # as if the mode were wrong: the peer's uid is asked
        same("another user, let in by the mode", 2, as_user(OTHER, try_it))
        same("the instance's user", 3, as_user(NOBODY, try_it))


@test
def who_says_nothing_holds_up_nobody_and_is_dropped(tmp):
    with Daemon(tmp) as d:
        silent = d.connect()
        fd = os.open(d.image, os.O_RDONLY)
        c = p9.Client(d.ask(fd))
        c.attach("")
        c.close()
        os.close(fd)
        same("the silent one", b"", silent.recv(1))
        wait(lambda: not d.children())


@test
def their_number_is_bounded(tmp):
    with Daemon(tmp) as d:
        fd = os.open(d.image, os.O_RDONLY)
        held = [d.ask(fd) for _ in range(64)]
        wait(lambda: len(d.children()) == 64)
        more = d.connect()
        same("one more", b"", more.recv(1))
        same("processes", 64, len(d.children()))
        held.pop().close()
        wait(lambda: len(d.children()) == 63)
        c = p9.Client(d.ask(fd))
        c.attach("")
        c.close()
        for s in held:
            s.close()
        wait(lambda: not d.children())
        os.close(fd)


@test
def it_does_not_run_as_root(tmp):
    with open(f"{tmp}/space.conf", "w") as f:
        f.write(f"run = {tmp}\nuser = nobody\n")
    done = subprocess.run([PROGRAM, "--config", f"{tmp}/space.conf"], capture_output=True, check=False, timeout=10)
    same("exit status", 1, done.returncode)


if __name__ == "__main__":
    sys.exit(main())
