# SPDX-License-Identifier: Apache-2.0
"""What an instance holds outside of its tree: subvolumes, domains, channel directories, uids. Nothing of it may outlive what it belongs to."""

import contextlib
import os
import subprocess

from lib import config, qemus, rows, wait_until


def wanted_objects():
    """{"sandboxes/ID"} of everything that a row names and that is in the pool."""
    wanted = {f"templates/{i:012x}" for (i,) in rows("SELECT id FROM templates")}
    wanted |= {f"templates/{i:012x}" for (i,) in rows("SELECT id FROM heads")}
    wanted |= {f"snapshots/{i:012x}" for (i,) in rows("SELECT id FROM snapshots WHERE state NOT IN (4, 5)")}  # stored: in the object store only
    for pair in rows("SELECT object, next_object FROM sandboxes"):
        wanted |= {f"sandboxes/{i:012x}" for i in pair if i}
    return wanted


def failed_objects():
    """Of snapshots that failed: there or not, and gone with their row."""
    return {f"snapshots/{i:012x}" for (i,) in rows("SELECT id FROM snapshots WHERE state = 4")}


def objects():
    """{"sandboxes/ID"} of everything in the pool."""
    pool = config()["pool"]
    return {f"{kind}/{name}" for kind in ("templates", "snapshots", "sandboxes") for name in os.listdir(os.path.join(pool, kind))}


def domains():
    """{ID: state} of this instance's domains."""
    prefix = config()["vm_prefix"] + "-"
    out = subprocess.run(["virsh", "-q", "-c", "qemu:///system", "list", "--all"], check=True, capture_output=True, text=True, timeout=60).stdout
    fields = [line.split(None, 2) for line in out.splitlines() if line.strip()]
    return {f[1][len(prefix):]: f[2] for f in fields if f[1].startswith(prefix)}


def channels():
    """Ids that have a channel directory."""
    with contextlib.suppress(FileNotFoundError):
        return set(os.listdir(os.path.join(config()["run"], "vm")))
    return set()


def owned_disks():
    """Ids of sandboxes whose disk belongs to the uid of a QEMU."""
    pool = os.path.join(config()["pool"], "sandboxes")
    owned = set()
    for name in os.listdir(pool):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(os.path.join(pool, name, "disk.raw")).st_uid != 0:
                owned.add(name)
    return owned


def spools():
    """Ids of jobs that have a file of output."""
    return {name.split(".")[0] for name in os.listdir(os.path.join(config()["state"], "spool"))}


# Numbers of enum sandbox_state.
ALIVE = (2, 3)


def differences():
    """Sentences about what does not fit together; empty when all does. For a moment in which nothing is under way."""
    out = []
    states = {f"{o:012x}": s for o, s in rows("SELECT object, state FROM sandboxes")}
    alive = {o for o, s in states.items() if s in ALIVE}
    spare = set(domains()) - set(states)
    if len(spare) > int(config().get("pool_max", "32")):
        out.append(f"more machines of nobody than the pool may have: {sorted(spare)}")
    alive |= spare  # the pool's machines are in no row; they must be whole all the same
    transitional = {o: s for o, s in states.items() if s not in (2, 3, 5, 8, 11)}
    if transitional:
        out.append(f"sandboxes in transitional states {transitional}")
    for what, there, should in (("subvolumes", objects() - failed_objects(), wanted_objects() | {f"sandboxes/{o}" for o in spare}), ("domains", set(domains()), alive),
                                ("spools", spools(), {f"{i:012x}" for (i,) in rows("SELECT id FROM jobs WHERE sandbox IN (SELECT id FROM sandboxes)")}),
                                ("channel directories", channels(), alive), ("disks of a QEMU's uid", owned_disks(), alive)):
        if there - should:
            out.append(f"{what} of nothing: {sorted(there - should)}")
        if should - there:
            out.append(f"{what} missing: {sorted(should - there)}")
    there = list(qemus())
    if len(there) != len(alive):
        out.append(f"{len(there)} QEMUs for {len(alive)} live sandboxes")
    return out


def none(seconds=30):
    """Waits until all fits together: what was under way may still go on."""
    last = []

    def fits():
        last[:] = differences()
        return not last

    try:
        wait_until(fits, seconds, "pool, domains, channels and database agree")
    except AssertionError as e:
        raise AssertionError(f"{e}: {last}") from None
