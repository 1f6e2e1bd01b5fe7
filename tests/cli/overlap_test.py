#!/usr/bin/env python3
"""Operands that share memory, by C's names in the library beside the program: refused, or right at the place of a part."""

import ctypes
import os
import random
import sys
import types
import unittest
from pathlib import Path

from program import PROGRAM, Case

ROOT = Path(__file__).resolve().parents[2]
N = 12


def load_c(folder):
    """imbrex._c of the source tree, on the library beside the program, without the package, which asks for NumPy."""
    os.makedirs(folder + "/imbrex")
    os.symlink(Path(PROGRAM).resolve().parents[1] / "lib", folder + "/imbrex/lib")
    sys.path.insert(0, folder)
    package = types.ModuleType("imbrex")
    package.__path__ = [str(ROOT / "python/imbrex")]
    sys.modules["imbrex"] = package
    from imbrex import _c

    return _c


# Numbers of operators, as c.h has them.
ALL_GATHER_GEMM, GEMM_REDUCE_SCATTER, GEMM_ALL_REDUCE = 0, 1, 2


class Rank:
    """One rank, its world, and calls on matrices of floats in buffers."""

    def __init__(self, c):
        self.c, self.world = c, c.make("world_from_environment", None)
        self.rank, self.size = (c.function(f"world_{what}")(self.world) for what in ("rank", "size"))
        self.random, self.operators = random.Random(self.rank), {}

    def buffer(self, rows):
        return (ctypes.c_float * (rows * N))(*(self.random.uniform(-1, 1) for _ in range(rows * N)))

    def call(self, kind, a, b, out, rows):
        """`a` and `b` are N x N, at those addresses."""
        c = self.c
        if kind not in self.operators:
            gather, sums = kind == ALL_GATHER_GEMM, kind in (GEMM_REDUCE_SCATTER, GEMM_ALL_REDUCE)
            shape = c.new(c.Gemm, m=N * (self.size if gather else 1), n=N * (self.size if gather else 1),
                          k=N * (self.size if sums else 1), type=c.FP32)
            options = c.new(c.OperatorOptions, device=c.CPU)
            self.operators[kind] = c.make("operator_make", self.world, kind, ctypes.byref(shape), ctypes.byref(options))

        def operand(name, address, rows):
            return c.Operand(name, c.View(address, c.FP32, 2, (rows, N, 0, 0), (N, 1, 0, 0)))

        operands = (c.Operand * 3)(operand(b"a", a, N), operand(b"b", b, N), operand(b"out", out, rows))
        c.call("operator_run", self.operators[kind], operands, 3, None)


def body(c):
    from imbrex._errors import InvalidInput

    self = Rank(c)
    at = ctypes.addressof
    own = self.rank * N * N * 4
    for kind in range(4):
        rows = {ALL_GATHER_GEMM: N * self.size, GEMM_REDUCE_SCATTER: N // self.size}.get(kind, N)
        room, b, want = self.buffer(N * self.size), self.buffer(N * self.size), self.buffer(rows)
        before = bytes(room), bytes(b)
        other = at(room) + (4 * N if kind == ALL_GATHER_GEMM else 0)  # a gather takes no such rows
        for a, out, name in ((other, at(room), "a"), (at(want), at(b), "b"), (at(want), at(b) + 4 * N * (N - 1), "b")):
            try:
                self.call(kind, a if name == "a" else other, at(b), out, rows)
            except InvalidInput as error:
                assert "operand out at " in str(error) and f"overlaps operand {name} at " in str(error), error
            else:
                raise AssertionError(f"operator {kind}: out over {name} was taken")
        assert (bytes(room), bytes(b)) == before
        # The next call is right: the same twice, and a gather's in place, too.
        self.call(kind, at(room) + own, at(b), at(want), rows)
        for _ in range(2):
            got = self.buffer(rows)
            self.call(kind, at(room) + own, at(b), at(got), rows)
            assert bytes(got) == bytes(want)
        if kind == ALL_GATHER_GEMM:
            self.call(kind, at(room) + own, at(b), at(room), rows)
            assert bytes(room) == bytes(want)
    for made in self.operators.values():
        c.call("operator_destroy", made)
    c.call("world_destroy", self.world)


class Overlap(Case):
    def test_every_operator(self):
        """Two and three ranks."""
        if os.environ.get("IMBREX_SANITIZE"):
            self.skipTest("Python cannot load a library with sanitizers")
        for ranks in (2, 3):
            self.run_program("launch", "-n", ranks, "--", sys.executable, "-B", __file__, "--rank", self.path(f"of{ranks}-"),
                             environment={"IMBREX_WAIT_LIMIT": "20"})


if __name__ == "__main__":
    if "--rank" in sys.argv:
        body(load_c(sys.argv[-1] + str(os.getpid())))
    else:
        unittest.main()
