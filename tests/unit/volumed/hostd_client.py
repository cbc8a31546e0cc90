#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-hostd's client while space-volumed is killed again and again: hostd_client.py HOSTD_CLIENT SPACE_VOLUMED. As root."""
import os
import random
import subprocess
import sys
import time

from client import Daemon

MIB = 1 << 20
COUNT = 4


def main(program, volumed):
    with Daemon(volumed) as d:
        path = f"{d.folder}/file"
        with open(path, "wb") as f:
            f.write(os.urandom(24 * MIB))
            f.truncate(40 * MIB)
        test = subprocess.Popen([program, f"{d.folder}/run", path, str(COUNT)], stdout=subprocess.PIPE, text=True)
        kills, end = 0, time.monotonic() + 60
        rng = random.Random(1)
        while test.poll() is None and kills < 12:
            time.sleep(0.1 + rng.random() * 0.4)
            d.kill()
            d.start()
            kills += 1
            d.client().close()
        text, _ = test.communicate(timeout=max(1, end - time.monotonic()))
        print(text + f"{kills} kills")
        assert test.returncode == 0 and text.count(": done") >= 2 * COUNT + 1, test.returncode


if __name__ == "__main__":
    main(*sys.argv[1:])
