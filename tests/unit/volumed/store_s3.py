#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The chunk store on Ceph's object gateway, with credentials that only root may read: store_s3.py SPACE_VOLUMED. As root.

That it goes on when the gateway is killed or hangs is in s3.py."""
import os
import re
import shutil
import sys
import tempfile
import time

import rgw
import store
from client import DELETE, FSCK, GC, READ_ALL, Daemon, ident

MIB = 1 << 20


def on_s3(program, server, folder, secret=rgw.SECRET, conf=""):
    credentials = f"{folder}/credentials-{secret}"
    with open(os.open(credentials, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as f:
        f.write(f"access_key = {rgw.ACCESS}\nsecret_key = {secret}\n")
    d = Daemon(program, conf=f"store_credentials = {credentials}\n{conf}")
    with open(d.conf, encoding="ascii") as f:
        text = f.read().replace(f"store = {d.store}\n", f"store = http://127.0.0.1:{server.port}/bucket/below/it\n")
    with open(d.conf, "w", encoding="ascii") as f:
        f.write(text)
    return d.start()


def all_of_it(s):
    """Two artifacts, back again, garbage, a check."""
    path = s.file({0: store.bytes_of(70, 40 * MIB), 60 * MIB: b"text" * MIB}, 100 * MIB)
    a, b, out = ident(), ident(), s.path()
    up = s.client.upload("t", a, path)
    with open(path, "r+b") as f:
        f.seek(20 * MIB)
        f.write(store.bytes_of(71, MIB))
    again = s.client.upload("t", b, path, ranges=[(20 * MIB, MIB, 1)], parent=("t", a))
    assert again.read == again.new == MIB, again
    down = s.client.download("t", b, out)
    store.same(path, out)
    s.client.call(DELETE, "t", a)
    s.client.call(GC)
    assert s.client.call(FSCK, flags=READ_ALL).wrong == 0
    print(f"  upload {up.msec} ms, incremental {again.msec} ms, download {down.msec} ms", flush=True)


def many_at_once(s):
    """More than may work at the same time, garbage collected between them."""
    files = [s.file({0: store.bytes_of(80 + i, 3 * MIB), 4 * MIB: store.bytes_of(79, 2 * MIB)}, 8 * MIB) for i in range(8)]
    ids = [ident() for _ in files]
    requests = [s.client.send_upload("many", i, f) for i, f in zip(ids, files)]
    for request in requests:
        s.client.wait(request)
        s.client.call(GC, "many")
    for i in ids[:4]:
        s.client.call(DELETE, "many", i)
    s.client.call(GC, "many")
    outs = [s.path() for _ in ids[4:]]
    for request in [s.client.send_download("many", i, o) for i, o in zip(ids[4:], outs)]:
        s.client.wait(request)
    for f, o in zip(files[4:], outs):
        store.same(f, o)


def names(server, prefix):
    """Of the objects below the store's own prefix."""
    status, _, body = server.request("GET", "/bucket", f"list-type=2&prefix=below%2Fit%2F{prefix.replace('/', '%2F')}")
    assert status == 200, body
    return re.findall(r"<Key>below/it/([^<]*)</Key>", body.decode())


def what_a_killed_process_claimed_goes_when_its_requests_are_over(program, server, folder):
    """No collection runs: so it is not for its age. Here a request counts as over after four seconds."""
    d = on_s3(program, server, folder, conf="store_stale = 8\n")
    try:
        s = store.Sandbox(d)
        s.client.send_upload("claim", ident(), s.file({0: store.bytes_of(90, 96 * MIB)}, 96 * MIB))
        store.wait_for(lambda: names(server, "claim/packs/"), 60)
        d.kill()
        (claim,) = names(server, "claim/claims/")
        began = time.monotonic()
        d.start()
        d.client().close()
        store.wait_for(lambda: claim not in names(server, "claim/claims/"), 60)
        assert time.monotonic() - began > 3, "it went at once"
    finally:
        d.finish()


def main(program):
    folder = tempfile.mkdtemp(prefix="volumed-s3-", dir="/var/tmp")
    server = rgw.Rgw(f"{folder}/rgw")
    try:
        assert server.request("PUT", "/bucket")[0] == 200
        d = on_s3(program, server, folder)
        try:
            s = store.Sandbox(d)
            all_of_it(s)
            many_at_once(s)
        except BaseException:
            print(d.output()[-4000:])
            raise
        finally:
            d.finish()
        what_a_killed_process_claimed_goes_when_its_requests_are_over(program, server, folder)
    finally:
        server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1])
