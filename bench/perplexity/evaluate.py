#!/usr/bin/env python3
"""Perplexity of the trained model on held-out text, split over 4 ranks whose partial sums go through each codec.

usage: evaluate.py IMBREX [options]    --help lists them; needs numpy; IMBREX is the program, which runs every all-reduce

Weights and activations are rounded to bf16 where kernels round them. Partial sums of o_proj and down_proj, in bf16, are
added by `imbrex run all_reduce --codec ...`, on the CPU, which gives the bits that GPUs give. Writes
bench/results/perplexity.json; bench/perplexity/tables.py makes the table of bench/results/codec.md.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import model  # noqa: E402
from progress import Progress  # noqa: E402

FOLDER = Path(__file__).resolve().parent
RESULT = FOLDER.parent / "results/perplexity.json"
RANKS, WINDOWS = 4, 200
CODECS = ("int8", "int8-g128", "fp8-g128", "flash8", "int6", "int5", "flash6", "int4-g128+int8-g128",
          "int4", "flash4", "int4-g128", "int3")


def bf16(x):
    """Rounded to nearest even; float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def exact(parts):
    """As imbrex sums exactly: in fp32 by rank number, rounded once."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return bf16(total)


def reduced(program, codec, parts):
    """The sum over the ranks as `imbrex run all_reduce` makes it of [.., width] parts, the same on all ranks."""
    shape = parts[0].shape
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/a.npy", np.concatenate([part.reshape(-1, shape[-1]) for part in parts]))
        command = [program, "run", "all_reduce", "--device", "cpu", "--ranks", str(len(parts)), "--codec", codec,
                   "--a", f"{folder}/a.npy", "--out", f"{folder}/y"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}: {result.stderr.strip()}")
        outs = [np.load(f"{folder}/y.rank{rank}.npy") for rank in range(len(parts))]
    if any(not np.array_equal(outs[0], out) for out in outs[1:]):
        raise RuntimeError(f"{codec}: the ranks have different sums")
    return outs[0].reshape(shape)


def weights(path=FOLDER / "weights.npz"):
    file = np.load(path)
    if str(file["text"]) != model.digest():
        raise SystemExit(f"{path.name} was trained on another Python's manual than that of {sys.version.split()[0]}: run train.py")
    return {name: bf16(file[name].astype(np.float32)) for name in model.SHAPES}


def held_out(windows):
    """[window, position + 1]; no window sees another one's characters, except the one that it begins with."""
    codes = np.array(model.codes(model.text()[1]))
    most = (len(codes) - 1) // model.CONTEXT
    if not 1 <= windows <= most:
        raise SystemExit(f"--windows {windows}: it must be from 1 to {most}")
    return np.stack([codes[i * model.CONTEXT : (i + 1) * model.CONTEXT + 1] for i in range(windows)])


def loss(p, tokens, ranks, reduce):
    """Nats a character, a value a window."""
    return model.negative_log_likelihood(p, tokens, np, ranks=ranks, rounded=bf16, reduce=reduce).mean(-1, dtype=np.float64)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imbrex", help="the program")
    parser.add_argument("--windows", type=int, default=WINDOWS, help=f"of {model.CONTEXT} characters (default {WINDOWS})")
    parser.add_argument("--out", default=str(RESULT), help="default: bench/results/perplexity.json")
    parser.add_argument("--codecs", nargs="+", default=CODECS, metavar="CODEC", help="default: " + " ".join(CODECS))
    options = parser.parse_args(argv)
    p, tokens = weights(), held_out(options.windows)
    perplexity = lambda losses: round(math.exp(losses.mean()), 4)
    whole = loss(p, tokens, 1, lambda site, parts: parts[0])
    base = loss(p, tokens, RANKS, lambda site, parts: exact(parts))
    print(f"not split {perplexity(whole)}, exact {perplexity(base)}", flush=True)
    rows = []
    each = (model.SITES, *((site,) for site in model.SITES))
    progress = Progress("perplexity", len(options.codecs) * len(each))
    for codec in options.codecs:
        for sites in each:
            progress.show(len(rows), f"{codec}, {' and '.join(sites)}")
            quantized = lambda site, parts: reduced(options.imbrex, codec, parts) if site in sites else exact(parts)
            more = loss(p, tokens, RANKS, quantized) - base
            rows.append({"codec": codec, "sites": list(sites), "perplexity": perplexity(base + more), "nats_more": round(more.mean(), 6),
                         "standard_error": round(more.std(ddof=1) / math.sqrt(len(more)), 6) if len(more) > 1 else None})
            progress.clear()
            print(json.dumps(rows[-1]), flush=True)
    result = {"what": f"a transformer of {sum(w.size for w in p.values())} parameters over {RANKS} ranks, bf16; "
                      f"{tokens[:, 1:].size} held-out characters of Python {sys.version.split()[0]}'s manual; perplexity a character",
              "text_sha256": model.digest(), "not_split": perplexity(whole), "exact": perplexity(base), "rows": rows}
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    Path(options.out).write_text(json.dumps({**result, "rows": []}, indent=1).replace('"rows": []', f'"rows": [\n{body}\n ]') + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
