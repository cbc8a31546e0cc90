#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
"""Processes in a sandbox: how they are started, fed, read, signalled, and how they end."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *


def box(made=[]):
    if not made:
        made.append(Box())
    return made[0]


@check
def exit_statuses_arrive():
    for status in [0, 1, 3, 42, 127, 255]:
        job = Job(box(), f"exit {status}")
        eq(f"exit {status}", job.wait(), "wait")
        eq(f"exit {status}", job.get("status"), "status")
        eq(f"exit {status}", job.wait(), "wait, read again")
        job.remove()


@check
def signals_arrive_by_name_and_number():
    for what, number in [("KILL", 9), ("SIGTERM", 15), ("1", 1), ("int", 2)]:
        job = Job(box(), "exec sleep 1000")
        eq("running", job.get("status"))
        job.signal(what)
        eq(f"signal {number}", job.wait(), f"end after {what}")
        refused(errno.ESRCH, job.signal, "TERM")
        job.remove()
    job = Job(box(), "exec sleep 1000")
    for bad in ["", "\n", "NOSUCH", "0", "-9", "65", "SIG"]:
        if bad:
            refused(errno.EINVAL, job.signal, bad)
    eq("running", job.get("status"))
    job.remove()


@check
def the_signal_reaches_the_whole_process_group():
    job = Job(box(), "sleep 1234 & sleep 1234 & echo up; wait")
    first_line(job)
    job.signal("TERM")
    job.wait()
    wait_until(lambda: box().run("ps | grep -v grep | grep -c 'sleep 1234'").out.strip() == "0", 10, "no sleep is left")
    job.remove()


def first_line(job, stream="stdout"):
    fd = os.open(job.at(stream), os.O_RDONLY)
    try:
        return os.read(fd, 4096).decode()
    finally:
        os.close(fd)


@check
def input_reaches_it_and_closing_is_the_end():
    job = Job(box(), "cat; echo end >&2; exit 5")
    fd = os.open(job.at("stdin"), os.O_WRONLY)
    os.write(fd, b"one\n")
    eq("one\n", first_line(job))
    os.write(fd, b"two\n")
    os.close(fd)
    eq("exit 5", job.wait())
    eq(("one\ntwo\n", "end\n"), (job.output(), job.output("stderr")), "streams")
    refused(errno.EPIPE, write, "late", "proc", box().name, job.name, "stdin")
    job.remove()


@check
def a_megabyte_of_input_comes_through_unchanged():
    data = os.urandom(1 << 20)
    job = Job(box(), "sha256sum; wc -c < /dev/null")
    fd = os.open(job.at("stdin"), os.O_WRONLY)
    for at in range(0, len(data), 65536):
        eq(65536, os.write(fd, data[at:at + 65536]))
    os.close(fd)
    import hashlib

    eq(hashlib.sha256(data).hexdigest(), job.output().split()[0], "sha256 in the guest")
    job.remove()


@check
def a_write_to_a_job_that_does_not_read_blocks_and_can_be_interrupted():
    job = Job(box(), "exec sleep 1000")

    def fill():
        fd = os.open(job.at("stdin"), os.O_WRONLY)
        for _ in range(64):
            os.write(fd, b"x" * 65536)
        return "wrote 4 MiB into a job that does not read"

    child = Child(fill)
    child.blocked(20)
    began = time.monotonic()
    child.kill(signal.SIGINT)
    wait_until(child.ended, 5, "the interrupted writer ends")
    at_most(1.0, time.monotonic() - began, "seconds until SIGINT ended the writer")
    eq(-signal.SIGINT, child.status, "how it ended")
    job.remove()


@check
def an_argument_vector_needs_no_shell():
    job = Job(box(), ["printf", "%s|", "a b", "$HOME", "", "*", "\n"])
    eq("exit 0", job.wait())
    eq("a b|$HOME||*|\n|", job.output())
    job.remove()
    for bad in [b"\0", b"\0\0", b"\0ls", b""]:
        job = Job(box())
        if bad:
            refused(errno.EINVAL, job.start, bad)
        eq("new", job.get("status"))
        job.remove()


@check
def a_command_that_cannot_be_executed_fails_the_write():
    job = Job(box())
    refused(errno.ENOENT, job.start, ["/no/such/program"])
    eq("new", job.get("status"), "status afterwards")
    refused(errno.EACCES, job.start, ["/etc/passwd"])
    job.start("echo second try")
    eq("second try\n", job.output())
    refused(errno.EBUSY, job.start, "echo third")
    job.remove()


@check
def environment_directory_and_user():
    job = Job(box(), 'echo "$A|$B|$HOME|$USER|$(pwd)|$(id -u):$(id -g)|$PATH"', env="A=1\nB=two words = x", cwd="/etc", user="user")
    eq("exit 0", job.wait(), f"end; it said {job.output('stderr')!r}")
    parts = job.output().rstrip("\n").split("|")
    eq(["1", "two words = x", "/home/user", "user", "/etc", "1000:1000"], parts[:6])
    has("/bin", parts[6], "PATH")
    eq(("A=1\nB=two words = x", "/etc", "user"), tuple(job.get(f) for f in ("env", "cwd", "user")), "settings read back")
    for file, value in [("env", "C=3"), ("cwd", "/"), ("user", "root"), ("timeout", "5"), ("tty", "80x24")]:
        refused(errno.EBUSY, write, value, "proc", box().name, job.name, file)
    job.remove()
    eq("0|/root", box().out('echo "$(id -u)|$(pwd)"'), "defaults")
    eq("65534:1", box().out('echo "$(id -u):$(id -g)"', user="65534:1"), "uid:gid")


@check
def settings_that_name_nothing():
    for file, value, code in [("user", "nosuchuser", errno.EINVAL), ("cwd", "/no/such/dir", errno.ENOENT)]:
        job = Job(box(), **{file: value})
        refused(code, job.start, "true")
        eq("new", job.get("status"))
        job.remove()
    job = Job(box())
    for file, value in [("env", "novalue"), ("env", "=x"), ("tty", "80"), ("tty", "0x0"), ("tty", "80x24x2"), ("tty", "wide"), ("timeout", "soon"),
                        ("timeout", "-1")]:
        refused(errno.EINVAL, write, value, "proc", box().name, job.name, file)
    refused(errno.E2BIG, write, "A=" + "x" * 20000, "proc", box().name, job.name, "env")
    refused(errno.EAGAIN, write, "x", "proc", box().name, job.name, "stdin")
    eq("new", job.get("status"))
    job.remove()


@check
def a_terminal_has_a_size_that_can_change():
    job = Job(box(), tty="100x30")
    job.start("stty size; trap 'stty size; exit 0' WINCH; test -t 0 && echo terminal; while :; do sleep 0.1; done")
    fd = os.open(job.at("stdout"), os.O_RDONLY)
    seen = b""
    while b"terminal" not in seen:
        seen += os.read(fd, 4096)
    has(b"30 100", seen, "size of the terminal")
    write("60x20", "proc", box().name, job.name, "tty")
    eq("exit 0", job.wait())
    has("20 60", job.output(), "output after the resize")
    eq("", job.output("stderr"), "stderr of a job with a terminal")
    os.close(fd)
    job.remove()


@check
def control_c_on_its_terminal_interrupts_it():
    job = Job(box(), tty="80x24")
    job.start("echo up; exec sleep 1000")
    has("up", first_line(job))
    with open(job.at("stdin"), "wb", buffering=0) as f:
        f.write(b"\x03")
        eq("signal 2", job.wait())
    job.remove()


@check
def a_timeout_kills_it():
    began = time.monotonic()
    job = Job(box(), "exec sleep 1000", timeout="1s")
    eq("signal 9", job.wait())
    took = time.monotonic() - began
    if not 0.8 <= took <= 10:
        fail(f"a timeout of 1 s came after {took:.2f} s")
    job.remove()


@check
def a_background_child_that_holds_the_pipe_holds_neither_wait_nor_readers():
    job = Job(box(), "(sleep 300; echo late) & echo first; exit 7")
    began = time.monotonic()
    eq("exit 7", job.wait())
    eq("first\n", job.output())
    at_most(10, time.monotonic() - began, "seconds until the end was seen")
    job.remove()
    wait_until(lambda: box().run("ps | grep -v grep | grep -c 'sleep 300'").out.strip() == "0", 10, "rmdir killed the child")


@check
def output_is_read_again_from_any_offset():
    job = Job(box(), "for i in $(seq 10000); do echo line $i; done; echo oops >&2")
    eq("exit 0", job.wait())
    want = "".join(f"line {i}\n" for i in range(1, 10001)).encode()
    for _ in range(2):
        eq(want, read_bytes("proc", box().name, job.name, "stdout"), "the whole")
    fd = os.open(job.at("stdout"), os.O_RDONLY)
    for offset in [0, 1, 777, 65535, 65536, len(want) - 3, len(want)]:
        eq(want[offset:offset + 1000], os.pread(fd, 1000, offset), f"from offset {offset}")
    eq(b"", os.pread(fd, 10, len(want) + 100), "behind the end")
    os.close(fd)
    eq("oops\n", job.output("stderr"))
    eq(0, os.stat(job.at("stdout")).st_size, "st_size of a stream")
    job.remove()


@check
def binary_output_is_unchanged():
    job = Job(box(), "head -c 3000000 /dev/urandom > /tmp/r; cat /tmp/r; sha256sum < /tmp/r >&2")
    import hashlib

    data = read_bytes("proc", box().name, job.name, "stdout")
    eq(3000000, len(data))
    eq(job.output("stderr").split()[0], hashlib.sha256(data).hexdigest(), "sha256")
    job.remove()


@check
def readers_come_go_and_do_not_take_from_each_other():
    job = Job(box(), "for i in 1 2 3; do read x; echo got $x; done")
    readers = [os.open(job.at("stdout"), os.O_RDONLY) for _ in range(3)]
    fd = os.open(job.at("stdin"), os.O_WRONLY)
    for i in range(3):
        os.write(fd, f"{i}\n".encode())
        for reader in readers:
            eq(f"got {i}\n".encode(), os.read(reader, 100), f"line {i}")
        if i == 1:
            os.close(readers.pop())
    os.close(fd)
    for reader in readers:
        eq(b"", os.read(reader, 100), "the end")
        os.close(reader)
    job.remove()


@check
def the_end_wakes_every_waiter():
    job = Job(box(), "read x; exit 9")
    waiters = [Child(job.wait) for _ in range(20)]
    for child in waiters:
        child.blocked(10)
    job.no_input()
    for child in waiters:
        eq(("value", "exit 9"), child.answer(10))
    job.remove()


@check(limit=120)
def output_over_the_limit_drops_the_oldest_and_says_so():
    limit = 64 << 20  # job_output's default
    job = Job(box(), f"yes 0123456789abcde | head -c {limit + (8 << 20)}; echo; echo last")
    eq("exit 0", job.wait())
    data = read_bytes("proc", box().name, job.name, "stdout")
    found = re.match(rb"\n\[(\d+) bytes dropped\]\n", data)
    if not found:
        fail(f"no marker at the start: {data[:80]!r}")
    dropped = int(found.group(1))
    kept = data[found.end():]
    eq(limit + (8 << 20) + 6, dropped + len(kept), "bytes dropped and kept")
    at_most(limit + (2 << 20), len(kept), "bytes kept")
    if len(kept) < limit - (2 << 20):
        fail(f"only {len(kept)} bytes kept of a limit of {limit}")
    has(b"\nlast\n", kept[-20:], "the newest output")
    job.remove()


@check
def after_rmdir_it_is_gone_and_its_readers_end():
    job = Job(box(), "echo one; exec sleep 1000")
    eq("one\n", first_line(job))
    reader, waiter = Child(job.output), Child(job.wait)
    reader.blocked()
    waiter.blocked()
    job.remove()
    for child in (reader, waiter):
        kind, value = child.answer(5)
        if (kind, value) not in [("value", "one\n"), ("value", "lost"), ("value", ""), ("errno", errno.ESTALE), ("errno", errno.ENOENT)]:
            fail(f"a blocked reader of a removed job: {kind} {value!r}")
    refused(errno.ENOENT, os.stat, job.at())
    wait_until(lambda: box().run("ps | grep -v grep | grep -c 'sleep 1000'").out.strip() == "0", 10, "its process is gone")


@check
def many_jobs_at_once():
    jobs = [Job(box(), f"echo {i}; exit {i}") for i in range(50)]
    for i, job in enumerate(jobs):
        eq((f"exit {i}", f"{i}\n"), (job.wait(), job.output()), f"job {i}")
    eq({j.name for j in jobs}, set(os.listdir(path("proc", box().name))), "listing of proc")
    for job in jobs:
        job.remove()
    eq([], os.listdir(path("proc", box().name)), "listing of proc afterwards")


@check
def orphans_are_reaped():
    box().out("for i in $(seq 50); do (sh -c 'sleep 0 & exit 0' &) ; done")
    wait_until(lambda: box().run("ps -o stat | grep -c Z").out.strip() == "0", 10, "no zombies")


main()
