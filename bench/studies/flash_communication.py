"""Flash Communication (Li et al., 2024): all-reduces with fewer bits, and what they do to the first token's time, predicted."""

import json
import math
import sys

from common import PAGES, each, error, heading, line, median_error, percent, published
from report import ROOT, Plot

sys.path[:0] = [str(ROOT / "bench/signaled"), str(ROOT / "bench/model")]
from shapes import SHAPES  # noqa: E402
from theory import collective_us  # noqa: E402

NAME = "flash-communication"
CODECS = ("flash8", "flash6", "int4-asym-g128")  # int8, the paper's INT6, and int4, all asymmetric with groups of 128
SIZES = (64, 128, 256, 512, 1024)
MACHINES = {"l40-4": 4, "a100-nvlink-8": 8}
MODELS = ("llama3-8b", "llama2-70b")  # Llama-3-70B's layers are those of Llama-2-70B
BATCH = 8
TOKENS = 1024  # of the paper's inputs (section 5.1)
SEQUENCES = (4096, 8192, 16384, 32768)
COLOURS = {"l40-4": "#c0392b", "a100-nvlink-8": "#1b6ca8"}


def wire_bits():
    rows = json.loads((ROOT / "bench/results/codec.json").read_text())["accuracy"]
    return {row["codec"]: row["wire_bits"] for row in rows if row["algorithm"] == "two_shot"}


def machine_file(name):
    return json.loads((ROOT / f"machines/{name}.json").read_text())


def coding_seconds(machine, bytes, bits, ranks):
    """Passes over memory that a two-shot all-reduce with codes makes beside the wire: the input is read and its codes written,
    the ranks' codes are read and a part's sum is written as codes, and all codes are read and the result written."""
    codes = bytes * bits / 16
    moved = (bytes + codes) + (codes + codes / ranks) + (codes + bytes)
    return moved / machine["compute"]["memory_bandwidth"]["value"]


def all_reduce_seconds(machine, bytes, ranks, bits=16):
    """An all-reduce of `bytes` in 16-bit elements; with fewer bits the codes' bytes take the library's time of as many."""
    wire = 2 * (ranks - 1) / ranks * bytes * bits / 16
    return 1e-6 * collective_us(machine["collectives"]["all_reduce"], wire) + (coding_seconds(machine, bytes, bits, ranks) if bits < 16 else 0)


def kernel_rows():
    bits = wire_bits()
    for name, ranks in MACHINES.items():
        machine = machine_file(name)
        for size in SIZES:
            bytes = size * 2**20
            row = {"machine": name, "ranks": ranks, "mib": size, "exact": all_reduce_seconds(machine, bytes, ranks)}
            yield {**row, **{codec: all_reduce_seconds(machine, bytes, ranks, bits[codec]) for codec in CODECS}}


def attention_seconds(machine, shape, sequence, batch, ranks):
    """Products of causal attention at the rate of a GEMM's best tile: a lower bound, since no kernel of attention is modelled."""
    flops = 2 * 2 * batch * sequence * sequence / 2 * shape.hidden / ranks
    rate = machine["compute"]["sm_rate"]["fp16"]["value"] * machine["compute"]["sms"]["value"]
    return flops / rate / machine["compute"]["sustained_ratio"]["value"]


def layer(program, name, model, tokens, sequence, ranks):
    """Seconds of a layer's products and attention on one rank, and bytes of one of its two all-reduces."""
    shape, machine = SHAPES[model], machine_file(name)
    compute = attention_seconds(machine, shape, sequence, tokens // sequence, ranks)
    file = program.machine(name)
    for operator, m, n, k in shape.products(tokens):
        gathers = operator == "all_gather_gemm"
        n, k = (n // ranks, k) if gathers else (n, k // ranks)
        compute += program.least(file, {"operator": "gemm_reduce_scatter", "m": m, "n": n, "k": k, "ranks": 1, "type": "fp16"},
                                 [{"strategy": "sequential", "tile_m": 128, "tile_n": columns} for columns in (128, 256)])
    return compute, tokens * shape.hidden * 2


def prefill_row(program, name, model, sequence, ranks, batch=BATCH):
    bits, machine = wire_bits(), machine_file(name)
    compute, bytes = layer(program, name, model, batch * sequence, sequence, ranks)
    exact = 2 * all_reduce_seconds(machine, bytes, ranks)
    row = {"machine": name, "model": model, "sequence": sequence, "ranks": ranks, "compute": compute, "exact": exact, "share": exact / (compute + exact)}
    for codec in CODECS:
        row[codec] = (compute + exact) / (compute + 2 * all_reduce_seconds(machine, bytes, ranks, bits[codec]))
    return row


def simulate(program):
    first = [(name, model, TOKENS, ranks) for name, full in MACHINES.items() for model in MODELS for ranks in (2, full)]
    return {"kernels": list(kernel_rows()), "first_token": each(lambda one: prefill_row(program, *one), first),
            "shares": each(lambda s: prefill_row(program, "l40-4", "llama2-70b", s, 4), SEQUENCES)}


def sample(program):
    return {"kernels": list(kernel_rows()), "first_token": [prefill_row(program, "l40-4", "llama3-8b", TOKENS, 4)]}


# --------------------------------------------------------------------------------------------------------- the page

MODEL_NAMES = {"llama3-8b": "Llama-3-8B", "llama2-70b": "Llama-3-70B"}


def kernels_table(rows):
    lines = heading(["machine", "MiB", "16 bits, ms", *(f"{codec}: ms, speed-up" for codec in CODECS)])
    for row in rows:
        lines.append(line([row["machine"], str(row["mib"]), f"{1e3 * row['exact']:.2f}",
                           *(f"{1e3 * row[codec]:.2f}, {row['exact'] / row[codec]:.2f}" for codec in CODECS)]))
    return lines


def best(rows, machine, ranks, codec):
    return max(row[codec] for row in rows if (row["machine"], row["ranks"]) == (machine, ranks))


def paper_table(data):
    lines = heading(["figure", "paper", "ours", "difference", "why they differ"])
    info = published(NAME)
    for point in info["kernel"]:
        ours = max(row["exact"] / row[point["codec"]] for row in data["kernels"] if row["machine"] == point["machine"])
        lines.append(line([f"kernel, {point['codec']}, 64 MiB to 1 GiB, best", f"{point['speedup']:.2f}", f"{ours:.2f}",
                           percent(error(ours, point["speedup"]), True),
                           "codes here travel at the library's rate; the paper's kernel has a rate of its own, which it does not tell"]))
    for point in info["ttft"]:
        ours = best(data["first_token"], point["machine"], point["ranks"], point["codec"])
        lines.append(line([f"first token, {point['machine']}, {point['ranks']} ranks, {point['codec']}, best", f"{point['speedup']:.2f}", f"{ours:.2f}",
                           percent(error(ours, point["speedup"]), True), "the paper's engine spends time beside GEMMs and all-reduces; the batch is not told"]))
    shares = {row["sequence"]: row["share"] for row in data["shares"]}
    for point in info["shares"]:
        lines.append(line([f"share of all-reduces, 4 L40, sequence {point['sequence']}", percent(point["share"]), percent(shares[point["sequence"]]),
                           percent(error(shares[point["sequence"]], point["share"]), True), "see below"]))
    return lines


def first_table(rows):
    lines = heading(["machine", "model", "ranks", "share of all-reduces", *(f"{codec}: speed-up" for codec in CODECS)])
    return lines + [line([row["machine"], MODEL_NAMES[row["model"]], str(row["ranks"]), percent(row["share"]),
                          *(f"{row[codec]:.2f}" for codec in CODECS)]) for row in rows]


def shares_table(rows):
    lines = heading(["sequence", "share of all-reduces", "compute of a layer, ms", "all-reduces of a layer, ms"])
    return lines + [line([str(row["sequence"]), percent(row["share"]), f"{1e3 * row['compute']:.1f}", f"{1e3 * row['exact']:.1f}"]) for row in rows]


def tables(data):
    return {"paper": paper_table(data), "kernels": kernels_table(data["kernels"]), "first token": first_table(data["first_token"]),
            "shares": shares_table(data["shares"])}


def plot(data):
    """Speed-up of the kernel by size."""
    out = Plot("All-reduce with codes over 16 bits, predicted", 4, 0.5, "size of the vector", "times as fast as without codes")
    out.level(1, "without codes: 1")
    place = lambda size: math.log2(size / SIZES[0]) / math.log2(SIZES[-1] / SIZES[0])
    for size in SIZES:
        out.tick(place(size), f"{size} MiB")
    for machine in MACHINES:
        for codec in CODECS:
            some = [row for row in data["kernels"] if row["machine"] == machine]
            out.line([(place(row["mib"]), row["exact"] / row[codec]) for row in some], COLOURS[machine], f"{machine} {codec}", codec != CODECS[-1])
    top = published(NAME)["kernel"][0]["speedup"]
    out.line([(0, top), (1, top)], "#888", f"the paper's best: {top:.2f}", True)
    return out.svg()


PAGE, PLOT = PAGES / "flash-communication.md", PAGES / "flash-communication.svg"


def summary(data):
    info = published(NAME)
    errors = [error(best(data["first_token"], p["machine"], p["ranks"], p["codec"]), p["speedup"]) for p in info["ttft"]]
    kernel = [error(max(r["exact"] / r[p["codec"]] for r in data["kernels"] if r["machine"] == p["machine"]), p["speedup"]) for p in info["kernel"]]
    return {"Flash Communication: median error of the first token's speed-up": percent(median_error(errors)),
            "Flash Communication: error of the kernel's speed-up": percent(kernel[0], True)}
