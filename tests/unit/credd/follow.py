#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Credentials of a sandbox's own on their way to another node: follow.py SPACE_CREDD. As root.

Two space-credd with one master key, and a third with its own. What space-hostd's database is for is a dictionary here."""
import base64
import errno
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading

from client import FORGET, GONE, KEEP, METHOD, MOVED, REMOVE, SANDBOX, TENANT, TRUST, USER, Daemon, Failed, fails, scope

A, B = 0xA1, 0xB2
INJECT = "net_user = nobody\ninject_user = bin\naudit_lines = 1000000\n"


def password(c, sandbox, name):
    return json.loads(c.login(sandbox, f"https://{name}.example"))["password"]


def share_master(source, to):
    """As an administrator does it, before the other is started for the first time."""
    os.mkdir(to.state, 0o711)
    shutil.chown(to.state, USER)
    shutil.copy(f"{source.state}/master", to.state)
    shutil.chown(f"{to.state}/master", USER)
    shutil.rmtree(to.keys)
    shutil.copytree(source.keys, to.keys)
    for name in ("", *os.listdir(to.keys)):
        shutil.chown(os.path.join(to.keys, name), USER)


def kinds(d):
    log = "".join(p.read_text() for p in sorted(pathlib.Path(d.state, "audit").iterdir()))
    return [json.loads(line)["kind"] for line in log.splitlines()]


def files(d):
    return sorted(os.listdir(f"{d.state}/store"))


def it_goes_and_comes_back(a, b, da):
    ident = a.add(scope(SANDBOX, 1000, A), "api", "api.example", b"secret one", rate="1/1h")
    record, packed = a.pack(ident)
    assert b"secret one" not in packed.encode() and b.key == a.key
    fails(errno.EACCES, b.login, A, "https://api.example")  # nobody told of the sandbox yet
    taken = b.take(A, packed)
    assert (taken.id, taken.number, taken.hosts, taken.uses) == (ident, record.number, "api.example\n", 1), vars(taken)
    fails(errno.EACCES, b.login, A, "https://api.example")
    b.know(A, 1000)
    assert password(b, A, "api") == "secret one"
    assert b.take(A, packed).number == record.number  # again: nothing happens
    a.call(FORGET, sandbox=A, field=MOVED)
    assert files(da) == [] and kinds(da)[-1] == "moved", (files(da), kinds(da))
    fails(errno.ESTALE, a.pack, ident)
    b.value(ident, b"secret two")
    a.take(A, b.pack(ident)[1])
    a.know(A, 1000)
    assert password(a, A, "api") == "secret two"
    b.call(FORGET, sandbox=A, field=KEEP)
    assert [r.id for r in reconnect(b).records] == [ident]


def reconnect(c):
    fresh = type(c)(c.sock.getpeername())
    fresh.know(A, 1000)
    return fresh


def what_is_old_stays_away(a):
    """A database from a backup, or a space-hostd that was broken into."""
    where = scope(SANDBOX, 1000, A)
    ident = a.add(where, "old", "old.example", b"first")
    first = a.pack(ident)[1]
    a.value(ident, b"second")
    now = a.take(A, first)
    assert (now.has_value, password(a, A, "old")) == (1, "second")
    a.value(ident, b"")
    revoked = a.take(A, first)
    assert revoked.has_value == 0 and revoked.number > now.number
    fails(errno.EACCES, a.login, A, "https://old.example")
    a.call(REMOVE, ident)
    assert a.take(A, first).removed
    fails(errno.ENOENT, a.login, A, "https://old.example")
    fails(errno.ESTALE, a.set, ident, METHOD, "autofill bob")
    again = a.make(where, "old").id  # the name is free
    assert again != ident and a.take(A, first).removed
    a.call(REMOVE, again)


def a_removal_goes_along(a, b):
    ident = a.add(scope(SANDBOX, 1000, A), "gone", "gone.example", b"x")
    b.take(A, a.pack(ident)[1])
    b.know(A, 1000)
    assert password(b, A, "gone") == "x"
    a.call(REMOVE, ident)
    record, packed = a.pack(ident)
    assert record.removed and not record.has_value and not record.hosts
    assert b.take(A, packed).removed
    fails(errno.ENOENT, b.login, A, "https://gone.example")


def the_younger_one_of_a_name_counts(a, b):
    where = scope(SANDBOX, 1000, B)
    old, young = a.add(where, "twin", "twin.example", b"old"), b.add(where, "twin", "twin.example", b"young")
    b.know(B, 1000), a.know(B, 1000)
    packed = a.pack(old)[1], b.pack(young)[1]
    assert b.take(B, packed[0]).removed and password(b, B, "twin") == "young"
    a.take(B, packed[1])
    assert password(a, B, "twin") == "young" and a.pack(old)[0].removed
    b.call(REMOVE, young)  # and of what was to be refused nothing comes back
    assert b.take(B, packed[0]).removed
    a.call(FORGET, sandbox=B, field=GONE), b.call(FORGET, sandbox=B, field=GONE)


def what_is_refused(a, third, d):
    ident = a.add(scope(SANDBOX, 1000, A), "mine", "mine.example", b"x")
    packed = a.pack(ident)[1]
    assert "master" in fails(errno.ENOKEY, third.take, A, packed)
    fails(errno.EINVAL, a.take, B, packed)  # another sandbox's
    for wrong in ("", "AAAA", packed[:-4], packed[:60] + ("A" if packed[60] != "A" else "B") + packed[61:], "A" * 28000):
        fails(errno.EBADMSG, a.take, A, wrong)
    tenants = a.add(scope(TENANT, 1000), "t", "t.example", b"x")
    fails(errno.ESTALE, a.pack, tenants)
    file = next(pathlib.Path(d.state, "store").glob(f"{tenants:012x}.cred")).read_bytes()
    fails(errno.EINVAL, a.take, A, base64.b64encode(file).decode())
    a.call(REMOVE, tenants)


def so_many_removals_are_remembered(a):
    where = scope(SANDBOX, 1000, B)
    idents = [a.make(where, f"n{i}").id for i in range(66)]
    for ident in idents:
        a.call(REMOVE, ident)
    fresh = reconnect(a)
    assert {r.id for r in fresh.removed if r.sandbox == B} == set(idents[2:]), "the newest 64"
    fresh.close()
    a.call(FORGET, sandbox=B, field=GONE)


def a_tenants_ca_is_the_same(a, b, third):
    def keys(c):
        text = c.call(TRUST, uid=1000)[1].decode()
        certs = [part + "-----END CERTIFICATE-----\n" for part in text.split("-----END CERTIFICATE-----\n")[:-1]]
        return [subprocess.run(["openssl", "x509", "-noout", "-subject", "-serial", "-pubkey"], input=cert, capture_output=True, text=True, check=True).stdout for cert in certs]

    for c in (a, b, third):
        c.add(scope(TENANT, 1000), "ca", "ca.example", b"x")
    assert len(keys(a)) == 2 and keys(a) == keys(b) and not set(keys(a)) & set(keys(third)), (keys(a), keys(third))


def killed_at_any_moment(da, db, rng, rounds):
    """Ten credentials are changed on one node, and go to the other, and back, and so on; both are killed again and again meanwhile. What space-hostd does after a hello brings all of it together."""
    rows, values, at, kills, done = {}, {}, da, 0, 0

    def hello(d, here):
        """What hostd/credential/follow.c does: rows and records meet."""
        c = d.client()
        records = {r.id: r for r in c.all if r.sandbox == A}
        if not here:
            c.call(FORGET, sandbox=A, field=MOVED)
            return c
        for ident, (number, packed) in list(rows.items()):
            if ident not in records or records[ident].number < number:
                now = c.take(A, packed)
                if now.number > number:
                    keep(c, ident)
        for ident, r in records.items():
            if ident not in rows or r.number > rows[ident][0]:
                keep(c, ident)
        c.know(A, 1000)
        return c

    def keep(c, ident):
        record, packed = c.pack(ident)
        rows[ident] = (record.number, packed)

    def until_done(d, what, here):
        while True:
            try:
                c = hello(d, here)
                what(c)
                c.close()
                return
            except (ConnectionError, Failed) as e:
                if isinstance(e, Failed) and e.errno not in (errno.EEXIST, errno.ESTALE):
                    raise

    def change(c):
        for name in [f"k{i}" for i in range(10)]:
            found = {r.name: r for r in c.records if r.sandbox == A}
            fresh = f"v{rng.randrange(1 << 40):x}"
            ident = found[name].id if name in found else 0
            if ident and rng.random() < 0.2:
                values.setdefault(name, set()).add(None)
                c.call(REMOVE, ident)
                keep(c, ident)
                values[name] = {None}
                continue
            values.setdefault(name, {None}).add(fresh)
            if ident and not found[name].has_value:  # it was being made
                c.call(REMOVE, ident)
                ident = 0
            if ident:
                c.value(ident, fresh.encode())
            else:
                ident = c.add(scope(SANDBOX, 1000, A), name, f"{name}.example", fresh.encode())
            keep(c, ident)
            values[name] = {fresh}

    def look(c):
        for name, may_be in values.items():
            try:
                now = password(c, A, name)
            except Failed as e:
                assert e.errno in (errno.ENOENT, errno.EACCES), e
                now = None
            assert now in may_be, (name, now, may_be)

    stop = threading.Event()

    def killer():
        nonlocal kills
        r = random.Random(rng.random())
        while not stop.wait(r.uniform(0.03, 0.25)):
            d = r.choice((da, db))
            d.kill()
            d.start()
            kills += 1

    t = threading.Thread(target=killer)
    t.start()
    try:
        while done < rounds or (kills < 4 and t.is_alive()):
            done += 1
            until_done(at, change, True)
            old, at = at, db if at is da else da
            until_done(at, look, True)
            until_done(old, lambda c: None, False)
            until_done(at, look, True)
    finally:
        stop.set()
        t.join()
    until_done(at, look, True)
    until_done(old, lambda c: None, False)
    assert not old.client().all, "the one that lost it has nothing"
    print(f"{kills} kills in {done} rounds")
    assert kills > 3, "the one who kills ended"


def main(program, seed=None):
    seed = int(seed or random.randrange(1 << 32))
    print(f"seed {seed}")
    with Daemon(program, INJECT) as da:
        a = da.client()
        a.know(A, 1000)
        db = Daemon(program, INJECT)
        share_master(da, db)
        with db, Daemon(program, INJECT) as other:
            b, third = db.client(), other.client()
            it_goes_and_comes_back(a, b, da)
            what_is_old_stays_away(a)
            a_removal_goes_along(a, b)
            the_younger_one_of_a_name_counts(a, b)
            what_is_refused(a, third, da)
            so_many_removals_are_remembered(a)
            a_tenants_ca_is_the_same(a, b, third)
            assert {"take", "moved", "remove"} <= set(kinds(da)) and "take" in kinds(db)
            for c in (a, b):
                c.call(REMOVE, next(r.id for r in reconnect(c).records if r.name == "ca"))
                c.call(FORGET, sandbox=A, field=GONE)
                c.close()
            killed_at_any_moment(da, db, random.Random(seed), 4)


if __name__ == "__main__":
    main(*sys.argv[1:])
