"""Flux (Chang et al., 2024): what its authors and a user measured, beside the simulator's predictions."""

import math

from common import PAGES, each, efficiency, error, heading, line, median_error, ms, percent, published
from report import Plot

NAME = "flux"
ROWS = (64, 512, 1024, 2048, 4096, 8192)
LARGE = (1024, 2048, 4096, 8192)
MACHINES = ("a100-pcie-8", "a100-nvlink-8", "h800-8")
SHAPES = {"all_gather_gemm": (49152, 12288), "gemm_reduce_scatter": (12288, 49152)}
SHORT = {"all_gather_gemm": "AG+GEMM", "gemm_reduce_scatter": "GEMM+RS"}
COLOURS = {"a100-pcie-8": "#c0392b", "a100-nvlink-8": "#1b6ca8", "h800-8": "#27864a"}
TILES = [{"tile_m": m, "tile_n": n} for m, n in ((128, 256), (256, 128), (128, 128))]
# The paper's section 3.1: GPUs reach each other's memory over PCIe as well. Imbrex' machine files say that they do not.
REACH = {"a100-pcie-8": 8, "l20-8": 8}
# The network of 16-way runs beside its published rate: no source tells these.
HOST_LATENCY, HOST_MESSAGE = 5e-6, 1e-6


def machine_of(program, name):
    return program.machine(name, links__peer_access=REACH[name]) if name in REACH else program.machine(name)


def problem_of(point):
    return {key: point[key] for key in ("operator", "m", "n", "k", "ranks", "type") if key in point}


def times_of(program, machine, problem):
    """GEMM alone, GEMM and collective in turn, decomposed, and fused, as each is best."""
    alone = dict(problem, ranks=1)
    alone["n" if problem["operator"] == "all_gather_gemm" else "k"] //= problem["ranks"]
    sequential = {"strategy": "sequential"}
    product = [sequential, *({**sequential, **tile} for tile in TILES)]
    return {"gemm": program.least(machine, alone, [*product, {"strategy": "fused"}]),
            "sequential": program.least(machine, problem, product),
            "decomposed": program.least(machine, problem, [{"strategy": "decomposed"},
                                                           *({"strategy": "decomposed", "chunks": c} for c in (1, 2, 4, 8))]),
            "fused": program.seconds(machine, **problem, strategy="fused")}


def grid_row(program, machine, operator, m):
    n, k = SHAPES[operator]
    problem = {"operator": operator, "m": m, "n": n, "k": k, "ranks": 8, "type": "bf16"}
    file = machine_of(program, machine)
    times = times_of(program, file, problem)
    row = {"machine": machine, "operator": operator, "m": m, **times, "over_decomposed": times["decomposed"] / times["fused"],
           "over_sequential": times["sequential"] / times["fused"]}
    for one in ("fused", "decomposed"):
        row[f"{one}_efficiency"] = efficiency(times[one], times["gemm"], times["sequential"])
    if m in LARGE:
        knobs = {}
        for order in ("naive", "owner_major"):
            knobs[order] = program.seconds(file, **problem, strategy="fused", order=order)
        if operator == "all_gather_gemm":
            for way in ("push", "pull"):
                knobs[way] = program.seconds(file, **problem, strategy="fused", transport=way)
            rows = m // 8
            while rows >= 128:
                knobs[f"comm_rows {rows}"] = program.seconds(file, **problem, strategy="fused", comm_rows=rows)
                rows //= 2
        row["knobs"] = knobs
    return row


def wide_row(program, point, operator, m):
    """16 ranks on two hosts, whose NICs the paper tells."""
    n, k = SHAPES[operator]
    # Between hosts the paper's kernels put by NVSHMEM: every GPU is reached.
    reach = {"links__peer_access": 16} if point["machine"] in REACH else {}
    file = program.machine(point["machine"], 16, hosts__devices=8, hosts__bandwidth=point["nics"] * point["gbit"] * 1e9 / 8 / 8,
                           hosts__latency=HOST_LATENCY, hosts__message=HOST_MESSAGE, **reach)
    problem = {"operator": operator, "m": m, "n": n, "k": k, "ranks": 16, "type": "bf16"}
    times = times_of(program, file, problem)
    store = program.seconds(file, **problem, strategy="fused", transport="store")
    times["fused"] = min(time for time in (times["fused"], store) if time is not None)
    return {"machine": point["machine"], "operator": operator, "m": m, **times, "speedup": times["sequential"] / times["fused"],
            "efficiency": efficiency(times["fused"], times["gemm"], times["sequential"])}


def point_row(program, point):
    return {**point, **times_of(program, machine_of(program, point["machine"]), problem_of(point))}


def simulate(program):
    data = published(NAME)
    grid = [(machine, op, m) for machine in MACHINES for op in SHAPES for m in ROWS]
    wide = [(point, op, m) for point in data["best_of_16_ranks"] for op in SHAPES for m in LARGE]
    return {"points": each(lambda point: point_row(program, point), data["points"]),
            "grid": each(lambda one: grid_row(program, *one), grid), "sixteen": each(lambda one: wide_row(program, *one), wide)}


# --------------------------------------------------------------------------------------------------------- the page

def point_errors(rows):
    """{part: errors}, of GEMM, collective and fused apart, so that they cannot cancel."""
    errors = {"GEMM": [], "collective": [], "GEMM and collective": [], "fused": []}
    for row in rows:
        if "gemm_ms" in row:
            errors["GEMM"].append(error(1e3 * row["gemm"], row["gemm_ms"]))
            errors["collective"].append(error(1e3 * (row["sequential"] - row["gemm"]), row["baseline_ms"] - row["gemm_ms"]))
        errors["GEMM and collective"].append(error(1e3 * row["sequential"], row["baseline_ms"]))
        errors["fused"].append(error(1e3 * row["fused"], row["fused_ms"]))
    return errors


def why(row):
    gemm = error(1e3 * row["gemm"], row["gemm_ms"]) if "gemm_ms" in row else None
    wire = error(1e3 * (row["sequential"] - row["gemm"]), row["baseline_ms"] - row["gemm_ms"]) if gemm is not None else None
    fused = error(1e3 * row["fused"], row["fused_ms"])
    if row["machine"] == "h100-8":
        return ("Flux's Hopper kernel stores locally, pulls peers' tiles, and adds them in another kernel; `fused` is Imbrex' kernel, which pushes. "
                "NCCL's curve was measured without multicast")
    said = []
    if abs(gemm) > 0.05:
        said.append(f"the GEMM's rate is {'below' if gemm > 0 else 'above'} theirs")
    if abs(wire) > 0.1:
        said.append(f"NCCL is {'slower' if wire > 0 else 'faster'} here than theirs")
    if row["machine"] in REACH:
        said.append("Flux passes parts on in rings over PCIe, Imbrex sends each directly, so that it crosses between sockets four times")
    if abs(fused - gemm) > 0.05:
        said.append("the fused kernel hides " + ("more" if fused < gemm else "less") + " than theirs")
    return "; ".join(said) or "they agree"


def points_table(rows):
    lines = heading(["machine", "operator", "M", "GEMM: paper, ours", "GEMM and collective: paper, ours", "fused: paper, ours", "error of fused",
                     "why they differ"])
    for row in rows:
        gemm = f"{row['gemm_ms']:.3f}, {ms(row['gemm'])}" if "gemm_ms" in row else "-"
        lines.append(line([row["machine"], SHORT[row["operator"]], str(row["m"]), gemm, f"{row['baseline_ms']:.3f}, {ms(row['sequential'])}",
                           f"{row['fused_ms']:.3f}, {ms(row['fused'])}", percent(error(1e3 * row["fused"], row["fused_ms"]), True), why(row)]))
    return lines


def errors_table(rows):
    lines = heading(["points", "GEMM", "collective", "GEMM and collective", "fused"])
    authors = [row for row in rows if row["machine"] != "h100-8"]
    for name, some in (("the authors', A800, H800, L20", authors), ("the user's, 8 H100", [r for r in rows if r["machine"] == "h100-8"])):
        errors = point_errors(some)
        lines.append(line([name, *(percent(median_error(errors[part])) for part in errors)]))
    return lines


def holds(data):
    """The paper's trends: (claim, place, what is predicted, whether it holds)."""
    rows, wide, info = data["grid"], data["sixteen"], published(NAME)
    large = [row for row in rows if row["m"] in LARGE]
    small = [row for row in rows if row["m"] not in LARGE]
    of = lambda machine, some: [row for row in some if row["machine"] == machine]
    span = lambda values: f"{min(values):.2f} to {max(values):.2f}"
    best = {machine: max(row["over_decomposed"] for row in of(machine, large)) for machine in MACHINES}
    order = sorted(MACHINES, key=lambda machine: -best[machine])
    found = []

    def say(claim, place, ours, right):
        found.append({"claim": claim, "place": place, "ours": ours, "holds": bool(right)})

    ratios = [row["over_decomposed"] for row in large]
    say("Fused beats decomposed at every M from 1024", "Figures 11 to 13", span(ratios), min(ratios) > 1)
    say("The largest gain is on A100 PCIe, then H800, then A100 NVLink", "Figures 11 to 13",
        ", ".join(f"{machine} {best[machine]:.2f}" for machine in order), order == ["a100-pcie-8", "h800-8", "a100-nvlink-8"])
    values = [row["decomposed_efficiency"] for row in small]
    say("At M 64 and 512 decomposition is slower than GEMM and collective in turn", "Figure 14", span(values), max(values) < 0)
    values = [row["fused_efficiency"] for row in of("h800-8", small)]
    say("On H800 the fused kernel is slower than both in turn at M 64 and 512", "Figure 14", span(values), max(values) < 0)
    values = [row["fused_efficiency"] for row in of("a100-nvlink-8", small)]
    say("On A100 NVLink it is faster there", "Figure 14", span(values), min(values) > 0)
    value = next(row["over_decomposed"] for row in rows if (row["machine"], row["operator"], row["m"]) == ("h800-8", "gemm_reduce_scatter", 64))
    say("On H800 decomposition wins for GEMM+RS at M 64 (0.95)", "Figure 14", f"{value:.2f}", value < 1)
    pairs = [[next(r["decomposed_efficiency"] for r in rows if (r["machine"], r["operator"], r["m"]) == (machine, op, m)) for op in SHAPES]
             for machine in MACHINES for m in LARGE]
    say("Decomposition does better for AG+GEMM than for GEMM+RS", "section 2.3", f"in {sum(a > b for a, b in pairs)} of {len(pairs)}",
        all(a > b for a, b in pairs))
    gains = {op: [r["knobs"]["naive"] / r["knobs"]["owner_major"] for r in of("a100-nvlink-8", large) if r["operator"] == op] for op in SHAPES}
    flat = [gain for some in gains.values() for gain in some]
    say("The order of tiles by rank always gains", "Figure 8", span(flat), min(flat) > 1)
    say("And gains more with size", "Figure 8", "; ".join(f"{SHORT[op]} " + ", ".join(f"{g:.2f}" for g in some) for op, some in gains.items()),
        all(some[-1] > some[0] for some in gains.values()))
    ways = {machine: [r["knobs"]["push"] / r["knobs"]["pull"] for r in of(machine, large) if "push" in r["knobs"]] for machine in MACHINES[:2]}
    say("Push and pull differ, and not alike on PCIe and NVLink", "Figure 9", "; ".join(f"{m}: {span(v)}" for m, v in ways.items()),
        all(max(abs(x - 1) for x in v) > 0.01 for v in ways.values()))
    spread = {}
    for machine in MACHINES[:2]:
        times = [[t for name, t in r["knobs"].items() if name.startswith("comm_rows")] for r in of(machine, large)]
        spread[machine] = max(max(some) / min(some) - 1 for some in times if len(some) > 1)
    say("Rows that travel at once matter, with no trend", "Figure 10", ", ".join(f"{m} up to {percent(v)}" for m, v in spread.items()),
        min(spread.values()) > 0.02)
    for point in info["best_of_16_ranks"]:
        top = max(of(point["machine"], wide), key=lambda row: row["speedup"])
        say(f"16 ranks on two hosts, {point['machine']}: up to {point['speedup']:.2f} times as fast as both in turn", "Figure 15",
            f"{top['speedup']:.2f}", top["speedup"] > 1)
    return found


def trends_table(data):
    lines = heading(["the paper says", "where", "predicted", "holds"])
    return lines + [line([t["claim"], t["place"], t["ours"], "yes" if t["holds"] else "**no**"]) for t in holds(data)]


def inside(band, rows):
    values = [row[band["what"]] for row in rows if row["machine"] == band["machine"] and band["m"][0] <= row["m"] <= band["m"][1]]
    return values, sum(band["low"] <= value <= band["high"] for value in values)


def bands_table(data):
    lines = heading(["machine", "M", "figure", "where", "paper", "ours", "inside"])
    shown = lambda what, value: f"{value:.2f}" if what == "over_decomposed" else percent(value)
    for band in published(NAME)["bands"]:
        values, count = inside(band, data["grid"])
        what = band["what"]
        lines.append(line([band["machine"], "{} to {}".format(*band["m"]), what.replace("_", " ").replace("over", "fused over"), band["from"],
                           f"{shown(what, band['low'])} to {shown(what, band['high'])}", f"{shown(what, min(values))} to {shown(what, max(values))}",
                           f"{count} of {len(values)}"]))
    return lines


def tables(data):
    return {"points": points_table(data["points"]), "errors": errors_table(data["points"]), "trends": trends_table(data),
            "bands": bands_table(data)}


def plot(data):
    """Speed-up of fused over GEMM and collective in turn by M."""
    top = math.ceil(max(row["over_sequential"] for row in data["grid"]) + 0.3)
    out = Plot("Flux's problems, predicted: fused over GEMM and collective in turn", top, 0.5, "M, rows of A", "speed-up over both in turn")
    for i, m in enumerate(ROWS):
        out.tick(i / (len(ROWS) - 1), f"M {m}")
    for machine in MACHINES:
        for op in SHAPES:
            some = [row for row in data["grid"] if (row["machine"], row["operator"]) == (machine, op)]
            out.line([(i / (len(ROWS) - 1), row["over_sequential"]) for i, row in enumerate(some)], COLOURS[machine],
                     f"{machine} {SHORT[op]}", op == "gemm_reduce_scatter")
    out.level(1, "both in turn: 1")
    return out.svg()


PAGE, PLOT = PAGES / "flux.md", PAGES / "flux.svg"


def sample(program):
    """A few rows, as simulate makes them."""
    points = [point for point in published(NAME)["points"] if point["machine"] == "h800-8"]
    return {"points": [point_row(program, point) for point in points],
            "grid": [grid_row(program, machine, "all_gather_gemm", 512) for machine in MACHINES]}


def summary(data):
    parts = {"authors": [row for row in data["points"] if row["machine"] != "h100-8"], "a user": [r for r in data["points"] if r["machine"] == "h100-8"]}
    told = {f"Flux, {who}: median error of {part}": percent(median_error(found)) for who, rows in parts.items()
            for part, found in point_errors(rows).items() if found}
    trends, bands = holds(data), [inside(band, data["grid"]) for band in published(NAME)["bands"]]
    return {**told, "Flux: trends that hold": f"{sum(t['holds'] for t in trends)} of {len(trends)}",
            "Flux: predictions inside bands": f"{sum(count for _, count in bands)} of {sum(len(values) for values, _ in bands)}"}
