# SPDX-License-Identifier: Apache-2.0
"""What the tests of object stores share: the program that speaks to a backend (backendctl), a list of tests, comparison."""

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time

TESTS = []
ERRNO = {0: "ok", 2: "ENOENT", 5: "EIO", 13: "EACCES", 17: "EEXIST", 19: "ENODEV", 22: "EINVAL", 27: "EFBIG", 28: "ENOSPC", 36: "ENAMETOOLONG", 74: "EBADMSG",
         110: "ETIMEDOUT", 125: "ECANCELED"}


def test(function):
    TESTS.append(function)
    return function


def same(what, want, got):
    if want != got:
        raise AssertionError(f"{what}: expected {want!r:.300}, got {got!r:.300}")


def holds(what, condition, detail=""):
    if not condition:
        raise AssertionError(f"does not hold: {what} {detail}")


def wait(condition, seconds=20, what="the event"):
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"{what} did not come in {seconds} s")
        time.sleep(0.02)


def run_tests(context, patterns, before=lambda: None):
    """Each test gets the context and a directory of its own, after `before`; the first failure ends it."""
    ran = 0
    for function in TESTS:
        if patterns and not any(p in function.__name__ for p in patterns):
            continue
        before()
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="objects-") as tmp:
            function(context, tmp)
        print(f"{function.__name__} ({time.monotonic() - began:.1f} s)", file=sys.stderr, flush=True)
        ran += 1
    print(f"{ran} tests passed", file=sys.stderr)
    if not ran:
        raise SystemExit("no test matches")


class Answer:
    def __init__(self, line):
        ident, rc, rest = line.split(" ", 2)
        self.id, self.rc, self.text = ident, int(rc), rest
        parts = rest.split(" ", 4)
        if len(parts) == 5 and parts[0].isdigit():
            self.got, self.total, self.count, self.more = (int(p) for p in parts[:4])
            self.text = parts[4]
        self.name = ERRNO.get(-self.rc, str(self.rc))


class Backend:
    """backendctl with one backend. Requests can be started and awaited later, or both at once."""

    def __init__(self, program, arguments, tmp, env=None, user=None):
        self.tmp, self.number, self.answers, self.arrived = tmp, 0, {}, queue.Queue()
        self.process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
                                        **({"user": user, "group": user, "extra_groups": []} if user is not None else {}))
        threading.Thread(target=self._read, daemon=True).start()
        self.created = self.answer("-")

    def _read(self):
        for line in self.process.stdout:
            self.arrived.put(Answer(line.rstrip("\n")))
        self.arrived.put(None)

    def start(self, *words):
        self.number += 1
        self.process.stdin.write(" ".join([str(self.number), *map(str, words)]) + "\n")
        self.process.stdin.flush()
        return str(self.number)

    def answer(self, ident, seconds=60):
        limit = time.monotonic() + seconds
        while ident not in self.answers:
            a = self.arrived.get(timeout=max(0.01, limit - time.monotonic()))
            if a is None:
                raise AssertionError("backendctl ended")
            self.answers[a.id] = a
        return self.answers.pop(ident)

    def __call__(self, *words, seconds=60):
        return self.answer(self.start(*words), seconds)

    def ok(self, *words, seconds=60):
        a = self(*words, seconds=seconds)
        if a.rc:
            raise AssertionError(f"{' '.join(map(str, words))}: {a.name}: {a.text}")
        return a

    def fails(self, name, *words, seconds=60, says=None):
        a = self(*words, seconds=seconds)
        if a.name != name:
            raise AssertionError(f"{' '.join(map(str, words))}: expected {name}, got {a.name}: {a.text}")
        if says and says not in a.text:
            raise AssertionError(f"{' '.join(map(str, words))}: '{a.text}' does not say '{says}'")
        return a

    def file(self, data, name="data"):
        path = f"{self.tmp}/{name}"
        with open(path, "wb") as f:
            f.write(data)
        return path

    def put(self, name, data, *flags):
        return self("put", name, self.file(data), *flags)

    def get(self, name, offset=0, size=1 << 20, *flags):
        path = f"{self.tmp}/got-{name.replace('/', '_')}-{offset}"
        a = self.ok("get", name, offset, size, path, *flags)
        with open(path, "rb") as f:
            data = f.read()
        same(f"bytes of {name}", a.got, len(data))
        return data

    def list(self, prefix="-", after="-", most=0):
        path = f"{self.tmp}/list"
        a = self.ok("list", prefix, after, most, path)
        with open(path, encoding="ascii") as f:
            return [line.split()[0] for line in f], bool(a.more)

    def stats(self):
        return {k: int(v) for k, v in (w.split("=") for w in self("stats").text.split())}

    def end(self):
        """Its exit status says whether it left nothing behind."""
        self.process.stdin.close()
        same("exit status of backendctl", 0, self.process.wait(30))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.end()
        else:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
