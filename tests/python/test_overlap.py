"""An output that shares memory with what is read is refused; a gather in place, and rows that interleave, are right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import imbrex
from imbrex._library import program

# Run by each rank. Bits are compared with those of operands that lie apart.
SCRIPT = r"""
import numpy as np
import imbrex

N = 48
random = np.random.default_rng()
with imbrex.World.from_environment() as world:
    R, r = world.size, world.rank
    N *= R

    def fresh(*shape):
        return random.standard_normal(shape or (N, N)).astype(np.float32)

    def refused(call, *words):
        try:
            call()
        except imbrex.InvalidInput as error:
            assert all(word in str(error) for word in ("overlaps operand", *words)), error
        else:
            raise AssertionError(f"{words}: not refused")

    # (operator, rows of its result)
    operators = (
        (imbrex.all_gather_matmul, N * R),
        (imbrex.matmul_reduce_scatter, N // R),
        (imbrex.matmul_all_reduce, N),
        (imbrex.matmul_all_to_all, N),
    )
    for call, rows in operators:
        room, b, bias = fresh(N * R, N), fresh(), fresh(N)
        a = room[1:N + 1] if rows > N else room[:N]
        want = call(a.copy(), b, world)
        if R > 1:
            refused(lambda: call(a, b, world, out=room[:rows] if rows > N else a[:rows]), "operand out", "operand a")
        taken = np.resize(b, (rows, N)) if rows > N else b
        refused(lambda: call(a, taken[:N], world, out=taken[:rows]), "operand out", "operand b")
        out = fresh(rows, N)
        refused(lambda: call(a, b, world, bias=out[-1], out=out), "operand out", "operand bias")
        refused(lambda: call(a, b, world, out=b[:rows]) if rows <= N else call(a, out[1:N + 1], world, out=out),
                "operand out", "operand b")
        # What was refused changed nothing.
        assert (call(a, b, world) == want).all(), call

        # One wider buffer holds a, b and the result, side by side.
        height = max(rows, N)
        wide = fresh(height, 3 * N + 5)
        x, y, z = wide[:N, :N], wide[:N, N + 3:2 * N + 3], wide[:rows, 2 * N + 5:]
        want, left = call(x.copy(), y.copy(), world), wide[:, :2 * N + 5].copy()
        assert call(x, y, world, out=z) is z and (z == want).all(), call
        assert (wide[:, :2 * N + 5] == left).all()
        # One column further left they meet.
        refused(lambda: call(x, y, world, out=wide[:rows, 2 * N + 2:3 * N + 2]), "operand out", "operand b")

    # NCCL's gather in place: a is this rank's rows of the result.
    for b in (fresh(), fresh().T):
        for width in (N, N + 3):
            room = fresh(N * R, width)[:, :N]
            # A part that is another rank's does as well: programs are one for all ranks.
            for part in (r, r, 0, R - 1):
                a = room[part * N:(part + 1) * N]
                want = imbrex.all_gather_matmul(a.copy(), b, world, bias=bias)
                assert imbrex.all_gather_matmul(a, b, world, bias=bias, out=room) is room and (room == want).all()
    # Along the second dimension.
    room = np.moveaxis(fresh(4 * R, 3, N), 0, 1)
    a, b = room[:, 4 * r:4 * r + 4], fresh()
    want = imbrex.all_gather_matmul(np.moveaxis(np.moveaxis(a, 0, 1).copy(), 0, 1), b, world, gather_dim=1)
    imbrex.all_gather_matmul(a, b, world, gather_dim=1, out=room)
    assert (room == want).all()

    # With a tolerance the product comes first, apart from out.
    a, b = fresh(), fresh()
    want = imbrex.matmul_all_reduce(a, b, world, codec="int8", tolerance=100.)
    imbrex.matmul_all_reduce(a, b, world, codec="int8", tolerance=100., out=b)
    assert (b == want).all()

    # Where one rank alone gives such operands, all are told, and the next call is right.
    if R > 1:
        a, b = fresh(), fresh()
        try:
            imbrex.matmul_all_reduce(a, b, world, out=b if r == 0 else None)
        except imbrex.InvalidInput as error:
            assert "operand out" in str(error) and "overlaps operand b" in str(error), error
        else:
            raise AssertionError("nothing is said")
        assert (imbrex.all_reduce(np.full((3, 3), 2, np.float32), world) == 2 * R).all()
print("rank", r, "is right")
"""


@pytest.mark.parametrize("count", (1, 2, 3, 4))
def test_of_arrays(tmp_path, count):
    """Every operator, by ranks without torch."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [str(program()), "launch", "-n", str(count), "--", sys.executable, str(script)]
    folder = str(Path(imbrex.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": folder, "IMBREX_WAIT_LIMIT": "20"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.stdout.count("is right") == count, done.stderr[-3000:]


def test_of_embeddings():
    """One rank looks up and updates."""
    with imbrex.World.connect(imbrex.World.make_unique_id(), 0, 1) as world:
        op = imbrex.EmbeddingAllToAll(world, [(6, 4), (6, 4)], batch=2, optimizer="sgd")
        wide = np.ones((6, 8), np.float32)
        rows, room = [wide[:, :4], wide[:, 4:]], np.zeros((2, 8), np.float32)
        indices, offsets, both = np.arange(4), np.arange(5), np.zeros(8, np.int64)
        assert (op.lookup(rows, indices, offsets, out=room) == 1).all()
        for taken, out, name in ((indices, wide[2:4], "rows0"), (both[:4], both.view("f").reshape(2, 8), "indices")):
            with pytest.raises(imbrex.InvalidInput, match=f"operand out at .* overlaps operand {name}"):
                op.lookup(rows, taken, offsets, out=out)
        room[:] = 0
        op.update(rows, room, indices, offsets, rate=0.5)
        with pytest.raises(imbrex.InvalidInput, match=r"operand rows0 at .* overlaps operand gradients"):
            op.update(rows, wide[2:4], indices, offsets, rate=0.5)
        with pytest.raises(imbrex.InvalidInput, match=r"operand rows0 at .* overlaps operand rows1"):
            op.update([wide[:, :4], wide[:, :4]], room, indices, offsets, rate=0.5)
        assert (wide == 1).all()


def of_tensors(count: int) -> None:
    """Every operator, on the first `count` ranks."""
    import torch
    import torch.distributed as dist
    from device_for_tests import generator_of
    from groups_for_tests import first

    import imbrex.torch as it

    group = first(count)
    if group is None:
        return
    rank, n = dist.get_rank(group), 48 * count
    generator = generator_of(17 + rank)

    def fresh(*shape: int) -> torch.Tensor:
        return torch.randn(*(shape or (n, n)), generator=generator, device=generator.device).to(torch.bfloat16)

    def refused(words, call, *args, **kwargs):
        with pytest.raises(imbrex.InvalidInput, match=words):
            call(*args, **kwargs)

    operators = (
        (it.all_gather_matmul, n * count),
        (it.matmul_reduce_scatter, n // count),
        (it.matmul_all_reduce, n),
        (it.matmul_all_to_all, n),
    )
    for call, rows in operators:
        a, b, out = fresh(max(rows, n), n), fresh(max(rows, n), n), fresh(rows, n)
        want = call(a[:n], b[:n], group)
        # With and without what the shortest way of a call does without.
        for bias in (None, fresh(n)):
            x = a[1 : n + 1] if rows > n else a[:n]
            refused(r"operand out at .* overlaps operand a ", call, x, b[:n], group, bias=bias, out=a[:rows])
            refused(r"operand out at .* overlaps operand b ", call, a[:n], b[:n], group, bias=bias, out=b[:rows])
        refused(r"operand out at .* overlaps operand bias", call, a[:n], b[:n], group, bias=out[-1], out=out)
        assert torch.equal(call(a[:n], b[:n], group), want)
        wide = fresh(max(rows, n), 3 * n + 16)
        x, y, z = wide[:n, :n], wide[:n, n + 8 : 2 * n + 8], wide[:rows, 2 * n + 16 :]
        want, left = call(x.clone(), y.clone(), group), wide[:, : 2 * n + 16].clone()
        assert call(x, y, group, out=z) is z and torch.equal(z, want)
        assert torch.equal(wide[:, : 2 * n + 16], left)

    for bias in (None, fresh(n)):
        for b in (fresh(), fresh().t()):
            room = fresh(n * count, n)
            for part in (rank, rank, 0):
                a = room[part * n : (part + 1) * n]
                want = it.all_gather_matmul(a.clone(), b, group, bias=bias)
                assert it.all_gather_matmul(a, b, group, bias=bias, out=room) is room and torch.equal(room, want)
    # A list of outputs takes copies: it may be anything.
    room, bs = fresh(n * count, n), [fresh(), fresh()]
    a = room[:n]
    want = it.all_gather_matmul(a.clone(), bs, group)
    got = it.all_gather_matmul(a, bs, group, out=[room, fresh(n * count, n)])
    assert all(torch.equal(*pair) for pair in zip(got, want, strict=True))
    # The sum of all ranks may take its input's place, as torch's does.
    a = fresh()
    want = it.all_reduce(a.clone(), group)
    assert torch.equal(it.all_reduce(a, group, out=a), want)


@pytest.mark.parametrize("count", (2, 3, 4))
def test_of_tensors(ranks, count):
    """Every operator of torch."""
    pytest.importorskip("torch")
    ranks.run(of_tensors, count=count)
