#!/usr/bin/env python3
"""Makes the tables and the plots of bench/results/all-reduce.md from bench/results/all-reduce-4xh200.json and,
without plots, all-reduce-2xh200.json.

usage: all_reduce_tables.py [--check]    --check: changes nothing, fails where the document or a plot is not up to date
       all_reduce_tables.py --merge OUT.json BENCH.json [PEERS.json]    joins what all_reduce_bench --json and
                                         bench/peers_all_reduce.py wrote
       all_reduce_tables.py --rms-norm OUT.json BENCH.json    puts what all_reduce_bench --rms-norm --json wrote into OUT
"""

import json
import math
import sys
from pathlib import Path

from report import ROOT, Plot, geometric_mean, heading, line, with_section, write_or_check, write_rows

RESULT = ROOT / "bench/results/all-reduce-4xh200.json"
ON_TWO = ROOT / "bench/results/all-reduce-2xh200.json"
DOCUMENT = ROOT / "bench/results/all-reduce.md"
MAKER = "bench/all_reduce_tables.py"
# Codecs in the order of the tables; Flash Communication's pair is flash6.
CODECS = {"int8": "#1b6ca8", "int8-g128": "#5dade2", "fp8-g128": "#8e5ea2", "int6": "#27864a", "flash6": "#d08000",
          "int4-g128+int8-g128": "#b7950b", "int4": "#c0392b", "flash4": "#e67e22", "int4-g128": "#ec7063"}
EXACT_COLOUR, TORCH_COLOUR = "#333333", "#e67e22"


def size_text(num_bytes):
    for unit, text in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if num_bytes >= 1 << unit:
            return f"{num_bytes / (1 << unit):g} {text}"
    return f"{num_bytes} B"


def joined(bench, peers):
    """What all_reduce_bench wrote, with the rows that were measured in turns with torch."""
    result = dict(bench)
    if peers:
        result["peers"] = peers["rows"]
        result["versions"] = {**bench["versions"], **peers["versions"]}
    return result


def exact_rows(result):
    """Beside NCCL and, where they were measured in turns, torch's kernels: the best of NCCL's two times counts."""
    for row in result.get("peers") or result["rows"]:
        us, torch = row["microseconds"], row.get("torch", {})
        if "auto" not in us or ("nccl" not in us and "nccl" not in torch):
            continue
        nccl = min(times["nccl"] for times in (us, torch) if "nccl" in times)
        kernels = {name: time for name, time in torch.items() if name != "nccl"}
        fastest = min(kernels.items(), key=lambda item: item[1]) if kernels else None
        best = min(nccl, fastest[1]) if fastest else nccl
        yield {"bytes": row["bytes"], "us": us["auto"], "nccl": nccl, "torch": fastest, "over_nccl": nccl / us["auto"], "over_best": best / us["auto"]}


def exact_table(result):
    rows = list(exact_rows(result))
    torch = any(r["torch"] for r in rows)
    lines = heading(["bytes", "Imbrex us", "NCCL us"] + ["torch us"] * torch + ["over NCCL"] + ["over the best of both"] * torch)
    for r in rows:
        fastest = f"{r['torch'][1]:.2f} ({r['torch'][0]})" if r["torch"] else "-"
        lines.append(line([size_text(r["bytes"]), f"{r['us']:.2f}", f"{r['nccl']:.2f}"] + [fastest] * torch + [f"{r['over_nccl']:.2f}"]
                          + [f"{r['over_best']:.2f}"] * torch))
    means = ["geometric mean", "", ""] + [""] * torch + [f"{geometric_mean(r['over_nccl'] for r in rows):.2f}"]
    lines.append(line(means + [f"{geometric_mean(r['over_best'] for r in rows):.2f}"] * torch))
    return lines


def quantized_rows(result):
    return [row for row in result["rows"] if any(codec in row["microseconds"] for codec in CODECS) and "nccl" in row["microseconds"]]


def quantized_table(result):
    rows = quantized_rows(result)
    names = [codec for codec in CODECS if any(codec in row["microseconds"] for row in rows)]
    lines = heading(["bytes", "NCCL us", "exact us"] + [f"`{codec}` us" for codec in names])
    for row in rows:
        us = row["microseconds"]
        cell = lambda name: f"{us[name]:.1f} ({us['nccl'] / us[name]:.2f})" if name in us else "-"
        lines.append(line([size_text(row["bytes"]), f"{us['nccl']:.1f}"] + [cell(name) for name in ["auto"] + names]))
    return lines


def ring_table(result):
    lines = heading(["bytes", "codec", "algorithm", "quantized", "largest error", "bound", "SQNR dB", "us"])
    for row in result["rows"]:
        for name, e in sorted(row.get("errors", {}).items()):
            codec, ring = name.removesuffix(" ring"), name.endswith(" ring")
            if f"{codec} ring" in row["errors"]:
                lines.append(line([size_text(row["bytes"]), f"`{codec}`", "ring" if ring else "two-shot", f"{e['conversions']} times",
                                   f"{e['largest_error']:.3f}", f"{e['bound']:.3f}", f"{e['sqnr_db']:.1f}", f"{row['microseconds'][name]:.1f}"]))
    return lines


def counts_of(row):
    """Numbers of CTAs, as the result has them, in order."""
    return sorted({count for times in row["microseconds"].values() for count in times}, key=int)


def ctas_table(result):
    lines = []
    for row in result["ctas"]:
        counts = counts_of(row)
        lines += ["", f"{size_text(row['bytes'])}, us:", ""] + heading(["CTAs"] + counts)
        for name, times in row["microseconds"].items():
            lines.append(line([name if name == "exact" else f"`{name}`"] + [f"{times[count]:.1f}" if count in times else "-" for count in counts]))
    return lines[1:]


def rms_norm_table(result):
    names = ["fused", "all-reduce, then kernel", "nccl, then kernel"]
    lines = heading(["rows", "bytes"] + ["fused us", "Imbrex, then a kernel us", "NCCL, then a kernel us"])
    for row in result["rms_norm"]:
        us = row["microseconds"]
        cell = lambda name: "-" if name not in us else f"{us[name]:.2f}" if name == "fused" else f"{us[name]:.2f} ({us[name] / us['fused']:.2f})"
        if "fused" in us:
            lines.append(line([str(row["rows"]), size_text(row["bytes"])] + [cell(name) for name in names]))
    return lines


def places(rows):
    """Places of the sizes on an x axis from 0 to 1."""
    low, high = (math.log2(extreme(row["bytes"] for row in rows)) for extreme in (min, max))
    return {row["bytes"]: (math.log2(row["bytes"]) - low) / max(high - low, 1) for row in rows}


def size_ticks(plot, place):
    for i, (num_bytes, x) in enumerate(place.items()):
        if i % 2 == 0 or len(place) < 12:
            plot.tick(x, size_text(num_bytes))


def ceiling(values, step):
    return (math.floor(max(values) / step) + 1) * step


def curve(plot, points, colour, label, dashed=False):
    for point in points:
        plot.dot(*point, colour)
    plot.line(points, colour, label, dashed)


def exact_plot(result):
    rows = list(exact_rows(result))
    place = places(rows)
    curves = [("Imbrex", EXACT_COLOUR, [(place[r["bytes"]], r["over_nccl"]) for r in rows])]
    torch = [(place[r["bytes"]], r["nccl"] / r["torch"][1]) for r in rows if r["torch"]]
    curves += [("torch, the best of two", TORCH_COLOUR, torch)] if torch else []
    out = Plot("Exact all-reduces of bf16: how many times as fast as NCCL, 4 H200s", ceiling([y for _, _, points in curves for _, y in points], 0.5), 0.5,
               "bytes of each rank's vector", "times as fast as NCCL")
    size_ticks(out, place)
    out.level(1, "NCCL: 1")
    for label, colour, points in curves:
        curve(out, points, colour, label)
    return out.svg()


def quantized_plot(result):
    rows = quantized_rows(result)
    place = places(rows)
    ratio = lambda row, name: row["microseconds"]["nccl"] / row["microseconds"][name]
    curves = [(name, colour, [(place[row["bytes"]], ratio(row, name)) for row in rows if name in row["microseconds"]])
              for name, colour in {"auto": EXACT_COLOUR, **CODECS}.items()]
    curves = [c for c in curves if c[2]]
    out = Plot("All-reduces through codecs: how many times as fast as NCCL's of bf16, 4 H200s",
               ceiling([y for _, _, points in curves for _, y in points], 0.5), 0.5, "bytes of each rank's vector", "times as fast as NCCL")
    size_ticks(out, place)
    out.level(1, "NCCL, exact: 1")
    for name, colour, points in curves:
        curve(out, points, colour, "exact" if name == "auto" else name)
    return out.svg()


def ctas_plot(result):
    """A picture of the largest size."""
    row = max(result["ctas"], key=lambda r: r["bytes"])
    most = ceiling([t for times in row["microseconds"].values() for t in times.values()], 100)
    out = Plot(f"{size_text(row['bytes'])}: microseconds over the number of CTAs, 4 H200s", most, max(100, most // 1000 * 100),
               "CTAs of the kernel", "microseconds", "{:.0f}")
    counts = counts_of(row)
    place = {count: int(count) / int(counts[-1]) for count in counts}
    for count in counts:
        out.tick(place[count], count)
    for name, times in row["microseconds"].items():
        curve(out, [(place[count], times[count]) for count in counts if count in times], CODECS.get(name, EXACT_COLOUR), name)
    return out.svg()


def sections(result):
    """name -> (lines of the table, plot or None), of what was measured."""
    found = {"exact": (exact_table(result), exact_plot(result))}
    if quantized_rows(result):
        found["quantized"] = (quantized_table(result), quantized_plot(result))
    if any("errors" in row for row in result["rows"]):
        found["ring"] = (ring_table(result), None)
    if result.get("ctas"):
        found["ctas"] = (ctas_table(result), ctas_plot(result))
    if result.get("rms_norm"):
        found["rms_norm"] = (rms_norm_table(result), None)
    return found


CAPTIONS = {"exact": "Exact all-reduces over NCCL", "quantized": "All-reduces through codecs over NCCL", "ctas": "Time over the number of CTAs"}


def machine(result):
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"{result['machine']}, {result['date']}; {versions}; {result['type']}; NVLink multicast off.\n"


def wanted(result, on_two, document):
    """path -> text."""
    files = {}
    document = with_section(document, f"{MAKER} machine", machine(result))
    for name, (table, plot) in sections(result).items():
        lines = list(table)
        if plot:
            path = DOCUMENT.parent / f"all-reduce-{name}-4xh200.svg"
            files[path] = plot
            lines = [f"![{CAPTIONS[name]}]({path.name})", ""] + lines
        document = with_section(document, f"{MAKER} {name}", "\n".join(lines) + "\n")
    document = with_section(document, f"{MAKER} machine 2xh200", machine(on_two))
    for name, table in (("exact", exact_table(on_two)), ("quantized", quantized_table(on_two))):
        document = with_section(document, f"{MAKER} {name} 2xh200", "\n".join(table) + "\n")
    return {DOCUMENT: document, **files}


def main():
    if sys.argv[1:2] == ["--merge"] and len(sys.argv) in (4, 5):
        parts = [json.loads(Path(path).read_text()) for path in sys.argv[3:]]
        return write_rows(sys.argv[2], joined(parts[0], parts[1] if len(parts) > 1 else None))
    if sys.argv[1:2] == ["--rms-norm"] and len(sys.argv) == 4:
        result, bench = (json.loads(Path(path).read_text()) for path in sys.argv[2:])
        return write_rows(sys.argv[2], {**result, "rms_norm": bench["rms_norm"]})
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    for path in (RESULT, ON_TWO):
        if not path.exists():
            sys.exit(f"{path.relative_to(ROOT)} does not exist; bench/results/all-reduce.md tells how to make it")
    write_or_check(wanted(json.loads(RESULT.read_text()), json.loads(ON_TWO.read_text()), DOCUMENT.read_text()), sys.argv[1:] == ["--check"], MAKER)


if __name__ == "__main__":
    main()
