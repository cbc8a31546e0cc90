#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-credd, confined as it is, with its key wrapped by a PKCS#11 token (SoftHSM): hsm.py SPACE_CREDD. As root."""
import os
import pathlib
import shutil
import subprocess
import sys

from client import SANDBOX, USER, Daemon, scope
from daemon import password

MODULE = "/usr/lib/softhsm/libsofthsm2.so"
BOX = 0xA1


def main(program):
    d = Daemon(program)
    env = {**os.environ, "SOFTHSM2_CONF": f"{d.keys}/softhsm2.conf"}

    def run(*command):
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for where, folders, files in os.walk(f"{d.keys}/tokens"):
            for name in [".", *folders, *files]:
                shutil.chown(os.path.join(where, name), USER)

    os.mkdir(f"{d.keys}/tokens", 0o700)
    d.write_key("softhsm2.conf", f"directories.tokendir = {d.keys}/tokens\nobjectstore.backend = file\nlog.level = ERROR\n")
    run("softhsm2-util", "--init-token", "--free", "--label", "creds", "--so-pin", "1234", "--pin", "5678")
    run("pkcs11-tool", "--module", MODULE, "--token-label", "creds", "--login", "--pin", "5678", "--keygen", "--key-type", "AES:32", "--label", "kek", "--id", "01", "--sensitive")
    d.write_key("pin", "5678\n")
    own = pathlib.Path(d.keys, "credentials.key").read_text()
    d.start()  # by a file first; then the token takes it over
    c = d.client()
    c.know(BOX, 1000)
    c.add(scope(SANDBOX, 1000, BOX), "before", "before.example", b"wrapped by a file")
    c.close()
    d.kill()
    d.write_key("credentials.key", f"{own}service = pkcs11\nmodule = {MODULE}\ntoken = creds\nkey = kek\npin = pin\n")
    with d:
        c = d.client()
        c.know(BOX, 1000)
        c.add(scope(SANDBOX, 1000, BOX), "a", "a.example", b"wrapped by a token")
        blob = pathlib.Path(d.state, "master").read_bytes()
        assert int.from_bytes(blob[48:52], "little") == 2, "the service in the blob"
        c.close()
        d.kill()
        d.start()
        c = d.client()
        c.know(BOX, 1000)
        assert password(c.login(BOX, "https://a.example")) == "wrapped by a token"
        c.close()
        d.kill()
        d.write_key("pin", "9999\n")
        d.start()
        assert "PIN" in d.ends()
        d.write_key("pin", "5678\n")
        os.rename(f"{d.keys}/tokens", f"{d.keys}/away")
        d.start()
        d.ends()
        os.rename(f"{d.keys}/away", f"{d.keys}/tokens")
        d.start()
        d.client().close()
        c = d.client()
        c.know(BOX, 1000)
        assert password(c.login(BOX, "https://before.example")) == "wrapped by a file"
        assert "5678" not in d.output()


if __name__ == "__main__":
    main(sys.argv[1])
