#!/usr/bin/env python3
"""Worlds over hosts that are network namespaces of this machine, joined by a bridge: each has sockets and memory of its own.

usage: network_test.py      IMBREX_RANK_PROGRAM names the rank program; exits 77 where the system allows no namespaces
"""

import os
import re
import shutil
import subprocess
import sys
import time
import unittest
import uuid

PROGRAM = os.environ["IMBREX_RANK_PROGRAM"]
PORT = 29500


def run(*words):
    subprocess.run(words, check=True, timeout=60)


class Host:
    """A network namespace with one interface, eth0, on the bridge."""

    def __init__(self, number):
        self.address, self.link = f"10.77.0.{number}", f"veth{number}"
        self.holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE)
        self.holder.stdout.readline()  # it is there once it says so
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid))
        run("ip", "link", "set", self.link, "master", "bridge", "up")
        run(*self.inside("ip", "addr", "add", f"{self.address}/24", "dev", "eth0"))
        for name in ("lo", "eth0"):
            run(*self.inside("ip", "link", "set", name, "up"))

    def inside(self, *words):
        return ["nsenter", "-t", str(self.holder.pid), "-n", *words]

    def cut(self):
        run("ip", "link", "set", self.link, "down")

    def join(self):
        run("ip", "link", "set", self.link, "up")

    def end(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class Network(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "link", "set", "bridge", "up")
        cls.hosts = {name: Host(number) for number, name in enumerate("abc", 1)}

    @classmethod
    def tearDownClass(cls):
        for host in cls.hosts.values():
            host.end()

    def start(self, spread, *words, limit=20, only=None, **variables):
        """One process for each letter of `spread`, on that host; of the ranks in `only`, where it is given."""
        secret = uuid.uuid4().hex
        ranks = []
        for rank, host in enumerate(spread):
            if only is not None and rank not in only:
                continue
            own = {"IMBREX_RANK": rank, "IMBREX_WORLD_SIZE": len(spread), "IMBREX_RENDEZVOUS": secret,
                   "IMBREX_ADDRESS": f"{self.hosts['a'].address}:{PORT}", "IMBREX_WAIT_LIMIT": limit}
            own = variables.get("instead", lambda rank: own)(rank) | variables.get("also", {}) | {"IMBREX_HOST": host}
            ranks.append(subprocess.Popen(
                self.hosts[host].inside(PROGRAM, *map(str, words)), text=True, stderr=subprocess.PIPE,
                env={name: str(value) for name, value in own.items()} | {"PATH": os.environ["PATH"]}))
        return ranks

    def ends(self, ranks):
        """Exit code and standard error of each."""
        errors = [rank.communicate(timeout=60)[1] for rank in ranks]
        return [(rank.returncode, text) for rank, text in zip(ranks, errors)]

    def expect_well(self, ranks):
        for code, errors in self.ends(ranks):
            self.assertEqual(code, 0, errors)

    def test_storms(self):
        for spread in ("ab", "aabb", "abab", "abc", "aabbcc"):
            with self.subTest(spread):
                self.expect_well(self.start(spread, "storm", len(set(spread)), 200))

    def test_bound_to_an_interface(self):
        ranks = self.start("ab", "storm", 2, 50, limit=20, also={"IMBREX_INTERFACE": "eth0"}, only=[0])
        time.sleep(0.5)
        table = subprocess.run(self.hosts["a"].inside("cat", "/proc/net/tcp", "/proc/net/tcp6"), text=True,
                               capture_output=True, check=True).stdout
        rows = [line.split() for line in table.splitlines()]
        listening = [row[1] for row in rows if row[1].endswith(f":{PORT:04X}") and row[3] == "0A"]
        self.assertEqual(listening, [f"01004D0A:{PORT:04X}"], table)
        for rank in ranks:
            rank.kill()
        self.ends(ranks)
        self.expect_well(self.start("aabc", "storm", 3, 100, also={"IMBREX_INTERFACE": "eth0"}))

    def test_by_the_variables_of_torchrun(self):
        def torch(rank):
            return {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": self.hosts["a"].address,
                    "MASTER_PORT": PORT, "TORCHELASTIC_RUN_ID": "none", "IMBREX_WAIT_LIMIT": 20}
        self.expect_well(self.start("aabb", "storm", 2, 100, instead=torch))

    def test_a_host_is_cut_off(self):
        limit = 4
        for cut in "cba":
            with self.subTest(cut):
                ranks = self.start("aabbc", "work", limit=limit)
                time.sleep(1.5)
                self.assertEqual([rank.poll() for rank in ranks], [None] * 5)
                self.hosts[cut].cut()
                begin = time.monotonic()
                try:
                    ended = self.ends(ranks)
                finally:
                    self.hosts[cut].join()
                self.assertLess(time.monotonic() - begin, limit + 4)
                for host, (code, errors) in zip("aabbc", ended):
                    self.assertEqual(code, 3, errors)
                    named = set(re.findall(r"host (\w)", errors))
                    # Who was not reached is on the other side of the cut.
                    self.assertTrue(named - {cut} if host == cut else cut in named, f"a rank on {host}: {errors}")

    def test_a_host_is_cut_off_for_a_moment(self):
        ranks = self.start("ab", "storm", 2, 30000, limit=20)
        time.sleep(0.7)
        self.hosts["b"].cut()
        time.sleep(1)
        self.hosts["b"].join()
        self.expect_well(ranks)

    def test_a_host_that_is_not_reached(self):
        self.hosts["b"].cut()
        try:
            begin = time.monotonic()
            (first, second) = self.ends(self.start("ab", "join", 4096, 2))
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
        first, second = self.ends(self.start("ab", "join", 4096, 1, instead=torch))
        self.assertEqual((first[0], second[0]), (3, 3))
        self.assertIn("rank 0 did not arrive within 1 s of rank 1 of 2, or is not on this host", second[1])


def main():
    if "IMBREX_INSIDE" not in os.environ:
        missing = [tool for tool in ("unshare", "nsenter", "ip") if not shutil.which(tool)]
        probe = "ip link add bridge type bridge && ip link add one type veth peer name two && unshare -n true"
        refused = missing or subprocess.run(["unshare", "-rn", "sh", "-c", probe], text=True, capture_output=True).stderr
        if refused:
            print(f"SKIPPED: network namespaces are not to be had here: {refused}")
            sys.exit(77)
        os.environ["IMBREX_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "-rn", sys.executable, "-B", *sys.argv])
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
