#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
"""Who sees, reads, writes, forks and removes what: through the mount, and by a 9P client straight on hostd's socket."""

import os
import stat
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

SECRET = "what only its owner may read"


class World:
    """Two users who may make things (alice, and bob, who is in group team), and one who may not (carl)."""

    def __init__(self):
        group = config().get("group", "space")
        subprocess.run(["groupdel", "spacetestteam"], capture_output=True)
        subprocess.run(["groupadd", "--system", "spacetestteam"], check=True)
        defer(lambda: subprocess.run(["groupdel", "spacetestteam"], capture_output=True))
        self.team = grp.getgrnam("spacetestteam").gr_gid
        self.space = grp.getgrnam(group).gr_gid
        self.alice = test_user("spacetestalice", group)
        self.bob = test_user("spacetestbob", f"{group},spacetestteam")
        self.carl = test_user("spacetestcarl")
        self.name = f"access-{os.getpid()}"
        defer(self.remove_all)
        self.as_alice(os.mkdir, path("sandboxes", self.name))
        self.as_alice(self.write_secret)

    def as_alice(self, function, *args):
        return as_user(*self.alice, function, *args, groups=[self.space])

    def as_bob(self, function, *args):
        return as_user(*self.bob, function, *args, groups=[self.space, self.team])

    def as_carl(self, function, *args):
        return as_user(*self.carl, function, *args)

    def write_secret(self):
        Box.known(self.name).touch()
        with open(path("root", self.name, "secret"), "w") as f:
            f.write(SECRET)

    def remove_all(self):
        for name in os.listdir(path("sandboxes")):
            if name.startswith("spacetest"):
                os.rmdir(path("sandboxes", name))
        for name in os.listdir(path("templates")):
            if name.startswith("spacetest"):
                os.rmdir(path("templates", name))


def world(made=[]):
    if not made:
        made.append(World())
    return made[0]


def socket_of_this_user():
    """In a child: a session of its own, with its own uid as the kernel tells it."""
    return ninep.Client.unix(os.path.join(config()["run"], "hostd.sock"))


@check
def the_owner_has_it():
    w = world()
    eq(SECRET, w.as_alice(read, "root", w.name, "secret"), "the secret read by its owner")
    eq("spacetestalice", w.as_alice(line, "sandboxes", w.name, "owner"), "owner")
    eq([w.name], w.as_alice(os.listdir, path("sandboxes")), "what its owner sees in sandboxes")
    eq(0o700, stat.S_IMODE(w.as_alice(os.stat, path("sandboxes", w.name)).st_mode), "mode")


@check
def another_user_does_not_see_it():
    w = world()
    for seen_as in [w.name, f"spacetestalice:{w.name}", f"{w.alice[0]}:{w.name}", "#" + read("sandboxes", f"spacetestalice:{w.name}", "id").strip()]:
        for who in (w.as_bob, w.as_carl):
            for tree in ["sandboxes", "root", "proc", "snapshots"]:
                eq([], who(os.listdir, path(tree)), f"listing of {tree}")
                refused(errno.ENOENT, who, os.stat, path(tree, seen_as))
            refused(errno.ENOENT, who, read, "sandboxes", seen_as, "state")
            refused(errno.ENOENT, who, read, "sandboxes", seen_as, "head")
            refused(errno.ENOENT, who, read, "root", seen_as, "secret")
            refused(errno.ENOENT, who, write, "kill", "sandboxes", seen_as, "state")
            refused(errno.ENOENT, who, os.mkdir, path("proc", seen_as, "job"))
            refused(errno.ENOENT, who, os.rmdir, path("sandboxes", seen_as))
            refused(errno.ENOENT, who, os.rename, path("sandboxes", seen_as), path("sandboxes", "mine"))
    eq("running", line("sandboxes", f"spacetestalice:{w.name}", "state"), "state afterwards")


@check
def another_user_cannot_fork_it_by_its_head():
    w = world()
    head = w.as_alice(read, "sandboxes", w.name, "head")
    mine = "bobs"
    w.as_bob(os.mkdir, path("sandboxes", mine))
    try:
        refused(errno.ESTALE, w.as_bob, write, head, "sandboxes", mine, "head")
        last = w.as_bob(failures)[-1]
        has("ESTALE", last, "bob's newest failure")
        refused(errno.ESTALE, w.as_bob, write, head.replace("@", "@9"), "sandboxes", mine, "head")
    finally:
        w.as_bob(os.rmdir, path("sandboxes", mine))


@check
def another_user_cannot_reach_it_straight_on_the_socket():
    w = world()
    identity = read("sandboxes", f"spacetestalice:{w.name}", "id").strip()

    def attempts():
        client = socket_of_this_user()
        root = client.attach("")
        for tree in ["sandboxes", "root", "proc", "snapshots"]:
            directory = root.walk(tree)
            eq([".", ".."], [e[0] for e in directory.walk().open().readdir()], f"listing of {tree} on the socket")
            for name in [w.name, f"spacetestalice:{w.name}", "#" + identity, "../sandboxes/" + w.name]:
                refused((errno.ENOENT, errno.EINVAL), directory.walk, name)
            refused((errno.ENOENT, errno.EINVAL), root.walk, tree, w.name, "secret")
        refused((errno.ENOENT, errno.EINVAL), root.walk, "sandboxes", "..", "sandboxes", w.name, "state")
        # it may not speak for anyone else
        for uid in [0, w.alice[0], 65534]:
            refused(errno.EPERM, client.attach, "", uid)
        # nor be root by saying so
        refused(errno.EPERM, client.attach, "", 0, "root")
        return "done"

    eq("done", w.as_bob(attempts))
    eq("done", w.as_carl(attempts))


@check
def who_is_not_in_the_group_makes_nothing():
    w = world()
    refused(errno.EPERM, w.as_carl, os.mkdir, path("sandboxes", "carls"))
    has("members of the group", w.as_carl(failures)[-1], "carl's newest failure")
    refused(errno.EPERM, w.as_carl, os.mkdir, path("templates", "carls"))
    eq([], [n for n in os.listdir(path("sandboxes")) if "carls" in n], "carl's sandboxes")


@check
def the_owner_opens_it_to_a_group():
    w = world()
    refused(errno.EPERM, w.as_alice, os.chown, path("sandboxes", w.name), -1, w.team)  # not a member herself
    refused(errno.EPERM, w.as_alice, os.chown, path("sandboxes", w.name), w.bob[0], -1)
    os.chown(path("sandboxes", f"spacetestalice:{w.name}"), -1, w.team)
    w.as_alice(os.chmod, path("sandboxes", w.name), 0o750)
    seen = f"spacetestalice:{w.name}"
    for tree in ["sandboxes", "root", "proc", "snapshots"]:
        eq([seen], w.as_bob(os.listdir, path(tree)), f"listing of {tree} by a member of the group")
        eq([], w.as_carl(os.listdir, path(tree)), f"listing of {tree} by someone else")
    eq(SECRET, w.as_bob(read, "root", seen, "secret"), "the secret read by a member of the group")
    refused(errno.EACCES, w.as_bob, write, "pause", "sandboxes", seen, "state")
    refused(errno.EACCES, w.as_bob, os.mkdir, path("proc", seen, "job"))
    refused(errno.EACCES, w.as_bob, os.mkdir, path("snapshots", seen, "s"))
    refused(errno.EACCES, w.as_bob, os.rmdir, path("sandboxes", seen))
    refused(errno.EPERM, w.as_bob, os.chmod, path("sandboxes", seen), 0o770)
    w.as_alice(os.chmod, path("sandboxes", w.name), 0o770)
    w.as_bob(os.mkdir, path("proc", seen, "job"))
    w.as_bob(os.rmdir, path("proc", seen, "job"))
    refused(errno.EACCES, w.as_bob, os.rmdir, path("sandboxes", seen))
    w.as_alice(os.chmod, path("sandboxes", w.name), 0o777)  # others never get anything
    eq([], w.as_carl(os.listdir, path("sandboxes")), "listing by someone else after chmod 0777")
    w.as_alice(os.chmod, path("sandboxes", w.name), 0o700)
    eq([], w.as_bob(os.listdir, path("sandboxes")), "listing after the group was shut out")
    refused(errno.ENOENT, w.as_bob, read, "root", seen, "secret")


@check
def what_was_open_ends_with_the_right_to_it():
    """A descriptor that a member of the group opened before it was shut out opens nothing further."""
    w = world()
    seen = f"spacetestalice:{w.name}"
    w.as_alice(os.chmod, path("sandboxes", w.name), 0o750)

    def member():
        os.chdir(path("root", seen))
        directory = os.open(".", os.O_RDONLY)
        os.write(told, b"x")
        os.read(go, 1)
        refused((errno.ENOENT, errno.EACCES, errno.ESTALE), os.open, "secret", os.O_RDONLY, dir_fd=directory)
        refused((errno.ENOENT, errno.EACCES, errno.ESTALE), os.stat, "secret2")
        return "done"

    out, told = os.pipe()
    go, into = os.pipe()

    def shut_out():
        os.read(out, 1)
        w.as_alice(os.chmod, path("sandboxes", w.name), 0o700)
        os.write(into, b"x")

    other = threading.Thread(target=shut_out)
    other.start()
    try:
        eq("done", w.as_bob(member))
    finally:
        other.join()


@check
def root_sees_all_and_names_are_unique_per_owner():
    w = world()
    has(f"spacetestalice:{w.name}", os.listdir(path("sandboxes")), "root's listing")
    eq(SECRET, read("root", f"spacetestalice:{w.name}", "secret"), "the secret read by root")
    refused(errno.ENOENT, os.stat, path("sandboxes", w.name))
    box = Box(wait=False, name=w.name)  # root's own of the same name
    defer(remove, "sandboxes", w.name)
    ne(box.get("id"), read("sandboxes", f"spacetestalice:{w.name}", "id").strip(), "id")
    eq([w.name], w.as_alice(os.listdir, path("sandboxes")), "what alice sees")
    box.remove()
    eq("running", line("sandboxes", f"spacetestalice:{w.name}", "state"), "state of alice's")


@check
def templates_are_private_until_shared():
    w = world()
    name = f"t{os.getpid()}"
    head = w.as_alice(read, "sandboxes", w.name, "head")
    w.as_alice(os.mkdir, path("templates", name))
    w.as_alice(write, head, "templates", name, "head")
    eq("ready", w.as_alice(line, "templates", name, "state"))
    seen = f"spacetestalice:{name}"
    refused(errno.ENOENT, w.as_bob, os.stat, path("templates", seen))
    has("tiny", w.as_bob(os.listdir, path("templates")), "bob's templates")
    eq(False, seen in w.as_bob(os.listdir, path("templates")), "alice's private template shows to bob")
    w.as_alice(write, "spacetestteam", "templates", name, "share")
    has(seen, w.as_bob(os.listdir, path("templates")), "bob's templates, shared with his group")
    eq(False, seen in w.as_carl(os.listdir, path("templates")), "shows to carl")
    refused(errno.EACCES, w.as_bob, write, "all", "templates", seen, "share")
    refused(errno.EACCES, w.as_bob, os.rmdir, path("templates", seen))
    w.as_bob(os.mkdir, path("sandboxes", "bobs"))
    try:
        w.as_bob(write, w.as_bob(read, "templates", seen, "head"), "sandboxes", "bobs", "head")
        eq(SECRET, w.as_bob(read, "root", "bobs", "secret"), "the published disk in bob's sandbox")
    finally:
        w.as_bob(os.rmdir, path("sandboxes", "bobs"))
    w.as_alice(write, "all", "templates", name, "share")
    has(seen, w.as_carl(os.listdir, path("templates")), "carl's templates, shared with all")
    w.as_alice(os.rmdir, path("templates", name))


@check
def events_and_errors_show_only_ones_own():
    w = world()

    def events_up_to(kind, name):
        with Events(since=0) as events:
            events.next(5, kind=kind, name=name)
            return {event["name"] for event in events.seen}

    w.as_alice(os.chmod, path("sandboxes", w.name), 0o700)
    has(w.name, w.as_alice(events_up_to, "state", w.name), "alice's events")
    w.as_bob(os.mkdir, path("sandboxes", "bobs2"))
    w.as_bob(os.rmdir, path("sandboxes", "bobs2"))
    eq(False, w.name in w.as_bob(events_up_to, "destroyed", "bobs2"), "alice's sandbox is in bob's events")
    refused(errno.EINVAL, w.as_alice, os.mkdir, path("sandboxes", "not a name"))
    has("not a name", w.as_alice(read, "error"), "alice's error")
    eq(False, "not a name" in w.as_bob(read, "error"), "alice's failure is in bob's error")
    for _ in range(20):
        refused(errno.EINVAL, w.as_alice, os.mkdir, path("sandboxes", "no name"))
    eq(16, len(w.as_alice(failures)), "failures kept")


@check
def labels_of_the_administrator_stay_his():
    w = world()
    seen = f"spacetestalice:{w.name}"
    refused(errno.EPERM, w.as_alice, write, "admin.cost=1", "sandboxes", w.name, "labels")
    write("admin.cost=7\nmine=1", "sandboxes", seen, "labels")
    w.as_alice(write, "mine=2", "sandboxes", w.name, "labels")
    eq("admin.cost=7\nmine=2", w.as_alice(line, "sandboxes", w.name, "labels"), "labels after the owner wrote hers")


@check
def files_on_the_host_that_belong_to_it_are_nobody_elses():
    w = world()
    pool, state = config()["pool"], config()["state"]
    for who in (w.as_bob, w.as_carl):
        refused((errno.EACCES, errno.ENOENT), who, os.listdir, state)
        refused((errno.EACCES, errno.ENOENT), who, os.listdir, os.path.join(pool, "sandboxes"))
        for directory in os.listdir(os.path.join(pool, "sandboxes")):
            refused((errno.EACCES, errno.ENOENT), who, os.open, os.path.join(pool, "sandboxes", directory, "disk.raw"), os.O_RDONLY)
        refused((errno.EACCES, errno.EPERM, errno.ECONNREFUSED), who, connect, os.path.join(config()["run"], "noded.sock"))


def connect(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        try:
            s.connect(address)
        except OSError as e:
            if e.errno != errno.EPROTOTYPE:
                raise
            with socket.socket(socket.AF_UNIX) as t:
                t.connect(address)


main()
