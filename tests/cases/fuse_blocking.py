#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
# alone: yes
"""Nothing that one caller waits for holds up another, and whoever waits can be interrupted: what was measured of FUSE, as tests."""

import os
import select
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *


def shared(made=[]):
    if not made:
        made.append(Box())
    return made[0]


def hanging_start(box):
    """A child that writes `start` and waits for the guest, which is stopped before it can answer."""
    box.verb("kill")
    child = Child(write, "start", "sandboxes", box.name, "state")
    child.blocked(10)
    box.wait_state("starting", 10)
    box.mute()
    return child


@check
def mkdir_mv_and_rmdir_answer_at_once():
    times = {"mkdir": [], "mv": [], "rmdir": []}
    for _ in range(20):
        a, b = fresh_name(), fresh_name()
        times["mkdir"].append(millis(os.mkdir, path("sandboxes", a)))
        times["mv"].append(millis(os.rename, path("sandboxes", a), path("sandboxes", b)))
        times["rmdir"].append(millis(os.rmdir, path("sandboxes", b)))
    for what, values in times.items():
        at_most(5, percentile(values, 50), f"median milliseconds of {what}; all: {[round(v, 1) for v in values]}")


@check(limit=120)
def a_write_that_hangs_holds_up_no_other_user_of_the_file():
    box = Box()
    child = hanging_start(box)
    eq("starting", box.state)
    at_most(1000, millis(lambda: [box.state for _ in range(20)]), "milliseconds for reading state 20 times")
    at_most(1000, millis(os.stat, path("sandboxes", box.name, "state")), "milliseconds of stat")
    at_most(1000, millis(lambda: os.mkdir(path("sandboxes", fresh_name()))), "milliseconds of another mkdir")
    eq("starting", box.state, "all of this happened while it hung")
    at_most(1000, millis(lambda: write("kill", "sandboxes", box.name, "state", flags=os.O_NONBLOCK)), "milliseconds of a write with O_NONBLOCK")
    box.wait_state("stopped", 30)
    eq("errno", child.answer(10)[0], "the write that hung")


@check(limit=120)
def many_writers_that_open_at_once_do_not_share_a_lock():
    box = Box()
    hanging_start(box)
    writers = [Child(write, "start", "sandboxes", box.name, "state") for _ in range(20)]
    for writer in writers:
        writer.blocked(3)
    for number, writer in enumerate(writers):
        writer.kill(signal.SIGKILL if number % 2 else signal.SIGINT)
        began = time.monotonic()
        wait_until(writer.ended, 5, f"writer {number} has ended")
        at_most(1, time.monotonic() - began, f"seconds that writer {number} outlived its signal")
    eq("starting", box.state, "all of this happened while the first one hung")
    wake(box.qemu())
    at_most(3000, millis(box.verb, "kill"), "milliseconds of kill")


@check
def a_blocked_read_ends_within_a_second_of_a_signal():
    job = Job(shared(), "cat")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        child = Child(read_bytes, "proc", job.box.name, job.name, "stdout")
        child.blocked()
        began = time.monotonic()
        child.kill(number)
        wait_until(child.ended, 5, f"the reader ends by {number.name}")
        at_most(1, time.monotonic() - began, f"seconds after {number.name}")
        eq(-number, child.status)


class Alarmed(Exception):
    pass


def with_alarm(seconds, function, *args):
    """EINTR by a handler that raises, as Ctrl-C in Python does; seconds it took."""

    def ring(number, frame):
        raise Alarmed()

    before = signal.signal(signal.SIGUSR1, ring)
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    began = time.monotonic()
    try:
        timer.start()
        function(*args)
    except Alarmed:
        return time.monotonic() - began
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
    fail(f"{function.__name__}{args!r} returned")


@check
def a_handler_runs_while_a_read_is_blocked():
    job = Job(shared(), "cat")
    at_most(1.3, with_alarm(0.3, read_bytes, "proc", job.box.name, job.name, "wait"), "seconds")


RAIN = """
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(256)
signal.signal(signal.SIGUSR1, lambda *a: None)
bad = 0
for _ in range(300):
    bad += bool(libc.access({file}, 4)) + bool(libc.stat({directory}, buffer))
print(bad)
"""


@check
def signals_do_not_disturb_what_ends_by_itself():
    """A program that gets SIGALRM all the time (git shows progress so) must not see EINTR from stat and access."""
    names = {"file": os.fsencode(path("root", shared().name, "etc", "passwd")), "directory": os.fsencode(path("sandboxes"))}
    child = subprocess.Popen([sys.executable, "-c", RAIN.format(**names)], stdout=subprocess.PIPE)
    defer(child.kill)
    wait_until(lambda: caught(child.pid), 10, "the child has its handler")
    sent = 0
    while child.poll() is None:
        child.send_signal(signal.SIGUSR1)
        sent += 1
        select.select([], [], [], 0.001)
    eq("0", child.stdout.read().decode().strip(), f"calls that failed under {sent} signals")
    if sent < 20:
        fail(f"only {sent} signals came while it ran")


def caught(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as f:
        mask = int(re.search(r"SigCgt:\s*([0-9a-f]+)", f.read()).group(1), 16)
        return bool(mask >> (signal.SIGUSR1 - 1) & 1)
    return False


@check(limit=120)
def a_mute_guest_stops_only_those_who_ask_it():
    mute, box = Box(), shared()
    pid = mute.mute()
    children = [
        Child(os.stat, mute.root("etc", "passwd")),
        Child(os.listdir, mute.root("etc")),
        Child(lambda: open(mute.root("etc", "group")).read()),
        Child(os.mkdir, mute.root("new")),
    ]
    for child in children:
        child.blocked()
    at_most(1000, millis(lambda: open(box.root("etc", "passwd")).read()), "milliseconds of another guest's file")
    at_most(1000, millis(os.stat, path("root", mute.name)), "milliseconds of stat root/NAME")
    at_most(1000, millis(lambda: os.listdir(path("root"))), "milliseconds of ls root")
    at_most(5000, millis(lambda: subprocess.run(["df", SPACE], capture_output=True, check=True)), "milliseconds of df")
    at_most(5000, millis(os.sync), "milliseconds of sync")
    for child in children:
        began = time.monotonic()
        child.kill(signal.SIGINT)
        wait_until(child.ended, 5, "a blocked caller ends")
        at_most(1, time.monotonic() - began, "seconds after SIGINT")
    wake(pid)
    eq(True, len(os.listdir(mute.root("etc"))) > 0, "the guest is back")


@check
def poll_tells_of_the_next_transition():
    box = Box()
    fd = os.open(path("sandboxes", box.name, "state"), os.O_RDONLY)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    eq(1, len(poll.poll(5000)), "ready before it was read")
    eq(b"running\n", os.read(fd, 100))
    wait_until(lambda: (os.pread(fd, 100, 0), not poll.poll(0))[1], 10, "not ready once it was read")
    changer = Child(box.verb, "pause")
    eq(1, len(poll.poll(10000)), "ready after a change")
    changer.answer()
    wait_until(lambda: poll.poll(0) and False or os.pread(fd, 100, 0) == b"paused\n", 5, "the new text at offset 0")
    os.close(fd)


def next_state(poll, fd, what):
    """Waits in poll(2) for the next change; the state then."""
    if not poll.poll(30000):
        fail(f"poll was not woken by {what}; the state is {os.pread(os.open(f'/proc/self/fd/{fd}', os.O_RDONLY), 100, 0)!r}")
    return os.pread(fd, 100, 0).decode().strip()


@check(limit=120)
def poll_tells_of_a_creation_that_fails():
    """From a template whose own copy is given up; the watcher waits in poll(2) from before until after, or asks again later."""
    templates = p9().walk("templates")
    for waits in (True, False, True):
        name, box = fresh_name(), Box(wait=False)
        defer(remove, "templates", name)
        templates.mkdir(name)
        held = templates.walk(name, "#copy").open(ninep.O_WRONLY)
        write(read("templates", name, "head"), "sandboxes", box.name, "head", flags=os.O_NONBLOCK)
        fd = os.open(path("sandboxes", box.name, "state"), os.O_RDONLY)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        eq("creating", next_state(poll, fd, "its being unread"))
        eq([], poll.poll(300), "nothing while it waits for the template")
        giving_up = threading.Timer(0.3 if waits else 0, held.clunk)
        giving_up.start()
        if not waits:
            box.wait_state("failed", 30)
        eq("failed", next_state(poll, fd, "creating -> failed"))
        eq([], poll.poll(0), "nothing more once it was read")
        giving_up.join()
        os.close(fd)
        box.remove()


@check(limit=120)
def poll_tells_of_a_machine_that_dies():
    box = Box()
    fd = os.open(path("sandboxes", box.name, "state"), os.O_RDONLY)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    eq("running", next_state(poll, fd, "its being unread"))
    threading.Timer(0.3, os.kill, (box.qemu(), signal.SIGKILL)).start()
    eq("failed", next_state(poll, fd, "running -> failed"))
    os.close(fd)


@check
def poll_on_streams_is_ready_when_there_is_something():
    job = Job(shared(), "read x; echo got $x; read y")
    out = os.open(job.at("stdout"), os.O_RDONLY)
    eq([], select.select([out], [], [], 0.3)[0], "ready while there is nothing")
    into = os.open(job.at("stdin"), os.O_WRONLY)
    os.write(into, b"it\n")
    eq([out], select.select([out], [], [], 10)[0], "ready")
    eq(b"got it\n", os.read(out, 100))
    os.set_blocking(out, False)
    refused(errno.EAGAIN, os.read, out, 100)
    os.set_blocking(out, True)
    eq(b"got it\n", os.pread(out, 100, 0), "again from the start")
    os.close(into)
    eq([out], select.select([out], [], [], 10)[0], "ready at the end")
    eq(b"", os.read(out, 100))
    os.close(out)
    with Events() as events:
        while select.select([events.fd], [], [], 0.5)[0]: # of what the checks before did
            os.read(events.fd, 65536)
        Box(wait=False).remove()
        eq([events.fd], select.select([events.fd], [], [], 10)[0])


@check
def true_sizes_and_no_cache():
    box = shared()
    for name in os.listdir(path("sandboxes", box.name)):
        fd = os.open(path("sandboxes", box.name, name), os.O_RDONLY)
        size = os.fstat(fd).st_size
        eq(size, len(os.read(fd, 1 << 16)), f"bytes of {name}, whose size is {size}")
        os.close(fd)
    box.set("labels", "a=1\n")
    eq("a=1\n", box.get("labels") + "\n")
    box.set("labels", "a=22\n")
    eq(5, os.stat(path("sandboxes", box.name, "labels")).st_size)
    subprocess.run(["sh", "-c", f"(echo b=1; echo c=2) > {path('sandboxes', box.name, 'labels')}"], check=True)
    matches("^b=1\nc=2\n$|^c=2\n$", read("sandboxes", box.name, "labels"))


@check
def control_files_have_no_xattrs_and_hidden_names_are_hidden():
    box = shared()
    at = path("sandboxes", box.name, "state")
    eq([], os.listxattr(at))
    refused(errno.ENODATA, os.getxattr, at, "user.x")
    refused(errno.EOPNOTSUPP, os.setxattr, at, "user.x", b"1")
    os.setxattr(at, "system.posix_acl_access", b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff")
    os.removexattr(at, "system.posix_acl_access")
    refused(errno.ENOENT, os.stat, path("sandboxes", "#" + box.get("id")))
    refused(errno.ENOENT, os.stat, path("sandboxes", box.name, "#copy"))


main()
