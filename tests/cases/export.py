#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 120
"""`spacectl export` and `import`: a sandbox's disk and settings as one file."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

FILE = os.path.join(TESTTMP, "a.space")


def done(result):
    eq(0, result.returncode, f"status of spacectl, which said {result.stderr!r}")


def says(part, result):
    ne(0, result.returncode, "status of spacectl")
    has(part, result.stderr, "what it said")


@check
def a_sandbox_goes_through_a_file():
    box = Box()
    box.set("labels", "a=b\nc=d")
    box.set("egress", "allow tcp example.org:443\nallow tcp example.com:80")
    box.out("echo kept > /kept; dd if=/dev/urandom of=/random bs=1k count=300 2>/dev/null; sync")
    digest = box.out("sha256sum /random")
    done(spacectl("export", box.name, FILE))
    at_most(64 << 20, os.stat(FILE).st_size, "bytes: without the disk's holes")
    eq([], os.listdir(path("snapshots", box.name)), "snapshots that are left")
    box.remove()
    name = fresh_name()
    done(spacectl("import", FILE, name))
    again = Box.known(name)
    eq("kept", again.out("cat /kept"), "a file")
    eq(digest, again.out("sha256sum /random"), "another")
    eq("a=b\nc=d", line("sandboxes", name, "labels"))
    eq("allow tcp example.org:443\nallow tcp example.com:80", line("sandboxes", name, "egress"))
    eq([], [t for t in os.listdir(path("templates")) if t.startswith("import-")], "templates that are left")
    os.mkdir(path("snapshots", name, "s"))
    done(spacectl("export", f"{name}/s", FILE + "2"))
    os.rmdir(path("snapshots", name, "s"))


@check
def what_is_damaged_is_refused():
    with open(FILE, "rb") as f:
        good = f.read()
    half = len(good) // 2
    template = fresh_name()
    defer(remove, "templates", template)
    cases = {"is cut": good[:-100], "checksum": good[:half] + bytes((good[half] ^ 1,)) + good[half + 1:], "not what": b"x" + good[1:], "newer": good.replace(b"export 1", b"export 2", 1)}
    for why, data in cases.items():
        with open(FILE, "wb") as f:
            f.write(data)
        says(why, spacectl("import", FILE, template, "--template"))
        eq(False, exists("templates", template), "a template")
    says("absent", spacectl("export", "absent", FILE + "3"))
    eq(False, os.path.exists(FILE + "3"), "a file of nothing")
    with open(FILE, "wb") as f:
        f.write(good)
    done(spacectl("import", FILE, template, "--template"))
    eq("ready", line("templates", template, "state"))


main()
