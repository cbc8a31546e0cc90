#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The chunk store on Ceph's object gateway, which is killed, hangs, and is refused access to: store_s3.py SPACE_VOLUMED. As root."""
import errno
import os
import shutil
import signal
import sys
import tempfile
import threading
import time

import rgw
import store
from client import DELETE, FSCK, GC, READ_ALL, Daemon, ident

MIB = 1 << 20


def on_s3(program, server, folder, secret=rgw.SECRET):
    credentials = f"{folder}/credentials-{secret}"
    with open(os.open(credentials, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as f:
        f.write(f"access_key = {rgw.ACCESS}\nsecret_key = {secret}\n")
    d = Daemon(program, conf=f"store_credentials = {credentials}\n")
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


def while_the_gateway(s, server, do):
    """It is killed or stopped and comes back, again and again, during uploads and downloads."""
    stop = threading.Event()

    def play():
        while not stop.is_set():
            do(server)
            stop.wait(2.5)

    path = s.file({0: store.bytes_of(72, 40 * MIB)}, 40 * MIB)
    player = threading.Thread(target=play)
    player.start()
    try:
        a, out = ident(), s.path()
        s.client.upload("u", a, path, limit=240)
        s.client.download("u", a, out, limit=240)
        store.same(path, out)
        s.client.call(DELETE, "u", a)
    finally:
        stop.set()
        player.join()
    s.client.call(GC)


def killed(server):
    server.kill()
    time.sleep(0.3)
    server.start()


def hangs(server):
    server.send_signal(signal.SIGSTOP)
    time.sleep(1)
    server.send_signal(signal.SIGCONT)


def main(program):
    folder = tempfile.mkdtemp(prefix="volumed-s3-", dir="/var/tmp")
    server = rgw.Rgw(f"{folder}/rgw")
    try:
        assert server.request("PUT", "/bucket")[0] == 200
        d = on_s3(program, server, folder)
        try:
            s = store.Sandbox(d)
            for name, test in (("all of it", lambda: all_of_it(s)), ("gateway killed", lambda: while_the_gateway(s, server, killed)),
                               ("gateway hangs", lambda: while_the_gateway(s, server, hangs))):
                began = time.monotonic()
                test()
                print(f"{name} ({time.monotonic() - began:.1f} s)", flush=True)
            wrong = on_s3(program, server, folder, "wrong")
            try:
                e = store.fails(errno.EACCES, wrong.client().upload, "t", ident(), s.file({0: b"x"}, 1))
                assert "bucket" in e.strerror, e
            finally:
                wrong.finish()
        except BaseException:
            print(d.output()[-4000:])
            raise
        finally:
            d.finish()
    finally:
        server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1])
