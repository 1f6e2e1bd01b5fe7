#!/usr/bin/env python3
"""Compares what plans launch through two versions of the library, node by node.

usage: compare_launches.py OLD NEW [--out FILE]     OLD and NEW: folders that the program `launches` wrote

Exits 1 where a plan's graph differs, or one version has no record of it.
"""

import argparse
import datetime
import json
import re
import sys
from pathlib import Path

# What a compiler makes up for names without a namespace, from the file's contents.
MADE_UP = re.compile(r"(_GLOBAL__N__\w+|\(anonymous namespace\)|_INTERNAL_\w+)::")


def nodes_of(path):
    return [MADE_UP.sub("", line) for line in path.read_text().splitlines()]


def difference(old, new):
    """The first node that differs; None where all are alike."""
    for number, (was, now) in enumerate(zip(old, new)):
        if was != now:
            return f"node {number}: was '{was}', is '{now}'"
    if len(old) != len(new):
        return f"{len(old)} nodes before, {len(new)} now"
    return None


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = sorted({path.name for folder in (arguments.old, arguments.new) for path in folder.glob("*.rank*")})
    if not names:
        raise SystemExit(f"{arguments.old} and {arguments.new} hold no records")
    rows, differing = [], 0
    for name in names:
        old, new = (nodes_of(folder / name) if (folder / name).exists() else ["no record"]
                    for folder in (arguments.old, arguments.new))
        found = difference(old, new)
        differing += found is not None
        refused = old[0].startswith("refused")
        rows.append({"record": name, "nodes": 0 if refused else len(old), "difference": found})
        print(f"{name}: {found or ('refused by both' if refused else f'{len(old)} nodes, alike')}")
    print(f"{len(names)} records, {differing} differ")
    if arguments.out:
        result = {"date": datetime.date.today().isoformat(), "records": len(names), "differing": differing, "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
