#!/usr/bin/env python3
"""imbrex bench shmem, of PEs that are processes on the CPU."""

import unittest

from program import Case


class BenchShmem(Case):
    def bench(self, *arguments):
        return self.json_of("bench", "shmem", "--device", "cpu", "--rounds", 2, "--quick", *arguments)

    def test_latency_of_every_call_that_a_peer_can_wait_for(self):
        result = self.bench("--measures", "latency")
        self.assertEqual((result["device"], result["ranks"], result["rounds"]), ("cpu", 2, 2))
        cases = [(row["call"], row["scope"], row["bytes"]) for row in result["rows"]]
        self.assertEqual(len(set(cases)), len(cases))
        for call in ("packet", "p", "p_signal", "add"):
            self.assertIn((call, "thread", 8), cases)
        for scope in ("thread", "warp", "block"):
            self.assertIn(("put_signal", scope, 8), cases)
        self.assertIn(("put_signal", "block", 1 << 22), cases)
        for row in result["rows"]:
            self.assertGreater(row["us"], 0, row)
            self.assertEqual(row["measure"], "latency")

    def test_calls_of_many_blocks_bring_each_its_own_word(self):
        # The case that runs last is another one where the number of rounds is even; what it leaves is looked at.
        for rounds in (1, 2):
            result = self.json_of(
                "bench", "shmem", "--device", "cpu", "--quick", "--rounds", rounds, "--calls", "put", "p_signal"
            )
            self.assertIn(("rate", 32), [(row["measure"], row["blocks"]) for row in result["rows"]])

    def test_four_pes_are_two_pairs_and_each_measure_has_its_unit(self):
        result = self.bench("--ranks", 4, "--calls", "put", "get", "fetch_add", "packet")
        units = {"complete": "us", "issue": "us", "bandwidth": "gb_per_s", "rate": "messages_per_s", "latency": "us"}
        self.assertEqual({row["measure"] for row in result["rows"]}, set(units))
        for row in result["rows"]:
            self.assertGreater(row[units[row["measure"]]], 0, row)
            self.assertGreater(row["calls"], 0)
        blocks = {row["blocks"] for row in result["rows"] if row["measure"] == "bandwidth"}
        self.assertEqual(blocks, {1, 8, 32})

    def test_the_table_names_what_was_timed(self):
        text, _ = self.run_program("bench", "shmem", "--device", "cpu", "--quick", "--rounds", 1, "--calls", "fence")
        self.assertRegex(text, r"2 PEs, 1 a GPU, on the CPU\nmeasure .*\ncomplete +fence +thread ")

    def test_refusals(self):
        self.refuse("bench", "shmem", "--ranks", 3, says="ranks = 3: PEs work in pairs")
        self.refuse("bench", "shmem", "--ranks", 1, says=["--ranks", "'1'", "from 2"])
        self.refuse("bench", "shmem", "--calls", "putt", says=["--calls 'putt'", "put_signal"])
        self.refuse("bench", "shmem", "--measures", "speed", says=["--measures 'speed'", "bandwidth"])
        self.refuse("bench", "shmem", "--measures", "latency", "--calls", "get", says="nothing is timed")
        self.refuse("bench", "shmem", "--device", "tpu", says=["'tpu'", "auto, cpu or cuda"])
        self.refuse("bench", "shmem", "--rounds", 0, says=["--rounds", "'0'"])
        self.refuse("bench", "shmem", "--json", "/no/such/folder/x", says="no folder")


if __name__ == "__main__":
    unittest.main()
