"""What was measured here, what is predicted here, and what others claim, apart from each other."""

import json
import statistics

import flashoverlap
import flux
from common import PAGES, RESULTS, heading, line, percent, published
from report import ROOT, Plot

NAME = "claims"
TABLES = ROOT / "bench/results"


def load(name):
    return json.loads((TABLES / f"{name}.json").read_text())


def span(values):
    return f"{min(values):.2f} to {max(values):.2f}, median {statistics.median(values):.2f}"


def measured_speedups(operator, least=1024):
    """cuBLAS, then NCCL, over the plan that Imbrex chose: four H200s, at least so many rows."""
    found = []
    for row in load("gpu-4xh200")["rows"]:
        problem = row["problem"]
        if problem["operator"] == operator and problem["m"] >= least and problem["type"] == "bf16":
            chosen = next(plan["us"] for plan in row["plans"] if plan["chosen"])
            found.append(row["peers"]["cuBLAS+NCCL"] / chosen)
    return found


def measured_codecs(codec, least=64 * 2**20):
    return [row["microseconds"]["nccl"] / row["microseconds"][codec] for row in load("all-reduce-4xh200")["rows"]
            if row["bytes"] >= least and codec in row["microseconds"]]


def simulate(program):
    """Nothing of its own: the rows are taken from the other studies and from what was measured."""
    del program
    return {"rows": rows()}


def sample(program):
    return simulate(program)


def rows():
    grid = json.loads((RESULTS / "flux.json").read_text())["grid"]
    flash = json.loads((RESULTS / "flash-communication.json").read_text())
    points = {(p["machine"], p["operator"]): p["baseline_ms"] / p["fused_ms"] for p in published("flux")["points"] if p["machine"] != "h100-8"}
    user = [p["baseline_ms"] / p["fused_ms"] for p in published("flux")["points"] if p["machine"] == "h100-8"]
    made = []

    def add(what, measured, where, predicted, machine, claimed, whose):
        made.append({"what": what, "measured": measured, "where": where, "predicted": predicted, "machine": machine, "claimed": claimed, "whose": whose})

    for operator, name in (("all_gather_gemm", "AG+GEMM"), ("gemm_reduce_scatter", "GEMM+RS")):
        ours = [row["over_sequential"] for row in grid if row["operator"] == operator and row["machine"] == "h800-8" and row["m"] >= 1024]
        add(f"{name} over GEMM and collective in turn, M 1024 and more", span(measured_speedups(operator)), "4 H200, `bench/results/gpu-4xh200.json`",
            span(ours), "8 H800", f"{points['h800-8', operator]:.2f}", "Flux's README, 8 H800, M 4096")
    add("the same, GEMM+RS by Flux's kernel on 8 H100", "-", "not run", "-", "see [Flux](flux.md)", span(user), "a user's report to bytedance/flux")
    theory = [row["speedup"] for row in load("signaled-theory")["rows"] if row["machine"] == "rtx4090-4"]
    add("signaled over both in turn", "-", "not run on several GPUs", span(theory), "2 and 4 RTX 4090", "up to 1.65", "FlashOverlap, abstract")
    found = flashoverlap.measured()
    add("predictor of signaled plans, mean error", percent(statistics.mean(found["errors"])), "1 H100, a stand-in for NCCL", "-", "-", "3.4 %",
        "FlashOverlap, Figure 11")
    for codec, name in (("int8", "int8"), ("int4", "int4")):
        predicted = [row["exact"] / row["flash8" if codec == "int8" else "int4-asym-g128"] for row in flash["kernels"] if row["machine"] == "a100-nvlink-8"]
        add(f"all-reduce with {name} over NCCL, 64 MiB to 1 GiB", span(measured_codecs(codec)), "4 H200, `bench/results/all-reduce-4xh200.json`",
            span(predicted), "8 A100, NVLink", "up to 3.18" if codec == "int4" else "-", "Flash Communication, Figure 10" if codec == "int4" else "-")
    exchange = [next(s["over_sequential"] for s in row["strategies"] if s["strategy"] == "fused") for row in load("embedding/strategies-2xh100")["rows"]]
    add("embedding and all-to-all, fused: time over both in turn", span(exchange), "2 H100, `bench/results/embedding/strategies-2xh100.json`", "-", "-",
        "0.80 in the mean", "the fused operators' paper, abstract, inside a node of MI210")
    add("DLRM on 128 nodes: time over both in turn", "-", "not run", "-", "not modelled", "0.79", "the fused operators' paper, abstract, simulated")
    return made


def tables(data):
    lines = heading(["what", "measured here", "where", "predicted here", "for", "claimed by others", "by whom"])
    return {"rows": lines + [line([row[key] for key in ("what", "measured", "where", "predicted", "machine", "claimed", "whose")]) for row in data["rows"]]}


def plot(data):
    """Measured speed-ups beside what others claim for their machines."""
    del data
    out = Plot("GEMM and collective: over both in turn, four H200s measured; H800 predicted; Flux's README on H800", 2, 0.2, "operator",
               "speed-up over both in turn")
    out.level(1, "both in turn: 1")
    for i, operator in enumerate(flux.SHAPES):
        out.tick((1 + 3 * i) / 5, flux.SHORT[operator])
        for value in measured_speedups(operator):
            out.dot((0.5 + 3 * i) / 5, value, "#1b6ca8", 0.6)
        for row in json.loads((RESULTS / "flux.json").read_text())["grid"]:
            if row["operator"] == operator and row["machine"] == "h800-8" and row["m"] >= 1024:
                out.dot((1 + 3 * i) / 5, row["over_sequential"], "#27864a", 0.6)
        for point in published("flux")["points"]:
            if point["operator"] == operator and point["machine"] == "h800-8":
                out.dot((1.5 + 3 * i) / 5, point["baseline_ms"] / point["fused_ms"], "#c0392b")
    for colour, label in (("#1b6ca8", "measured, 4 H200"), ("#27864a", "predicted, 8 H800"), ("#c0392b", "Flux's README, 8 H800")):
        out.legend(colour, label)
    return out.svg()


def summary(data):
    return {}


PAGE, PLOT = PAGES / "claims.md", PAGES / "claims.svg"
