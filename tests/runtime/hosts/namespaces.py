"""Hosts that are network namespaces of this machine, joined by a bridge: each has sockets of its own, and counts as a host."""

import os
import re
import shutil
import subprocess
import sys
import time
import unittest
import uuid

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

    def listening(self):
        """Address and port, in hexadecimal as the system's table has them, of each TCP socket that listens."""
        table = subprocess.run(self.inside("cat", "/proc/net/tcp", "/proc/net/tcp6"), text=True, capture_output=True,
                               check=True).stdout
        rows = [line.split() for line in table.splitlines()]
        return [tuple(row[1].split(":")) for row in rows if row[3] == "0A"]

    def cut(self):
        run("ip", "link", "set", self.link, "down")

    def join(self):
        run("ip", "link", "set", self.link, "up")

    def end(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class Network(unittest.TestCase):
    """Tests over hosts a, b and c."""

    @classmethod
    def setUpClass(cls):
        run("ip", "link", "set", "lo", "up")
        if subprocess.run(["ip", "link", "show", "bridge"], capture_output=True).returncode != 0:
            run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "link", "set", "bridge", "up")
        cls.hosts = {name: Host(number) for number, name in enumerate("abc", 1)}

    @classmethod
    def tearDownClass(cls):
        for host in cls.hosts.values():
            host.end()

    def start(self, spread, *words, limit=20, only=None, **variables):
        """One process for each letter of `spread`, on that host; of the ranks in `only`, where it is given. `words`: program
        and arguments. `instead`: a rank's own variables, `also`: more of them, `popen`: arguments of Popen."""
        secret = uuid.uuid4().hex
        ranks = []
        for rank, host in enumerate(spread):
            if only is not None and rank not in only:
                continue
            own = {"IMBREX_RANK": rank, "IMBREX_WORLD_SIZE": len(spread), "IMBREX_RENDEZVOUS": secret,
                   "IMBREX_ADDRESS": f"{self.hosts['a'].address}:{PORT}", "IMBREX_WAIT_LIMIT": limit}
            own = variables.get("instead", lambda rank: own)(rank) | variables.get("also", {}) | {"IMBREX_HOST": host}
            ranks.append(subprocess.Popen(
                self.hosts[host].inside(*map(str, words)), text=True, stderr=subprocess.PIPE, **variables.get("popen", {}),
                env={name: str(value) for name, value in own.items()} | {"PATH": os.environ["PATH"]}))
        return ranks

    def ends(self, ranks):
        """Exit code and standard error of each."""
        errors = [rank.communicate(timeout=300)[1] for rank in ranks]
        return [(rank.returncode, text) for rank, text in zip(ranks, errors)]

    def expect_well(self, ranks):
        for code, errors in self.ends(ranks):
            self.assertEqual(code, 0, errors)

    def expect_cut_off(self, spread, cut, ranks, limit):
        """Cuts that host off for good: every rank, which is at work, ends soon after its limit, and names whom it lost."""
        self.assertEqual([rank.poll() for rank in ranks], [None] * len(spread))
        self.hosts[cut].cut()
        begin = time.monotonic()
        try:
            ended = self.ends(ranks)
        finally:
            self.hosts[cut].join()
        self.assertLess(time.monotonic() - begin, limit + 4)
        self.expect_lost(spread, cut, ended)

    def expect_lost(self, spread, cut, ended):
        """Every rank ended with an error that names a host on the other side of the cut."""
        for host, (code, errors) in zip(spread, ended):
            self.assertEqual(code, 3, errors)
            named = set(re.findall(r"host (\w)", errors))
            self.assertTrue(named - {cut} if host == cut else cut in named, f"a rank on {host}: {errors}")


def main():
    """Runs the tests in namespaces; exits with 77 where the system allows none."""
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
