#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-credd, confined as it is: daemon.py SPACE_CREDD. As root."""
import errno
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

from client import AUDIT, DENIED, EXPIRES, FORGET, HOSTS, LABELLED, METHOD, PLATFORM, RATE, REMOVE, SANDBOX, SET, TENANT, USER, Daemon, Failed, fails, keypair, scope

A, B = 0xA1, 0xB2
SECRET = b"correct-horse-battery-staple"


def password(text):
    return json.loads(text)["password"]


def the_closest_scope_wins(c):
    c.know(A, 1000, "team=mine\nadmin.team=red\nadmin.a=b")
    c.know(B, 1000, "admin.team=blue")
    c.know(0xC3, 1001)
    origin = "https://www.example.com"
    fails(errno.ENOENT, c.login, A, origin)
    c.add(scope(PLATFORM), "p", "*.example.com", b"platform")
    assert password(c.login(A, origin)) == "platform"
    c.add(scope(TENANT, 1000), "t", "www.example.com", b"tenant")
    assert [password(c.login(s, origin)) for s in (A, B, 0xC3)] == ["tenant", "tenant", "platform"]
    # A label of the owner's own chooses nothing, not even one that looks like the administrator's.
    fails(errno.EINVAL, c.make, scope(LABELLED, 1000, label="team=mine"), "x")
    label = c.add(scope(LABELLED, 1000, label="admin.team=red"), "l", "www.example.com", b"label")
    assert [password(c.login(s, origin)) for s in (A, B)] == ["label", "tenant"]
    own = c.add(scope(SANDBOX, 1000, A), "s", "www.example.com", b"sandbox")
    assert [password(c.login(s, origin)) for s in (A, B)] == ["sandbox", "tenant"]
    # The closest one decides even when it cannot be used; gone, it does not.
    c.value(own, b"")
    fails(errno.EACCES, c.login, A, origin)
    c.call(REMOVE, own)
    assert password(c.login(A, origin)) == "label"
    c.know(A, 1000, "team=mine")
    assert password(c.login(A, origin)) == "tenant"
    c.call(REMOVE, label)
    fails(errno.ENOENT, c.login, A, "https://www.example.com:8443")
    for wrong in ("http://www.example.com", "https://www.example.com/", "www.example.com", "https://*.example.com"):
        fails(errno.EINVAL, c.login, A, wrong)
    c.call(FORGET, sandbox=A)
    fails(errno.EACCES, c.login, A, origin)


def limits(c):
    c.know(A, 1000)
    where = scope(SANDBOX, 1000, A)
    few = c.add(where, "few", "few.example", SECRET, rate="2/1h")
    assert password(c.login(A, "https://few.example")) == SECRET.decode()
    c.login(A, "https://few.example")
    fails(errno.EAGAIN, c.login, A, "https://few.example")
    c.set(few, RATE, "none")
    c.login(A, "https://few.example")
    old = c.add(where, "old", "old.example", SECRET, expires="1s")
    time.sleep(1.1)
    fails(errno.EKEYEXPIRED, c.login, A, "https://old.example")
    c.set(old, EXPIRES, "1h")
    c.login(A, "https://old.example")
    log = c.log(few)
    assert log.count(" login ") == 3 and log.count(" refused ") == 1 and "few.example:443" in log, log
    # What was written for one host does not go to another.
    assert "other hosts" in fails(errno.EPERM, c.set, few, HOSTS, "few.example\nevil.example")
    fails(errno.EPERM, c.set, few, METHOD, "header X-Key")
    c.set(few, HOSTS, "")
    c.value(few, b"")
    c.set(few, HOSTS, "evil.example")
    fails(errno.EACCES, c.login, A, "https://evil.example")


def uses_count_over_a_start(d):
    """`rate` as before it was killed, from the log; a new rate counts from its own beginning."""
    c = d.client()
    c.know(A, 1000)
    ident = c.add(scope(SANDBOX, 1000, A), "counted", "counted.example", SECRET, rate="3/1h")
    for left in (True, True, True, False):
        c = started_again(d, c)
        if left:
            c.login(A, "https://counted.example")
        else:
            fails(errno.EAGAIN, c.login, A, "https://counted.example")
    c.set(ident, RATE, "1/1h")
    c = started_again(d, c)
    c.login(A, "https://counted.example")
    c = started_again(d, c)
    fails(errno.EAGAIN, c.login, A, "https://counted.example")
    c.set(ident, RATE, "1/1s")
    c.login(A, "https://counted.example")
    time.sleep(1.1)
    started_again(d, c).login(A, "https://counted.example")  # as many again after each such time
    d.client().call(REMOVE, ident)


def started_again(d, c):
    c.close()
    d.process.terminate()
    assert d.process.wait(20) == 0
    d.start()
    c = d.client()
    c.know(A, 1000)
    return c


def a_wrapping_key_of_systemd(d):
    """As systemd 252 leaves a credential of the unit (LoadCredential=, LoadCredentialEncrypted=): a file of root's, 0400, in a folder of root's."""
    folder, path = pathlib.Path(d.folder, "credentials"), pathlib.Path(d.keys, "default.wrapping")
    folder.mkdir(mode=0o500)
    wrapping = folder / "wrapping"
    shutil.move(path, wrapping)
    os.chown(wrapping, 0, 0)
    os.chmod(wrapping, 0o400)
    config = pathlib.Path(d.keys, "credentials.key")
    before = config.read_text()
    d.write_key("credentials.key", before.replace("default.wrapping", str(wrapping)))
    os.chown(config, 0, 0)  # else it is read by cred_user, who cannot read the other
    d.start()
    c = d.client()
    c.know(A, 1000)
    assert password(c.login(A, "https://old.example")) == SECRET.decode()
    c.close()
    d.kill()
    shutil.move(wrapping, path)
    shutil.chown(path, USER)
    os.chmod(path, 0o600)
    d.write_key("credentials.key", before)


def what_is_refused(c, d):
    where = scope(SANDBOX, 1000, A)
    a = c.make(where, "a").id
    assert c.make(where, "b").method == "header Authorization Bearer {}"
    fails(errno.EEXIST, c.make, where, "a")
    fails(errno.EINVAL, c.make, where, "../a")
    for name in ("value", "sealed1:", "sealed1:AAAA"):
        fails(errno.EINVAL, c.call, 4, a, text=name)
    fails(errno.EINVAL, c.value, a, SECRET)  # for which hosts?
    c.set(a, HOSTS, "a.example")
    fails(errno.EBADMSG, c.value, a, SECRET, keypair()[0])
    fails(errno.EINVAL, c.value, a, b"two\nlines")
    fails(errno.EINVAL, c.value, a, b"x" * 16385)
    assert c.value(a, b"x" * 16384).has_value
    for method in ("header", "header Host", "header X {} {}", "basic a:b", "query a b", "cookie x", "header Content-Length {}"):
        fails(errno.EINVAL, c.set, c.make(where, f"m{random.randrange(1 << 40)}").id, METHOD, method)
    for hosts in ("a b", "http://x", "*", "*.com.", "x:0", "x:99999", "a..b", "*.x"):
        if hosts != "*.x":
            fails(errno.EINVAL, c.set, a, HOSTS, hosts)
    fails(errno.ESTALE, c.value, 1, SECRET)
    assert SECRET.decode() not in d.output()


def damaged(d):
    files = sorted(pathlib.Path(d.state, "store").iterdir())
    kept = files[0].read_bytes()
    for spoiled in (kept[:-1] if len(kept) > 4700 else kept[:100], kept[:30] + bytes([kept[30] ^ 1]) + kept[31:], files[1].read_bytes()):
        files[0].write_bytes(spoiled)
        d.start()
        line = d.ends()
        assert files[0].name in line and "cannot be read" in line, line
    files[0].write_bytes(kept)


def wrong_key(d):
    text = pathlib.Path(d.keys, "default.wrapping").read_text()
    d.write_key("default.wrapping", text.replace("= ", "= 00")[: len(text)])
    d.start()
    line = d.ends()
    assert "k1" in line or "key" in line, line
    d.write_key("default.wrapping", text)
    os.chmod(f"{d.keys}/default.wrapping", 0o640)
    d.start()
    assert "0640" in d.ends()
    os.chmod(f"{d.keys}/default.wrapping", 0o600)


def another_wrapping_key(d):
    """The file names another one: it wraps from the next start on, and the old one may go."""
    path = pathlib.Path(d.keys, "default.wrapping")
    old = path.read_text()
    new = "k2 = " + "5a" * 32 + "\n"
    d.write_key("default.wrapping", old + new)
    config = pathlib.Path(d.keys, "credentials.key").read_text()
    d.write_key("credentials.key", config.replace("k1", "k2"))
    d.start()
    d.client().close()
    d.kill()
    d.write_key("default.wrapping", new)
    d.start()
    c = d.client()
    c.know(A, 1000)
    assert password(c.login(A, "https://old.example")) == SECRET.decode()
    c.close()
    d.kill()


def nothing_plain(d, *secrets):
    """In no file of the daemon's, and in no line that it printed."""
    for where, _, names in os.walk(d.folder):
        for name in names:
            path = os.path.join(where, name)
            if os.path.isfile(path) and not name.endswith(".wrapping"):
                content = pathlib.Path(path).read_bytes()
                for s in secrets:
                    assert s not in content, path


def locked(d):
    status = pathlib.Path(f"/proc/{d.process.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    sanitized = "libasan" in pathlib.Path(f"/proc/{d.process.pid}/maps").read_text()  # it swallows mlock
    assert sanitized or int(fields["VmLck"].split()[0]) >= 100, fields["VmLck"]
    assert fields["Seccomp"].strip() == "2" and int(fields["CapEff"], 16) == 0, (fields["Seccomp"], fields["CapEff"])
    assert fields["Uid"].split()[0] != "0" and fields["NoNewPrivs"].strip() == "1"
    limits = pathlib.Path(f"/proc/{d.process.pid}/limits").read_text()
    core = next(line for line in limits.splitlines() if "core file" in line).split()
    assert core[4] == "0" and core[5] == "0", core


def changes_until_refused(c, ident):
    for _ in range(11):  # a minute may end meanwhile
        c.set(ident, EXPIRES, "1h")


def a_tenant_fills_only_its_share_of_the_log(program):
    d = Daemon(program, "inject = no\naudit_lines = 5\n")
    with d:
        c = d.client()
        c.know(A, 1000)
        ident = c.add(scope(SANDBOX, 1000, A), "s", "a.example", SECRET)
        assert "too often" in fails(errno.EAGAIN, changes_until_refused, c, ident)
        c.call(SET, ident, field=EXPIRES, text="2h")  # root's
        for _ in range(50):
            c.login(A, "https://a.example")
        assert c.log(ident).count(" login ") == 50
        c.value(ident, b"")  # a revocation is never refused
        fails(errno.EACCES, c.login, A, "https://a.example")
        for text in ("deny x.example:443", "deny y.example:443"):
            c.call(DENIED, sandbox=A, uid=1000, count=500, text=text)
        c.close()
        d.process.terminate()
        assert d.process.wait(20) == 0
        lines = [json.loads(line) for p in sorted(pathlib.Path(d.state, "audit").iterdir()) for line in p.read_text().splitlines()]
        sums = {kind: sum(line["count"] for line in lines if line["kind"] == kind) for kind in ("login", "refused", "denied")}
        assert sums == {"login": 50, "refused": 1, "denied": 1000}, sums
        assert any(line["kind"] == "counting" for line in lines) and len(lines) < 50, lines
        d.process = None


def main(program):
    a_tenant_fills_only_its_share_of_the_log(program)
    d = Daemon(program)
    with d:
        c = d.client()
        the_closest_scope_wins(c)
        limits(c)
        what_is_refused(c, d)
        locked(d)
        c.call(DENIED, sandbox=A, uid=1000, count=7, text='deny evil.example:443 "x" \x07')
        reply, _ = c.call(AUDIT)
        lines = reply[7]
        c.close()
        d.kill()  # and nothing that was answered is lost
        d.start()
        c = d.client()
        before = {r.name: r.has_value for r in c.records}
        assert before["few"] == 0 and before["old"] == 1 and before["a"] == 1, before
        assert c.call(AUDIT)[0][7] == lines
        assert " login " in c.log(next(r.id for r in c.records if r.name == "few"))
        fails(errno.EACCES, c.login, A, "https://old.example")  # who may use it is told anew
        c.know(A, 1000)
        assert password(c.login(A, "https://old.example")) == SECRET.decode()
        c.close()
        d.kill()
        nothing_plain(d, SECRET, b"x" * 100)
        log = "".join(p.read_text() for p in sorted(pathlib.Path(d.state, "audit").iterdir()))
        kinds = [json.loads(line)["kind"] for line in log.splitlines()]
        assert {"make", "change", "value", "revoke", "remove", "login", "refused", "denied"} <= set(kinds), set(kinds)
        damaged(d)
        wrong_key(d)
        another_wrapping_key(d)
        a_wrapping_key_of_systemd(d)
        d.start()
        uses_count_over_a_start(d)
        d.client().close()


if __name__ == "__main__":
    main(sys.argv[1])
