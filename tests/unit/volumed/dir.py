#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The directory backend: names, order, what is left after a crash or a full disk. As root (one test mounts a small file system). Arguments: backendctl,
then parts of names of tests to run."""

import fcntl
import os
import signal
import subprocess
import sys
import time

from objects import Backend, holds, run_tests, same, test

PROGRAM = sys.argv[1]


def backend(tmp, path=None, **more):
    store = path or f"{tmp}/store"
    os.makedirs(store, exist_ok=True)
    return Backend(PROGRAM, ["dir", store], tmp, **more)


@test
def objects_are_put_and_got_back_in_ranges(_, tmp):
    data = os.urandom(9_000_000)
    with backend(tmp) as b:
        same("put", 0, b.put("t/packs/one", data).rc)
        same("whole", data, b.get("t/packs/one", 0, 10_000_000))
        same("middle", data[5_000_000:5_000_100], b.get("t/packs/one", 5_000_000, 100))
        same("end", data[-5:], b.get("t/packs/one", len(data) - 5, 100))
        same("behind the end", b"", b.get("t/packs/one", len(data) + 5, 100))
        same("size", len(data), b.ok("stat", "t/packs/one").total)
        same("empty", 0, b.put("t/empty", b"").rc)
        same("nothing", b"", b.get("t/empty"))
        same("replaced", 0, b.put("t/packs/one", b"new").rc)
        same("new", b"new", b.get("t/packs/one"))
        b.fails("ENOENT", "get", "t/packs/two", 0, 10, "-")
        b.fails("ENOENT", "stat", "t/packs")
        b.fails("ENOENT", "stat", "t/packs/one/x")
        b.ok("delete", "t/packs/one")
        b.ok("delete", "t/packs/one")
        b.ok("delete", "t/none/at/all")
        same("its folder is gone", ["t"], os.listdir(f"{tmp}/store"))
        same("and the other object is not", ["empty"], os.listdir(f"{tmp}/store/t"))
        same("features", "3", b("features").text)


@test
def only_one_of_many_puts_if_absent_wins(_, tmp):
    with backend(tmp) as b:
        files = [b.file(f"{i}".encode() * 1000, f"f{i}") for i in range(16)]
        ids = [b.start("put", "manifest", f, "absent") for f in files]
        names = sorted(b.answer(i).name for i in ids)
        same("outcomes", ["EEXIST"] * 15 + ["ok"], names)
        holds("it is whole", len(set(b.get("manifest"))) == 1)
        same("no temporary file", ["manifest"], os.listdir(f"{tmp}/store"))


@test
def names_that_could_lead_elsewhere_are_refused(_, tmp):
    with backend(tmp) as b:
        for name in ("../x", "/x", "x/", "a//b", ".x", "a/.b", "a/../b", "-x", "_x", "a b", "probe-1", "x" * 129, "/".join(["y" * 100] * 6), "a\x01", "ä"):
            if " " in name:
                continue  # backendctl's own separator
            holds(f"{name!r} is refused", b("put", name, b.file(b"x")).name in ("EINVAL", "ENAMETOOLONG"))
        os.symlink("/etc", f"{tmp}/store/link")
        b.fails("ENOENT", "get", "link/passwd", 0, 10, "-")
        holds("no put through a symlink", b.put("link/x", b"x").rc < 0)
        holds("nothing in /etc", not os.path.exists("/etc/x"))
        os.mkfifo(f"{tmp}/store/fifo")
        b.fails("ENOENT", "get", "fifo", 0, 10, "-")


@test
def lists_are_in_the_order_of_names_whatever_the_folders(_, tmp):
    names = sorted(["a-b", "a/c", "a/d/e", "a.b", "a0", "b/x/y/z", "b/x-y", "b/x0", "c"] + [f"p/{i:04d}" for i in range(250)])
    with backend(tmp) as b:
        f = b.file(b"1")
        for i in [b.start("put", n, f) for n in names]:
            same("put", 0, b.answer(i).rc)
        same("all", (names, False), b.list())
        for size in (1, 7, 250):
            got, after = [], "-"
            while True:
                page, more = b.list("-", after, size)
                got += page
                if not more:
                    break
                holds("a page that goes on is full", len(page) == size)
                after = page[-1]
            same(f"pages of {size}", names, got)
        same("prefix", [n for n in names if n.startswith("b/x")], b.list("b/x")[0])
        same("prefix and after", [n for n in names if n.startswith("p/") and n > "p/0200"], b.list("p/", "p/0200")[0])
        same("after a name that is not there", [n for n in names if n > "a/cc"], b.list("-", "a/cc")[0])
        same("none", ([], False), b.list("zz"))


@test
def a_killed_put_leaves_a_temporary_file_that_a_sweep_removes(_, tmp):
    store = f"{tmp}/store"
    seen = []

    def temporaries():
        return [n for n in os.listdir(f"{store}/x") if n.startswith(".put-")] if os.path.isdir(f"{store}/x") else []

    for attempt in range(20):
        b = backend(tmp)
        f = b.file(os.urandom(16_000_000))
        for i in range(6):
            b.start("put", f"x/{attempt}-{i}", f)
        until = time.monotonic() + 5
        while time.monotonic() < until and not seen:  # no sleep: a temporary file lives for milliseconds
            seen = temporaries()
        b.process.send_signal(signal.SIGKILL)
        b.process.wait()
        b.process.stdout.close()
        seen = temporaries()
        if seen:
            break
    holds("a put was killed in the middle", seen)
    with backend(tmp) as b:
        for name in b.list()[0]:
            same("what is listed is whole", 16_000_000, b.ok("stat", name).total)
        same("none is old enough", 0, b.ok("sweep", 3600).count)
        with open(f"{store}/x/{seen[0]}", "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            same("one that is being written stays", len(seen) - 1, b.ok("sweep", 0).count)
        same("then all go", 1, b.ok("sweep", 0).count)
        holds("nothing temporary", not temporaries())


@test
def puts_and_deletes_in_one_folder_do_not_disturb_each_other(_, tmp):
    with backend(tmp) as b:
        f = b.file(b"x" * 100)
        for i in range(150):
            ids = [b.start("put", "d/e/a", f), b.start("delete", "d/e/b"), b.start("put", "d/e/b", f), b.start("delete", "d/e/a"), b.start("put", "d/f", f)]
            for ident in ids:
                a = b.answer(ident)
                holds("all succeed", a.rc == 0, a.text)


@test
def a_full_disk_is_enospc_and_leaves_nothing(_, tmp):
    image, mount = f"{tmp}/image", f"{tmp}/mount"
    os.mkdir(mount)
    with open(image, "wb") as f:
        f.truncate(12 << 20)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    try:
        store = f"{mount}/store"
        with backend(tmp, store) as b:
            same("one fits", 0, b.put("small", b"1" * 1000).rc)
            b.fails("ENOSPC", "put", "folder/large", b.file(os.urandom(20 << 20)), says="No space left")
            same("one fits again", 0, b.put("other", os.urandom(4 << 20)).rc)
            same("what was there", b"1" * 1000, b.get("small"))
            same("names", ["other", "small"], b.list()[0])
            left = [f for _, _, files in os.walk(store) for f in files if f.startswith(".")]
            same("temporary files", [], left)
    finally:
        subprocess.run(["umount", mount], check=True)


@test
def no_rights_and_no_directory_are_said(_, tmp):
    os.chmod(tmp, 0o755)
    os.mkdir(f"{tmp}/store", 0o755)
    os.chmod(os.path.dirname(PROGRAM), os.stat(os.path.dirname(PROGRAM)).st_mode)
    with backend(tmp) as b:
        b.ok("check")
        os.rmdir(f"{tmp}/store")
        b.fails("ENODEV", "check")
        b.fails("ENODEV", "put", "x", b.file(b"x"))
        b.fails("ENODEV", "get", "x", 0, 1, "-")
    b = Backend(PROGRAM, ["dir", f"{tmp}/none"], tmp)
    same("no directory", "ENOENT", b.created.name)
    same("it ends", 1, b.process.wait())
    b.process.stdout.close()


@test
def cancelled_requests_end_and_let_others_go_on(_, tmp):
    with backend(tmp) as b:
        f = b.file(os.urandom(16_000_000))
        ids = [b.start("put", f"c/{i}", f) for i in range(12)]
        for i in ids:
            b.process.stdin.write(f"0 cancel {i}\n")
        b.process.stdin.flush()
        outcomes = {b.answer(i).name for i in ids}
        holds("cancelled, or done already", outcomes <= {"ECANCELED", "ok"}, str(outcomes))
        holds("some were", "ECANCELED" in outcomes)
        same("one more", 0, b.put("c/last", b"x").rc)
        left = [n for _, _, files in os.walk(f"{tmp}/store") for n in files if n.startswith(".")]
        same("temporary files", [], left)


if __name__ == "__main__":
    run_tests(None, sys.argv[2:])
