#!/usr/bin/env python3
"""Time to the first token, predicted by `imbrex simulate` for the machines that come with it. Needs neither torch nor GPUs.

usage: predict.py --out OUT.json [options]; --help lists them

A layer's products with their collectives are simulated on each machine, as cuBLAS with a collective behind or before it
and as the plan that Imbrex predicts to be fastest. What no rank waits for another in is a roofline: attention at the rate
of the tensor cores, norms, residuals and activations at that of the memory.
"""

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

from shapes import SHAPES

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from report import write_result  # noqa: E402

STRATEGIES = {"cuBLAS, then the collective": "sequential", "Imbrex": "auto"}
PRODUCTS = ("qkv", "attention's output", "up", "down")


def simulated(program, machine, ranks, product, strategy):
    """Seconds."""
    operator, m, n, k = product
    command = [str(program), "simulate", operator, "--machine", machine, "--strategy", strategy, "--ranks", str(ranks), "--json", "-",
               "--m", str(m), "--n", str(n), "--k", str(k), "--b-layout", "nxk"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)["seconds"]


def alone(machine, shape, sequence, batch, ranks):
    """Seconds of a layer's rank between its products."""
    constants = json.loads((ROOT / f"machines/{machine}.json").read_text())["compute"]
    rate = constants["sms"]["value"] * constants["sm_rate"]["bf16"]["value"] * constants["sustained_ratio"]["value"]
    attention = 2 * batch * sequence**2 * shape.hidden / ranks / rate  # causal: half of 4
    rows = batch * sequence
    # In bf16: two norms and residuals of this rank's rows, read, read and written; q, k, v, and the MLP's parts.
    moved = 2 * rows * (2 * 5 * shape.hidden + 4 * shape.hidden + (3 if shape.gated else 2) * shape.wide) / ranks
    return attention + moved / constants["memory_bandwidth"]["value"]


def layer(program, machine, shape, sequence, batch, ranks):
    """A layer's forward pass: seconds by strategy, of each product and of what lies between them."""
    products = shape.products(sequence * batch)
    between = alone(machine, shape, sequence, batch, ranks)
    found = {}
    for name, strategy in STRATEGIES.items():
        parts = {what: simulated(program, machine, ranks, product, strategy) for what, product in zip(PRODUCTS, products)}
        found[name] = {"layer": sum(parts.values()) + between, "between": between, **parts}
    return found


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="result file")
    parser.add_argument("--program", default=str(ROOT / "build/bin/imbrex"), help="the program (default: build/bin/imbrex)")
    machines = sorted(path.stem for path in (ROOT / "machines").glob("*.json"))
    parser.add_argument("--machines", nargs="+", default=machines, choices=machines, help="default: all of machines/")
    parser.add_argument("--models", nargs="+", default=[*SHAPES], choices=[*SHAPES], help="default: all")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a prompt (default 2048)")
    parser.add_argument("--batch", type=int, default=8, help="prompts (default 8)")
    return parser.parse_args(argv)


def main(argv):
    options = parse(argv)
    rows = []
    for machine in options.machines:
        ranks = min(8, json.loads((ROOT / f"machines/{machine}.json").read_text())["devices"])
        for model in options.models:
            shape = SHAPES[model]
            for name, seconds in layer(options.program, machine, shape, options.sequence, options.batch, ranks).items():
                row = {"model": model, "machine": machine, "ranks": ranks, "sequence": options.sequence, "batch": options.batch,
                       "way": name, "predicted": True, "layer_us": round(seconds["layer"] * 1e6, 1),
                       "parts_us": {part: round(value * 1e6, 1) for part, value in seconds.items() if part != "layer"},
                       "first_token_ms": round(seconds["layer"] * shape.layers * 1e3, 1)}
                rows.append(row)
                print(f"{machine:14} {model:11} {name:28} layer {row['layer_us']:9.1f} us, first token {row['first_token_ms']:8.1f} ms", flush=True)
    write_result(options.out, "simulated: machines/", datetime.date.today().isoformat(), rows)


if __name__ == "__main__":
    main(sys.argv[1:])
