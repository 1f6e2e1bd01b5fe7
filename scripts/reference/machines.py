"""The page of machine files, made from the reader's table of keys (src/machine/fields.hpp), the comments of imbrex/machine.hpp and
the files in machines/."""

import json
import re

FIELD = re.compile(r'\{"(\w+)", "(\w+)", "([^"]+)", Rule::(\w+), &Machine::(\w+)\}')
LEVEL = re.compile(r'\{"(\w+)", "([^"]+)", Rule::(\w+), &Level::(\w+)\}')
CURVE = re.compile(r'\{"(\w+)", &Machine::(\w+)\}')
MEMBER = re.compile(r"^\s+[\w:]+(?:<[^>]*>)? (\w+);\s*///< (.*(?:\n\s*///< .*)*)", re.M)
SOURCES = {
    "measured": "read off a measurement that `from` names",
    "published": "from a data sheet or paper",
    "derived": "computed from other figures, as `from` says",
    "fitted": "chosen so that the simulator reproduces measured times",
    "unverified": "an estimate; do not quote it",
}
RULES = {"rate": "at least 1", "time": "0 to 1e6", "ratio": "above 0, at most 1", "count": "whole, 1 to 65536",
         "tally": "whole, 0 to 65536", "size": "at least 0"}
INTRO = """# Machine files

A machine file holds the constants by which plans are chosen and simulated. It describes one device, how devices are joined, and
what a library's collectives cost. `machines/` holds the files that come with Imbrex. [In C++](cpp/plans.md#machine) the same is a
`Machine`; [the simulator's model](../dev/simulator-model.md) says what each constant does.

    imbrex machine 4xh200 --name fast-links --set links.egress_bandwidth=9e11 --set links.ingress_bandwidth=9e11 --out fast-links.json

This prints or writes a machine file, perhaps with changed constants. A name (`4xh200`) is looked up as `NAME.json` in the
caller's folders, then in the folders that came with the library. An argument with a `/` or ending in `.json` is a path.

## Every constant says how it is known

    "sms": {"value": 132, "unit": "count", "source": "published", "from": "NVIDIA H200 data sheet"}

"""
KEYS = """
The key fixes the unit; the file repeats it, so that it can be read alone. Values are in SI units.

## Keys

A key that is unknown, repeated, missing, or has a wrong type, unit or value is an error that names the place. "may" marks keys
that may be left out.

| place | unit | rule | meaning |
|---|---|---|---|
| `format` | | `imbrex-machine-1` | |
| `name`, `about` | | one line | the name, as of the file; the parts and how they are joined |
| `devices` | | whole, 1 to 65536 | most ranks |
| `gpus` | | may | names of GPUs, as the driver gives them: plans for these are chosen by this machine |
| `tuned_like` | | may | name of another GPU, which computes and sends as fast: its tuning entries serve where these GPUs have none |
"""
CURVES = """
A curve is a list of points: bytes, and seconds of the whole call, launch included. Bytes are those that each rank puts on the
wire: (R-1)/R of the gathered, scattered or exchanged matrix, and twice that for `all_reduce`. Bytes increase, seconds do not
decrease. Between points the logarithms are interpolated; below the first point its time holds, above the last its rate.

`--set` changes the curves that were measured with a constant. The bandwidth of `links` scales each collective's time beyond its
first point; `links.latency` adds its change once for each step: R - 1 in a ring, twice as many in an all-reduce.
`compute.memory_bandwidth` scales the rows' curves. Such a curve is `unverified`, its `from` begins with "scaled with", and
`simulate` and `plan` say so. A file that is edited by hand keeps its curves: change them, too.

## Machines that come with Imbrex

| file | machine | constants by source |
|---|---|---|
"""


def table_of(source, name):
    """The text of one array in fields.hpp."""
    return re.search(rf"\b{name}\{{\s*\{{(.*?)\}}\s*\}};", source, re.S).group(1)


def meanings(header):
    return {name: " ".join(re.sub(r"\s*///< ", " ", text).split()) for name, text in MEMBER.findall(header)}


def plain(meaning, unit):
    """The meaning without the unit in front, which has a column of its own."""
    return re.sub(rf"^{re.escape(unit)}[,;]? *(?:of (?=operands))?", "", meaning)


def sources_of(node):
    if isinstance(node, dict):
        own = [node["source"]] if "source" in node else []
        return own + [one for value in node.values() for one in sources_of(value)]
    return [one for value in node for one in sources_of(value)] if isinstance(node, list) else []


def machine_page(root):
    source = (root / "src/machine/fields.hpp").read_text(encoding="utf-8")
    header = (root / "include/imbrex/machine.hpp").read_text(encoding="utf-8")
    known = re.search(r"enum class Provenance[^{]*\{([^}]*)\}", header).group(1)
    if [one.strip() for one in known.split(",")] != list(SOURCES):
        raise SystemExit("docs: SOURCES in scripts/reference/machines.py does not name the values of Provenance")
    if set(re.findall(r"^  (\w+),? +///<", re.search(r"enum class Rule[^{]*\{(.*?)\};", source, re.S).group(1), re.M)) != set(RULES):
        raise SystemExit("docs: RULES in scripts/reference/machines.py does not name the values of Rule")
    told = meanings(header)
    lines = [f"| `{name}` | {what} |" for name, what in SOURCES.items()]
    text = INTRO + "| source | meaning |\n|---|---|\n" + "\n".join(lines) + "\n" + KEYS

    def row(place, unit, rule, meaning):
        return f"| `{place}` | {unit} | {rule} | {meaning} |\n"

    def fields(name):
        return FIELD.findall(re.sub(r"\s+", " ", table_of(source, name)) + "}")

    levels = meanings(re.search(r"struct Level \{(.*?)\n\};", header, re.S).group(1))
    sections = {}
    for section, key, unit, rule, member in fields("fields"):
        sections.setdefault(section, []).append(row(f"{section}.{key}", unit, RULES[rule], plain(told[member], unit)))
    sections["compute"].append(row("compute.sm_rate.TYPE", "flop/s", RULES["rate"], plain(told["sm_rate"], "flop/s")
                                   + "; `bf16`, `fp16`, `fp32`, `e4m3`: at least one"))
    sections["compute"].append(row("compute.tiles[]", "", "", "`tile_m`, `tile_n`, and for each: `efficiency` (" + told["efficiency"]
                                   + "), `prologue` (" + told["prologue"] + "), `epilogue` (" + told["epilogue"]
                                   + "); may: `sustained` (" + told["sustained"] + ")"))
    for key, member in CURVE.findall(table_of(source, "row_curves") + "}"):
        sections["compute"].append(row(f"compute.{key}", "[bytes, s]", "may", told[member]))
    for key, _ in CURVE.findall(table_of(source, "curves") + "}"):
        sections["collectives"].append(row(f"collectives.{key}", "[bytes, s]", "", "curve of the library's " + key.replace("_", "-")
                                           + (", also of a send_receive" if key == "all_to_all" else "")))
    own = {"own_one_step": "curve of Imbrex' own all-gather, reduce-scatter, all-to-all and one-shot all-reduce; left out: as the library's",
           "own_two_steps": "the same of the two-shot all-reduce",
           "own_coded": "curve of Imbrex' own all-reduce through a codec, by the bytes of codes; left out: as `own_two_steps`"}
    for key, _ in CURVE.findall(table_of(source, "own_curves") + "}"):
        sections["collectives"].append(row(f"collectives.{key}", "[bytes, s]", "may", own[key]))
    for section, rows in sections.items():
        text += "".join(rows)
        for where, key, unit, rule, member in fields("optional_fields"):
            if where == section:
                text += row(f"{section}.{key}", unit, RULES[rule] + "; may", plain(told[member], unit))
        if section == "links":
            for key, unit, rule, member in LEVEL.findall(re.sub(r"\s+", " ", table_of(source, "level_fields")) + "}"):
                text += row(f"levels[].{key}", unit, RULES[rule] + "; `levels` may", plain(levels[member], unit))
            for _, key, unit, rule, member in fields("host_fields"):
                text += row(f"hosts.{key}", unit, RULES[rule] + "; all of `hosts` may", plain(told[member], unit))
    text += CURVES
    for path in sorted((root / "machines").glob("*.json")):
        machine = json.loads(path.read_text(encoding="utf-8"))
        counts = {name: sources_of(machine).count(name) for name in SOURCES}
        text += f"| `{path.stem}` | {machine['about']} | {', '.join(f'{n} {name}' for name, n in counts.items() if n)} |\n"
    return text + "\nOnly `4xh200` and `4xh100` were compared with [measured times](../dev/simulator-model.md#how-good-it-is).\n"


def pages(root):
    return {"machine-files.md": machine_page(root)}
