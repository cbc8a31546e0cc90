#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 600
"""One gesture: heads and copies. Every copying program makes a fork; roll back, snapshots, publishing."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

made = []


def source():
    """One sandbox for all checks, with a file that tells when it was forked."""
    if not made:
        made.append(Box())
        made[0].out("mkdir -p /data; echo one > /data/mark; sync")
    return made[0]


def node(script):
    def copy(src, dst):
        subprocess.run(["node", "-e", f"const fs = require('fs'); const [src, dst] = process.argv.slice(1); {script}", src, dst], check=True)

    return copy


def run(*command):
    def copy(src, dst):
        subprocess.run([*command, src, dst], check=True)

    return copy


PROGRAMS = {
    "cp -r": run("cp", "-r"),
    "cp -a": run("cp", "-a"),
    "busybox cp -r": run("busybox", "cp", "-r"),
    "copytree": shutil.copytree,
    "cpSync": node("fs.cpSync(src, dst, {recursive: true})"),
    "promises.cp": node("fs.promises.cp(src, dst, {recursive: true}).catch(e => { console.error(e); process.exit(1) })"),
}


def fork(copy, src):
    name = fresh_name()
    copy(path("sandboxes", src.name), path("sandboxes", name))
    return Box.known(name)


@check(limit=300)
def every_program_forks():
    src = source()
    src.set("labels", "purpose=copying\n")
    for program, copy in PROGRAMS.items():
        child = fork(copy, src)
        came_from(src.get("head"), child.name, f"origin after {program}")
        eq("purpose=copying", child.get("labels"), f"labels after {program}")
        ne(src.get("id"), child.get("id"), "id")
        ne(src.get("head"), child.get("head"), "head")
        eq("one", child.out("cat /data/mark"), f"the disk after {program}")
        eq("running", src.state, f"the source after {program}")
        child.remove()


@check
def a_copy_is_a_head_written():
    src = source()
    name = fresh_name()
    os.mkdir(path("sandboxes", name))
    child = Box.known(name)
    child.set("head", src.get("head"))
    came_from(src.get("head"), child.name)
    eq("one", child.out("cat /data/mark"))
    child.out("echo two > /data/mark; sync")
    eq("one", src.out("cat /data/mark"), "the source, after the fork wrote")
    child.remove()


@check
def others_that_look_do_not_disturb_a_copy():
    src = source()
    looker = subprocess.Popen(["sh", "-c", f"while :; do ls -lR {path('sandboxes')} >/dev/null 2>&1; done"])
    defer(looker.kill)
    try:
        for program in ("cp -r", "copytree", "cpSync"):
            child = fork(PROGRAMS[program], src)
            came_from(src.get("head"), child.name, f"origin after {program}")
            child.remove()
    finally:
        looker.kill()
        looker.wait()


@check
def an_unfinished_copy_leaves_nothing():
    src, name = source(), fresh_name()
    target = path("sandboxes", name)
    child = subprocess.Popen(["python3", "-c", f"""
import os, sys
os.mkdir({target!r})
src = os.open({path('sandboxes', src.name, 'memory')!r}, os.O_RDONLY)
out = os.open({target!r} + '/memory', os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(out, os.read(src, 100))
print('held', flush=True)
sys.stdin.read()
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    eq(b"held\n", child.stdout.readline())
    eq("creating", line("sandboxes", name, "state"))
    child.kill()
    child.wait()
    wait_until(lambda: not exists("sandboxes", name), 30, "the copy without a head is gone")


@check
def snapshots_and_roll_back():
    box = Box()
    box.out("echo before > /mark; sync")
    os.mkdir(path("snapshots", box.name, "s"))
    wait_until(lambda: line("snapshots", box.name, "s", "state") == "ready", 60, "the snapshot is ready")
    eq("disk consistent", line("snapshots", box.name, "s", "kind"))
    box.out("echo after > /mark; sync")
    box.set("head", line("snapshots", box.name, "s", "head"))
    eq("before", box.out("cat /mark"))
    automatic = [n for n in os.listdir(path("snapshots", box.name)) if n.startswith("auto-")]
    eq(1, len(automatic), "automatic snapshots")
    box.set("head", line("snapshots", box.name, automatic[0], "head"))
    eq("after", box.out("cat /mark"), "a roll back is undone")
    child = Box.known(fresh_name())
    shutil.copytree(path("snapshots", box.name, "s"), path("sandboxes", child.name))
    eq("before", child.out("cat /mark"), "a new sandbox from the snapshot")
    child.remove()
    box_id = box.get("id")
    box.remove()
    kept = f"{box.name}~{box_id}"
    wait_until(lambda: os.listdir(path("snapshots", kept)) == ["s"], 60, "of a removed sandbox's snapshots those made by hand stay")
    remove(f"snapshots/{kept}", "s")
    wait_until(lambda: not exists("snapshots", kept), 10)


@check
def publishing_a_template():
    name = fresh_name()
    subprocess.run(["cp", "-r", path("sandboxes", source().name), path("templates", name)], check=True)
    child = Box.known(fresh_name())
    subprocess.run(["cp", "-r", path("templates", name), path("sandboxes", child.name)], check=True)
    eq("one", child.out("cat /data/mark"))
    child.remove()
    remove("templates", name)


@check
def what_is_copied_is_safe_when_its_source_is_removed_at_once():
    """In one line of shell, several at once: the moves that everyone types."""
    names = [fresh_name() for _ in range(4)]
    boxes = [Box() for _ in names]
    lines, ids = [], [box.get("id") for box in boxes]
    for box in boxes:
        box.out(f"echo {box.name} > /whose")
    for box, name, copy in zip(boxes, names, ("cp -r {s} sandboxes/{n}", "cp -r {s} templates/{n}", "mkdir snapshots/{b}/{n}", "cp -r {s} snapshots/{b}/{n}")):
        lines.append(copy.format(s=f"sandboxes/{box.name}", b=box.name, n=name) + f" && rmdir sandboxes/{box.name}")
    for child in [subprocess.Popen(["bash", "-c", text], cwd=path()) for text in lines]:
        eq(0, child.wait(60), "exit status")
    for box in boxes:
        eq(False, exists("sandboxes", box.name), "the source after rmdir")
    child = Box.known(names[0])
    eq(boxes[0].name, child.out("cat /whose"))
    child.remove()
    defer(remove, "templates", names[1])
    wait_until(lambda: line("templates", names[1], "state") == "ready", 60, f"the template is ready, error {line('templates', names[1], 'error')!r}")
    for box, box_id, name in list(zip(boxes, ids, names))[2:]:
        kept = f"{box.name}~{box_id}"
        wait_until(lambda: line("snapshots", kept, name, "state") == "ready", 60, f"the snapshot is ready, error {line('snapshots', kept, name, 'error')!r}")
        child = Box.known(fresh_name())
        subprocess.run(["cp", "-r", path("snapshots", kept, name), path("sandboxes", child.name)], check=True)
        eq(box.name, child.out("cat /whose"))
        child.remove()
        remove(f"snapshots/{kept}", name)
    wait_until(lambda: not any(qemu_of(i) for i in ids), 60, "the sources' machines end")


@check
def a_stale_head_changes_nothing():
    box = source()
    stale = f"sandbox/{box.get('id')}@999"
    child = Box()
    refused(errno.ESTALE, child.set, "head", stale)
    eq("running", child.state)
    child.remove()


main()
