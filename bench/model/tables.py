#!/usr/bin/env python3
"""Makes the tables of layers in bench/results/model.md from what measure.py has written to bench/results/model-*.json.

usage: tables.py [--check]    --check: changes nothing, fails where the document is not up to date
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import ROOT, heading, line, with_section, write_or_check  # noqa: E402

DOCUMENT = ROOT / "bench/results/model.md"
MAKER = "bench/model/tables.py"


def number(numbers, key, scale=1.0):
    return f"{numbers[key] / scale:.1f}" if numbers.get(key) is not None else ""


def layers(result):
    """A line for each pass and way."""
    lines = heading(["layer", "way", "us", "host us", "graph nodes", "MB a call", "MB outside torch", "one rank alone, us", "4xh200, predicted, us"])
    for row in result["rows"]:
        what = f"{row['model']}, {row['pass']}" + (f" of {row['tokens']}" if "tokens" in row else "")
        predicted = row.get("predicted", {})
        of = {"functional collectives": "cuBLAS, then the collective", "Imbrex": "Imbrex"}
        for way, n in row["ways"].items():
            told = [number(n, *key) for key in (("us",), ("host_us",), ("graph_nodes",), ("peak_bytes", 1e6), ("outside_bytes", 1e6), ("solo_us",))]
            lines.append(line([what, way, *told, number(predicted, of.get(way))]))
    return lines


def checks(result):
    """What was checked against the whole model: logits, and the loss of a training."""
    lines = heading(["model", "logits of", "error", "largest difference"])
    for model, found in result["checks"].items():
        for way, n in found["logits"].items():
            lines.append(line([model, way, *(("failed", "") if "error" not in n else (f"{n['error']:.2e}", f"{n['largest']:.2e}"))]))
    for model, found in result["checks"].items():
        t = found.get("training", {})
        if "failed" in t:
            lines += ["", f"The training of {model} failed: {t['failed']}"]
        elif t:
            lines += ["", f"The training of {model}: the loss goes from {t['first']:.4f} to {t['whole']:.4f} in the whole model and to "
                      f"{t['Imbrex']:.4f} with Imbrex, at most {100 * t['distance']:.3f} % apart in any step; "
                      f"two runs {'have' if t['same bits'] else 'do not have'} the same bits."]
    return lines


def table(result):
    s = result["sizes"]
    told = (f"{result['machine']}; {s['layers']} layers, sequences of {s['sequence']}, prefill of {s['batch']}. Times a layer; those of ranks that "
            "share a GPU say nothing of links.")
    return "\n".join([told, "", *layers(result), "", f"Models smaller by {s['check_scale']} against the whole one in fp32:", "", *checks(result)]) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    results = [json.loads(path.read_text()) for path in sorted((ROOT / "bench/results").glob("model-*.json"))]
    document = with_section(DOCUMENT.read_text(), MAKER, "\n".join(map(table, results)))
    write_or_check({DOCUMENT: document}, sys.argv[1:] == ["--check"], MAKER)


if __name__ == "__main__":
    main()
