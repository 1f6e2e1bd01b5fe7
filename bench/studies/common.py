"""What the studies share: the program's predictions, errors, and pages."""

import concurrent.futures
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from report import ROOT, heading, line  # noqa: E402, F401

RESULTS = ROOT / "bench/results/studies"
PAGES = ROOT / "docs/studies"


def published(name):
    return json.loads((ROOT / f"bench/data/published/{name}.json").read_text())


class Program:
    """The program's predictions. A question that was asked before is not asked again."""

    def __init__(self, path):
        self.path, self.known, self.files = str(Path(path).resolve()), {}, {}
        self.folder, self.lock = tempfile.TemporaryDirectory(), threading.Lock()

    def machine(self, name, devices=None, **changes):
        """A machine's file with changed constants; `changes`: places, with __ for a dot."""
        key = (name, devices, *changes.items())
        with self.lock:
            if key not in self.files:
                out = str(Path(self.folder.name) / f"{len(self.files)}.json")
                command = [self.path, "machine", name, "--name", name, "--out", out]
                command += ["--devices", str(devices)] if devices else []
                for place, value in changes.items():
                    command += ["--set", f"{place.replace('__', '.')}={value}"]
                subprocess.run(command, check=True, capture_output=True)
                self.files[key] = out
            return self.files[key]

    def seconds(self, machine, operator, m, n, k, ranks, type="bf16", **options):
        """Seconds of a plan, None where the program refuses it. `options`: with _ for a dash; True: a flag."""
        command = [self.path, "simulate", operator, "--machine", machine, "--json", "-"]
        for name, value in {"m": m, "n": n, "k": k, "ranks": ranks, "type": type, **options}.items():
            command += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
        key = tuple(command)
        if key not in self.known:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode not in (0, 2):
                raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
            self.known[key] = json.loads(done.stdout)["seconds"] if done.returncode == 0 else None
        return self.known[key]

    def least(self, machine, problem, choices):
        """The least seconds of several plans of one problem, each given by its options."""
        times = [time for options in choices if (time := self.seconds(machine, **problem, **options)) is not None]
        return min(times) if times else None


def each(function, items):
    """function(item) of all, two at a time, in the items' order."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, items))


def error(ours, theirs):
    return ours / theirs - 1


def median_error(errors):
    """The median of the errors' sizes; nan where there is none."""
    return statistics.median(map(abs, errors)) if errors else float("nan")


def efficiency(time, gemm, baseline):
    """Flux's overlap efficiency: 1 - ECT / ECT of the baseline, where ECT is the time beyond the GEMM's (paper, section 2.3)."""
    return 1 - (time - gemm) / (baseline - gemm)


def ms(seconds):
    return "-" if seconds is None else f"{1e3 * seconds:.3f}"


def percent(value, signed=False):
    return "-" if value is None or value != value else f"{100 * value:{'+' if signed else ''}.0f} %"


def rounded(value):
    """As it stands in a result file: six digits of each float."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, (list, tuple)) else value
