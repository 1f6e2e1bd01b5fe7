#!/usr/bin/env python3
"""Makes the table of perplexities in bench/results/codec.md from bench/results/perplexity.json.

usage: tables.py [--check]    --check: changes nothing, fails where the document is not up to date
"""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import ROOT, heading, line, with_section, write_or_check  # noqa: E402

RESULT = ROOT / "bench/results/perplexity.json"
DOCUMENT = ROOT / "bench/results/codec.md"
MAKER = "bench/perplexity/tables.py"
SITES = ("o_proj", "down_proj")


def table(result):
    found = {}
    for row in result["rows"]:
        found.setdefault(row["codec"], {})[tuple(row["sites"])] = row
    at = lambda by_sites, site: f"{by_sites[(site,)]['perplexity']:.3f}" if (site,) in by_sites else "-"
    lines = heading(["codec", "at both", "more, %", "at `o_proj` only", "at `down_proj` only"])
    lines.append(line(["exact", f"{result['exact']:.3f}", "", "", ""]))
    for codec, by_sites in found.items():
        both = by_sites[SITES]
        ratio = math.exp(both["nats_more"])
        more = f"{100 * (ratio - 1):+.2f} ± {100 * ratio * both['standard_error']:.2f}"
        lines.append(line([f"`{codec}`", f"{both['perplexity']:.3f}", more] + [at(by_sites, site) for site in SITES]))
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    document = with_section(DOCUMENT.read_text(), MAKER, table(json.loads(RESULT.read_text())))
    write_or_check({DOCUMENT: document}, sys.argv[1:] == ["--check"], MAKER)


if __name__ == "__main__":
    main()
