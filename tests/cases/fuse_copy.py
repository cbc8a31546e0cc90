#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
"""`cp -r A X` makes X from A, whatever copies, and is the same as `cat A/head > X/head`."""

import os
import queue
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

PYTHON = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2])"
NODE = "const fs = require('fs'); const [, a, b] = process.argv; "
COPIERS = {
    "cp -r": ["cp", "-r"],
    "cp -a": ["cp", "-a"],
    "busybox cp -r": ["busybox", "cp", "-r"],
    "busybox cp -a": ["busybox", "cp", "-a"],
    "python copytree": [sys.executable, "-c", PYTHON],
    "node cpSync": ["node", "-e", NODE + "fs.cpSync(a, b, { recursive: true })"],
    "node promises.cp": ["node", "-e", NODE + "fs.promises.cp(a, b, { recursive: true }).catch(e => { console.error(e); process.exit(1) })"],
}
LOOP = """
import os, sys
tree = sys.argv[1]
while True:
    for name in os.listdir(tree):
        try:
            for file in os.listdir(tree + "/" + name):
                os.stat(tree + "/" + name + "/" + file)
        except FileNotFoundError:
            pass
"""


def source(made=[]):
    """A running sandbox with attributes that differ from the defaults."""
    if not made:
        box = Box(wait=False)
        box.set("labels", "team=red\n")
        box.touch()
        made.append(box)
    return made[0]


def copiers():
    found = {name: command for name, command in COPIERS.items() if shutil.which(command[0])}
    if "node" not in {c[0] for c in found.values()}:
        print("node is not installed: its two ways to copy are not tried")
    return found


def copy(command, a, b):
    result = subprocess.run(command + [path(a), path(b)], capture_output=True, text=True, timeout=60)
    eq((0, ""), (result.returncode, result.stderr), f"{' '.join(command[:3])} {a} {b}")


def canonical(a):
    """What a sandbox made by writing A's head says of where it came from."""
    x = fresh_name()
    os.mkdir(path("sandboxes", x))
    write(read(a, "head"), "sandboxes", x, "head", flags=os.O_NONBLOCK)
    want = line(a, "head")
    came_from(want, x, "origin after a write of head")
    remove("sandboxes", x)
    return want


def each_copier(a, carried):
    want = canonical(a)
    for name, command in copiers().items():
        x = fresh_name()
        copy(command, a, f"sandboxes/{x}")
        came_from(want, x, f"origin after {name}")
        for file in carried:
            eq(read(a, file), read("sandboxes", x, file), f"{file} after {name}")
        ne(line(a, "head"), line("sandboxes", x, "head"), f"head after {name}: X is itself")
        ne(line(a, "id"), line("sandboxes", x, "id"), f"id after {name}")
        remove("sandboxes", x)


@check
def each_copier_forks_a_sandbox():
    each_copier(f"sandboxes/{source().name}", ["labels", "memory", "vcpus"])


@check
def each_copier_forks_while_another_process_looks_at_everything():
    looker = subprocess.Popen([sys.executable, "-c", LOOP, path("sandboxes")])
    defer(looker.kill)
    each_copier(f"sandboxes/{source().name}", ["labels"])
    eq(None, looker.poll(), "the looking process runs")
    looker.kill()
    looker.wait()


@check
def each_copier_creates_from_a_template():
    each_copier("templates/tiny", [])


@check
def each_copier_creates_from_a_snapshot_without_reading_its_image():
    a = source().name
    os.mkdir(path("snapshots", a, "s"))
    wait_until(lambda: line("snapshots", a, "s", "state") == "ready", 30, "the snapshot is taken")
    if os.stat(path("snapshots", a, "s", "disk.raw")).st_size < 1 << 30:
        fail("the image is too small to tell")
    began = time.monotonic()
    each_copier(f"snapshots/{a}/s", [])
    at_most(5 * len(copiers()), time.monotonic() - began, "seconds for all copies")
    os.rmdir(path("snapshots", a, "s"))


@check(limit=120)
def a_fork_has_the_disk_of_its_source():
    a, x = source(), fresh_name()
    a.out("echo one > /root/mark; sync")
    copy(["cp", "-r"], f"sandboxes/{a.name}", f"sandboxes/{x}")
    fork = Box.known(x).touch()
    eq("one", fork.out("cat /root/mark"))
    a.out("echo two > /root/mark")
    eq("one", fork.out("cat /root/mark"), "the fork after the source changed")
    eq("running", a.state, "the source")
    fork.remove()


def opener(directory, name):
    return os.open(path("sandboxes", directory, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def made():
    x = fresh_name()
    os.mkdir(path("sandboxes", x))
    return x


def cat(*parts):
    return subprocess.run(["cat", path(*parts)], capture_output=True, text=True, timeout=30, check=True).stdout


@check
def what_another_process_opened_is_no_target():
    x = made()
    cat("sandboxes", x, "state")
    with open(path("sandboxes", source().name, "labels")):
        refused(errno.EEXIST, opener, x, "labels")


@check
def what_another_process_only_looked_at_is_one():
    x = made()
    subprocess.run(["ls", "-l", path("sandboxes", x)], capture_output=True, check=True)
    with open(path("sandboxes", source().name, "labels")) as a:
        with open(opener(x, "labels"), "w") as b:  # while it is open the copy goes on
            b.write(a.read())
            names = subprocess.run(["ls", path("sandboxes", x)], capture_output=True, text=True, check=True).stdout.split()
            has("state", names, "what another process sees meanwhile")
            eq("creating", cat("sandboxes", x, "state").strip(), "state for another process meanwhile")


@check
def a_file_that_was_not_opened_elsewhere_is_not_created_anew():
    x = made()
    refused(errno.EEXIST, opener, x, "labels")
    with open(path("sandboxes", x, "labels")):
        refused(errno.EEXIST, opener, x, "labels")


@check
def unlink_in_an_untouched_one_is_for_its_maker_and_changes_nothing():
    x = made()
    os.unlink(path("sandboxes", x, "labels"))
    has("labels", os.listdir(path("sandboxes", x)))
    eq("", read("sandboxes", x, "labels"))
    y = made()
    eq(("errno", errno.EPERM), Child(os.unlink, path("sandboxes", y, "labels")).answer())


@check(limit=120)
def unlink_is_refused_to_the_maker_too_once_it_was_used():
    """By the same process: what spacefs sees in sandboxes/, and what only space-hostd can know."""
    x = Box()  # waits for its first job
    eq("there", x.out("echo there"))
    refused(errno.EPERM, os.unlink, path("sandboxes", x.name, "labels"))
    y = made()
    write("a=1\n", "sandboxes", y, "labels")
    refused(errno.EPERM, os.unlink, path("sandboxes", y, "labels"))
    z = fresh_name()
    shutil.copytree(path("sandboxes", source().name), path("sandboxes", z))
    os.unlink(path("sandboxes", z, "labels"))  # of a copy: there may be files of it to come
    Box.known(z).touch()
    refused(errno.EPERM, os.unlink, path("sandboxes", z, "labels"))
    has("labels", os.listdir(path("sandboxes", z)))


@check
def a_copier_that_dies_before_the_head_leaves_nothing():
    a = source().name

    def begin(x):
        os.mkdir(path("sandboxes", x))
        with open(path("sandboxes", a, "labels")) as s, open(opener(x, "labels"), "w") as d:
            d.write(s.read())
        signal.pause()

    x = fresh_name()
    child = Child(begin, x)
    wait_until(lambda: exists("sandboxes", x), 10, "the copier made it")
    wait_until(lambda: waits_in(child.pid, "pause"), 10, "the copier waits")
    eq(True, exists("sandboxes", x))
    child.kill()
    wait_until(lambda: not exists("sandboxes", x), 5, "what the copier made is gone")


def waits_in(pid, name):
    with open(f"/proc/{pid}/wchan") as f:
        return name in f.read()


@check
def a_program_that_copies_only_the_head_has_forked_when_it_closed_it():
    a, x = source().name, made()
    with open(path("sandboxes", a, "head")) as s, open(path("sandboxes", x, "head"), "w") as d:
        d.write(s.read())
    began = time.monotonic()
    came_from(line("sandboxes", a, "head"), x)
    at_most(5, time.monotonic() - began, "seconds until it was committed, the copier living on")


@check
def whoever_opens_it_after_the_head_came_finds_it_committed():
    a, x = source().name, made()
    with open(path("sandboxes", a, "head")) as s, open(path("sandboxes", x, "head"), "w") as d:
        d.write(s.read())
        d.flush()
        head = read("sandboxes", a, "head")
        wait_until(lambda: cat("sandboxes", x, "origin") == head, 30, "origin for another process is the head, which is still open")


@check
def threads_are_one_process():
    a, x = source().name, fresh_name()
    for function in (
        lambda: os.mkdir(path("sandboxes", x)),
        lambda: shutil.copytree(path("sandboxes", a), path("sandboxes", x), dirs_exist_ok=True),
    ):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
    came_from(line("sandboxes", a, "head"), x)


def in_a_thread(function):
    """Its value; the thread lives on."""
    done = queue.Queue()
    threading.Thread(target=lambda: (done.put(function()), threading.Event().wait()), daemon=True).start()
    return done.get(timeout=30)


def forks(a, x, function):
    """Of a process that has done nothing before, which makes x from a."""
    want = canonical(f"sandboxes/{a}")
    eq(("value", None), Child(function).answer(30))
    came_from(want, x)
    remove("sandboxes", x)


@check
def threads_that_make_sandboxes_from_the_same_head_do_not_meet():
    a, x = source().name, fresh_name()

    def makes():
        in_a_thread(lambda: os.open(path("sandboxes", a, "head"), os.O_RDONLY))
        os.mkdir(path("sandboxes", x))
        write(line("sandboxes", a, "head"), "sandboxes", x, "head")

    forks(a, x, makes)


@check
def threads_that_share_the_work_of_a_copy_are_one_copier():
    a, x = source().name, fresh_name()

    def copies():
        os.mkdir(path("sandboxes", x))
        for name in in_a_thread(lambda: os.listdir(path("sandboxes", a))):
            with open(in_a_thread(lambda: os.open(path("sandboxes", a, name), os.O_RDONLY))) as f, open(opener(x, name), "w") as into:
                into.write(f.read())

    forks(a, x, copies)


@check
def a_copy_into_snapshots_or_templates_keeps_the_source():
    a, t = source().name, fresh_name()
    defer(remove, "templates", t)
    copy(["cp", "-r"], f"sandboxes/{a}", f"templates/{t}")
    wait_until(lambda: line("templates", t, "state") == "ready", 60, "the template is ready")
    matches(r"^template/[0-9a-f]{12}$", line("templates", t, "head"))
    x = fresh_name()
    copy(["cp", "-r"], f"templates/{t}", f"sandboxes/{x}")
    came_from(line("templates", t, "head"), x)
    remove("sandboxes", x)
    remove("templates", t)


main()
