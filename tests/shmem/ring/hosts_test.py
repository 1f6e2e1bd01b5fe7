#!/usr/bin/env python3
"""Rings over hosts that are network namespaces of this machine, by libfabric's tcp.

usage: hosts_test.py      IMBREX_HOSTS_RANK names the PEs' program, IMBREX_PROGRAM imbrex; exits 77 where the system allows no
                          namespaces
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime/hosts"))
import namespaces  # noqa: E402

RANK, PROGRAM = os.environ["IMBREX_HOSTS_RANK"], os.environ["IMBREX_PROGRAM"]
NEVER = "/nowhere"  # the file that ends rings of puts

# Sends to each port what no rank sends: nothing, noise, one connection's noise for another, a head that asks for much.
HOSTILE = """
import random, socket, sys, time
address, seed, *ports = sys.argv[1:]
noise = random.Random(int(seed))
end = time.monotonic() + 4
while time.monotonic() < end:
    sockets = []
    for port in ports:
        try:
            one = socket.create_connection((address, int(port)), 2)
            one.sendall(noise.choice([b"", noise.randbytes(noise.randrange(1, 5000)), b"\\xff" * 64, b"\\0" * 4096,
                                      bytes([3, noise.randrange(8), 0, 0]) + noise.randbytes(60)]))
            sockets.append(one)
        except OSError:
            pass
    time.sleep(0.02)
    for one in sockets:
        one.close()
"""


class Rings(namespaces.Network):
    def test_suite(self):
        self.expect_well(self.start("aabb", RANK, "suite", limit=60))

    def test_suite_over_three_hosts(self):
        self.expect_well(self.start("abcab", RANK, "suite", 16, limit=60, also={"IMBREX_INTERFACE": "eth0"}))

    def test_suite_by_loads_and_stores_where_they_reach(self):
        self.expect_well(self.start("abab", RANK, "mixed_suite", 4, limit=60))

    def test_teams(self):
        for spread in ("ab", "aabb", "abcba"):
            with self.subTest(spread):
                self.expect_well(self.start(spread, RANK, "teams"))

    def test_what_does_not_reach_other_hosts(self):
        for call, says in (("write", "on host b, and this host, a, does not reach its memory"),
                           ("read", "on host b, and this host, a, does not reach its memory"),
                           ("kernel", "named PE 1 of another host at offset 0 of the heap: loads and stores do not reach it "
                                      "(host b)"),
                           ("team", "loads and stores do not reach it")):
            with self.subTest(call):
                for code, errors in self.ends(self.start("ab", RANK, "far", call)):
                    self.assertIn(code, (2, 3))
                    self.assertIn(says, errors)

    def run_job(self, folder, spread, *words):
        """The program's report, by rank 0, and by processes of one host."""
        over_hosts, on_one = Path(folder, "hosts.json"), Path(folder, "one.json")
        job = ["run", *words, "--ranks", len(spread), "--device", "cpu", "--verify"]
        self.expect_well(self.start(spread, PROGRAM, *job, "--json", over_hosts, limit=60,
                                    popen={"stdout": subprocess.DEVNULL}))
        subprocess.run([PROGRAM, *map(str, job), "--json", on_one], check=True, timeout=100, stdout=subprocess.DEVNULL)
        return json.loads(over_hosts.read_text()), json.loads(on_one.read_text())

    def test_jacobi(self):
        """Both are compared bit by bit with the serial solution; so are their residuals with each other."""
        for way in (["--grid", "2x2"], ["--grid", "4x1", "--type", "fp64"]):
            with self.subTest(way), tempfile.TemporaryDirectory() as folder:
                over_hosts, on_one = self.run_job(folder, "abab", "jacobi", "--rows", 97, "--columns", 130, "--sweeps", 60,
                                                  "--residual-every", 20, "--way", "ring", *way)
                self.assertTrue(over_hosts["verified"] and on_one["verified"])
                self.assertEqual(over_hosts["residuals"], on_one["residuals"])
                self.assertEqual(len(over_hosts["residuals"]), 3)

    def test_sparse_triangular_solve(self):
        for part in ([], ["--transposed"]):
            with self.subTest(part), tempfile.TemporaryDirectory() as folder:
                over_hosts, on_one = self.run_job(folder, "aabb", "sparse_triangular_solve", "--generate", "grid",
                                                  "--unknowns", 3000, "--solve-way", "ring", *part)
                self.assertTrue(over_hosts["verified"] and on_one["verified"])

    def test_a_host_is_cut_off_in_a_job(self):
        ranks = self.start("aabb", PROGRAM, "run", "jacobi", "--rows", 64, "--columns", 64, "--sweeps", 100000000, "--way",
                           "ring", "--ranks", 4, "--device", "cpu", "--residual-every", 100000000, "--wait-limit", 4, limit=4,
                           popen={"stdout": subprocess.DEVNULL})
        time.sleep(3)
        self.assertEqual([rank.poll() for rank in ranks], [None] * 4)
        self.hosts["b"].cut()
        try:
            begin = time.monotonic()
            ended = self.ends(ranks)
            self.assertLess(time.monotonic() - begin, 12)
        finally:
            self.hosts["b"].join()
        self.expect_lost("aabb", "b", ended)

    def test_a_host_is_cut_off(self):
        limit = 4
        for cut in "ba":
            with self.subTest(cut):
                ranks = self.start("aabb", RANK, "ring", NEVER, limit=limit)
                time.sleep(2)
                self.expect_cut_off("aabb", cut, ranks, limit)

    def test_a_rank_is_killed(self):
        ranks = self.start("aabb", RANK, "ring", NEVER, limit=10)
        time.sleep(1.5)
        ranks[3].kill()
        begin = time.monotonic()
        ended = self.ends(ranks)
        self.assertLess(time.monotonic() - begin, 8)
        for code, errors in ended[:3]:
            self.assertEqual(code, 3, errors)
            self.assertRegex(errors, "rank 3|PE 3")

    def test_strangers_disturb_nobody(self):
        with tempfile.TemporaryDirectory() as folder:
            end = Path(folder, "end")
            ranks = self.start("aabb", RANK, "ring", end, limit=20)
            strangers = []
            for name in "ab":
                ports = self.ports_of_libfabric(name, ranks)
                strangers.append(subprocess.Popen(self.hosts["c"].inside(
                    sys.executable, "-c", HOSTILE, self.hosts[name].address, str(random.randrange(1 << 30)), *ports)))
            for stranger in strangers:
                self.assertEqual(stranger.wait(timeout=60), 0)
            self.assertEqual([rank.poll() for rank in ranks], [None] * 4)
            end.touch()
            self.expect_well(ranks)

    def ports_of_libfabric(self, name, ranks):
        """Where two PEs of that host listen, once they have met, so that libfabric alone does."""
        ports, deadline = [], time.monotonic() + 60
        while time.monotonic() < deadline and all(rank.poll() is None for rank in ranks):
            last, ports = ports, [str(int(port, 16)) for _, port in self.hosts[name].listening()]
            if len(ports) == 2 and ports == last:
                return ports
            time.sleep(0.1)
        for rank in ranks:
            rank.kill()
        self.fail(f"ports {ports} of host {name}, not two: {self.ends(ranks)}")


if __name__ == "__main__":
    namespaces.main()
