#!/usr/bin/env python3
"""Several hosts in miniature: four ranks of one machine that NCCL takes for two hosts of two GPUs, over sockets."""

import glob
import json
import os
import re
import subprocess
import sys
import unittest

from program import OPERATORS, PROGRAM, Case

SKIPPED = 77
RANKS, PER_HOST = 4, 2
# Between hosts that NCCL tells apart by name there are sockets only; the rest keeps it from finding a faster way.
APART = ("NCCL_HOSTID=host$((IMBREX_RANK / 2)) NCCL_NET_PLUGIN=none NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo "
         "NCCL_MNNVL_ENABLE=0 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,P2P NCCL_DEBUG_FILE=nccl.%p.log")
# Nor is there anything else within a host: NCCL then counts a host for each rank.
SOCKETS_ONLY = APART + " NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1"


def gpus():
    report = subprocess.run([PROGRAM, "doctor", "--json", "-"], capture_output=True, text=True)
    return json.loads(report.stdout)["gpus"]


class Hosts(Case):
    def run_apart(self, settings, op, strategy, *options):
        """Runs over the two hosts and returns what NCCL said about itself."""
        # The ranks of a host cannot share an odd number of rows evenly.
        sizes = ["--m", 1029 if op == "gemm_all_reduce" else 1024, "--n", 768, "--k", 2048]
        job = [PROGRAM, "run", op, *sizes, "--ranks", RANKS, "--device", "cuda", "--strategy", strategy, *options, "--verify",
               "--repeat", 3]
        shell = settings + " exec " + " ".join(map(str, job))
        out, _ = self.run_program("launch", "-n", RANKS, "--", "sh", "-c", shell)
        self.assertEqual(out.count("right"), 1, out)
        self.assertIn("on cuda", out)
        logs = glob.glob(self.path("nccl.*.log"))
        said = "".join(self.read(path) for path in logs)
        for path in logs:
            os.remove(path)
        print(f"{op} {strategy} {' '.join(map(str, options))}: {out.strip()}", file=sys.stderr)
        return said

    def communicators(self, said):
        """The communicators' sizes, each with the number of its hosts, as NCCL counts them."""
        return set(re.findall(r"nRanks (\d+) nNodes (\d+)", said))

    def test_sequential_over_all_ranks(self):
        for op in OPERATORS:
            with self.subTest(op=op):
                # Unasked, Imbrex' own collectives may run, which need no NCCL here.
                said = self.run_apart(SOCKETS_ONLY, op, "sequential", "--transport", "push")
                self.assertEqual(self.communicators(said), {("4", "4")}, said[-4000:])
                self.assertIn("via NET/Socket", said)
                self.assertNotRegex(said, r"via (P2P|SHM)")

    def test_in_stages(self):
        for op in OPERATORS[:3]:
            for strategy in ("sequential", "decomposed"):
                with self.subTest(op=op, strategy=strategy):
                    said = self.run_apart(SOCKETS_ONLY, op, strategy, "--nodes", 2)
                    self.assertEqual(self.communicators(said), {("2", "2")}, said[-4000:])
                    self.assertIn("via NET/Socket", said)

    def test_in_stages_with_nvlink_inside(self):
        for op in OPERATORS[:3]:
            with self.subTest(op=op):
                said = self.run_apart(APART, op, "sequential", "--nodes", 2)
                self.assertEqual(self.communicators(said), {("2", "1"), ("2", "2")}, said[-4000:])
                self.assertRegex(said, r"via P2P")
                self.assertIn("via NET/Socket", said)

    def test_fused_is_refused(self):
        self.refuse("run", "all_gather_gemm", "--m", 1024, "--n", 768, "--k", 2048, "--ranks", RANKS, "--device", "cuda",
                    "--strategy", "fused", "--nodes", 2, says="peers' memory, which ends at the host")


if __name__ == "__main__":
    found = len(gpus())
    if found < RANKS:
        print(f"SKIPPED: {RANKS} GPUs wanted, {found} found", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
