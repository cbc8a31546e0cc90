#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 400
"""No symlink that a guest makes leads a host program out of root/NAME: compared with canaries on the host."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

CANARY = "canary of the host"


def box(made=[]):
    if not made:
        made.append(Box())
        # canaries: a file anywhere on the host, and one beside what is above root/NAME
        with open(os.path.join(TESTTMP, "canary"), "w") as f:
            f.write(CANARY)
        made[0].out(f"mkdir -p /a/b/c /outside$(dirname '{TESTTMP}'); echo inside > /a/inside; echo guest > /etc/hostname")
    return made[0]


def make(target, *parts):
    box().out(f"ln -sfn '{target}' '/{'/'.join(parts)}'")
    return box().root(*parts)


def escapes(link):
    """True when the link, followed by the kernel, ends outside root/NAME."""
    real = os.path.realpath(link)
    return not (real + "/").startswith(os.path.realpath(box().root()) + "/")


def stays(link):
    eq(False, escapes(link), f"{link} leads out to {os.path.realpath(link)!r}")
    try:
        with open(link) as f:
            data = f.read()
        eq(False, CANARY in data, f"{link} gives the host's canary")
    except OSError:
        pass


@check
def absolute_targets():
    for number, target in enumerate([os.path.join(TESTTMP, "canary"), "/etc/shadow", "/", "/proc/self/root/etc/shadow", "//etc//shadow", "/../../../etc/shadow", "/./etc/passwd",
                                     SPACE, "/dev/null", "/a/inside"]):
        for directory in ["", "a", "a/b/c"]:
            stays(make(target, *directory.split("/") if directory else [], f"abs{number}"))
    link = make("/a/inside", "a", "b", "c", "in")
    with open(link) as f:
        eq("inside\n", f.read(), "an absolute target means the guest's own file")
    with open(make("/etc/hostname", "a", "hostname")) as f:
        eq("guest\n", f.read(), "/etc/hostname is the guest's")


@check
def targets_that_climb():
    up = "../" * 40
    for number, target in enumerate([up + TESTTMP[1:] + "/canary", up + "etc/shadow", "../../../..", "..", "../..", "../../..", "b/../../../../../etc/shadow",
                                     "./.././../etc/shadow", "../" * 1000 + "etc/shadow"]):
        for directory in ["", "a", "a/b", "a/b/c"]:
            stays(make(target, *directory.split("/") if directory else [], f"up{number}"))
    with open(make("../../inside", "a", "b", "c", "fine")) as f:
        eq("inside\n", f.read(), "a relative target inside is followed as it is")
    eq("../../inside", os.readlink(box().root("a", "b", "c", "fine")), "readlink of a target that stays inside")


@check
def through_another_symlink():
    box().out("mkdir -p /deep/1/2/3; ln -sfn deep/1/2/3 /short; ln -sfn / /rootlink; ln -sfn .. /a/parent; ln -sfn a/parent /ap")
    for parts, target in [(("t1",), "short/../../../../../../etc/shadow"), (("t2",), "rootlink/../etc/shadow"), (("t3",), "ap/../../etc/shadow"),
                                              (("a", "t4"), "parent/parent/../../etc/shadow"), (("deep", "1", "t5"), "2/../../../../../etc/shadow")]:
        stays(make(target, *parts))
    # a chain: each link alone looks harmless
    box().out("ln -sfn chain1 /chain0; ln -sfn a/b/chain2 /chain1; ln -sfn ../../../chain3 /a/b/chain2; ln -sfn .. /chain3")
    for name in ["chain0", "chain1", "a/b/chain2", "chain3"]:
        stays(box().root(name))
    # a directory symlink used in the middle of a path
    for middle in ["rootlink", "short", "a/parent", "ap", "chain0"]:
        stays(box().root(middle, "etc/hostname"))


@check
def a_link_moved_or_renamed_to_another_depth():
    box().out("mkdir -p /m/n/o; ln -sfn ../../../x /m/n/o/l")
    link = box().root("m", "n", "o", "l")
    stays(link)
    directory = os.open(box().root("m", "n", "o"), os.O_RDONLY)
    box().out("mv /m/n/o /o")
    stays(box().root("o", "l"))
    box().out(f"ln -sfn '{'../' * 4 + TESTTMP[1:]}/canary' /o/c")  # would lead out from where /o is now
    try:  # through a descriptor from before the move
        with open(os.open("c", os.O_RDONLY, dir_fd=directory)) as f:
            eq(False, CANARY in f.read(), "a link below a moved directory gives the host's canary")
    except OSError as e:
        has(e.errno, (errno.ESTALE, errno.ENOENT), "errno of a link below a moved directory")
    os.close(directory)
    os.rename(box().root("o", "l"), box().root("l"))
    stays(box().root("l"))


@check
def odd_targets():
    for number, target in enumerate(["x" * 4000, "/" + "y/" * 1900, "a" * 255, " ", "new\nline"]):
        name = f"odd{number}"
        job = Job(box(), ["ln", "-sfn", target, f"/{name}"])
        if job.wait() == "exit 0":
            try:
                stays(box().root(name))
                if not target.startswith("/"):
                    eq(target, os.readlink(box().root(name)), "readlink")
            except OSError as e:
                has(e.errno, (errno.ENAMETOOLONG,), "errno of a very long target")
        job.remove()
    box().out("ln -sfn loop2 /loop1; ln -sfn loop1 /loop2; ln -sfn self /self")
    for name in ["loop1", "self"]:
        refused(errno.ELOOP, open, box().root(name))


@check
def the_raw_target_is_an_attribute():
    link = make("/etc/shadow", "a", "raw")
    ne("/etc/shadow", os.readlink(link), "readlink")
    eq(b"/etc/shadow", os.getxattr(link, "security.space.target", follow_symlinks=False), "the raw target")
    eq("/etc/shadow", box().out("readlink /a/raw"), "readlink in the guest")
    os.symlink("/etc/made-by-the-host", box().root("a", "made"))
    eq("/etc/made-by-the-host", box().out("readlink /a/made"), "what the host made, seen by the guest")


@check
def copying_out_follows_nothing_to_the_host():
    out = os.path.join(TESTTMP, "out")
    box().out(f"mkdir /evil; ln -s '{TESTTMP}/canary' /evil/l1; ln -s ../../../../../../..{TESTTMP}/canary /evil/l2; echo fine > /evil/f")
    for command in (["cp", "-rL"], ["rsync", "-rL"], ["tar", "-chf"]):
        target = out + command[0]
        if command[0] == "tar":
            got = subprocess.run(["tar", "-chf", target, "-C", box().root(), "evil"], capture_output=True, text=True, timeout=60)
        else:
            got = subprocess.run(command + [box().root("evil"), target], capture_output=True, text=True, timeout=60)
        found = subprocess.run(["grep", "-rl", CANARY, target], capture_output=True, text=True)
        eq("", found.stdout, f"files with the canary after {command}; it said {got.stderr!r}")


@check
def the_mount_is_nosuid_nodev_noexec():
    with open("/proc/self/mounts") as f:
        options = next(text.split()[3] for text in f if text.split()[1] == SPACE)
    for option in ["nosuid", "nodev", "noexec"]:
        has(option, options.split(","), "mount options")
    box().out("cp /bin/busybox /bb; chmod 4755 /bb")
    refused(errno.EACCES, os.execv, box().root("bb"), ["true"])


main()
