#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-credd killed at random moments while credentials change: crash.py SPACE_CREDD SPACECTL [SECONDS [SEED]]. As root.

What was answered is there afterwards, what was removed is not, a value is the old or the new one, and the log is a whole chain that tells of each change that was answered.
"""
import errno
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

from client import HOSTS, METHOD, REMOVE, SANDBOX, Daemon, Failed, scope

BOX = 0xA1


class Changes:
    """What one client does, and what it knows of the outcome."""

    def __init__(self, d, rng):
        self.d, self.rng, self.c = d, rng, None
        self.sure = {}  # name: (id, value)
        self.unsure = {}  # name: values that it may have, None: may be gone
        self.told = 0

    def client(self):
        """Until one lives for as long as that takes."""
        while True:
            try:
                self.c = self.c or self.d.client()
                self.c.know(BOX, 1000)
                return self.c
            except ConnectionError:
                self.c = None

    def make(self, name):
        self.unsure[name] = {None, ""}
        ident = self.c.make(scope(SANDBOX, 1000, BOX), name).id
        self.sure[name] = (ident, "")
        self.c.set(ident, HOSTS, f"{name}.example")
        self.c.set(ident, METHOD, "autofill u")
        self.told += 3

    def write(self, name):
        ident, old = self.sure[name]
        value = f"value-{self.rng.randrange(1 << 40):x}"
        self.unsure[name] = {old, value}
        self.c.value(ident, value.encode())
        self.sure[name] = (ident, value)
        self.told += 1

    def remove(self, name):
        ident, old = self.sure[name]
        self.unsure[name] = {None, old}
        self.c.call(REMOVE, ident)
        del self.sure[name]
        self.told += 1

    def step(self):
        name = f"n{self.rng.randrange(12)}"
        self.client()
        try:
            if name not in self.sure:
                self.make(name)
            elif self.rng.random() < 0.25:
                self.remove(name)
            else:
                self.write(name)
            self.unsure.pop(name, None)
        except ConnectionError:
            self.c = None
            self.settle(name)

    def settle(self, name):
        """It was killed under us: what has become of it is one of two things. Killed again meanwhile, it is looked at again."""
        may_be = self.unsure.pop(name)
        while True:
            try:
                self.look(name, may_be)
                return
            except ConnectionError:
                self.c = None

    def look(self, name, may_be):
        c = self.client()
        found = {r.name: r for r in c.records}
        assert set(found) - {name} == set(self.sure) - {name}, (sorted(found), sorted(self.sure))
        if name not in found:
            assert None in may_be, f"{name} is lost"
            self.sure.pop(name, None)
            return
        r = found[name]
        if not r.hosts or not r.method.startswith("autofill"):  # it was being made
            c.call(REMOVE, r.id)
            self.sure.pop(name, None)
            return
        value = self.value(name) if r.has_value else ""
        assert value in may_be, (name, value, may_be)
        self.sure[name] = (r.id, value)

    def value(self, name):
        try:
            return json.loads(self.c.login(BOX, f"https://{name}.example"))["password"]
        except Failed as e:
            assert e.errno == errno.EACCES, e
            return ""

    def check(self):
        self.client()
        for name, (_, value) in self.sure.items():
            assert self.value(name) == value, (name, value)


def main(program, spacectl, seconds=6, seed=None):
    seed = seed or random.randrange(1 << 32)
    print(f"seed {seed}")
    d = Daemon(program, "inject = no\naudit_lines = 1000000\n")
    kills = 0
    with d:
        changes = Changes(d, random.Random(seed))
        end = time.monotonic() + float(seconds)
        stop = threading.Event()
        failure = []

        def killer():
            nonlocal kills
            rng = random.Random(seed + 1)
            while not stop.wait(rng.uniform(0.02, 0.3)):
                d.kill()
                d.start()
                kills += 1

        t = threading.Thread(target=killer)
        t.start()
        try:
            while time.monotonic() < end:
                changes.step()
        finally:
            stop.set()
            t.join()
        if changes.c:
            changes.c.close()
            changes.c = None
        changes.check()
        env = {**os.environ, "SPACE_CONFIG": d.config}
        verified = subprocess.run([spacectl, "audit", "verify"], env=env, capture_output=True, text=True, check=False)
        assert verified.returncode == 0, verified.stderr
        log = "".join(p.read_text() for p in sorted(pathlib.Path(d.state, "audit").iterdir()))
        kinds = [json.loads(line)["kind"] for line in log.splitlines()]
        changed = sum(k in ("make", "change", "value", "remove") for k in kinds)
        assert changed >= changes.told, (changed, changes.told)
        print(f"{kills} kills, {changes.told} changes answered, {len(kinds)} lines, {len(changes.sure)} credentials")
        assert kills > 5 and changes.told > 20, "too little happened"


if __name__ == "__main__":
    main(*sys.argv[1:])
