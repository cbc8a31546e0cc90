# SPDX-License-Identifier: Apache-2.0
"""How tests/bench measures: times through the mount, rows of the table."""

import os
import time

SPACE, RUN = os.environ["SPACE"], os.environ["RUN"]
MIB = 1 << 20
BULK = 64 * MIB
rows = []


def note(name, samples, unit, scale=1.0, **extra):
    """Median and 90th percentile of `samples` (seconds, or rates)."""
    s = sorted(x * scale for x in samples)
    row = {"name": name, "unit": unit, "n": len(s), "p50": s[len(s) // 2], "p90": s[min(len(s) - 1, int(len(s) * 0.9))], **extra}
    rows.append(row)
    print(f"  {name:<58} {row['p50']:>10.1f} {row['p90']:>10.1f} {unit:<6} n={row['n']}", flush=True)
    return row["p50"]


def timed(fn, n):
    out = []
    for i in range(n):
        begin = time.perf_counter()
        fn(i)
        out.append(time.perf_counter() - begin)
    return out


def read(path):
    with open(f"{SPACE}/{path}", "rb", buffering=0) as f:
        return f.read()


def write(path, data):
    with open(f"{SPACE}/{path}", "wb", buffering=0) as f:
        f.write(data)


def job(box, name, command):
    os.mkdir(f"{SPACE}/proc/{box}/{name}")
    write(f"proc/{box}/{name}/cmd", command.encode())
    status = read(f"proc/{box}/{name}/wait").decode().strip()
    os.rmdir(f"{SPACE}/proc/{box}/{name}")
    assert status == "exit 0", status


def ratio(name, value):
    rows.append({"name": name, "value": value})
    print(f"  {name:<58} {value:>10.2f}", flush=True)
