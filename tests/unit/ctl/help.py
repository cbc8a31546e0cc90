#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command of spacectl has --help and a place in the manual: help.py SPACECTL SOURCE_ROOT"""
import pathlib
import re
import subprocess
import sys


def main(spacectl, root):
    def said(*args):
        done = subprocess.run([spacectl, *args], capture_output=True, text=True, env={"SPACE": "/nonexistent"})
        return done.stdout if done.returncode == 0 else ""

    manual = (root / "docs/man/spacectl.1").read_text()
    commands = [line[2:18].strip() for line in said("--help").splitlines() if re.match(r"  [a-z]", line)]
    wrong = []
    for command in commands:
        text = said(*command.split(), "--help")
        if not text.startswith(f"usage: spacectl {command}"):
            wrong.append(f"spacectl {command} --help says {text!r}")
        if command not in manual:
            wrong.append(f"docs/man/spacectl.1 does not name {command}")
        for option in set(re.findall(r"-(-[a-z-]+)", text)) - {"--help", "--space"}:
            if not re.search(rf"Fl (\w \| )?{option}\b", manual):
                wrong.append(f"docs/man/spacectl.1 does not name -{option} of {command}")
    print("\n".join(wrong) if wrong else f"{len(commands)} commands")
    return 1 if wrong or len(commands) < 30 else 0


sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2])))
