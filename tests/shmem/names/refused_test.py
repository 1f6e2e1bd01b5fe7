#!/usr/bin/env python3
"""What bad calls of OpenSHMEM's C names get, and PEs that end: every PE ends, soon, with the right code, and says why.

usage: refused_test.py IMBREX REFUSED
"""

import os
import subprocess
import sys
import time
import unittest

IMBREX, REFUSED = sys.argv[1:3]
LIMIT = "3"

# The call that PE 1 makes, and what it says of it.
BAD_CALLS = {
    "put_pe": "shmem_int_put: PE 9: PEs are 0 to 2",
    "get_negative_pe": "shmem_int_get: PE -1: PEs are 0 to 2",
    "put_outside": r"shmem_int_put: 1 elements of 4 bytes at dest = 0x\w+: the symmetric heap does not hold them",
    "put_null": "shmem_int_put: 1 elements of 4 bytes at dest = 0x0: the symmetric heap does not hold them",
    "put_from_null": "shmem_int_put: source is null",
    "put_too_long": r"shmem_putmem: 1099511627776 elements of 1 bytes at dest = 0x\w+: the symmetric heap does not hold",
    "put_negative": r"shmem_int_put: -3 elements at dest = 0x\w+: their number must not be negative",
    "ctx_put_pe": "shmem_ctx_double_put: PE 3: PEs are 0 to 2",
    "p_pe": "shmem_long_p: PE 4: PEs are 0 to 2",
    "g_misaligned": r"shmem_int_g: source = 0x\w+: it must be aligned to 4 bytes",
    "iput_stride": "shmem_int_iput: dst = 0: what lies so far apart, 1 elements each, must not overlap",
    "iget_stride": "shmem_int_iget: dst = -1: a stride must be 1 or more",
    "iput_outside": r"shmem_int_iput: 1099511627777 elements of 4 bytes at dest = 0x\w+: the symmetric heap does not",
    "ibput_overlap": "shmem_int_ibput: dst = 2: what lies so far apart, 3 elements each, must not overlap",
    "context": "shmem_ctx_int_put: context 0x0: no context has this handle",
    "stale_context": r"shmem_ctx_quiet: context 0x\w+: no context has this handle",
    "default_context": "shmem_ctx_destroy: the default context is not to be destroyed",
    "context_options": "shmem_ctx_create: options = 0x40: their bits are 0x7",
    "pe_quiet": "shmem_pe_quiet: PE 5: PEs are 0 to 2",
    "atomic_pe": "shmem_int_atomic_inc: PE 3: PEs are 0 to 2",
    "atomic_outside": r"shmem_int_atomic_add: 1 elements of 4 bytes at dest = 0x\w+: the symmetric heap does not hold",
    "atomic_fetch_null": "shmem_int_atomic_fetch_nbi: fetch is null",
    "wait_outside": r"shmem_int_wait_until: 1 elements of 4 bytes at ivar = 0x\w+: the symmetric heap does not hold",
    "wait_comparison": "shmem_int_wait_until: cmp = 12: there is no such comparison",
    "wait_values": "shmem_int_wait_until_all_vector: cmp_values is null",
    "test_indices": "shmem_int_test_some: indices is null",
    "signal_operation": "shmem_int_put_signal: sig_op = 5: it must be SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD",
    "signal_outside": "shmem_int_put_signal: 1 elements of 8 bytes at sig_addr = 0x0: the symmetric heap does not hold",
    "align_odd": "shmem_align: alignment = 24: it must be a power of two up to 4096",
    "align_small": "shmem_align: alignment = 4: it must be 8 or more",
    "malloc_sizes": r"shmem_malloc: PEs disagree: PE 0 calls allocate\(200, 256\), PE 1 calls allocate\(100, 256\)",
    "malloc_hints": "shmem_malloc_with_hints: hints = 0x100: their bits are 0x3",
    "free_stranger": r"shmem_free: PEs disagree: PE 0 calls release\(1, 0\), PE 1 calls release\(0, 4\)",
    "realloc_stranger": r"shmem_realloc: ptr = 0x\w+: this heap did not give it",
    "ptr_pe": "shmem_ptr: PE 7: PEs are 0 to 2",
    "team": "shmem_team_sync: team 0x0: no team has this handle",
    "destroy_world": "shmem_team_destroy: a predefined team is not to be destroyed",
    "team_pe": "shmem_ctx_int_put: PE 2: the team's PEs are 0 to 1",
    "team_range": "shmem_team_split_strided: a team of 5 members from 1 on by 2: its parent has members 0 to 2",
    "team_config": "shmem_team_split_strided: num_contexts = -1: it must not be negative",
    "team_xrange": "shmem_team_split_2d: xrange = 0: it must be 1 or more",
    "broadcast_root": "shmem_int_broadcast: PE 3: PEs are 0 to 2",
    "fcollect_outside": r"shmem_fcollectmem: \d+ elements of 1 bytes at source = 0x\w+: the symmetric heap does not hold",
    "reduce_outside": r"shmem_int_sum_reduce: 1 elements of 4 bytes at dest = 0x\w+: the symmetric heap does not hold",
    "alltoalls_stride": "shmem_int_alltoalls: dst = 1, sst = 0: strides must be 1 or more",
    "thread_level": "shmem_init_thread: requested = 9: there is no such level of threads",
}


class Refused(unittest.TestCase):
    def launch(self, *arguments, environment=None):
        """Exit code, and what all PEs said."""
        begin = time.monotonic()
        done = subprocess.run([IMBREX, "launch", "-n", "3", "--", REFUSED, *arguments], timeout=100, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "IMBREX_WAIT_LIMIT": LIMIT, **(environment or {})})
        self.assertLess(time.monotonic() - begin, 60, done.stdout)
        return done.returncode, done.stdout

    def test_bad_calls(self):
        for call, says in BAD_CALLS.items():
            with self.subTest(call):
                code, said = self.launch(call)
                self.assertRegex(said, rf"(?m)^imbrex: PE 1: {says}")
                self.assertNotIn("came back", said)
                self.assertEqual(code, 2 if call in ("malloc_sizes", "free_stranger") else 3, said)
                if call not in ("malloc_sizes", "free_stranger"):
                    # The others were told, and by whom.
                    for pe in (0, 2):
                        self.assertRegex(said, rf"(?m)^imbrex: PE {pe}: .*rank 1 failed: {says}")

    def test_codes(self):
        """This PE exits with 2; those that it ends, with 3."""
        wrapped = 'trap "" TERM; "$0" "$@"; code=$?; echo "rank $IMBREX_RANK: $code"; exit $code'
        done = subprocess.run([IMBREX, "launch", "-n", "3", "--", "sh", "-c", wrapped, REFUSED, "put_pe"], timeout=100,
                              check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank, code in ((0, 3), (1, 2), (2, 3)):
            self.assertIn(f"rank {rank}: {code}\n", done.stdout)

    def test_out_of_order(self):
        for call, says in (("before_init", "shmem_barrier_all: called before shmem_init"),
                           ("after_finalize", "shmem_my_pe: called after shmem_finalize"),
                           ("init_again", "shmem_init: called after the last shmem_finalize")):
            code, said = self.launch(call)
            self.assertRegex(said, rf"(?m)^imbrex: {says}")
            self.assertEqual(code, 2, said)

    def test_a_wait_is_bounded(self):
        code, said = self.launch("wait_too_long")
        self.assertEqual(code, 3, said)
        self.assertRegex(said, r"(?m)^imbrex: PE 1: shmem_int_wait_until: .*waited longer than 3 s")
        code, said = self.launch("stuck")
        self.assertEqual(code, 3, said)
        self.assertRegex(said, r"(?m)^imbrex: PE [02]: shmem_barrier_all: .*rank [02] waited 3 s")

    def test_a_lost_pe_ends_the_others(self):
        for call, computes in (("leave", []), ("kill", []), ("kill", ["computes"])):
            code, said = self.launch(call, *computes)
            self.assertEqual(code, 3, said)
            for pe in (0, 2):
                place = "" if computes else "shmem_barrier_all: "
                self.assertRegex(said, rf"(?m)^imbrex: PE {pe}: {place}rank 1 \(pid \d+\) was lost")

    def test_a_failure_ends_those_that_compute(self):
        code, said = self.launch("put_pe", "computes")
        self.assertEqual(code, 3, said)
        for pe in (0, 2):
            self.assertRegex(said, rf"(?m)^imbrex: PE {pe}: rank 1 failed: shmem_int_put: PE 9")

    def test_global_exit(self):
        for call, expected in (("exit", 42), ("exit_well", 0)):
            for computes in ([], ["computes"]):
                code, said = self.launch(call, *computes)
                self.assertEqual(code, expected, said)
                self.assertEqual(sorted(said.splitlines()), [f"PE {pe} is there" for pe in range(3)])

    def test_environment(self):
        code, said = self.launch("fill", environment={"SHMEM_SYMMETRIC_SIZE": "2M"})
        self.assertEqual((code, said), (0, "full\n" * 3))
        for name, value, says in (("SHMEM_SYMMETRIC_SIZE", "2X", "must be a size from 1 byte to 512 GiB"),
                                  ("SHMEM_SYMMETRIC_SIZE", "-1", "must be a size from 1 byte to 512 GiB"),
                                  ("IMBREX_SHMEM_DEVICE", "tpu", "must be auto, cpu or cuda")):
            code, said = self.launch("fill", environment={name: value})
            self.assertEqual(code, 2, said)
            self.assertIn(f"imbrex: shmem_init: {name}='{value}' {says}", said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
