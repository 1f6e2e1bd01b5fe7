#!/usr/bin/env python3
"""Worlds over hosts that are network namespaces of this machine, joined by a bridge: each has sockets and memory of its own.

usage: network_test.py      IMBREX_RANK_PROGRAM names the rank program; exits 77 where the system allows no namespaces
"""

import os
import subprocess
import time

import namespaces
from namespaces import PORT

PROGRAM = os.environ["IMBREX_RANK_PROGRAM"]


class Worlds(namespaces.Network):
    def test_storms(self):
        for spread in ("ab", "aabb", "abab", "abc", "aabbcc"):
            with self.subTest(spread):
                self.expect_well(self.start(spread, PROGRAM, "storm", len(set(spread)), 200))

    def test_bound_to_an_interface(self):
        ranks = self.start("ab", PROGRAM, "storm", 2, 50, limit=20, also={"IMBREX_INTERFACE": "eth0"}, only=[0])
        time.sleep(0.5)
        listening = self.hosts["a"].listening()
        self.assertEqual([one for one in listening if one[1] == f"{PORT:04X}"], [("01004D0A", f"{PORT:04X}")], listening)
        for rank in ranks:
            rank.kill()
        self.ends(ranks)
        self.expect_well(self.start("aabc", PROGRAM, "storm", 3, 100, also={"IMBREX_INTERFACE": "eth0"}))

    def test_by_the_variables_of_torchrun(self):
        def torch(rank):
            return {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": self.hosts["a"].address,
                    "MASTER_PORT": PORT, "TORCHELASTIC_RUN_ID": "none", "IMBREX_WAIT_LIMIT": 20,
                    "IMBREX_RENDEZVOUS": "a secret of this test alone"}
        self.expect_well(self.start("aabb", PROGRAM, "storm", 2, 100, instead=torch))

    def test_a_host_is_cut_off(self):
        limit = 4
        for cut in "cba":
            with self.subTest(cut):
                ranks = self.start("aabbc", PROGRAM, "work", limit=limit)
                time.sleep(1.5)
                self.expect_cut_off("aabbc", cut, ranks, limit)

    def test_a_host_is_cut_off_for_a_moment(self):
        ranks = self.start("ab", PROGRAM, "storm", 2, 30000, limit=20)
        time.sleep(0.7)
        self.hosts["b"].cut()
        time.sleep(1)
        self.hosts["b"].join()
        self.expect_well(ranks)

    def test_a_host_that_is_not_reached(self):
        self.hosts["b"].cut()
        try:
            begin = time.monotonic()
            (first, second) = self.ends(self.start("ab", PROGRAM, "join", 4096, 2))
            self.assertLess(time.monotonic() - begin, 8)
        finally:
            self.hosts["b"].join()
        self.assertEqual((first[0], second[0]), (3, 3))
        self.assertIn("rank 1 of 2 did not arrive within 2 s of rank 0 on host a", first[1])
        self.assertIn("rank 0 did not arrive within 2 s of rank 1 of 2 on host b", second[1])

    def test_one_host_by_mistake(self):
        """What the launcher calls one host are two: they do not find each other's sockets."""
        def torch(rank):
            return {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "none"}
        first, second = self.ends(self.start("ab", PROGRAM, "join", 4096, 1, instead=torch))
        self.assertEqual((first[0], second[0]), (3, 3))
        self.assertIn("rank 0 did not arrive within 1 s of rank 1 of 2, or is not on this host", second[1])


if __name__ == "__main__":
    namespaces.main()
