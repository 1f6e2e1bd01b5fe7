#!/usr/bin/env python3
"""bench/shmem/peers.py: turns, medians and what was to be reached, with programs made up here instead of GPUs."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = map(str, (BENCH, BENCH / "shmem"))
import peers  # noqa: E402
import tables  # noqa: E402

OURS = [
    ("latency", "packet", "thread", 1, 1, 8, 100, 0.4, None),
    ("latency", "put_signal", "thread", 1, 1, 8, 100, 1.0, None),
    ("bandwidth", "put", "block", 1, 1024, 4 << 20, 16, 80.0, 79.0),
    ("bandwidth", "put", "block", 8, 1024, 4 << 20, 16, 13.0, 12.0),
    ("bandwidth", "put", "wide", 8, 512, 4 << 20, 16, 12.0, 11.0),
    ("bandwidth", "put", "wide", 32, 512, 4 << 20, 16, 4.0, 3.9),
]
THEIRS = [1.13, 87.0, 12.5, 14.0, 3.9]

PROGRAM = """#!{python}
import json, sys
from pathlib import Path
turns = Path({folder!r}, "turns")
turns.write_text(turns.read_text() + "o" if turns.exists() else "o")
assert sys.argv[1:9] == "bench shmem --device cuda --ranks 2 --ranks-per-gpu 2".split(), sys.argv
names = ("measure", "call", "scope", "blocks", "threads", "bytes", "calls", "us", "cycles")
late = 3 * turns.read_text().count("o") - 3 if {slower} else 0  # the first turn is the fastest
rows = [{{n: v for n, v in zip(names, row) if v is not None}} for row in {ours!r}]
for row in rows:
    row["us"] += late
print(json.dumps({{"gpu": "GPU", "date": "2026-01-01", "rows": rows}}))
"""

PEER = """#!{python}
import os, sys
from pathlib import Path
pe, rounds = sys.argv[1:]
assert rounds == "3" and os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50" and os.environ["NVSHMEM_DISABLE_NVLS"] == "1"
if pe == "0":
    print("NVSHMEM says hello")
    print("id 00ff", flush=True)
    turns = Path({folder!r}, "turns")
    turns.write_text(turns.read_text() + "t")
else:
    assert sys.stdin.readline() == "00ff\\n"
cases = [line.split() for line in sys.stdin]
assert [case[1] for case in cases] == ["put_signal"] + ["put"] * 4 and cases[1] == "bandwidth put block 1 1024 4194304 16".split()
if pe == "0":
    for us in {theirs!r}:
        print(f"{{us:.6f}} 12.00")
print({last!r})
"""


class Peers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, text, **more):
        path = self.folder / name
        path.write_text(text.format(python=sys.executable, folder=str(self.folder), **more))
        path.chmod(0o755)
        return str(path)

    def run_peers(self, *, theirs=THEIRS, last="right", slower=False, arguments=()):
        """Exit code, what was printed, and the results."""
        program = self.write("program", PROGRAM, ours=OURS, slower=slower)
        peer = self.write("peer", PEER, theirs=theirs, last=last)
        (self.folder / "control").touch()
        text, errors = io.StringIO(), io.StringIO()
        with (unittest.mock.patch.dict(os.environ, {"CUDA_MPS_PIPE_DIRECTORY": str(self.folder)}),
              contextlib.redirect_stdout(text), contextlib.redirect_stderr(errors)):
            code = peers.main(["--program", program, "--peer", peer, "--nvshmem", str(self.folder), "--rounds", "3", "--json",
                               str(self.folder / "out.json"), *arguments])
        return code, text.getvalue(), json.loads((self.folder / "out.json").read_text())

    def test_turns_medians_and_bars(self):
        code, text, result = self.run_peers(theirs=[1.13, 87.0, 12.5, 14.0, 4.0])
        self.assertEqual(code, 0, text)
        self.assertEqual((self.folder / "turns").read_text(), "ototot")
        self.assertEqual([row.get("speed_up") for row in result["rows"]], [None, 1.13, 1.0875, 0.9615, 1.1667, 1.0])
        self.assertEqual([bar["met"] for bar in result["bars"]], [True] * 6)
        self.assertNotIn("MISSED", text)

    def test_a_bar_that_is_missed_is_said(self):
        code, text, result = self.run_peers()
        self.assertEqual(code, 1)
        self.assertIn("MISSED put of 4 MiB by 32 blocks", text)
        self.assertEqual([bar["met"] for bar in result["bars"]], [True] * 5 + [False])

    def test_the_median_turn_counts(self):
        code, text, result = self.run_peers(slower=True)
        self.assertEqual(code, 1)
        self.assertEqual(result["rows"][0]["ours"]["us"], 3.4)
        self.assertIn("MISSED packet", text)

    def test_wrong_data_is_no_result(self):
        with self.assertRaisesRegex(ValueError, "nvshmem_peer ended with 0 and 0"):
            self.run_peers(last="wrong")

    def test_kernels_that_never_put(self):
        table = "   width   height   without us    behind us    ratio    within us    ratio\\n"
        for ratio, met in ((1.0049, True), (1.02, False)):
            dormant = self.write("dormant", "#!{python}\nprint('" + table + f" 1024 66 10.0 10.1 {ratio} 10.3 1.03')\n")
            code, _, result = self.run_peers(theirs=[1.13, 87.0, 12.5, 14.0, 4.0], arguments=["--dormant", dormant])
            self.assertEqual((code, result["bars"][-1]["met"], result["dormant"][0]["within_ratio"]), (0 if met else 1, met, 1.03))

    def test_our_failure_is_told(self):
        with self.assertRaisesRegex(ValueError, "(?s)ended with 1: .*AssertionError"):
            peers.time_ours(Path(self.write("program", "#!{python}\nassert False\n")), [], dict(os.environ))


class Tables(unittest.TestCase):
    def setUp(self):
        def row(measure, call, scope, blocks, size, ours, nvshmem=None):
            made = {"measure": measure, "call": call, "scope": scope, "blocks": blocks, "threads": 512, "bytes": size, "ours": {"us": ours}}
            if measure == "issue":
                made["ours"]["cycles"] = 100.0
            return {**made, "nvshmem": {"us": nvshmem, **({"cycles": 200.0} if measure == "issue" else {})}, "speed_up": nvshmem / ours} if nvshmem else made

        rows = [row("latency", "packet", "thread", 1, 8, 0.3), row("issue", "put", "thread", 1, 8, 0.05, 0.1), row("complete", "get", "thread", 1, 8, 0.5, 1.0),
                row("bandwidth", "put", "wide", 8, 4 << 20, 10.0, 20.0), row("rate", "p", "thread", 1, 8, 0.1, 0.2),
                row("rate", "p", "thread", 32, 256, 0.8, 1.6), row("rate", "packet", "thread", 32, 256, 0.4)]
        rows += [row("latency", "put_signal", scope, 1, size, 1.0 + size / 10000, 1.5) for scope in ("thread", "block") for size in (8, 512)]
        self.result = {"gpu": "GPU", "date": "2026-01-01", "turns": 3, "rows": rows,
                       "bars": [{"bar": "packet", "value": 0.3, "most": 0.45, "met": True}, {"bar": "put", "value": 2, "most": 1, "met": False}]}

    def test_the_document_gets_rows_of_each_kind(self):
        text = tables.section(self.result)
        for expected in ("| packet | 0.300 | 0.450 | yes |", "| put | 2.000 | 1.000 | **no** |",
                         "| `packet` | thread | the peer sees it | 0.300 |  |  |  |  |", "| `get` | thread | it is complete | 0.500 | 1.000 | 2.00 |  |  |",
                         "| `put` | thread | it returns | 0.050 | 0.100 | 2.00 | 100 | 200 |",
                         "| `put` | 4 MiB | 8 | 512, wide | 419.4 | 209.7 | 2.00 |", "| `p` | 10.0 | 40.0 |", "| `p`, NVSHMEM | 5.0 | 20.0 |",
                         "| `packet` |  | 80.0 |"):
            self.assertIn(expected, text)
        self.assertNotIn("`packet`, NVSHMEM", text)

    def test_the_plot_has_a_line_a_scope(self):
        text = tables.plot(self.result["rows"], "GPU")
        for label in ("a thread", "a thread, NVSHMEM", "a block", "the packet", "512 B"):
            self.assertIn(f">{label}<", text)

    def test_without_results_the_document_says_so(self):
        document = f"<!-- made by {tables.MAKER} -->\nold\n<!-- end -->\n"
        self.assertEqual(tables.documents(None, document), {tables.DOCUMENT: document.replace("old", "Nothing has been measured yet.")})
        self.assertEqual(set(tables.documents(self.result, document)), {tables.DOCUMENT, tables.PLOT})


if __name__ == "__main__":
    unittest.main()
