#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 240
"""credentials/: secrets are written and never read back, lie nowhere in plain text, and are used by whom the closest scope means; every decision is in the log."""

import base64
import os
import re
import secrets
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "unit", "credd"))
import client as credd
from lib import *

ORIGIN = "https://login.example"
NEEDLE = 24  # bytes of a secret, in hex twice as many


class World:
    """Two users, and a sandbox of the first."""

    def __init__(self):
        group = config().get("group", "space")
        self.ann, self.bob = test_user("spacetestann", group), test_user("spacetestben", group)
        self.groups = (grp.getgrnam(group).gr_gid,)
        self.as_ann(os.mkdir, path("sandboxes", "credbox"))
        defer(remove, "sandboxes", "spacetestann:credbox")
        self.box = Box.known("spacetestann:credbox")

    def as_ann(self, function, *args):
        return as_user(*self.ann, function, *args, groups=self.groups)

    def as_bob(self, function, *args):
        return as_user(*self.bob, function, *args, groups=self.groups)


def world(made=[]):
    if not made:
        made.append(World())
    return made[0]


def at(scope, name="", file=""):
    return os.path.join("credentials", scope, name, file).rstrip("/")


def make(scope, name, hosts="login.example\n", method="autofill ann\n", value=None):
    os.mkdir(path(at(scope, name)))
    write(hosts, at(scope, name, "hosts"))
    write(method, at(scope, name, "method"))
    if value:
        write(value + "\n", at(scope, name, "value"))


def login(sandbox, origin=ORIGIN):
    answer = spacectl("credential", "login", sandbox, origin)
    return json.loads(answer.stdout)["password"] if answer.returncode == 0 else answer.stderr


@check
def a_value_is_written_and_never_read():
    make("tenant", "api", "api.example.com\n*.example.org:8443\n", "header X-Key\n", "s3cret")
    eq(["expires", "hosts", "log", "method", "rate", "state", "value"], sorted(os.listdir(path(at("tenant", "api")))), "files")
    eq(0o200, stat.S_IMODE(os.stat(path(at("tenant", "api", "value"))).st_mode), "mode of value")
    refused(errno.EACCES, read, at("tenant", "api", "value"))
    refused(errno.EACCES, os.open, path(at("tenant", "api", "value")), os.O_RDWR)
    eq(0, os.stat(path(at("tenant", "api", "value"))).st_size, "size of value")
    eq("ready", line(at("tenant", "api", "state")), "state")
    eq("api.example.com\n*.example.org:8443\n", read(at("tenant", "api", "hosts")), "hosts")
    eq("header X-Key", line(at("tenant", "api", "method")), "method")
    write("100/1m\n", at("tenant", "api", "rate"))
    write("2030-01-01T00:00:00Z\n", at("tenant", "api", "expires"))
    eq(("100/60s", "2030-01-01T00:00:00Z"), (line(at("tenant", "api", "rate")), line(at("tenant", "api", "expires"))), "rate and expiry")


@check
def what_is_not_taken_is_explained():
    for file, value, code in [("method", "cookie x", errno.EINVAL), ("hosts", "http://x\n", errno.EINVAL), ("expires", "soon", errno.EINVAL), ("rate", "many", errno.EINVAL)]:
        refused(code, write, value + "\n", at("tenant", "api", file))
        has(f"credentials/tenant/api/{file}", failures()[-1], "the newest failure")
    refused(errno.EPERM, write, "evil.example\n", at("tenant", "api", "hosts"))
    has("other hosts", failures()[-1], "the newest failure")
    refused(errno.EPERM, write, "query key\n", at("tenant", "api", "method"))
    refused(errno.E2BIG, write, "x" * 20000, at("tenant", "api", "value"))
    fd = os.open(path(at("tenant", "api", "value")), os.O_WRONLY)
    try:
        refused(errno.EINVAL, os.pwrite, fd, b"half a secret", 5)
    finally:
        os.close(fd)
    refused(errno.EEXIST, os.mkdir, path(at("tenant", "api")))
    refused(errno.ENOENT, os.mkdir, path(at("nowhere", "x")))
    refused(errno.ENOENT, os.mkdir, path(at("label.team=mine", "x")))
    refused(errno.EPERM, os.mkdir, path("credentials", "mine"))
    refused(errno.EPERM, os.unlink, path(at("tenant", "api", "hosts")))


@check
def an_empty_value_revokes_and_rmdir_removes():
    write("\n", at("tenant", "api", "value"))
    eq("empty", line(at("tenant", "api", "state")), "state")
    write("other.example\n", at("tenant", "api", "hosts"))
    write("again\n", at("tenant", "api", "value"))
    eq("ready", line(at("tenant", "api", "state")), "state")
    os.rmdir(path(at("tenant", "api")))
    refused(errno.ENOENT, os.stat, path(at("tenant", "api")))


@check
def spacectl_sets_lists_and_removes():
    words = ["credential", "set", "--host", "one.example", "--host", "*.two.example:8443", "--method", "basic ann", "--rate", "5/1m", "--expires", "30d", "tool"]
    for value in ("first\n", "second"):  # and again: another value for the same
        eq(0, spacectl(*words, input=value).returncode, "set")
    listed = json.loads(spacectl("credential", "ls", "--json", "tenant").stdout)
    eq([("tenant", "tool", "ready", "basic ann", "one.example *.two.example:8443", "5/60s")],
       [tuple(row[k] for k in ("scope", "name", "state", "method", "hosts", "rate")) for row in listed if row["name"] == "tool"], "what ls shows")
    bad = spacectl("credential", "set", "--method", "cookie", "tool", input="x")
    eq(1, bad.returncode, "a method that is none")
    has("is no method", bad.stderr, "what it says")
    eq(0, spacectl("credential", "rm", "tool").returncode, "rm")
    refused(errno.ENOENT, os.stat, path(at("tenant", "tool")))
    ne(0, spacectl("credential", "set", "none", input="").returncode, "no value")


@check
def a_client_that_speaks_9p_itself_seals():
    make("tenant", "direct", "direct.example\n")
    root = ninep.Client.unix(os.path.join(config()["run"], "hostd.sock")).attach("", 0)
    value = root.walk("credentials", "tenant", "direct", "value").open(1)
    refused(errno.EINVAL, value.write, b"plain text\n")
    has("sealed", failures()[-1], "the newest failure")
    key = base64.b64decode(root.walk("credentials", "key").open().read_all())
    refused(errno.EBADMSG, value.write, credd.seal(b"for another", credd.keypair()[0]).encode())
    value.write(credd.seal(b"sealed by the client", key).encode())
    eq("ready", line(at("tenant", "direct", "state")), "state")
    os.rmdir(path(at("tenant", "direct")))


@check
def scopes_belong_to_their_owners():
    w = world()
    own = "sandbox.credbox"
    w.as_ann(make, own, "site", "login.example\n", "autofill ann\n", "of the sandbox")
    w.as_ann(make, "tenant", "site", "login.example\n", "autofill ann\n", "of the tenant")
    eq(["key", own, "tenant"], sorted(w.as_ann(os.listdir, path("credentials"))), "what ann sees")
    eq(["key", "tenant"], sorted(w.as_bob(os.listdir, path("credentials"))), "what bob sees")
    eq([], w.as_bob(os.listdir, path(at("tenant"))), "bob's own")
    for scope in ("spacetestann:tenant", "spacetestann:" + own, own, "platform"):
        refused(errno.ENOENT, w.as_bob, os.stat, path(at(scope)))
        refused(errno.ENOENT, w.as_bob, os.mkdir, path(at(scope, "x")))
    has(f"spacetestann:{own}", os.listdir(path("credentials")), "what root sees")
    # What root puts there is not hers to change: with other hosts she would get the value.
    make("spacetestann:tenant", "roots", "internal.example\n", "header X-Key\n", "of root")
    refused(errno.EACCES, w.as_ann, write, "evil.example\n", at("tenant", "roots", "hosts"))
    refused(errno.EACCES, w.as_ann, write, "other\n", at("tenant", "roots", "value"))
    refused(errno.EACCES, w.as_ann, os.rmdir, path(at("tenant", "roots")))
    refused(errno.EACCES, w.as_ann, os.mkdir, path(at("label.admin.team=red", "x")))


@check
def the_closest_scope_decides():
    w = world()
    box = "spacetestann:credbox"
    make("spacetestann:label.admin.team=red", "site", value="of the label")
    make("platform", "site", value="of the platform")
    eq("of the sandbox", login(box), "the sandbox's own")
    w.as_ann(os.rmdir, path(at("sandbox.credbox", "site")))
    w.as_ann(write, "team=red\n", "sandboxes", "credbox", "labels")
    refused(errno.EPERM, w.as_ann, write, "admin.team=red\n", "sandboxes", "credbox", "labels")
    eq("of the tenant", login(box), "with a label of the owner's")
    write("admin.team=red\n", "sandboxes", box, "labels")
    eq("of the label", login(box), "with a label of the administrator's")
    write("\n", at("spacetestann:label.admin.team=red", "site", "value"))
    has("no value", login(box), "revoked: no wider scope's is taken")
    os.rmdir(path(at("spacetestann:label.admin.team=red", "site")))
    w.as_ann(os.rmdir, path(at("tenant", "site")))
    eq("of the platform", login(box), "the platform's")
    has("no credential", login(box, "https://other.example"), "another host")


@check
def it_follows_its_sandbox():
    w = world()
    w.as_ann(make, "sandbox.credbox", "site", "login.example\n", "autofill ann\n", "of the sandbox")
    w.as_ann(os.mkdir, path("sandboxes", "credfork"))
    defer(remove, "sandboxes", "spacetestann:credfork")
    head = read("sandboxes", "spacetestann:credbox", "head")
    w.as_ann(lambda: write(head, "sandboxes", "credfork", "head", flags=os.O_NONBLOCK))
    eq("of the platform", login("spacetestann:credfork"), "a fork gets what its own scopes give")
    remove("sandboxes", "spacetestann:credfork")
    w.as_ann(os.rename, path("sandboxes", "credbox"), path("sandboxes", "credbox2"))
    eq("of the sandbox", login("spacetestann:credbox2"), "after mv")
    w.as_ann(os.rename, path("sandboxes", "credbox2"), path("sandboxes", "credbox"))
    log = read(at("spacetestann:sandbox.credbox", "site", "log"))
    matches(r"^\S+Z login [0-9a-f]{12} login\.example:443$", log.strip(), "the credential's log")


@check
def it_is_there_after_space_credd_was_killed():
    daemon_back("credd", kill_daemon("credd"))
    wait_until(lambda: login("spacetestann:credbox") == "of the sandbox", 30, "the same login")


def numbers():
    """Of the versions that space-credd has of the sandbox's own, and of those in the database."""
    ident = int(world().box.get("id"), 16)
    client = credd.Client(os.path.join(config()["run"], "credd.sock"), hostd=0)
    records = {r.id: r.number for r in client.all if r.sandbox == ident}
    client.close()
    return records, dict(rows("SELECT id, number FROM secrets WHERE sandbox = ?", ident))


def met():
    records, rows = numbers()
    return bool(records) and records == rows


@check
def the_database_has_each_version_whoever_is_killed():
    """First what a crash can leave, made by hand; then the daemons killed while a value is written again and again."""
    scope = "spacetestann:sandbox.credbox"
    idents = {}
    for name in ("late", "old", "lost"):
        before = set(numbers()[0])
        make(scope, name, f"{name}.example", value=f"value of {name}")
        idents[name] = (set(numbers()[0]) - before).pop()
    os.rmdir(path(at(scope, "late")))
    eq(numbers()[0], numbers()[1], "versions here, and in the database")
    service = os.path.join(SPACE_DIR, "sv", "credd")
    subprocess.run(["sv", "-w", "15", "down", service], check=True, capture_output=True)
    with contextlib.closing(sqlite3.connect(os.path.join(config()["state"], "space.db"), timeout=20)) as db, db:
        db.execute("DELETE FROM secrets WHERE id = ?", (idents["late"],))
        db.execute("UPDATE secrets SET number = 1, packed = 'AAAA' WHERE id = ?", (idents["old"],))
    os.unlink(os.path.join(config()["credentials"], "store", f"{idents['lost']:012x}.cred"))
    subprocess.run(["sv", "up", service], check=True, capture_output=True)
    wait_until(lambda: login("spacetestann:credbox", "https://lost.example") == "value of lost", 30, "what only the database had is used")
    wait_until(met, 10, "what only space-credd had is in the database")
    refused(errno.ENOENT, os.stat, path(at(scope, "late")))
    stop = threading.Event()

    def write_on():
        n = 0
        while not stop.is_set():
            n += 1
            with contextlib.suppress(OSError):
                write(f"version {n}\n", at(scope, "old", "value"))

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        for name in ("hostd", "credd", "hostd", "credd"):
            time.sleep(random.uniform(0, 0.2))
            daemon_back(name, kill_daemon(name))
    finally:
        stop.set()
        writer.join()
    wait_until(lambda: login("spacetestann:credbox", "https://old.example").startswith("version "), 30, "a login by the last value")
    wait_until(met, 30, "all versions are in the database")
    for name in ("old", "lost"):
        os.rmdir(path(at(scope, name)))
    eq(numbers()[0], numbers()[1], "versions here, and in the database")


def regions(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        for text in f:
            span, rights, *_ = text.split()
            start, end = (int(x, 16) for x in span.split("-"))
            if rights.startswith("rw") and "[vvar" not in text and end - start < 1 << 40:  # larger: a sanitizer's notes about the rest, terabytes of nothing
                yield start, end


def any_of(needles, data):
    return any(n in data for n in needles)


def holds(pid, needles):
    """Is one of them in that process's memory?"""
    with open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for start, end in regions(pid):
            for where in range(start, end, 4 << 20):
                try:
                    if any_of(needles, os.pread(mem.fileno(), min((4 << 20) + NEEDLE, end - where), where)):
                        return True
                except OSError:
                    pass
    return False


def processes():
    """Those of the instance: its daemons, their supervisors, the sandbox's machine."""
    machine = world().box.qemu()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                command = f.read()
        except OSError:
            continue
        if int(pid) != os.getpid() and (SPACE_DIR.encode() in command and b"qemu" not in command or int(pid) == machine) and b"tests/" not in command:
            yield int(pid), command.replace(b"\0", b" ").decode(errors="replace")[:120]


def spans(fd):
    """Of a file, those that are no holes."""
    end, at = os.fstat(fd).st_size, 0
    while at < end:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as e:
            if e.errno == errno.ENXIO:
                return
            raise
        hole = os.lseek(fd, at, os.SEEK_HOLE)
        yield at, hole
        at = hole


def file_holds(name, needles):
    fd = os.open(name, os.O_RDONLY)
    try:
        return any(any_of(needles, os.pread(fd, min((4 << 20) + NEEDLE, hole - at), at)) for start, hole in spans(fd) for at in range(start, hole, 4 << 20))
    finally:
        os.close(fd)


def files_with(needles, since):
    """Below the instance's folder, those written since then: the disk of the pool itself, too, with what was freed on it."""
    found = []
    for where, folders, names in os.walk(SPACE_DIR):
        if where == SPACE_DIR:
            folders[:] = [name for name in folders if name not in ("space", "bin", "guest")]
        for name in names:
            file = os.path.join(where, name)
            with contextlib.suppress(FileNotFoundError):
                st = os.lstat(file)
                if stat.S_ISREG(st.st_mode) and st.st_mtime >= since and file_holds(file, needles):
                    found.append(file)
    return found


@check
def it_is_nowhere_in_plain_text():
    w = world()
    box = w.box
    wait_until(lambda: box.state == "running", 60, "the sandbox runs")
    secret, since = secrets.token_hex(NEEDLE), int(time.time())
    with open("/dev/shm/needle-" + SCRIPT, "w", encoding="ascii") as f:  # another process writes it: this one holds it, of course
        f.write(secret)
    defer(os.unlink, f.name)
    needle = path(at("spacetestann:sandbox.credbox", "needle"))  # which is in the database as well
    subprocess.run(["sh", "-c", f"mkdir '{needle}' && echo needle.example > '{needle}/hosts' && echo autofill ann > '{needle}/method' && cat {f.name} > '{needle}/value'"], check=True)
    parts = [secret[at:at + 16].encode() for at in (0, 16, 32)]  # nor a part of it: buffers are used again from their start
    for name in ("spacefs", "hostd"):
        if holds(daemon_pid(name), parts):
            fail(f"right after the write the secret is in the memory of {name}")
    eq(secret, login("spacetestann:credbox", "https://needle.example"), "it is kept")
    os.mkdir(path("snapshots", "spacetestann:credbox", "s"))
    write(read("sandboxes", "spacetestann:credbox", "head"), "snapshots", "spacetestann:credbox", "s", "head")
    wait_until(lambda: line("snapshots", "spacetestann:credbox", "s", "state") == "ready", 60, "a checkpoint")
    checked = 0
    for pid, command in processes():
        try:
            if "space-credd" not in command and holds(pid, parts):
                fail(f"the secret is in the memory of {command}")
            checked += 1
        except FileNotFoundError:
            pass
    if checked < 7:
        fail(f"only {checked} processes were looked at")
    eq([], files_with(parts, since), "files with the secret")
    os.rmdir(path("snapshots", "spacetestann:credbox", "s"))


def log_lines():
    folder = os.path.join(config()["credentials"], "audit")
    out = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="ascii") as f:
            out += [json.loads(text) for text in f]
    return out


@check
def denied_connections_are_in_the_log():
    box = world().box
    tries = 5
    for _ in range(tries):
        box.run("echo x | nc -w 2 192.0.2.77 4455")  # accepted, then reset: nothing allows it

    def denied():
        mine = [t for t in log_lines() if t["kind"] == "denied" and t["sandbox"] == box.get("id")]
        return sum(t["count"] for t in mine) >= tries and mine

    lines = wait_until(denied, 20, "the denials in the log")
    has("192.0.2.77:4455", lines[0]["text"], "the first line")
    eq(world().ann[0], lines[0]["uid"], "whose it is")
    eq(tries, sum(t["count"] for t in lines), "denials in all")


@check
def the_log_is_a_chain_and_says_where_it_is_broken():
    folder = os.path.join(config()["credentials"], "audit")
    good = spacectl("audit", "verify")
    eq(0, good.returncode, f"verify: {good.stderr}")
    name = max(os.listdir(folder), key=lambda n: os.path.getsize(os.path.join(folder, n)))  # midnight may have begun another
    first = int(name.split(".")[0])
    with open(os.path.join(folder, name), "rb") as f:
        whole = f.read()
    lines = whole.split(b"\n")
    for what, broken, number in [("a changed line", lines[:2] + [lines[2].replace(b'"count":1', b'"count":2')] + lines[3:], first + 2),
                                 ("a line removed", lines[:4] + lines[5:], first + 4),
                                 ("the end cut off", lines[:-3] + [b""], first + len(lines) - 3)]:
        with tempfile.TemporaryDirectory() as d:
            os.mkdir(f"{d}/audit")
            with open(f"{d}/audit/{name}", "wb") as f:
                f.write(b"\n".join(broken))
            with open(f"{d}/space.conf", "w", encoding="utf-8") as f:
                f.write(f"credentials = {d}\nrun = {config()['run']}\n")
            bad = spacectl("audit", "verify", "--config", f"{d}/space.conf")
            eq(1, bad.returncode, what)
            matches(rf"\b{number}\b", bad.stderr, what)
    kinds = {text["kind"] for text in log_lines()}
    for kind in ("make", "value", "login", "refused", "revoke", "remove"):
        has(kind, kinds, "kinds of lines")


@check
def a_suspended_sandbox_keeps_them():
    world().box.verb("suspend")
    eq("of the sandbox", login("spacetestann:credbox"), "while it is suspended")
    world().box.verb("resume")
    eq("of the sandbox", login("spacetestann:credbox"), "after the restore")


@check
def what_is_gone_takes_its_credentials_along():
    w = world()
    w.as_ann(os.rmdir, path("sandboxes", "credbox"))
    refused(errno.ENOENT, os.stat, path(at("spacetestann:sandbox.credbox")))
    removed = lambda: "spacetestann:sandbox.credbox" not in spacectl("credential", "ls").stdout
    wait_until(removed, 20, "its credentials")
    for scope in ("platform", "spacetestann:tenant"):
        for name in os.listdir(path(at(scope))):
            os.rmdir(path(at(scope, name)))


main()
