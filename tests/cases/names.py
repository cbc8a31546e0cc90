#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""Names that are refused, in every directory where one makes things: the errno, a sentence in error, and nothing left behind."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

TOO_LONG = "a" * 65
BAD = ["..", ".hidden", "-dash", "_under", "a b", "a\tb", "a\nb", "a:b", "a#b", "#a", "a~b", "a*", "\u00e4", "a\u00e4", "\U0001f600", "a\x7f",
       TOO_LONG, "a" * 255]
GOOD = ["a", "A" * 64, "0", "9.tar", "x_-."]


def makers():
    """(tree, directory) of every directory in which things are made."""
    return [("sandboxes",), ("templates",), ("snapshots", box().name), ("proc", box().name)]


def box(made=[]):
    if not made:
        made.append(Box())
    return made[0]


@check
def names_that_are_none_are_refused():
    for tree in makers():
        before = sorted(os.listdir(path(*tree)))
        for name in BAD:
            if name == "..":  # the kernel resolves it itself
                refused(errno.EEXIST, os.mkdir, path(*tree, name))
                continue
            refused(errno.EINVAL, os.mkdir, path(*tree, name))
            explained("is no name", errno.EINVAL)
        refused(errno.ENAMETOOLONG, os.mkdir, path(*tree, "a" * 256))
        eq(before, sorted(os.listdir(path(*tree))), f"listing of {tree} afterwards")


@check
def names_that_no_kernel_passes_on_are_refused_on_the_socket():
    root = p9()
    for tree in makers():
        directory = root.walk(*tree)
        before = sorted(os.listdir(path(*tree)))
        for name in ["/", "a/b", "..", ".", "", TOO_LONG, "a" * 300, "\udcff\udcfe", "#000000000000", "x" * 60000]:
            refused((errno.EINVAL, errno.ENAMETOOLONG), directory.mkdir, name)
        eq(before, sorted(os.listdir(path(*tree))), f"listing of {tree} afterwards")


@check
def a_nul_in_a_name_is_a_broken_message_and_ends_the_session():
    for tree in makers():
        before = sorted(os.listdir(path(*tree)))
        for name in ["a\0b", "\0"]:
            directory = p9().walk(*tree)
            try:
                directory.mkdir(name)
                fail(f"mkdir {name!r} in {tree}: success")
            except ConnectionResetError:
                pass
        eq(before, sorted(os.listdir(path(*tree))), f"listing of {tree} afterwards")


@check
def names_within_the_rules_work():
    for name in GOOD:
        for tree in [("proc", box().name)]:
            os.mkdir(path(*tree, name))
            has(name, os.listdir(path(*tree)))
            os.rmdir(path(*tree, name))
    longest = "b" * 64
    defer(remove, "sandboxes", longest)
    os.mkdir(path("sandboxes", longest))
    eq(longest, next(n for n in os.listdir(path("sandboxes")) if n == longest))
    os.rmdir(path("sandboxes", longest))


@check
def an_existing_name_is_refused_and_what_is_there_stays():
    name = box().name
    identity = box().get("id")
    refused(errno.EEXIST, os.mkdir, path("sandboxes", name))
    eq(identity, box().get("id"), "id")
    job = Job(box())
    refused(errno.EEXIST, os.mkdir, job.at())
    job.remove()
    os.mkdir(path("snapshots", name, "one"))
    refused(errno.EEXIST, os.mkdir, path("snapshots", name, "one"))
    os.rmdir(path("snapshots", name, "one"))
    refused(errno.EEXIST, os.mkdir, path("templates", "tiny"))
    # on the socket the server itself must notice
    directory = p9().walk("sandboxes")
    refused(errno.EEXIST, directory.mkdir, name)
    explained("sandboxes", errno.EEXIST)
    eq(identity, box().get("id"), "id")


@check
def mv_never_goes_over_an_existing_name_nor_to_a_bad_one():
    other = Box(wait=False)
    ids = box().get("id"), other.get("id")
    refused(errno.EEXIST, os.rename, path("sandboxes", box().name), path("sandboxes", other.name))
    for name in ["a b", TOO_LONG, "\u00e4", "a:b"]:
        refused(errno.EINVAL, os.rename, path("sandboxes", other.name), path("sandboxes", name))
        explained("sandboxes", errno.EINVAL)
    refused(errno.EXDEV, os.rename, path("sandboxes", other.name), path("root", "x"))
    refused(errno.EPERM, os.rename, path("templates", "tiny"), path("templates", "tiny2"))
    eq(ids, (box().get("id"), other.get("id")), "ids afterwards")
    other.remove()


@check
def names_of_automatic_snapshots_are_reserved():
    refused(errno.EINVAL, os.mkdir, path("snapshots", box().name, "auto-mine"))
    explained("'auto-'", errno.EINVAL)
    eq([], os.listdir(path("snapshots", box().name)))


@check
def what_another_client_removed_is_not_there_for_whoever_just_saw_it():
    there = p9().walk("sandboxes")
    for look in (os.listdir, os.stat, lambda p: line("sandboxes", os.path.basename(p), "state")):
        for _ in range(30):
            gone = Box(wait=False)
            look(path("sandboxes", gone.name))
            there.unlink(gone.name, 0x200)
            refused(errno.ENOENT, look, path("sandboxes", gone.name))
    gone = Box(wait=False)
    directory = os.open(path("sandboxes", gone.name), os.O_RDONLY | os.O_DIRECTORY)
    defer(os.close, directory)
    gone.remove()
    eq([], os.listdir(directory), "a removed directory that is open")


@check
def nothing_is_made_elsewhere():
    for directory in ["", "help", "root", "proc", "snapshots", f"sandboxes/{box().name}", "templates/tiny"]:
        refused(errno.EPERM, os.mkdir, path(directory, "made"))
        if exists(directory, "made"):
            fail(f"{directory}/made is there")


@check
def files_cannot_be_made_or_removed_in_control_directories():
    directory = path("sandboxes", box().name)
    refused(errno.EPERM, os.open, os.path.join(directory, "new"), os.O_WRONLY | os.O_CREAT, 0o644)
    refused(errno.EEXIST, os.open, os.path.join(directory, "id"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    refused(errno.EPERM, os.symlink, "x", os.path.join(directory, "new"))
    refused((errno.EPERM, errno.EXDEV), os.link, os.path.join(directory, "id"), os.path.join(directory, "new"))
    refused(errno.EPERM, os.mkfifo, os.path.join(directory, "new"))
    refused(errno.EPERM, os.unlink, os.path.join(directory, "id"))
    refused(errno.EPERM, os.rmdir, path("root", box().name))
    refused(errno.EPERM, os.rmdir, path("proc", box().name))
    got = subprocess.run(["rm", "-rf", directory], capture_output=True, text=True, timeout=30)
    ne(0, got.returncode, "status of rm -rf")
    has("Operation not permitted", got.stderr)
    eq("running", box().state, "state after rm -rf")


main()
