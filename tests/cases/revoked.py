#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 360
"""A tenant whose key is taken away: what it has stored, left over, paused or stopped cannot be had, nothing of it is in the pool, and all of it comes back with the key."""
import os
import secrets
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"
MODULE = "/usr/lib/softhsm/libsofthsm2.so"
KEYS = config()["keys"]
GROUP = grp.getgrnam(config().get("group", "space")).gr_gid


def key_file(name, text):
    """In the folder of keys, for space-volumed alone."""
    at = os.path.join(KEYS, name)
    with open(at + ".new", "w") as f:
        os.chmod(at + ".new", 0o600)
        f.write(text)
    owner = os.stat(KEYS)
    os.chown(at + ".new", owner.st_uid, owner.st_gid)
    os.rename(at + ".new", at)
    defer(lambda: os.path.exists(at) and os.unlink(at))


class Tenant:
    """A user with a key service of its own. In a `with` the script is that user."""

    def __init__(self, name, conf):
        self.uid, self.gid = test_user(name, config().get("group", "space"))
        self.name, self.conf = f"u{self.uid}", conf
        self.boxes = []
        self.settings()
        defer(self.remove)

    def settings(self, **more):
        key_file(f"{self.name}.key", self.conf + "".join(f"{k} = {v}\n" for k, v in more.items()))

    def __enter__(self):
        os.setgroups([GROUP])
        os.setegid(self.gid)
        os.seteuid(self.uid)

    def __exit__(self, *exc):
        os.seteuid(0)
        os.setegid(0)
        os.setgroups([])

    def box(self):
        b = Box()
        b.set("keep", "none")
        self.boxes.append(b)
        return b

    def remove(self):
        with self:
            for b in self.boxes:
                with contextlib.suppress(OSError):
                    b.remove()
        subprocess.run(["rm", "-rf", os.path.join(config()["store"], self.name)])  # whoever gets this uid next has another key


def object_of(name):
    """Of a snapshot, in the pool."""
    return os.path.join(config()["pool"], "snapshots", f"{rows('SELECT id FROM snapshots WHERE name = ?', name)[0][0]:012x}")


def suspended_to(uid, name):
    return rows("SELECT name FROM snapshots WHERE id = (SELECT suspended FROM sandboxes WHERE owner = ? AND name = ?)", uid, name)[0][0]


def in_file(at, needle, piece=4 << 20):
    """Holes are not read."""
    with open(at, "rb", buffering=0) as f:
        end, begin = os.fstat(f.fileno()).st_size, 0
        while begin < end:
            try:
                begin = os.lseek(f.fileno(), begin, os.SEEK_DATA)
            except OSError:
                return False  # a hole to the end
            data = os.pread(f.fileno(), piece, begin)
            if needle in data or not data:
                return bool(data)
            begin += max(len(data) - len(needle) + 1, 1) if len(data) == piece else len(data)
    return False


def in_pool(marker):
    """Files of the pool in which that is, as anybody finds it who reads the disk as root."""
    found = []
    for where, folders, files in os.walk(config()["pool"]):
        if where == config()["pool"]:
            folders.remove("templates")  # large, and nobody publishes one here
        for name in files:
            with contextlib.suppress(FileNotFoundError):  # the pool is in use
                if in_file(os.path.join(where, name), marker.encode()):
                    found.append(os.path.join(where, name))
    return found


def gone_from_pool(markers):
    """Deletions are in the background."""
    wait_until(lambda: not any(map(in_pool, markers)), 30, "no byte of it is in the pool")


def denied(function, *args):
    refused(errno.EKEYREVOKED, function, *args)


ann = None


def of_ann():
    global ann
    if not ann:
        ann = Tenant("spacetestanne", "service = file\nkey = mine\nfile = ann.wrapping\ncache = 4m\n")
        key_file("ann.wrapping", "mine = " + "5a" * 32 + "\n")
        wait_until(lambda: line("templates", default_template(), "prepared"), 120, "the template is prepared")
        defer(lambda: restart_with(key_check=None))
        restart_with(key_check=1)
        with ann:
            ann.sleeper, ann.runner, ann.stopped = ann.box(), ann.box(), ann.box()
            ann.runner.out("mkdir -p /dev/shm; mountpoint -q /dev/shm || mount -t tmpfs none /dev/shm; echo unsaved > /dev/shm/memory; echo saved > /disk; sync")
            ann.job = Job(ann.runner, COUNT, name="count")
            ann.sleeper.out("echo asleep > /disk; sync")
            ann.markers = [secrets.token_hex(16) for _ in range(3)]
            with open(ann.stopped.root("marker"), "w") as f:  # what is not in any command line
                f.write(ann.markers[0])
                f.flush()
                os.fsync(f.fileno())
            ann.stopped.verb("stop")
    return ann


def take_away():
    os.rename(os.path.join(KEYS, "ann.wrapping"), os.path.join(KEYS, "ann.away"))
    defer(lambda: os.path.exists(os.path.join(KEYS, "ann.away")) and os.unlink(os.path.join(KEYS, "ann.away")))


def give_back():
    os.rename(os.path.join(KEYS, "ann.away"), os.path.join(KEYS, "ann.wrapping"))


@check
def a_tenant_with_a_key_of_its_own_leaves_nothing_in_the_pool():
    t = of_ann()
    with t:
        t.sleeper.verb("suspend")
    snapshot = suspended_to(t.uid, t.sleeper.name)
    at = object_of(snapshot)
    with t:
        eq("stored", line("snapshots", t.sleeper.name, snapshot, "state"))
    wait_until(lambda: not os.path.exists(at), 20, "its object is gone")
    with t:
        with open(path("snapshots", t.sleeper.name, snapshot, "disk.raw"), "rb") as f:
            eq(b"\x53\xef", f.read(2048)[1080:1082], "its disk, which is fetched for that")
            eq("ready", line("snapshots", t.sleeper.name, snapshot, "state"))
        wait_until(lambda: line("snapshots", t.sleeper.name, snapshot, "state") == "stored", 20, "what was fetched is destroyed again")


@check
def what_is_revoked_cannot_be_had_and_comes_back():
    t = of_ann()
    b = t.runner
    with t:
        os.mkdir(path("snapshots", b.name, "here"))
        os.mkdir(path("snapshots", b.name, "stored"))
        for name in ("here", "stored"):
            wait_until(lambda: line("snapshots", b.name, name, "state") == "ready", 30)
        write("upload", "snapshots", b.name, "stored", "state")
        eq("saved\n", open(path("snapshots", b.name, "here", "files", "disk")).read())
        image = open(path("snapshots", b.name, "here", "disk.raw"), "rb", buffering=0)
        events = Events()
    eq(True, bool(in_pool(t.markers[0])), "the disk of the stopped one is in the pool")
    with t:
        with open(b.root("marker"), "w") as f:
            f.write(t.markers[1])
            f.flush()
            os.fsync(f.fileno())
        os.mkdir(path("snapshots", b.name, "marked"))
        wait_until(lambda: line("snapshots", b.name, "marked", "state") == "ready", 30)
        os.unlink(b.root("marker"))
        with open(b.root("dev/shm/marker") if os.path.isdir(b.root("dev/shm")) else b.root("marker2"), "w") as f:
            f.write(t.markers[2])
            f.flush()
            os.fsync(f.fileno())
    eq(True, bool(in_pool(t.markers[1])), "the snapshot's disk is in the pool")
    at = object_of("stored")
    eq(True, os.path.exists(at), "an uploaded snapshot is in the pool")
    take_away()
    event = events.next(kind="key-revoked", name=t.name)
    eq("pause", event["policy"])

    def nothing_can_be_had():
        refused_here = (lambda: b.verb("resume"), lambda: os.listdir(b.root("etc")), lambda: Job(b).start("true"), lambda: t.job.output(),
                        lambda: t.stopped.verb("start"), lambda: t.stopped.verb("stop"), lambda: t.sleeper.verb("resume"), lambda: os.listdir(t.sleeper.root("etc")), lambda: t.sleeper.verb("kill"),
                        lambda: image.read(100), lambda: os.listdir(path("snapshots", b.name, "here", "files")),
                        lambda: open(path("snapshots", b.name, "here", "disk.raw"), "rb").read(1),
                        lambda: open(path("snapshots", b.name, "stored", "disk.raw"), "rb").read(1),
                        lambda: write("upload", "snapshots", b.name, "here", "state"))
        for function in refused_here:
            denied(function)
        for source in (("sandboxes", b.name), ("sandboxes", t.sleeper.name), ("sandboxes", t.stopped.name), ("snapshots", b.name, "here"), ("snapshots", b.name, "stored")):
            name = fresh_name()
            os.mkdir(path("sandboxes", name))
            denied(write, read(*source, "head"), "sandboxes", name, "head")
            os.rmdir(path("sandboxes", name))

    event = events.next(kind="key-packed", name=t.name, seconds=60)
    eq([0, 0, ""], [event["destroyed"], event["kept"], event["why"]], "what could not be encrypted")
    gone_from_pool(t.markers)
    with t:
        for box in t.boxes:
            eq("suspended", box.state, f"state of {box.name}")
        for box in b, t.stopped:
            has("revoked", box.get("error"), "error")
        for name in ("here", "stored", "marked"):
            eq("stored", line("snapshots", b.name, name, "state"), name)
        nothing_can_be_had()
        has("key of tenant", failures()[-1], "the sentence")
        denied(t.sleeper.verb, "resume")
        has("was revoked", t.sleeper.get("error"), "error")
        eq("suspended", t.sleeper.state)
    wait_until(lambda: not os.path.exists(at), 20, "its object is gone")
    daemon_back("hostd", kill_daemon("hostd"))
    settled()
    with t:
        denied(b.verb, "resume")
        denied(os.listdir, t.sleeper.root("etc"))
        eq("suspended", b.state)
    give_back()
    events.next(kind="key-returned", name=t.name)
    with t:
        b.verb("resume")
        eq("unsaved", b.out("cat /dev/shm/memory"), "what only memory knew")
        eq("running", t.job.get("status"))
        eq("saved\n", open(path("snapshots", b.name, "here", "files", "disk")).read())
        eq(b"\x53\xef", open(path("snapshots", b.name, "stored", "disk.raw"), "rb").read(2048)[1080:1082])
        eq("asleep", t.sleeper.touch().out("cat /disk"), "the suspended one, from the store")
        eq(t.markers[1], open(path("snapshots", b.name, "marked", "files", "marker")).read(), "what only the snapshot had")
        t.stopped.wait_state("stopped")
        eq("", t.stopped.get("error"))
        t.stopped.verb("start")
        eq(t.markers[0], t.stopped.out("cat /marker"), "the disk of the stopped one")
        image.close()
        for name in ("here", "stored", "marked"):
            os.rmdir(path("snapshots", b.name, name))
    events.close()


@check
def running_guests_go_on_or_are_killed_as_the_policy_has_it():
    t = of_ann()
    with t:
        t.stopped.remove()
        t.boxes.remove(t.stopped)
        for b in t.boxes:  # killed before its disk is here it would be suspended, as before
            wait_until(lambda: "fill_total" not in read("sandboxes", b.name, "stats"), 60, f"the disk of {b.name} has arrived")
        t.sleeper.verb("pause")
        events = Events()
    t.settings(revoked="continue")
    take_away()
    eq("continue", events.next(kind="key-revoked", name=t.name)["policy"])
    eq(0, events.next(kind="key-packed", name=t.name, seconds=60)["kept"])
    with t:
        eq("suspended", t.sleeper.state, "one that was paused already")
        eq("saved\n", read("root", t.runner.name, "disk"), "a file of a guest that goes on")
        denied(os.listdir, t.sleeper.root("etc"))
        denied(t.runner.verb, "suspend")
    t.settings(revoked="kill")
    eq(1, events.next(kind="key-packed", name=t.name, seconds=60)["kept"], "its disk, since the key was forgotten when all else was encrypted")
    with t:
        eq("stopped", t.runner.state)
        has("unencrypted", t.runner.get("error"), "error")
        denied(t.runner.verb, "start")
    give_back()
    events.next(kind="key-returned", name=t.name)
    with t:
        t.runner.verb("start")
        eq("saved", t.runner.out("cat /disk"), "its disk")
    events.close()


def sv(verb):
    subprocess.run(["sv", "-w", "10", verb, os.path.join(SPACE_DIR, "sv", "volumed")], capture_output=True)
    if verb != "down":
        wait_until(lambda: daemon_pid("volumed"), 20, "volumed runs")


def volumed_again():
    sv("restart")


@check
def what_cannot_be_encrypted_any_more_is_destroyed_if_the_tenant_wants_that():
    t = of_ann()
    with t:
        with open(t.runner.root("marker"), "w") as f:
            f.write(t.markers[0])
            f.flush()
            os.fsync(f.fileno())
        t.runner.verb("stop")
        os.mkdir(path("snapshots", t.runner.name, "last"))
        wait_until(lambda: line("snapshots", t.runner.name, "last", "state") == "ready", 30)
        events = Events()
    t.settings(unpacked="destroy")
    sv("down")
    take_away()
    sv("up")  # it never had the key
    event = events.next(kind="key-packed", name=t.name, seconds=60)
    eq([0, 2, 0], [event["packed"], event["destroyed"], event["kept"]])
    gone_from_pool(t.markers[:1])
    with t:
        eq("failed", t.runner.state)
        has("destroyed", t.runner.get("error"), "error")
        eq(False, exists("snapshots", t.runner.name, "last"))
    give_back()
    events.next(kind="key-returned", name=t.name)
    with t:
        refused(errno.ENOENT, t.runner.verb, "start")
        eq("asleep", t.sleeper.touch().out("cat /disk"), "one that was in the store before")
    t.settings()
    events.close()


@check
def a_revocation_for_good_comes_after_all_is_encrypted():
    t = of_ann()
    with t:
        with open(t.sleeper.touch().root("marker"), "w") as f:
            f.write(t.markers[1])
            f.flush()
            os.fsync(f.fileno())
        t.sleeper.verb("pause")
        events = Events()
    eq(True, bool(in_pool(t.markers[1])), "its disk is in the pool")
    has("revoked", spacectl("key", "revoke", "--for-good", t.name, timeout=60).stdout)
    event = events.next(kind="key-packed", name=t.name)
    eq([1, 0, 0], [event["packed"], event["destroyed"], event["kept"]])
    gone_from_pool(t.markers[1:2])
    with t:
        eq("suspended", t.sleeper.state)
        denied(t.sleeper.verb, "resume")
    events.close()


@check
def a_token_that_refuses_is_a_revocation_too():
    of_ann()
    env = {**os.environ, "SOFTHSM2_CONF": f"{KEYS}/softhsm2.conf"}
    owner = os.stat(KEYS)

    def run(*command):
        subprocess.run(command, env=env, check=True, capture_output=True)
        for where, folders, files in os.walk(f"{KEYS}/tokens"):
            for name in [".", *folders, *files]:
                os.chown(os.path.join(where, name), owner.st_uid, owner.st_gid)

    defer(volumed_again)
    defer(lambda: subprocess.run(["rm", "-rf", f"{KEYS}/tokens"]))
    os.makedirs(f"{KEYS}/tokens", 0o700, exist_ok=True)
    key_file("softhsm2.conf", f"directories.tokendir = {KEYS}/tokens\nobjectstore.backend = file\nlog.level = ERROR\n")
    run("softhsm2-util", "--init-token", "--free", "--label", "byok", "--so-pin", "1234", "--pin", "5678")
    run("pkcs11-tool", "--module", MODULE, "--token-label", "byok", "--login", "--pin", "5678", "--keygen", "--key-type", "AES:32", "--label", "kek1", "--id", "01", "--sensitive")
    key_file("bob.pin", "5678\n")
    volumed_again()
    t = Tenant("spacetestbert", f"service = pkcs11\nmodule = {MODULE}\ntoken = byok\nkey = kek1\npin = bob.pin\n")
    with t:
        b = t.box()
        b.out("echo mine > /disk; sync")
        b.verb("suspend")
        events = Events()
    key_file("bob.pin", "9999\n")
    has("PIN", events.next(kind="key-revoked", name=t.name)["why"], "why")
    with t:
        denied(os.listdir, b.root("etc"))
        denied(b.verb, "resume")
    key_file("bob.pin", "5678\n")
    events.next(kind="key-returned", name=t.name)
    with t:
        eq("mine\n", read("root", b.name, "disk"))
    events.close()


main()
