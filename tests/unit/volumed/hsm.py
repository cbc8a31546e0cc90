#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-volumed, confined as it is, with a wrapping key on a PKCS#11 token (SoftHSM): hsm.py SPACE_VOLUMED. As root."""
import errno
import os
import shutil
import subprocess
import sys

from client import GC, KEY, ROTATE, Daemon, ident
from store import fails, same

MODULE = "/usr/lib/softhsm/libsofthsm2.so"


def main(program):
    d = Daemon(program)
    keys = f"{d.folder}/keys"
    env = {**os.environ, "SOFTHSM2_CONF": f"{keys}/softhsm2.conf"}

    def write(name, text):
        with open(f"{keys}/{name}", "w", encoding="ascii") as f:
            f.write(text)
        os.chmod(f"{keys}/{name}", 0o600)
        shutil.chown(f"{keys}/{name}", "nobody")

    def run(*command):
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for where, folders, files in os.walk(f"{keys}/tokens"):
            for name in [".", *folders, *files]:
                shutil.chown(os.path.join(where, name), "nobody")

    def on_token(*words):
        run("pkcs11-tool", "--module", MODULE, "--token-label", "byok", "--login", "--pin", "5678", *words)

    os.mkdir(f"{keys}/tokens", 0o700)
    write("softhsm2.conf", f"directories.tokendir = {keys}/tokens\nobjectstore.backend = file\nlog.level = ERROR\n")
    run("softhsm2-util", "--init-token", "--free", "--label", "byok", "--so-pin", "1234", "--pin", "5678")
    on_token("--keygen", "--key-type", "AES:32", "--label", "kek1", "--id", "01", "--sensitive")
    own = f"service = pkcs11\nmodule = {MODULE}\ntoken = byok\nkey = kek1\npin = pin\ncache = 1\n"
    write("ann.key", own)
    write("pin", "5678\n")
    name, got, a = f"{d.folder}/file", f"{d.folder}/got", ident()
    with open(name, "wb") as f:
        f.write(os.urandom(1 << 20))
    with d:
        c = d.client()
        c.upload("ann", a, name)
        assert c.call(KEY, "ann").wrapped_by.rstrip(b"\0") == b"pkcs11 kek1"
        c.upload("bob", ident(), name)  # by the default, a file
        on_token("--keygen", "--key-type", "AES:32", "--label", "kek2", "--id", "02", "--sensitive")
        write("ann.key", own.replace("kek1", "kek2"))
        assert c.call(KEY, "ann", flags=ROTATE).wrapped_by.rstrip(b"\0") == b"pkcs11 kek2"
        on_token("--delete-object", "--type", "secrkey", "--label", "kek1")
        d.kill()
        d.start()
        c = d.client()
        c.download("ann", a, got)
        same(name, got)
        d.kill()
        write("pin", "9999\n")
        d.start()
        c = d.client()
        e = fails(errno.EKEYREVOKED, c.download, "ann", a, f"{d.folder}/no")
        assert "PIN is wrong" in str(e), e
        c.call(GC)
        write("pin", "5678\n")
        c.download("ann", a, f"{d.folder}/again")
        same(name, f"{d.folder}/again")
        assert "5678" not in d.output()
        c.close()


if __name__ == "__main__":
    main(sys.argv[1])
