"""FlashOverlap (Hong et al., 2025): what is simulated and what was measured here, beside what its authors measured."""

import json
import statistics

from common import PAGES, each, heading, line, percent, published
from report import ROOT, Plot

NAME = "flashoverlap"
MEASURED = ROOT / "bench/results/signaled/predictor-1xh100.json"
THEORY = ROOT / "bench/results/signaled-theory.json"
RANKS = 4
# Fifty shapes on RTX 4090, as many as the paper has; which ones it has is not told. K is of each rank's product.
SHAPES = [(m, 8192, k) for m in (2048, 3072, 4096, 6144, 8192) for k in (2048, 3072, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 16384)]
TILE = (128, 256)


def shape_row(program, m, n, k):
    """The searched groups, and one row of tiles of each rank a group: with these sizes a wave on 128 SMs, one of them
    too small where some are kept free."""
    problem = {"operator": "gemm_reduce_scatter", "m": m, "n": n, "k": k * RANKS, "ranks": RANKS, "type": "fp16", "strategy": "signaled"}
    file = program.machine("rtx4090-4")
    groups = ",".join(["1"] * (m // RANKS // TILE[0]))
    single = program.seconds(file, **problem, groups=groups, kept_free=2, tile_m=TILE[0], tile_n=TILE[1])
    searched = program.seconds(file, **problem)
    in_turn = program.seconds(file, **{**problem, "strategy": "sequential"})
    return {"m": m, "n": n, "k": k, "searched": searched, "one_wave": single, "sequential": in_turn}


def simulate(program):
    return {"shapes": each(lambda shape: shape_row(program, *shape), SHAPES)}


def sample(program):
    return {"shapes": [shape_row(program, *SHAPES[0])]}


# --------------------------------------------------------------------------------------------------------- the page

def measured():
    """What one H100 with a stand-in for NCCL gave."""
    data = json.loads(MEASURED.read_text())
    times = [row["microseconds"] for row in data["predictions"]]
    both = [t for t in times if "one_wave_groups" in t]
    return {"errors": [abs(t["predicted"] / t["measured"] - 1) for t in times],
            "one_wave": [t["one_wave_groups"] / t["measured"] for t in both],
            "searches": [row["microseconds"]["best"] / row["microseconds"]["searched"] for row in data["searches"]]}


def theory(machine):
    rows = [row for row in json.loads(THEORY.read_text())["rows"] if row["machine"] == machine]
    return [row["fraction"] for row in rows], [row["speedup"] for row in rows]


def one_wave(rows):
    """Part of the shapes where one wave a group is as fast as the searched groups, to a thousandth; and how much slower it is."""
    slower = [row["one_wave"] / row["searched"] - 1 for row in rows if row["one_wave"] is not None]
    return sum(value < 1e-3 for value in slower) / len(slower), statistics.mean(slower), len(slower)


def paper_table(data):
    paper = {claim["name"]: claim for claim in published(NAME)["claims"]}
    found, lines = measured(), heading(["figure", "paper", "ours", "how ours is known", "why they differ"])
    fractions, speedups = theory("rtx4090-4")
    other, faster = theory("a800-4")
    best, slower, count = one_wave(data["shapes"])
    claimed = lambda name, digits=0: f"{100 * paper[name]['value']:.{digits}f} %"
    shown = f"{percent(min(fractions))} to {percent(max(fractions))}; {percent(min(other))} to {percent(max(other))}"
    for row in (
            ["fraction of a perfect overlap: RTX 4090; A800", f"{claimed('fraction_least')} to {claimed('fraction_most')}", shown,
             "simulated", "no contention of SMs with NCCL beyond those kept free, and no noise"],
            ["best speed-up: RTX 4090; A800", f"{paper['speedup']['value']:.2f}", f"{max(speedups):.2f}; {max(faster):.2f}", "simulated", "the same"],
            ["predictor, mean error", claimed("predictor_error", 1), f"{100 * statistics.mean(found['errors']):.1f} %",
             f"measured: {len(found['errors'])} plans on one H100 with a stand-in for NCCL", "another GPU, and a kernel that is persistent"],
            ["searched groups, of the best of all", f"over {claimed('searched_over_best')}", f"{100 * min(found['searches']):.1f} % at least",
             f"measured: {len(found['searches'])} searches there", "they agree" if min(found["searches"]) > 0.99 else "a few shapes, on one GPU"],
            ["one wave a group, slower than searched, mean", claimed("one_wave_slower"), f"{100 * (statistics.mean(found['one_wave']) - 1):.0f} %",
             f"measured: {len(found['one_wave'])} plans there", "the stand-in has three curves of its own, none of them of PCIe"],
            ["the same", claimed("one_wave_slower"), f"{100 * slower:.0f} %", f"simulated: {count} shapes on 4 RTX 4090",
             "NCCL's curve on PCIe is an estimate; its fixed time decides this figure"],
            ["one wave a group is best", claimed("one_wave_best"), f"{100 * best:.0f} %", f"simulated: {count} shapes on 4 RTX 4090", "the same"]):
        lines.append(line(row))
    return lines


def shapes_table(rows):
    lines = heading(["M", "one wave a group over searched, by K from 2048 to 16384"])
    for m in sorted({row["m"] for row in rows}):
        some = [row for row in rows if row["m"] == m]
        lines.append(line([str(m), ", ".join("-" if r["one_wave"] is None else f"{r['one_wave'] / r['searched']:.2f}" for r in some)]))
    return lines


def tables(data):
    return {"paper": paper_table(data), "shapes": shapes_table(data["shapes"])}


def plot(data):
    """Both over sequential, by K."""
    ks = sorted({row["k"] for row in data["shapes"]})
    out = Plot("GEMM + reduce-scatter on 4 RTX 4090, simulated: speed-up over both in turn", 2, 0.2, "K", "speed-up over both in turn")
    out.level(1, "both in turn: 1")
    for i, k in enumerate(ks):
        out.tick(i / (len(ks) - 1), k)
    for m, colour in ((2048, "#1b6ca8"), (4096, "#27864a"), (8192, "#c0392b")):
        some = [row for row in data["shapes"] if row["m"] == m]
        for which, dashed in (("searched", False), ("one_wave", True)):
            points = [(ks.index(r["k"]) / (len(ks) - 1), r["sequential"] / r[which]) for r in some if r[which] is not None]
            out.line(points, colour, f"M {m}, {which.replace('_', ' ')}", dashed)
    return out.svg()


PAGE, PLOT = PAGES / "flashoverlap.md", PAGES / "flashoverlap.svg"


def summary(data):
    best, slower, _ = one_wave(data["shapes"])
    return {"FlashOverlap: one wave a group slower, simulated": percent(slower), "FlashOverlap: one wave a group best, simulated": percent(best)}
