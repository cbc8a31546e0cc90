#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the tables of docs/tree.md with the code: compare.py SOURCE_ROOT STATES_PROGRAM

A table to compare follows a line "*checked: NAME*". Attributes come from the tables in hostd/tree/attrs.c, states, moves and verbs from
the program, which is linked with hostd/lifecycle/state.c.
"""
import pathlib
import re
import subprocess
import sys

TABLES = {
    "/": "root",
    "templates/NAME/": "template",
    "sandboxes/NAME/": "sandbox",
    "snapshots/NAME/SNAP/": "snapshot",
    "proc/NAME/JOB/": "job",
    "credentials/SCOPE/NAME/": "credential",
    "nodes/NODE/": "node",
}


def doc_tables(text):
    """{NAME: rows of cells, the header first}"""
    found = {}
    for name, table in re.findall(r"^\*checked: (.+)\*\n\n((?:\|.*\n)+)", text, re.M):
        rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
        found[name] = [rows[0]] + rows[2:]
    return found


def code_attributes(source, table):
    body = re.search(r"const struct attr %s_attrs\[\] = \{\n(.*?)\n\};" % table, source, re.S).group(1)
    return re.findall(r'^    \{"([^"]+)", (0[0-7]+),', body, re.M)


def code_states(program):
    """The states in order, the set of moves, and {verb: {state: answer}}."""
    states, moves, verbs = [], set(), {}
    for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        kind, *words = line.split()
        if kind == "state":
            states.append(words[0])
        elif kind == "move":
            moves.add(tuple(words))
        else:
            verbs.setdefault(words[0], {})[words[1]] = words[2]
    return states, moves, verbs


class Report:
    def __init__(self):
        self.wrong = self.compared = 0

    def same(self, what, doc, code):
        self.compared += len(code)
        if doc == code and code:
            return
        self.wrong += 1
        print(f"{what} differ:\n  docs/tree.md: {doc}\n  the code:     {code}")


def listed(cell):
    return [word.strip() for word in cell.split(",") if word.strip()]


def absent_paths(text):
    section = text.split("## Not there yet", 1)[1]
    return [path for row in re.findall(r"^\|([^|]*)\|", section, re.M) for path in re.findall(r"`([a-zA-Z]+(?:/[^` ]*)?)`", row)]


def main(root, program):
    text = (root / "docs/tree.md").read_text()
    source = "".join((root / "hostd/tree" / name).read_text() for name in ("attrs.c", "credentials.c"))
    tables, report = doc_tables(text), Report()
    there = set()
    for directory, table in TABLES.items():
        rows = tables["attributes of " + directory][1:]
        code = code_attributes(source, table)
        report.same("attributes of " + directory, [(r[0].strip("`"), r[1]) for r in rows], code)
        there.update(directory.lstrip("/") + name for name, _ in code)
    states, moves, verbs = code_states(program)
    report.same("states", [r[0] for r in tables["states"][1:]], states)
    report.same("moves", sorted((r[0], to) for r in tables["allowed moves"][1:] for to in listed(r[1])), sorted(moves))
    report.same("states of moves", [r[0] for r in tables["allowed moves"][1:]], states)
    header, *rows = tables["verbs"]
    report.same("verbs", {r[0]: dict(zip(header[1:], r[1:])) for r in rows}, verbs)
    nodes = (root / "hostd/tree/nodes.c").read_text()
    there.update(name + "/" for name in re.findall(r'\{"([a-z]+)", NODE_[A-Z]+\}', nodes))
    there.update(states, verbs)
    absent = absent_paths(text)
    report.same("absent paths that exist", sorted(there.intersection(absent)) or ["none"], ["none"])
    report.same("number of absent paths", len(absent) >= 4 and ["enough"], ["enough"])
    print(f"{report.compared} entries compared, {report.wrong} tables differ")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2]))
