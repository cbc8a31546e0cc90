#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
"""Suspend to the object store and restore: memory, jobs and disk go on; uploads; and every daemon killed in every phase."""
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fault"))
import leftovers
from lib import *

SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
ROUNDS = int(os.environ.get("ROUNDS") or 6)
COUNT = "i=0; while :; do i=$((i+1)); echo $i; echo $i > /dev/shm/count; sleep 0.1; done"
STEADY = ("running", "paused", "suspended")

shared = None


def box():
    """One for all checks, with a job that counts and what only its memory knows; running."""
    global shared
    if shared is None:
        wait_until(lambda: line("templates", default_template(), "prepared"), 120, "the template is prepared")
        shared = Box()
        shared.set("keep", "none")
        shared.out("mkdir -p /dev/shm; mountpoint -q /dev/shm || mount -t tmpfs none /dev/shm; echo unsaved > /dev/shm/memory; echo saved > /disk; sync")
        shared.job = Job(shared, COUNT, name="count")
    if shared.state != "running":
        shared.verb("resume")
    return shared


def numbers(b):
    return [int(text) for text in b.job.so_far().split("\n")[:-1]]


def is_whole(b):
    """Its memory, disk and job are what they were: the job has counted without a gap, and counts on."""
    eq("unsaved", b.out("cat /dev/shm/memory"), "what only memory knew")
    eq("saved", b.out("cat /disk"), "a file")
    eq("running", b.job.get("status"), "status of the job")
    seen = numbers(b)
    eq(list(range(1, len(seen) + 1)), seen, "what the job counted")
    wait_until(lambda: len(numbers(b)) > len(seen), 20, "the job counts on")


def snapshot_of(b):
    """The name of what it is suspended to."""
    return rows("SELECT name FROM snapshots WHERE id = (SELECT suspended FROM sandboxes WHERE id = ?)", int(b.get("id"), 16))[0][0]


def object_of(b, name):
    return os.path.join(config()["pool"], "snapshots", line("snapshots", b.name, name, "id"))


def remove_object(b, name):
    """What was left in the pool, as an administrator who wants room might."""
    subprocess.run(["btrfs", "subvolume", "delete", object_of(b, name)], check=True, capture_output=True)


@check
def a_suspended_sandbox_goes_on_where_it_was():
    b = box()
    before = {what: b.get(what) for what in ("id", "origin", "memory")}
    boot, host = b.out("cat /proc/sys/kernel/random/boot_id"), b.out("hostname")
    with Events() as events:
        b.verb("suspend")
        eq("suspended", b.state)
        eq("", b.get("error"), "error")
        eq(None, qemu_of(b.get("id")), "its QEMU")
        eq("yes", stats(b.name)["durable"], "durable")
        upload = events.next(kind="upload")
        at_most(48 << 20, upload["read_bytes"], "bytes read: what differs from the template")
        eq("running", b.job.get("status"), "status of a job meanwhile")
        refused(errno.EINVAL, b.job.signal, "NONSENSE")
        eq("suspended", b.state, "after a signal that there is not")
        counted = len(numbers(b))
        refused(errno.EBUSY, os.rmdir, path("snapshots", b.name, snapshot_of(b)))
        time.sleep(1.5)  # for the clock to show it
        eq(counted, len(numbers(b)), "numbers counted while it was suspended")
        b.verb("resume")
        eq("pool", events.next(kind="restore")["from"], "where it was restored from")
    is_whole(b)
    eq(before, {what: b.get(what) for what in before}, "what does not change")
    eq((boot, host), (b.out("cat /proc/sys/kernel/random/boot_id"), b.out("hostname")), "boot id and host name")
    b.clock_is_right()


@check
def without_its_left_over_it_comes_from_the_store():
    b = box()
    b.verb("suspend")
    remove_object(b, snapshot_of(b))
    with Events() as events:
        eq("saved\n", read("root", b.name, "disk"), "a file, which wakes it")
        eq("store", events.next(kind="restore")["from"], "where it was restored from")
    is_whole(b)
    b.verb("suspend")
    with open(os.path.join(object_of(b, snapshot_of(b)), "vm.state"), "rb") as f:
        eq(True, len(f.read()) > 1000, "the next one is in the pool")
    b.verb("start")
    is_whole(b)


@check
def the_next_suspend_costs_what_changed_since():
    """Of memory too, whether the machine maps the prepared template (10 MiB changed) or the head that it was restored from (26 MiB)."""
    b = box()
    for size in (10, 26):
        b.out(f"dd if=/dev/urandom of=/dev/shm/big bs=1M count={size}; sync")
        sum_before = b.out("md5sum /dev/shm/big")
        read_bytes = []
        for n in range(2):
            with Events() as events:
                b.verb("suspend")
                read_bytes.append(events.next(kind="upload")["read_bytes"])
            if n == 1:
                remove_object(b, snapshot_of(b))
            b.verb("resume")
        if read_bytes[1] > read_bytes[0] - size * 900000:
            fail(f"bytes read with {size} MiB of new memory, and then with none: {read_bytes}")
        eq(sum_before, b.out("md5sum /dev/shm/big"), "memory from the store")
        is_whole(b)
    b.out("rm /dev/shm/big")


@check
def nothing_of_a_stream_is_lost():
    """A job that prints as fast as it can, read all the while."""
    b = box()
    job = Job(b, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i; done", name="stream")
    reader = Child(lambda: job.output().count("line"))
    wait_until(lambda: len(job.so_far()) > 10000, 20, "it prints")
    for _ in range(2):
        b.verb("suspend")
        b.verb("resume")
    eq("exit 0", job.wait())
    eq("".join(f"line {n}\n" for n in range(1, 20001)), job.output(), "output")
    eq(("value", 20000), reader.answer(30), "lines that its reader got")
    job.remove()
    is_whole(b)


@check
def a_paused_one_and_a_manual_one():
    b = box()
    b.verb("pause")
    b.verb("suspend")
    b.set("wake", "manual")
    refused(errno.EAGAIN, os.listdir, b.root("etc"))
    job = Job(b)
    refused(errno.EAGAIN, job.start, "true")
    b.set("wake", "auto")
    job.start("echo woken")
    eq("woken\n", job.result().out)
    is_whole(b)


@check
def input_and_signals_wake_it():
    b = box()
    echo, told = Job(b, "cat; echo ended", name="echo"), Job(b, "trap 'echo told' USR1; echo ready; while :; do sleep 0.1; done", name="told")
    wait_until(lambda: told.so_far() == "ready\n", 20, "its trap is set")
    writer = open(path("proc", b.name, "echo", "stdin"), "w")
    b.verb("suspend")
    b.set("wake", "manual")
    refused(errno.EAGAIN, told.signal, "USR1")
    b.set("wake", "auto")
    eq("suspended", b.state)
    told.signal("USR1")
    eq("running", b.state, "after a signal")
    wait_until(lambda: told.so_far() == "ready\ntold\n", 20, "the job got it")
    b.verb("suspend")
    writer.write("typed\n")
    writer.flush()
    eq("running", b.state, "after input")
    wait_until(lambda: echo.so_far() == "typed\n", 20, "the job read it")
    b.verb("suspend")
    writer.close()  # nothing to be woken for; and not forgotten either
    eq("suspended", b.state)
    b.verb("resume")
    eq("typed\nended\n", echo.result().out)
    told.signal("KILL")
    is_whole(b)


@check
def a_copy_of_a_suspended_one_is_a_fork_of_it():
    b = box()
    b.verb("suspend")
    name = fresh_name()
    subprocess.run(["cp", "-r", path("sandboxes", b.name), path("sandboxes", name)], check=True, timeout=60)
    fork = Box.known(name)
    eq("unsaved", fork.out("cat /dev/shm/memory"), "memory of the fork")
    eq("suspended", b.state, "the source")
    fork.remove()
    b.verb("resume")
    is_whole(b)


@check
def snapshots_are_stored():
    b = box()
    os.mkdir(path("snapshots", b.name, "disk"))
    subprocess.run(["cp", "-r", path("sandboxes", b.name), path("snapshots", b.name, "full")], check=True, timeout=60)
    b.verb("suspend")
    write(line("snapshots", b.name, "full", "head"), "sandboxes", b.name, "head")
    eq("running", b.state, "a suspended one that was moved to another head")
    is_whole(b)
    for name, files in (("disk", 1), ("full", 4)):
        wait_until(lambda: line("snapshots", b.name, name, "state") == "ready", 30)
        eq("no", line("snapshots", b.name, name, "durable"))
        write("upload", "snapshots", b.name, name, "state")
        eq("yes", line("snapshots", b.name, name, "durable"))
        write("upload", "snapshots", b.name, name, "state")
        number = int(line("snapshots", b.name, name, "id"), 16)
        eq([(files, 2, 2)], rows("SELECT count(*), min(state), max(state) FROM artifacts WHERE object = ?", number), "artifacts, their states")
        refused(errno.EINVAL, write, "download", "snapshots", b.name, name, "state")
        os.rmdir(path("snapshots", b.name, name))
        wait_until(lambda: rows("SELECT count(*) FROM artifacts WHERE object = ?", number) == [(0,)], 30, "they are deleted from the store")


def spoil(name, how):
    """An object of the store: a flipped bit in its middle, or gone."""
    if how == "gone":
        os.unlink(name)
        return
    at = os.path.getsize(name) // 2
    with open(name, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 8]))


@check
def what_is_damaged_in_the_store_is_mended_from_the_pool():
    b = box()
    b.out("head -c 300000 /dev/urandom > /fresh; sync")
    b.verb("suspend")
    name = snapshot_of(b)
    store, found = config()["store"], {}
    for text in line("snapshots", b.name, name, "artifacts").splitlines():
        file, tenant, number = text.split()
        found.setdefault(f"{tenant == 'templates'} {file}", (tenant, number))

    def objects(key, folder):
        tenant, number = found[key]
        at = os.path.join(store, tenant, folder, number)
        return [os.path.join(at, n) for n in sorted(os.listdir(at))] if folder == "packs" else [at]

    spoil(objects("False disk.raw", "packs")[0], "flipped")
    spoil(objects("False vm.state", "packs")[0], "gone")
    spoil(objects("False ram.raw", "manifests")[0], "flipped")
    spoil(objects("True disk.raw", "packs")[0], "flipped")
    checked = spacectl("fsck", "--read-all", "--tenant", "u0")
    eq(1, checked.returncode, checked.stdout + checked.stderr)
    has(found["False vm.state"][1], checked.stdout, "what fsck says")
    mended = spacectl("fsck", "--read-all", "--repair", "--tenant", "u0", timeout=120)
    eq(0, mended.returncode, mended.stdout + mended.stderr)
    has(": mended", mended.stdout, "what fsck says")
    spacectl("fsck", "--read-all", "--repair", "--tenant", "templates", timeout=120)
    checked = spacectl("fsck", "--read-all", "--tenant", "templates")  # what a template of an earlier test had in that pack is nowhere else
    eq(False, f"artifact {found['True disk.raw'][1]} is affected" in checked.stdout, checked.stdout)
    spoil(objects("False meta", "manifests")[0], "gone")  # nothing in the store says that it was there: its snapshot does
    checked = spacectl("fsck", "--tenant", "u0")
    eq(1, checked.returncode, checked.stdout + checked.stderr)
    has(f"artifact {found['False meta'][1]} is missing: {path('snapshots', b.name, name)} needs it", checked.stdout, "what fsck says")
    mended = spacectl("fsck", "--repair", "--tenant", "u0", timeout=120)
    eq(0, mended.returncode, mended.stdout + mended.stderr)
    remove_object(b, name)
    is_whole(b.touch())
    spoil(objects("False disk.raw", "manifests")[0], "flipped")
    b.verb("suspend")  # is not counted from what is damaged
    b.verb("resume")
    b.out("rm /fresh; sync")


@check
def nothing_is_left_in_the_pool_if_so_configured():
    b = box()
    defer(lambda: restart_with(suspend_keep=None))
    restart_with(suspend_keep="no")
    b.verb("suspend")
    name = snapshot_of(b)
    eq(("stored", "full"), (line("snapshots", b.name, name, "state"), line("snapshots", b.name, name, "kind")))
    wait_until(lambda: not os.path.exists(object_of(b, name)), 20, "its object is gone")
    with open(path("snapshots", b.name, name, "disk.raw"), "rb") as f:
        eq(b"\x53\xef", f.read(2048)[1080:1082], "its disk, which is fetched for that")
    eq("ready", line("snapshots", b.name, name, "state"))
    b.verb("resume")
    is_whole(b)
    b.verb("suspend")
    eq("stored", line("snapshots", b.name, snapshot_of(b), "state"))
    is_whole(b.touch())
    restart_with(suspend_keep=None)


@check
def what_is_removed_while_it_is_fetched_is_forked_and_leaves_nothing():
    """The sandbox that a fork is made of, whose snapshot is in the store only."""
    defer(lambda: restart_with(suspend_keep=None))
    restart_with(suspend_keep="no")
    source, name = Box(), fresh_name()
    source.out("echo this > /made; sync")
    source.verb("suspend")
    number = int(source.get("id"), 16)
    hung = daemon_pid("volumed")
    defer(wake, hung)
    os.kill(hung, signal.SIGSTOP)
    os.mkdir(path("sandboxes", name))
    fork = Child(write, read("sandboxes", source.name, "head"), "sandboxes", name, "head")
    fork.blocked()
    source.remove()
    wake(hung)
    eq("value", fork.answer(60)[0], "the fork")
    child = Box.known(name)
    eq("this", child.out("cat /made"))
    child.remove()
    wait_until(lambda: not rows("SELECT 1 FROM snapshots WHERE sandbox = ?", number), 30, "its snapshot is gone")
    wait_until(lambda: not rows("SELECT 1 FROM artifacts WHERE kind = 3 AND object NOT IN (SELECT id FROM snapshots)"), 60, "artifacts of nothing are deleted")
    restart_with(suspend_keep=None)


@check
def a_template_that_is_gone_is_fetched_once():
    """Not even the template of a sandbox in the store is needed."""
    b = box()
    template = fresh_name()
    defer(remove, "templates", template)
    subprocess.run(["cp", "-r", path("sandboxes", b.name), path("templates", template)], check=True, timeout=60)
    boxes = [Box(template, wait=False) for _ in range(2)]
    for each in boxes:
        each.touch()
        each.job = Job(each, COUNT, name="count")
        each.out("mkdir -p /dev/shm; mountpoint -q /dev/shm || mount -t tmpfs none /dev/shm; echo unsaved > /dev/shm/memory; sync")
        each.verb("suspend")
    number = line("templates", template, "id")
    os.rmdir(path("templates", template))
    at = os.path.join(config()["pool"], "templates", number)
    wait_until(lambda: not os.path.exists(at), 30, "its object is gone")
    for each in boxes:
        remove_object(each, snapshot_of(each))
    children = [Child(each.verb, "resume") for each in boxes]
    for child in children:
        wait_until(child.ended, 90, "restored")
    eq(True, os.path.exists(at), "the template's object is there again")
    for each in boxes:
        eq("running", each.state)
        is_whole(each)
        each.remove()


def volumed(verb):
    subprocess.run(["sv", "-w", "10", verb, os.path.join(SPACE_DIR, "sv", "volumed")], capture_output=True)
    if verb == "start":
        wait_until(lambda: daemon_pid("volumed"), 20, "volumed runs")


@check
def nothing_is_lost_without_the_store():
    b = box()
    defer(volumed, "start")
    volumed("force-stop")
    began = time.monotonic()
    refused(errno.ENOTCONN, b.verb, "suspend")
    at_most(9, time.monotonic() - began, "seconds")
    has("space-volumed", b.get("error"), "error")
    eq("running", b.state)
    is_whole(b)
    volumed("start")
    b.verb("suspend")
    remove_object(b, snapshot_of(b))
    volumed("force-stop")
    refused(errno.ENOTCONN, os.listdir, b.root("etc"))
    has("space-volumed", b.get("error"), "error")
    eq("suspended", b.state)
    volumed("start")
    is_whole(b.touch())


def suspend_in_background(b):
    child = Child(b.verb, "suspend")
    wait_until(lambda: b.state != "running" or child.ended(), 20, "it begins")
    return child


@check
def kill_and_rmdir_end_it():
    b = Box()
    b.out("echo kept > /kept; sync")
    b.verb("suspend")
    b.verb("kill")
    eq("stopped", b.state, "a suspended one without its memory")
    b.verb("start")
    eq("kept", b.out("cat /kept"), "its disk")
    hung = daemon_pid("volumed")
    defer(wake, hung)
    os.kill(hung, signal.SIGSTOP)
    Child(b.verb, "suspend")
    b.verb("kill")
    eq("stopped", b.state, "one that was being suspended, with a space-volumed that hangs")
    wake(hung)
    b = Box()
    number = int(b.get("id"), 16)
    suspend_in_background(b)
    os.kill(hung, signal.SIGSTOP)
    b.remove()
    wait_until(lambda: not rows("SELECT 1 FROM sandboxes WHERE id = ?", number) and not rows("SELECT 1 FROM snapshots WHERE sandbox = ?", number), 30, "it is gone")
    wake(hung)
    c = Box()
    c.verb("suspend")
    number = int(c.get("id"), 16)
    c.remove()
    wait_until(lambda: not rows("SELECT 1 FROM artifacts WHERE kind = 3 AND object NOT IN (SELECT id FROM snapshots)"), 30, "artifacts of nothing are deleted")


@check(limit=240)
def whatever_is_killed_it_is_whole_afterwards():
    b = box()
    print(f"SEED={SEED}", flush=True)
    choice = random.Random(SEED)
    for n in range(ROUNDS):
        verb, daemon = choice.choice(("suspend", "resume")), choice.choice(("hostd", "volumed", "noded"))
        if verb == "suspend" and b.state != "running":
            b.verb("resume")
        if verb == "resume":
            if b.state != "suspended":
                b.verb("suspend")
            if choice.random() < 0.7:
                remove_object(b, snapshot_of(b))
        delay = choice.choice((0.01, 0.1, 0.3, 0.6, 1, 1.5))
        child = Child(b.verb, verb)
        time.sleep(delay)
        old = kill_daemon(daemon)
        daemon_back(daemon, old)
        settled()
        wait_until(child.ended, 60, "the verb ended")
        wait_until(lambda: b.state in STEADY, 60, f"a state to stay in, not {b.state}")
        state = b.state
        b.touch()
        is_whole(b)
        print(f"round {n}: {daemon} killed {delay} s into {verb}: {state}", flush=True)
    leftovers.none(60)  # an orphan younger than 10 s is looked at again 11 s later


main()
