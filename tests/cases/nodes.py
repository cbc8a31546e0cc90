#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 360
"""Two nodes on one machine, over one database and one store: a sandbox goes from one to the other, with its memory and processes; and what becomes of it when
its node dies."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"
BUILD = os.environ["BUILD"]
AWAY = 10  # seconds

name = None


class Node:
    """The other one. Its tree is not ours, so it has reading and writing of its own."""

    name = "second"

    def __init__(self):
        self.dir = os.path.join(TESTTMP, "n")
        self.space = os.path.join(self.dir, "space")

    def quickstart(self, *args):
        done = subprocess.run([os.path.join(SOURCE, "ctl", "quickstart"), "--instance", self.dir, "--build", BUILD, *args], capture_output=True, text=True, timeout=100)
        if done.returncode:
            fail(f"quickstart {args}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def up(self):
        first = config()
        shared = {"node": self.name, "database": os.path.join(first["state"], "space.db"), "store": first["store"], "keys": first["keys"],
                  "pool_ready": "0", "pool_slots": "0", "copy_keep": "1"}
        self.quickstart("--templates", "", *(word for k, v in shared.items() for word in ("--set", f"{k}={v}")))

    def path(self, *parts):
        return os.path.join(self.space, *parts)

    def get(self, *parts):
        with open(self.path(*parts)) as f:
            return f.read().rstrip("\n")

    def set(self, value, *parts):
        fd = os.open(self.path(*parts), os.O_WRONLY)
        try:
            os.write(fd, value.encode() + b"\n")
        finally:
            os.close(fd)

    def out(self, box, cmd):
        return subprocess.run(["spacectl", "--space", self.space, "exec", box.name, "sh", "-c", cmd], check=True, capture_output=True, text=True, timeout=60).stdout.rstrip("\n")

    def why(self):
        """Its last failure's sentence."""
        return self.get("error").splitlines()[-1].split(" ", 3)[3]

    def credential(self, scope, name, value, host="login.example"):
        os.mkdir(self.path("credentials", scope, name))
        for text, file in ((host, "hosts"), ("autofill ann", "method"), (value, "value")):
            self.set(text, "credentials", scope, name, file)

    def credd(self, what):
        subprocess.run(["sv", "-w", "15", what, os.path.join(self.dir, "sv", "credd")], check=True, capture_output=True)

    def share_master(self):
        """What an administrator does for nodes that share sandboxes: docs/credentials.md."""
        first = config()
        self.credd("down")
        subprocess.run(["cp", "-a", os.path.join(first["credentials"], "master"), os.path.join(self.dir, "credentials")], check=True)
        subprocess.run(["cp", "-aT", first["credential_keys"], os.path.join(self.dir, "credential-keys")], check=True)
        self.credd("up")
        wait_until(lambda: self.get("credentials", "key") == line("credentials", "key"), 20, "the other node has the same key")

    def pid(self, service):
        with open(os.path.join(self.dir, "sv", service, "supervise", "pid")) as f:
            return int(f.read())

    def bytes_read(self, service):
        """By system calls, since it was started."""
        with open(f"/proc/{self.pid(service)}/io") as f:
            return int(re.search(r"^rchar: (\d+)$", f.read(), re.M).group(1))

    def kill(self):
        """All of its daemons, as a power cut would, but for its machines."""
        for service in os.listdir(os.path.join(self.dir, "sv")):
            subprocess.run(["sv", "down", os.path.join(self.dir, "sv", service)], capture_output=True)
        for service in ("hostd", "noded", "volumed", "netd", "browsed", "credd", "spacefs"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(self.pid(service), signal.SIGKILL)


class Local(Node):
    """This one, where both are treated alike."""

    name = None

    def __init__(self):
        self.dir, self.space = SPACE_DIR, SPACE


other, here = Node(), Local()


def seen(box, what, want, seconds=10):
    wait_until(lambda: other.get("sandboxes", box.name, what) == want, seconds, f"{what} {want} at the other node")


def told(box, what, want, seconds=10):
    wait_until(lambda: box.get(what) == want, seconds, f"{what} {want} at this node")


def numbers(node_path, box):
    fd = os.open(os.path.join(node_path, "proc", box.name, "count", "stdout"), os.O_RDONLY | os.O_NONBLOCK)
    text = b""
    try:
        while data := os.read(fd, 1 << 20):
            text += data
    except BlockingIOError:
        pass
    finally:
        os.close(fd)
    return [int(n) for n in text.decode().split("\n")[:-1] if n.isdigit()]


def counts_on(node_path, box):
    before = wait_until(lambda: numbers(node_path, box), 20, "the job has counted")
    eq(list(range(before[0], before[0] + len(before))), before, "what the job counted")
    wait_until(lambda: len(numbers(node_path, box)) > len(before), 20, "the job counts on")
    return before


def login(space, box):
    """What a browser's agent would be told for it."""
    answer = subprocess.run(["spacectl", "--space", space, "credential", "login", box.name, "https://login.example"], capture_output=True, text=True, timeout=60)
    return json.loads(answer.stdout)["password"] if answer.returncode == 0 else answer.stderr


def trusted(out):
    """The keys of the CAs that the guest was given; `out` runs a command in it."""
    text = wait_until(lambda: out("cat /run/space/ca.pem 2>/dev/null; true"), 20, "the guest is told its tenant's CAs")
    end = "-----END CERTIFICATE-----"
    return [subprocess.run(["openssl", "x509", "-noout", "-subject", "-serial", "-pubkey"], input=part + end, text=True, capture_output=True, check=True).stdout
            for part in text.split(end)[:-1]]


def its_records(credentials, box):
    """Files of space-credd's that were made since `box.records` were there."""
    return set(os.listdir(os.path.join(credentials, "store"))) - box.records


box = None


@check(limit=120)
def two_nodes_see_each_other():
    global box, name
    name = next(text.split()[1] for text in read("version").splitlines() if text.startswith("node "))
    defer(remove_other)
    other.up()
    wait_until(lambda: exists("nodes", other.name), 10)
    eq("up", line("nodes", other.name, "state"))
    eq("up", other.get("nodes", name, "state"))
    refused(errno.EBUSY, write, "dead", "nodes", other.name, "state")
    refused(errno.EBUSY, os.rmdir, path("nodes", other.name))
    box = Box()
    box.set("keep", "none")
    box.out("mkdir -p /dev/shm; mountpoint -q /dev/shm || mount -t tmpfs none /dev/shm; echo unsaved > /dev/shm/memory; echo saved > /disk; sync")
    box.job = Job(box, COUNT, name="count")
    box.run("true")  # one that has ended
    seen(box, "state", "running")
    eq(name, other.get("sandboxes", box.name, "node"))
    refused(errno.EREMOTE, os.listdir, other.path("root", box.name))
    has(f"on node {name}", other.why(), "the sentence")
    refused(errno.EREMOTE, other.set, "pause", "sandboxes", box.name, "state")
    refused(errno.EREMOTE, os.rmdir, other.path("sandboxes", box.name))
    refused(errno.EREMOTE, os.mkdir, other.path("proc", box.name, "j"))
    refused(errno.EREMOTE, other.set, other.name, "sandboxes", box.name, "node")
    refused(errno.EEXIST, os.mkdir, other.path("sandboxes", box.name))
    refused(errno.EINVAL, box.set, "node", "nowhere")
    box.set("labels", "a=b")
    seen(box, "labels", "a=b")
    write("deny tcp *:25", "egress")
    wait_until(lambda: other.get("egress") == "deny tcp *:25", 10, "what a user denies all its sandboxes, at the other node")
    other.set("", "egress")
    wait_until(lambda: read("egress") == "\n", 10, "and what it says there, here")


@check
def with_credentials_of_its_own_it_goes_only_where_they_can_be_read():
    box.records = set(os.listdir(os.path.join(config()["credentials"], "store")))
    scope = f"sandbox.{box.name}"
    here.credential(scope, "site", "of the sandbox")
    here.credential(scope, "removed", "of the sandbox")
    os.rmdir(path("credentials", scope, "removed"))
    eq("of the sandbox", login(SPACE, box))
    eq([(1, 0), (1, 1)], rows("SELECT count(*), removed FROM secrets WHERE sandbox = ? GROUP BY removed", int(box.get("id"), 16)), "rows of it, and of what was removed")
    eq(["autofill"], os.listdir(other.path("credentials", scope)), "what another node shows of them")
    refused(errno.EREMOTE, os.mkdir, other.path("credentials", scope, "other"))
    has(f"on node {name}", login(other.space, box), "why there is no login there")
    box.verb("suspend")
    seen(box, "state", "suspended")
    refused(errno.ENOKEY, other.set, other.name, "sandboxes", box.name, "node")
    for part in (other.name, "master", scope):
        has(part, other.why(), "the sentence")
    eq("suspended", box.state)
    other.share_master()
    box.verb("resume")
    other.credential("tenant", "site", "of the tenant there")
    box.keys = trusted(box.out)


@check
def a_suspended_one_is_restored_by_the_other():
    folder = os.path.join(config()["pool"], "snapshots")
    before = set(os.listdir(folder))  # what earlier tests left is removed when its time has come
    box.verb("suspend")
    seen(box, "state", "suspended")
    refused(errno.EREMOTE, os.listdir, other.path("root", box.name))
    has("takes it over", other.why(), "the sentence")
    other.set(other.name, "sandboxes", box.name, "node")
    eq(("running", other.name), (other.get("sandboxes", box.name, "state"), other.get("sandboxes", box.name, "node")))
    told(box, "node", other.name)
    eq("unsaved", other.out(box, "cat /dev/shm/memory"), "what only memory knew")
    eq("saved", other.out(box, "cat /disk"), "a file")
    counts_on(other.space, box)
    refused(errno.EREMOTE, os.listdir, box.root())
    refused(errno.EREMOTE, box.verb, "suspend")
    wait_until(lambda: not set(os.listdir(folder)) - before, 20, "this node has nothing of it in its pool")


@check
def its_credentials_went_with_it():
    scope = f"sandbox.{box.name}"
    eq("of the sandbox", login(other.space, box))
    eq(box.keys, trusted(lambda cmd: other.out(box, cmd)), "its tenant's CAs")
    wait_until(lambda: not its_records(config()["credentials"], box), 10, "this node's space-credd has none of them")
    eq(["autofill"], os.listdir(path("credentials", scope)), "what is left of them here")
    refused(errno.ENOENT, os.stat, path("credentials", scope, "site"))
    refused(errno.EREMOTE, os.mkdir, path("credentials", scope, "other"))
    refused(errno.ENOENT, os.stat, other.path("credentials", scope, "removed"))
    other.set("changed there", "credentials", scope, "site", "value")
    eq("changed there", login(other.space, box))


@check
def a_running_one_moves():
    """Its credentials, too, but only when space-credd is there again."""
    here.credd("down")
    defer(here.credd, "up")
    other.set(name, "sandboxes", box.name, "node")
    told(box, "state", "running")
    eq(name, box.get("node"))
    has("space-credd", login(SPACE, box), "why there is no login")
    here.credd("up")
    wait_until(lambda: login(SPACE, box) == "changed there", 20, "its credential")
    eq("unsaved", box.out("cat /dev/shm/memory"), "what only memory knew")
    counts_on(SPACE, box)


def read_by_other():
    """A snapshot of ours; its copy in the other's pool."""
    os.mkdir(path("snapshots", box.name, "read"))
    wait_until(lambda: line("snapshots", box.name, "read", "state") == "ready", 30)
    write("upload", "snapshots", box.name, "read", "state")
    copy = os.path.join(other.dir, "pool", "snapshots", line("snapshots", box.name, "read", "id"))
    wait_until(lambda: other.get("snapshots", box.name, "read", "state") == "stored", 10)
    with open(other.path("snapshots", box.name, "read", "disk.raw"), "rb") as f:
        eq(b"\x53\xef", f.read(2048)[1080:1082])
        eq(True, os.path.exists(copy), "its copy, as long as it is open")
    return copy


@check
def a_stopped_one_goes_as_its_disk():
    copy = read_by_other()
    still = Box()
    still.out("echo still > /disk; sync")
    still.verb("stop")
    at = os.path.join(config()["pool"], "sandboxes", object_name(still.get("id")))
    eq(True, os.path.exists(at), "its disk is here")
    still.set("node", other.name)
    eq(("stopped", other.name, ""), tuple(other.get("sandboxes", still.name, what) for what in ("state", "node", "error")))
    wait_until(lambda: not os.path.exists(at), 20, "its disk is gone here")
    other.set("start", "sandboxes", still.name, "state")
    eq("still", other.out(still, "cat /disk"), "its disk")
    os.rmdir(other.path("sandboxes", still.name))
    wait_until(lambda: not os.path.exists(copy), 30, "what the other fetched to read it is gone there, now that nobody does")
    os.rmdir(path("snapshots", box.name, "read"))


@check
def of_two_nodes_at_once_one_gets_it():
    for _ in range(2):
        box.verb("suspend")
        seen(box, "state", "suspended")
        children = [Child(box.verb, "resume"), Child(other.set, other.name, "sandboxes", box.name, "node")]
        answers = [child.answer(60) for child in children]
        eq(1, len([kind for kind, _ in answers if kind == "value"]), f"winners of {answers}")
        winner = answers[0][0] == "value"
        told(box, "node", name if winner else other.name)
        seen(box, "state", "running")
        if not winner:
            other.set(name, "sandboxes", box.name, "node")
        told(box, "state", "running")
        counts_on(SPACE, box)


@check
def a_head_that_cannot_run_there_is_refused_and_its_disk_boots():
    box.verb("suspend")
    seen(box, "state", "suspended")
    number = int(box.get("id"), 16)
    wait_until(lambda: rows("SELECT 1 FROM snapshots, sandboxes WHERE snapshots.id = suspended AND snapshots.delta >= 0 AND sandboxes.id = ?", number), 30, "its row is not written any more")
    with contextlib.closing(sqlite3.connect(os.path.join(config()["state"], "space.db"), timeout=20)) as db, db:  # as if it had been captured under KVM
        db.execute("UPDATE snapshots SET accel = 2 WHERE id = (SELECT suspended FROM sandboxes WHERE id = ?)", (number,))
        db.execute("INSERT INTO changes(node, tab, row) SELECT 1, 2, suspended FROM sandboxes WHERE id = ?", (number,))
    time.sleep(1)  # for the other node to hear of it
    refused(errno.ENOEXEC, other.set, other.name, "sandboxes", box.name, "node")
    for part in ("KVM", "TCG", name, other.name, "boot"):
        has(part, other.why(), "the sentence")
    eq("suspended", box.state)
    other.set(f"{other.name} boot", "sandboxes", box.name, "node")
    eq("running", other.get("sandboxes", box.name, "state"))
    eq("saved", other.out(box, "cat /disk"), "its disk")
    eq("lost", other.get("proc", box.name, "count", "status"))


@check
def what_many_want_is_fetched_once():
    """Sixteen snapshots of a template that is not in this pool, read at once: its node's space-volumed reads the template once from the store."""
    template = fresh_name()
    defer(remove, "templates", template)
    source = Box()
    source.out("dd if=/dev/urandom of=/big bs=1k count=4000 2>/dev/null; sync")
    subprocess.run(["cp", "-r", path("sandboxes", source.name), path("templates", template)], check=True, timeout=60)
    source.remove()
    wait_until(lambda: line("templates", template, "state") == "ready", 30, f"the template is ready, error {line('templates', template, 'error')!r}")
    user = Box(template)
    for n in range(16):
        os.mkdir(path("snapshots", user.name, f"s{n}"))
        wait_until(lambda: line("snapshots", user.name, f"s{n}", "state") == "ready", 30)
    for n in range(16):
        write("upload", "snapshots", user.name, f"s{n}", "state")
    wait_until(lambda: other.get("snapshots", user.name, "s15", "state") == "stored", 10)
    refused(errno.EREMOTE, os.rmdir, other.path("snapshots", user.name, "s0"))

    def look(n):
        with open(other.path("snapshots", user.name, f"s{n}", "disk.raw"), "rb") as f:
            return f.read(2048)[1080:1082]

    at = os.path.join(config()["pool"], "templates", line("templates", template, "id"))
    held = sum(os.stat(os.path.join(at, file)).st_blocks * 512 for file in os.listdir(at))
    before = other.bytes_read("volumed")
    with Events() as events:
        children = [Child(look, n) for n in range(16)]
        for child in children:
            eq(("value", b"\x53\xef"), child.answer(60))
        events.next(kind="template", state="fetched")
        for _ in range(16):
            events.next(kind="download")
        eq(1, len([e for e in events.seen if e.get("state") == "fetched"]), "downloads of the template")
        own = sum(e["fetched_bytes"] for e in events.seen if e["kind"] == "download")
    at_most(2 * held + 2 * own, other.bytes_read("volumed") - before, f"bytes read, of a template that holds {held}")
    left = f"{user.name}~{user.get('id')}"
    user.remove()
    for n in range(16):
        os.rmdir(path("snapshots", left, f"s{n}"))


@check
def what_a_dead_node_had():
    """Its suspended sandbox can be taken at once; the one that ran only when it is said to be dead, and then as the store has it."""
    other.set("suspend", "sandboxes", box.name, "state")  # so that the store has something of it
    other.set("resume", "sandboxes", box.name, "state")
    sleeper = Box()
    here.credential(f"sandbox.{sleeper.name}", "site", "of the sleeper")
    sleeper.verb("suspend")
    sleeper.set("node", other.name)
    other.set("suspend", "sandboxes", sleeper.name, "state")
    other.kill()
    began = time.monotonic()
    sleeper.set("node", name)
    eq("running", sleeper.state, "what was suspended on a dead node")
    eq("of the sleeper", login(SPACE, sleeper), "its credential")
    sleeper.remove()
    wait_until(lambda: line("nodes", other.name, "state") == "away", AWAY + 10, "it is found to be away")
    print(f"away after {time.monotonic() - began:.1f} s", flush=True)
    eq("unreachable", box.state)
    refused(errno.EREMOTE, box.set, "node", name)
    has("echo dead", failures()[-1], "the sentence")
    write("dead", "nodes", other.name, "state")
    refused(errno.ENOTEMPTY, os.rmdir, path("nodes", other.name))
    box.set("node", name)
    eq("running", box.state)
    eq("saved", box.out("cat /disk"), "its disk")
    eq("changed there", login(SPACE, box), "its credential")
    nothing_crashed(other.dir)


def remove_other():
    """Nothing of the other node is left anywhere, for the tests that follow."""
    for each in os.listdir(other.path("sandboxes")) if os.path.ismount(other.space) else ():
        with contextlib.suppress(OSError):
            os.rmdir(other.path("sandboxes", each))
    if os.path.exists(os.path.join(other.dir, "space.conf")):
        other.quickstart("--down")
    wait_until(lambda: not exists("nodes", other.name) or line("nodes", other.name, "state") != "up", AWAY + 10)
    with contextlib.suppress(FileNotFoundError):
        wait_until(forgotten, 20, "the other node is forgotten")
    eq([(0,)], rows("SELECT count(*) FROM heads WHERE node NOT IN (SELECT id FROM nodes)"), "templates that it had prepared")


def forgotten():
    try:
        os.rmdir(path("nodes", other.name))
        return True
    except OSError as e:
        if e.errno != errno.ENOTEMPTY:
            raise
        return False


main()
