#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""spacectl key and fsck against the real daemon: spacectl.py SPACE_VOLUMED SPACECTL. As root."""
import os
import subprocess
import sys

from client import Daemon, ident

VOLUMED, SPACECTL = sys.argv[1:3]


def main():
    with Daemon(VOLUMED) as d:
        client, name = d.client(), f"{d.folder}/file"

        def run(status, *words):
            r = subprocess.run([SPACECTL, *words, "--config", d.conf], capture_output=True, text=True, timeout=60)
            assert r.returncode == status, f"{words}: {r.returncode}, {r.stdout}{r.stderr}"
            return r.stdout + r.stderr

        def says(text, status, *words):
            out = run(status, *words)
            assert text in out, f"{words}: {out!r} does not say {text!r}"
            return out

        with open(name, "wb") as f:
            f.write(os.urandom(1 << 20))
        for tenant in ("ann", "bob"):
            client.upload(tenant, ident(), name)
        before = says("wrapped by file k1; when it is revoked: pause", 0, "key", "show", "ann")
        says("no key yet", 1, "key", "show", "carl")
        says("no tenant's name", 1, "key", "show", "../x")
        with open(f"{d.folder}/keys/wrapping", "a") as f:
            f.write("k2 = " + "ab" * 32 + "\n")
        with open(f"{d.folder}/keys/default.key", "r+") as f:
            text = f.read().replace("key = k1", "key = k2")
            f.seek(0)
            f.write(text)
        after = says("wrapped by file k2", 0, "key", "rotate", "ann", "bob")
        assert before.split()[2] in after, "the data key is another one"
        says("0 things are wrong", 0, "fsck", "--read-all")
        says("--for-good", 1, "key", "revoke", "ann")
        says("wrapped by file k2", 0, "key", "show", "ann")
        says("revoked", 0, "key", "revoke", "--for-good", "ann")
        says("was revoked", 1, "key", "show", "ann")
        says("was revoked", 1, "key", "rotate", "ann")
        says("was revoked", 1, "fsck", "--tenant", "ann")
        says("0 things are wrong", 0, "fsck", "--tenant", "bob", "--read-all")
        client.close()


if __name__ == "__main__":
    main()
