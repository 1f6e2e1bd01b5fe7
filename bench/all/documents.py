#!/usr/bin/env python3
"""
Makes the documents' tables: all of them, from bench/results, by the scripts that each has.

usage: documents.py [--check]           --check: changes nothing, and fails where a document is not what its results say
       documents.py --take DIR [--fewer] first takes into bench/results what a run of bench/all left in DIR

What is taken is what ended (not what was cut off), under the name that the documents' scripts read, with the machine,
the date and the commit. A result with fewer numbers than the one that is there is kept out, but with --fewer, and one
that no document shows. DIR's topics go to bench/results/all/MACHINE, and bench/results/all.md shows them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from report import write_rows  # type: ignore[import-not-found]  # noqa: E402
from rows import rows_of  # noqa: E402
from store import Entry, parsed  # noqa: E402

RESULTS = ROOT / "bench/results"
MAKERS = (
    "bench/all/tables.py",
    "bench/gpu_tables.py",
    "bench/product_tables.py",
    "bench/all_reduce_tables.py",
    "bench/model/tables.py",
    "bench/embedding/document.py",
    "bench/shmem/tables.py",
    "bench/knob_plots.py",
    "bench/signaled/theory.py --table",
    "bench/studies/run --pages",
    "bench/simulator/gpu_accuracy.py --table",
)
# A measurement's result, and what it is called; M is the machine. {} of the model is the first model's name.
ALONE = {
    "shmem": "shmem-M",
    "jacobi": "jacobi-M",
    "host-cost": "host-cost-M",
    "gathered-a": "gathered-a-M",
    "signaled-product": "signaled/product-M",
    "signaled-predictor": "signaled/predictor-M",
    "put-back": "signaled/put-back-M",
    "lookups": "embedding/lookup-M",
    "exchanges": "embedding/strategies-M",
    "bench-e4m3": "e4m3-M",
    "products": "product-M",
    "model": "model-llama3-8b-M",
    "sparse": "sparse-M",
}
JOINED = {"gemm-": "gpu-M"}  # all measurements that begin so, their rows in one file


def name_of_machine(about: dict[str, Any]) -> str:
    """As bench/results has it: 2xh200."""
    words = [word for gpu in about["machine"]["gpus"][:1] for word in gpu["name"].lower().split()]
    kind = next(
        (word for word in words if any(c.isdigit() for c in word) and word[0] in "ahblv"), "gpu" if words else "cpu"
    )
    return f"{len(about['machine']['gpus']) if about['mode'] == 'shared' else about['ranks']}x{kind}"


def wanted(about: dict[str, Any], entries: dict[str, Entry]) -> dict[Path, Any]:
    """Path in bench/results -> result."""
    machine = name_of_machine(about)
    versions = ", ".join(
        f"{name} {about['machine']['versions'][name]}"
        for name in ("driver", "cuda", "nccl", "torch")
        if name in about["machine"]["versions"]
    )
    head = {"machine": f"{about['machine']['kind']}; {versions}", "date": about["date"], "commit": about["commit"]}
    done = {name: entry for name, entry in entries.items() if entry["status"] == "done"}
    found: dict[Path, Any] = {}
    for name, place in ALONE.items():
        if name in done:
            # Two PEs on one card have their own name in the documents.
            at = "shmem-1xgpu" if name == "shmem" and about["mode"] == "shared" else place.replace("M", machine)
            result = done[name]["result"]
            found[RESULTS / f"{at}.json"] = head | result if isinstance(result, dict) else result
    sums = [done[name]["result"] for name in ("all-reduce-coded", "all-reduce") if name in done][:1]
    for result in sums:
        joined = head | result
        if "all-reduce-torch" in done:
            peers = done["all-reduce-torch"]["result"]
            joined |= {"peers": peers["rows"], "versions": result["versions"] | peers["versions"]}
        if "all-reduce-norm" in done:
            joined["rms_norm"] = done["all-reduce-norm"]["result"]["rms_norm"]
        found[RESULTS / f"all-reduce-{machine}.json"] = joined
    for prefix, place in JOINED.items():
        parts = [done[name]["result"]["rows"] for name in sorted(done) if name.startswith(prefix)]
        if parts:
            rows = [row for part in parts for row in part]
            found[RESULTS / f"{place.replace('M', machine)}.json"] = head | {"rows": rows}
    return found


def count(result: Any) -> int:
    """Numbers in a result, wherever they are."""
    if isinstance(result, dict):
        return sum(map(count, result.values()))
    if isinstance(result, list):
        return sum(map(count, result))
    return isinstance(result, (int, float))


def take(folder: Path, fewer: bool) -> list[str]:
    """Puts results in place; what it says of each."""
    about = parsed(folder / "run.json")
    if not isinstance(about, dict):
        raise ValueError(f"--take {folder}: there is no run.json of a run")
    entries: dict[str, Entry] = {}
    for path in sorted((folder / "topics").glob("*.json")):
        entries.update((parsed(path) or {"measurements": {}})["measurements"])
    said = []
    for path, result in wanted(about, entries).items():
        before = parsed(path)
        if before is None:
            continue
        if count(before) > count(result) and not fewer:
            said.append(f"kept {path.relative_to(ROOT)}: it has {count(before)} numbers, the new one {count(result)}")
            continue
        if isinstance(result, dict):
            write_rows(path, result)
        else:
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        said.append(f"took {path.relative_to(ROOT)}")
    unread = [name for name, entry in entries.items() if entry["status"] == "done" and not rows_of(entry)]
    whole = RESULTS / "all" / name_of_machine(about)
    (whole / "topics").mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "run.json", whole)
    if (folder / "constants").is_dir():  # machine files can be fitted to these
        shutil.copytree(folder / "constants", whole / "constants", dirs_exist_ok=True)
    for path in sorted((folder / "topics").glob("*.json")):
        shutil.copy(path, whole / "topics")
    return [*said, f"took {whole.relative_to(ROOT)}" + (f"; without rows: {', '.join(unread)}" if unread else "")]


def main(arguments: list[str]) -> int:
    """Takes, and makes."""
    check = arguments == ["--check"]
    if arguments[:1] == ["--take"] and len(arguments) in (2, 3) and arguments[2:] in ([], ["--fewer"]):
        try:
            print("\n".join(take(Path(arguments[1]), "--fewer" in arguments)))
        except (OSError, ValueError) as fault:
            print(f"documents.py: {fault}", file=sys.stderr)
            return 2
    elif arguments and not check:
        sys.exit(__doc__)
    worst = 0
    for maker in MAKERS:
        words = [str(ROOT / maker.split()[0]), *maker.split()[1:], *(["--check"] if check else [])]
        done = subprocess.run([sys.executable, "-B", *words], check=False, timeout=300)
        said = "FAILED" if done.returncode else "as it is" if check else "made"
        print(f"{maker}: {said}", flush=True)
        worst = max(worst, done.returncode)
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
