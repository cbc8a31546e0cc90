#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""space-hostd and spacefs are killed: the mount lives on or comes back, open files go on, and nobody waits for ever."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *


def shared(made=[]):
    if not made:
        made.append(Box())
    return made[0]


def restart_hostd():
    old = kill_daemon("hostd")
    daemon_back("hostd", old)
    settled()


@check(limit=90)
def open_files_and_directories_go_on_after_hostd_died():
    box = shared()
    with open(box.root("root", "file"), "wb") as f:
        f.write(b"0123456789" * 100000)
    reader = os.open(box.root("root", "file"), os.O_RDONLY)
    writer = os.open(box.root("root", "log"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    directory = os.open(path("sandboxes", box.name), os.O_RDONLY)
    eq(b"01234", os.read(reader, 5))
    os.write(writer, b"before ")
    cwd = os.getcwd()
    os.chdir(box.root("root"))
    try:
        restart_hostd()
        wait_until(lambda: os.access(box.root("etc"), os.R_OK), 20, "hostd has found its guest again")
        eq(1000000, os.stat("file").st_size, "size by the working directory")
        eq(b"0123456789", os.pread(reader, 10, 500000))
        os.write(writer, b"after")
        os.fsync(writer)
        eq(b"before after", open("log", "rb").read())
        eq("running\n", os.read(os.open("state", os.O_RDONLY, dir_fd=directory), 100).decode())
        os.unlink("log")
    finally:
        os.chdir(cwd)
        for fd in (reader, writer, directory):
            os.close(fd)


@check(limit=90)
def a_directory_is_the_same_sandbox_whatever_its_name_is_when_hostd_is_back():
    a = Box(wait=False)
    wanted = a.get("id")
    fd = os.open(path("sandboxes", a.name), os.O_RDONLY)
    new = fresh_name()
    os.rename(path("sandboxes", a.name), path("sandboxes", new))
    os.mkdir(path("sandboxes", a.name))
    restart_hostd()
    with os.fdopen(os.open("id", os.O_RDONLY, dir_fd=fd)) as f:
        eq(wanted, f.read().strip(), "id in the directory that was open")
    ne(wanted, line("sandboxes", a.name, "id"), "id under the old name")
    os.rmdir(path("sandboxes", new))
    refused((errno.ENOENT, errno.ESTALE), os.open, "id", os.O_RDONLY, dir_fd=fd)
    os.close(fd)


@check(limit=90)
def who_waited_when_hostd_died_gets_an_answer():
    box = shared()
    job = Job(box, "echo begun; read x; echo end")
    wait_until(lambda: job_said(job, "begun"), 20, "the job runs")
    stopped = Box()
    stopped.verb("stop")
    reader = Child(read, "proc", box.name, job.name, "stdout")
    writer = Child(write, "start", "sandboxes", stopped.name, "state")
    for child in (reader, writer):
        child.blocked()
    old = kill_daemon("hostd")
    eq("errno", writer.answer(6)[0], "a verb in flight")
    daemon_back("hostd", old)
    settled()
    wait_until(lambda: os.access(box.root("etc"), os.R_OK), 20, "hostd has found its guest again")
    eq(False, reader.ended(), "a blocked read of a stream goes on")
    os.close(os.open(job.at("stdin"), os.O_WRONLY))
    eq(("value", "begun\nend\n"), reader.answer(20))


def job_said(job, text):
    fd = os.open(job.at("stdout"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        return text in os.read(fd, 4096).decode()
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


@check(limit=90)
def without_hostd_everything_fails_in_five_seconds_and_can_be_interrupted():
    box = shared()
    sv = os.path.join(SPACE_DIR, "sv", "hostd")
    subprocess.run(["sv", "down", sv], check=True, capture_output=True)
    defer(lambda: subprocess.run(["sv", "up", sv], capture_output=True))
    kill_daemon("hostd")
    wait_until(lambda: daemon_pid("hostd") is None, 10, "hostd stays away")
    calls = [
        Child(os.stat, path("sandboxes", box.name)),
        Child(os.listdir, box.root("etc")),
        Child(os.mkdir, path("sandboxes", "never")),
        Child(read, "sandboxes", box.name, "state"),
        Child(os.rename, box.root("etc", "passwd"), box.root("etc", "p")),
    ]
    impatient = Child(os.stat, path("sandboxes", box.name, "state"))
    began = time.monotonic()
    impatient.blocked()
    impatient.kill(signal.SIGINT)
    wait_until(impatient.ended, 5, "a waiting caller ends by SIGINT")
    at_most(2, time.monotonic() - began, "seconds until it did")
    for child in calls:
        eq(("errno", errno.EIO), child.answer(6))
    at_most(6, time.monotonic() - began, "seconds until all had failed")
    subprocess.run(["sv", "up", sv], check=True, capture_output=True)
    settled()
    eq("running", box.state)


@check(limit=90)
def a_copy_that_hostd_dies_in_leaves_nothing_half_made():
    a, x = shared().name, fresh_name()
    os.mkdir(path("sandboxes", x))
    with open(path("sandboxes", a, "labels")):
        fd = os.open(path("sandboxes", x, "labels"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        restart_hostd()
        os.close(fd)
    wait_until(lambda: not exists("sandboxes", x), 10, "the uncommitted copy is gone")


@check(limit=90)
def spacefs_itself_killed_mounts_anew_over_open_files():
    box = shared()
    fd = os.open(path("sandboxes", box.name, "state"), os.O_RDONLY)
    cwd = os.open(box.root("etc"), os.O_RDONLY)
    reader = Child(read, "events")
    reader.blocked()
    old = kill_daemon("spacefs")
    eq("errno", reader.answer(6)[0], "a read in flight")
    daemon_back("spacefs", old)
    settled()
    eq("running", box.state)
    refused((errno.ENOTCONN, errno.ECONNABORTED, errno.EIO), os.pread, fd, 10, 0)
    eq(True, len(os.listdir(box.root("etc"))) > 0)
    os.close(fd)
    os.close(cwd)


@check(limit=90)
def jobs_that_are_started_as_soon_as_hostd_is_back():
    box = shared()
    for _ in range(4):
        restart_hostd()
        jobs = [Job(box, f"exit {n}") for n in range(3)]
        eq([f"exit {n}" for n in range(3)], [job.wait() for job in jobs])
        for job in jobs:
            job.remove()


main()
