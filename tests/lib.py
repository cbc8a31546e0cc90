# SPDX-License-Identifier: Apache-2.0
"""Helpers for test scripts in Python: the counterpart of lib.sh, standard library only.

    import os, sys
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    from lib import *

    @check
    def a_name_that_says_what_holds():
        box = Box()                      # a running sandbox of template tiny; removed when the script ends
        eq(0, box.run("true").status)

    main()

Checks run in the order in which they stand, each under its own time limit; one that fails does not stop the others. A script with arguments
runs only the checks whose names hold one of them. The environment is that of lib.sh.
"""

import atexit
import contextlib
import errno
import fcntl
import filecmp
import grp
import json
import os
import pickle
import pwd
import random
import re
import select
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "interop"))
import p9 as ninep

SPACE = os.environ.get("SPACE") or sys.exit("run me through tests/run")
SPACE_DIR = os.environ["SPACE_DIR"]
TESTTMP = os.environ["TESTTMP"]
SCRIPT = re.sub(r"[^A-Za-z0-9]+", "-", os.path.splitext(os.path.basename(sys.argv[0]))[0])[:30].strip("-")
SLOWER = int(os.environ.get("SLOWER", "1"))  # a build with sanitizers: what limits are multiplied with
SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Failed(AssertionError):
    pass


class Skipped(Exception):
    pass


class TimeLimit(BaseException):
    """Not an Exception, so that no check takes it for an expected failure."""


# --- assertions ---


def fail(text):
    raise Failed(text)


def skip(reason):
    raise Skipped(reason)


def eq(want, got, what="value"):
    if want != got:
        fail(f"{what}: want {want!r}, got {got!r}")


def ne(other, got, what="value"):
    if other == got:
        fail(f"{what}: want something other than {other!r}")


def has(part, got, what="value"):
    if part not in got:
        fail(f"{what}: want {part!r} in it, got {got!r}")


def matches(pattern, got, what="value"):
    if not re.search(pattern, got):
        fail(f"{what}: want a match of {pattern!r}, got {got!r}")


def at_most(limit, got, what="value"):
    """Times, of which `what` says so first (seconds, milliseconds, ms), are those of a build without sanitizers."""
    limit *= SLOWER if re.match("(milli)?seconds |ms ", what) else 1
    if not got <= limit:
        fail(f"{what}: want at most {limit}, got {got}")


def errno_name(code):
    return errno.errorcode.get(code, str(code)) if code else "success"


def refused(codes, function, *args, what=None, **kwargs):
    """The call fails with that errno (or one of them)."""
    codes = codes if isinstance(codes, tuple) else (codes,)
    what = what or getattr(function, "__name__", "the call")
    try:
        result = function(*args, **kwargs)
    except OSError as e:
        if e.errno is None:
            raise
        if e.errno not in codes:
            fail(f"{what}{args!r}: want {'/'.join(map(errno_name, codes))}, got {errno_name(e.errno)}")
        return e
    fail(f"{what}{args!r}: want {'/'.join(map(errno_name, codes))}, got success: {result!r}")


def wait_until(condition, seconds=30, what=None):
    """Polls until the condition holds; its value. A deadline, not a delay: the condition is asked at once, then every 20 ms."""
    deadline = time.monotonic() + seconds * SLOWER
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            fail(f"not within {seconds} s: {what or getattr(condition, '__name__', 'condition')}; last value {value!r}")
        time.sleep(0.02)


# --- checks ---

_checks = []
_deferred = []


def check(function=None, *, limit=180):
    """Marks a function as a check with a time limit in seconds."""

    def mark(f):
        _checks.append((f, limit))
        return f

    return mark(function) if function else mark


def defer(function, *args):
    """Is called when the script ends, however it ends; the last one first."""
    _deferred.append((function, args))


def _end():
    while _deferred:
        function, args = _deferred.pop()
        try:
            _limited(30, function, *args)
        except BaseException as e:  # the rest must be cleaned up too
            print(f"cleaning up with {function.__name__}{args!r}: {type(e).__name__}: {e}", file=sys.stderr)


atexit.register(_end)


def _alarm(number, frame):
    raise TimeLimit()


def _limited(seconds, function, *args):
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(seconds)
    try:
        return function(*args)
    finally:
        signal.alarm(0)


def _terminated(number, frame):
    sys.exit(128 + number)


def main():
    """Runs the checks and exits: 0, 1 when one failed, 77 when all of them were skipped."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _terminated)
    failed = skipped = 0
    chosen = [c for c in _checks if len(sys.argv) < 2 or any(a in c[0].__name__ for a in sys.argv[1:])]
    for function, limit in chosen:
        began = time.monotonic()
        verdict = "ok"
        try:
            _limited(limit * SLOWER, function)
        except Skipped as e:
            verdict, skipped = f"skip: {e}", skipped + 1
        except TimeLimit:
            verdict, failed = f"FAIL: over its limit of {limit} s", failed + 1
            traceback.print_exc(file=sys.stdout)
        except Failed as e:
            at = traceback.extract_tb(e.__traceback__)
            where = next((f for f in reversed(at) if f.filename != __file__), at[-1])
            verdict, failed = f"FAIL: line {where.lineno}: {e}", failed + 1
        except Exception as e:
            verdict, failed = f"FAIL: {type(e).__name__}: {e}", failed + 1
            traceback.print_exc(file=sys.stdout)
        print(f"{function.__name__} ({time.monotonic() - began:.1f} s): {verdict}", flush=True)
    if failed:
        sys.exit(1)
    if skipped and skipped == len(chosen):
        print("every check was skipped", file=sys.stderr)
        sys.exit(77)
    sys.exit(0)


# --- files ---


def path(*parts):
    return os.path.join(SPACE, *parts)


def read(*parts, flags=0):
    """The whole text of a file below the mount."""
    return read_bytes(*parts, flags=flags).decode("utf-8", "surrogateescape")


def read_bytes(*parts, flags=0):
    fd = os.open(path(*parts), os.O_RDONLY | flags)
    try:
        out = b""
        while True:
            data = os.read(fd, 1 << 20)
            if not data:
                return out
            out += data
    finally:
        os.close(fd)


def write(value, *parts, flags=0):
    """One write, as `echo` does; errors of open, write and close are raised."""
    fd = os.open(path(*parts), os.O_WRONLY | os.O_TRUNC | flags)
    try:
        data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        eq(len(data), os.write(fd, data), f"bytes written to {'/'.join(parts)}")
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(fd)
        raise
    os.close(fd)


def exists(*parts):
    return os.path.lexists(path(*parts))


def line(*parts):
    return read(*parts).rstrip("\n")


def attributes(p, link_sizes=True):
    """What a copy of `p` has to keep. Without link_sizes the size of a symlink, which lstat gives of its raw target, is left out."""
    st = os.lstat(p)
    xattrs = {n: os.getxattr(p, n, follow_symlinks=False) for n in os.listxattr(p, follow_symlinks=False)}
    size = st.st_size if stat.S_ISREG(st.st_mode) or (link_sizes and stat.S_ISLNK(st.st_mode)) else 0
    nlink = 0 if stat.S_ISDIR(st.st_mode) else st.st_nlink
    target = os.readlink(p) if stat.S_ISLNK(st.st_mode) else ""
    return (oct(st.st_mode), st.st_uid, st.st_gid, size, nlink, st.st_mtime_ns, st.st_rdev, xattrs, target)


def same_tree(want, got, link_sizes=True, large=None):
    """Names, attributes and contents (of files below `large` bytes), all the way down. How many objects."""
    eq(attributes(want, link_sizes), attributes(got, link_sizes), f"attributes of {got}")
    st = os.lstat(want)
    if stat.S_ISREG(st.st_mode) and (large is None or st.st_size < large) and not filecmp.cmp(want, got, shallow=False):
        fail(f"{got} differs")
    count = 1
    if stat.S_ISDIR(st.st_mode):
        names = sorted(os.listdir(os.fsencode(want)))
        eq(names, sorted(os.listdir(os.fsencode(got))), f"names in {got}")
        for name in names:
            count += same_tree(os.path.join(os.fsencode(want), name), os.path.join(os.fsencode(got), name), link_sizes, large)
    return count


def failures():
    """The caller's last failures, oldest first."""
    return read("error").splitlines()


def explained(name, code):
    """The newest line of /space/error is about `name`, has the errno, and a sentence of some words."""
    last = failures()[-1]
    has(name, last, "the newest line of error")
    has(errno_name(code), last, "the newest line of error")
    if len(last.split()) < 6:
        fail(f"error holds no sentence: {last!r}")


def config():
    pairs = {}
    with open(os.environ["SPACE_CONFIG"]) as f:
        for text in f:
            key, mark, value = text.partition("=")
            if mark and not key.startswith("#"):
                pairs[key.strip()] = value.strip()
    return pairs


def spacectl(*args, **options):
    return subprocess.run(["spacectl", "--space", SPACE, *args], capture_output=True, text=True, timeout=options.pop("timeout", 60), **options)


# --- sandboxes and jobs ---

_count = 0


def fresh_name():
    """A name of this script's own; what is made under it goes at the end."""
    global _count
    _count += 1
    name = f"{SCRIPT}-{os.getpid()}-{_count}"
    defer(remove, "sandboxes", name)
    return name


def remove(tree, name):
    """Removes a sandbox or template, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path(tree, name))


def is_id(text):
    return re.fullmatch(r"[0-9a-f]{12}", text) is not None


class Result:
    def __init__(self, end, out, err):
        self.end, self.out, self.err = end, out, err

    @property
    def status(self):
        return int(self.end[5:]) if self.end.startswith("exit ") else self.end

    def __repr__(self):
        return f"<{self.end}, {self.out!r}, {self.err!r}>"


class Job:
    """A job; `cmd` is a shell line, or a list for an argument vector. Settings as keywords: env, cwd, user, tty, timeout."""

    def __init__(self, box, cmd=None, name=None, **settings):
        Job.count = getattr(Job, "count", 0) + 1
        self.box, self.name = box, name or f"j{Job.count}"
        os.mkdir(self.at())
        for key, value in settings.items():
            write(value, "proc", box.name, self.name, key)
        if cmd is not None:
            self.start(cmd)

    def at(self, *parts):
        return path("proc", self.box.name, self.name, *parts)

    def start(self, cmd):
        if isinstance(cmd, list):
            cmd = b"\0" + b"".join(os.fsencode(a) + b"\0" for a in cmd)
        try:
            write(cmd, "proc", self.box.name, self.name, "cmd")
        except OSError as e:
            e.add_note(f"the sandbox is {self.box.get('state')}: {read('sandboxes', self.box.name, 'error')!r}")
            raise

    def get(self, file):
        return line("proc", self.box.name, self.name, file)

    def output(self, stream="stdout"):
        return read("proc", self.box.name, self.name, stream)

    def so_far(self, stream="stdout"):
        """What is there, without waiting for more."""
        fd = os.open(self.at(stream), os.O_RDONLY | os.O_NONBLOCK)
        out = b""
        try:
            while data := os.read(fd, 1 << 20):
                out += data
        except BlockingIOError:
            pass
        finally:
            os.close(fd)
        return out.decode()

    def signal(self, what):
        write(what, "proc", self.box.name, self.name, "signal")

    def no_input(self):
        os.close(os.open(self.at("stdin"), os.O_WRONLY))

    def wait(self):
        return self.get("wait")

    def result(self):
        return Result(self.wait(), self.output(), self.output("stderr"))

    def remove(self):
        os.rmdir(self.at())


class Box:
    """A sandbox of this script's own, from template `template`; it runs when `wait` is set."""

    def __init__(self, template="tiny", wait=True, name=None):
        self.name = name or fresh_name()
        os.mkdir(path("sandboxes", self.name))
        if template != default_template():
            write(read("templates", template, "head"), "sandboxes", self.name, "head")
        if wait:
            self.touch()

    @classmethod
    def known(cls, name):
        """One that is there already."""
        box = cls.__new__(cls)
        box.name = name
        return box

    def touch(self):
        """Waits until it runs, as every first use does."""
        os.stat(path("root", self.name, "etc"))
        return self

    def get(self, file):
        return line("sandboxes", self.name, file)

    def set(self, file, value):
        write(value, "sandboxes", self.name, file)

    @property
    def state(self):
        return self.get("state")

    def verb(self, verb):
        self.set("state", verb)

    def wait_state(self, state, seconds=60):
        wait_until(lambda: self.state == state, seconds, f"{self.name} {state}, error {self.get('error')!r}")

    def run(self, cmd, **settings):
        """Runs a shell line to its end, with no input."""
        job = Job(self, cmd, **settings)
        job.no_input()
        result = job.result()
        job.remove()
        return result

    def out(self, cmd, **settings):
        """Its output; it must succeed."""
        result = self.run(cmd, **settings)
        eq("exit 0", result.end, f"end of {cmd!r}, which said {result.err!r}")
        return result.out.rstrip("\n")

    def clock_is_right(self, seconds=0.05):
        """It says a time that there is while it is asked, give or take `seconds`; and one more where it says whole seconds only (busybox)."""
        before = time.time()
        said, _, part = self.out("date +%s.%N").partition(".")
        after = time.time()
        exact = part.isdigit()
        said = float(f"{said}.{part}") if exact else int(said)
        if not before - seconds - (not exact) <= said <= after + seconds:
            fail(f"the clock of {self.name} said {said}, between {before} and {after}")

    def root(self, *parts):
        return path("root", self.name, *parts)

    def remove(self):
        os.rmdir(path("sandboxes", self.name))

    def mute(self):
        """Its guest answers nothing from now on, until `wake` or the end of the script. The process id of its QEMU."""
        pid = self.qemu()
        os.kill(pid, signal.SIGSTOP)
        defer(wake, pid)
        return pid

    def qemu(self):
        """The process id of its QEMU."""
        return wait_until(lambda: qemu_of(self.get("id")), 10, f"QEMU of {self.name}")


def wake(pid):
    """A stopped QEMU, if it is still there, goes on."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def default_template():
    return config().get("template", "debian")


def rows(query, *args):
    """What the instance's database answers, whatever the tree says."""
    with contextlib.closing(sqlite3.connect(f"file:{os.path.join(config()['state'], 'space.db')}?mode=ro", uri=True)) as db:
        return db.execute(query, args).fetchall()


def stats(name):
    """{name: value} of a sandbox's `stats`."""
    return dict(text.split(None, 1) for text in read("sandboxes", name, "stats").splitlines())


def qemus(name=""):
    """Process ids of this instance's, or of the one for the object of that name."""
    needle = f"guest={config()['vm_prefix']}-{name}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
            if needle in f.read():
                yield int(pid)


def object_name(sandbox_id):
    """The name of what it has in the pool and of its machine, without their prefixes; None when there is no such sandbox."""
    found = rows("SELECT object FROM sandboxes WHERE id = ?", int(sandbox_id, 16))
    return f"{found[0][0]:012x}" if found else None


def qemu_of(sandbox_id):
    name = object_name(sandbox_id)
    return next(qemus(name), None) if name else None


def came_from(want, name, what="origin"):
    """Its origin is, or becomes as soon as the load under way gets there, `want`; on a loaded machine the default template may have come first."""
    wait_until(lambda: line("sandboxes", name, "origin") == want, 60, f"{what}: want {want!r}")


# --- events ---


class Events:
    """What happens from now on. next(...) waits for an event that matches."""

    def __init__(self, since=None):
        self.fd = os.open(path("events"), os.O_RDWR)
        if since is not None:
            os.write(self.fd, f"since {since}\n".encode())
        self.rest = b""
        self.seen = []

    def close(self):
        os.close(self.fd)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def next(self, seconds=30, **want):
        deadline = time.monotonic() + seconds * SLOWER
        while True:
            while b"\n" in self.rest:
                text, self.rest = self.rest.split(b"\n", 1)
                event = json.loads(text)
                self.seen.append(event)
                if all(event.get(k) == v for k, v in want.items()):
                    return event
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                fail(f"no event {want!r} within {seconds} s; came: {self.seen!r}")
            self.rest += os.read(self.fd, 65536)


# --- other users, other processes ---


def as_user(uid, gid, function, *args, groups=()):
    """Calls it in a child with these ids. Returns its result; an OSError of it is raised here."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(60)
            os.close(out)
            os.setgroups(list(groups))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            try:
                answer = ("value", function(*args))
            except OSError as e:
                answer = ("errno", (e.errno, e.strerror, e.filename))
            except Exception as e:
                answer = ("failed", str(e) if isinstance(e, Failed) else traceback.format_exc())
            with os.fdopen(into, "wb") as f:
                pickle.dump(answer, f)
            status = 0
        finally:
            os._exit(status)  # none of the parent's clean-up
    os.close(into)
    with os.fdopen(out, "rb") as f:
        data = f.read()
    os.waitpid(pid, 0)
    if not data:
        fail(f"the child for uid {uid} ended without an answer")
    kind, value = pickle.loads(data)
    if kind == "errno":
        raise OSError(*value)
    if kind == "failed":
        fail(value)
    return value


def test_user(name, group=None):
    """(uid, gid) of a user made for the tests and removed at the end; `group` is a further group of it. A uid of its own each time: the store keeps what a
    tenant had. Users are the host's: another script, or another run of the tests, that has one of this name is waited for."""
    lock = open(f"/run/lock/space-test-{name}", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    defer(lock.close)
    taken = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    uid = next(n for n in iter(lambda: random.randrange(30000, 60000), None) if n not in taken)
    command = ["useradd", "--uid", str(uid), "--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", "--user-group"]
    if group:
        command += ["--groups", group]
    subprocess.run(["userdel", name], capture_output=True)
    subprocess.run(command + [name], check=True, capture_output=True)
    defer(lambda: subprocess.run(["userdel", name], capture_output=True))
    entry = pwd.getpwnam(name)
    return entry.pw_uid, entry.pw_gid


class Child:
    """A child process that runs `function`, for what blocks or is to be killed. It ends with the script."""

    def __init__(self, function, *args):
        self.out, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.out)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
                    signal.signal(number, signal.SIG_DFL)
                try:
                    answer = ("value", function(*args))
                except OSError as e:
                    answer = ("errno", e.errno)
                with os.fdopen(into, "wb") as f:
                    pickle.dump(answer, f)
                status = 0
            finally:
                os._exit(status)
        os.close(into)
        self.status = None
        defer(self.stop)

    def ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def kill(self, number=signal.SIGKILL):
        if not self.ended():
            os.kill(self.pid, number)

    def stop(self):
        self.kill()
        wait_until(self.ended, 10, f"end of child {self.pid}")
        if self.out is not None:
            os.close(self.out)
            self.out = None

    def answer(self, seconds=30):
        """("value", V), ("errno", CODE), or ("ended", STATUS) when it was killed."""
        if not select.select([self.out], [], [], seconds)[0]:
            fail(f"child {self.pid} still runs after {seconds} s")
        with os.fdopen(os.dup(self.out), "rb") as f:
            data = f.read()
        wait_until(self.ended, 10, f"end of child {self.pid}")
        return pickle.loads(data) if data else ("ended", self.status)

    def blocked(self, seconds=5):
        """Waits until it sleeps inside a system call on the mount."""

        def sleeps():
            with open(f"/proc/{self.pid}/stat") as f:
                state = f.read().rsplit(") ", 1)[1].split()[0]
            with open(f"/proc/{self.pid}/wchan") as f:
                where = f.read()
            return state in "SD" and any(part in where for part in ("fuse", "request_wait", "folio_wait"))  # the last: the page cache's

        wait_until(sleeps, seconds, f"child {self.pid} blocked in the mount")


# --- the daemons of this instance ---


def daemon_pid(name):
    """Of noded, hostd or spacefs, while it runs."""
    try:
        with open(os.path.join(SPACE_DIR, "sv", name, "supervise", "pid")) as f:
            pid = int(f.read())
        with open(f"/proc/{pid}/comm") as f:  # runsv names its scripts there as well: the one that begins the daemon, and the one after its end
            return None if f.read().strip() in ("run", "finish", "sh") else pid
    except (OSError, ValueError):
        return None


def nothing_crashed(instance):
    """No daemon of an instance of the test's own died by itself, and no sanitizer has said anything; of the shared one tests/run sees to it."""
    found = subprocess.run(f"grep -hsE ' crashed by signal |ERROR: [A-Za-z]+Sanitizer|: runtime error: ' {instance}/log/*/current", shell=True, capture_output=True, text=True)
    eq("", found.stdout, f"crashes in {instance}")


def kill_daemon(name):
    """SIGKILL; returns the old process id. The supervisor starts another one."""
    pid = wait_until(lambda: daemon_pid(name), 15, f"{name} runs")
    os.kill(pid, signal.SIGKILL)
    return pid


def daemon_back(name, old, seconds=15):
    return wait_until(lambda: daemon_pid(name) not in (None, old) and daemon_pid(name), seconds, f"{name} started again")


def tree_answers():
    """From a child, so that a hung mount hangs no test."""
    return subprocess.run(["timeout", "2", "cat", path("version")], capture_output=True).returncode == 0


def settled(seconds=30):
    wait_until(tree_answers, seconds, "the tree answers")


def restart_with(**settings):
    """space-hostd, with other values in the configuration; None takes one out."""
    name = os.environ["SPACE_CONFIG"]
    with open(name) as f:
        kept = [text for text in f if text.split("=")[0].strip() not in settings]
    with open(name, "w") as f:
        f.writelines(kept + [f"{k} = {v}\n" for k, v in settings.items() if v is not None])
    daemon_back("hostd", kill_daemon("hostd"))
    settled()


def p9(uid=0):
    """The root of the tree, straight on hostd's socket, attached as `uid` (root may speak for others)."""
    client = ninep.Client.unix(os.path.join(config()["run"], "hostd.sock"))
    defer(client.close)
    return client.attach("", uid=uid)


def metric(name):
    return int(re.search(rf"^{name} (\d+)$", read("metrics"), re.M).group(1))


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))]


def millis(function, *args):
    began = time.perf_counter()
    function(*args)
    return (time.perf_counter() - began) * 1000
