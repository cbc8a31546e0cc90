#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The systemd units grant what the daemons need to confine themselves: units.py SOURCE_ROOT

Debian 12's @system-service holds no Landlock, and a capability that is missing shows only when the first machine starts.
"""
import pathlib
import re
import sys

CONFINE = {"seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}
# What a memory helper calls once it is forked: chroot, a higher priority, another user.
HELPER = {"CAP_SYS_CHROOT", "CAP_SYS_NICE", "CAP_SETUID", "CAP_SETGID", "CAP_SYS_PTRACE"}


def values(unit, key):
    return [v for line in re.findall(rf"^{key}=(.*)$", unit, re.M) for v in line.split()]


def main(root):
    wrong = []
    units = {p.name: p.read_text() for p in sorted((root / "ctl/systemd").glob("*.service"))}
    for name, unit in units.items():
        allowed = values(unit, "SystemCallFilter")
        if allowed and not CONFINE <= set(allowed):
            wrong.append(f"{name}: SystemCallFilter lacks {' '.join(sorted(CONFINE - set(allowed)))}")
        folder = root / "hostd" / name.removeprefix("space-").removesuffix(".service")
        if values(unit, "RestrictSUIDSGID") == ["yes"] and any("SYS_openat2" in p.read_text() for p in folder.rglob("*.c")):
            wrong.append(f"{name}: RestrictSUIDSGID takes openat2 away")
    source = (root / "hostd/noded/isolate.c").read_text()
    kept = set(re.findall(r"CAP_\w+", re.search(r"kept\[\] = \{(.*?)\}", source, re.S).group(1)))
    missing = (kept | HELPER | {"CAP_SETPCAP"}) - set(values(units["space-noded.service"], "CapabilityBoundingSet"))
    if missing:
        wrong.append(f"space-noded.service: CapabilityBoundingSet lacks {' '.join(sorted(missing))}")
    print("\n".join(wrong) if wrong else f"{len(units)} units")
    return 1 if wrong or len(units) < 5 else 0


sys.exit(main(pathlib.Path(sys.argv[1])))
