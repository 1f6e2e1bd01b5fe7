"""Packed sums, put back in rows by the operation that comes next."""

from __future__ import annotations

import numpy as np
import pytest

import imbrex


def world_of_one():
    return imbrex.World.from_environment()


def operands(rng, rows=37, depth=12, cols=64):
    return (
        rng.integers(-4, 4, (rows, depth)).astype(np.float32),
        rng.integers(-4, 4, (depth, cols)).astype(np.float32),
    )


def test_numpy():
    rng = np.random.default_rng(1)
    a, b = operands(rng)
    weight, residual, bias = (rng.standard_normal(s, dtype=np.float32) for s in ((64,), (37, 64), (64,)))
    with world_of_one() as world:
        y, layout = imbrex.matmul_all_reduce_packed(a, b, world)
        assert layout.shape == (37, 64) and y.shape == layout.packed_shape
        x = a @ b
        assert np.array_equal(imbrex.put_back("copy", y, layout), x)
        z, s = imbrex.put_back("rms_norm", y, layout, weight=weight, residual=residual, eps=0.5)
        assert np.array_equal(s, x + residual)
        wide = s.astype(np.float64)
        wanted = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 0.5) * weight
        np.testing.assert_allclose(z, wanted, rtol=1e-5, atol=1e-6)
        v = x.astype(np.float64) + bias
        gate, up = v[:, :32], v[:, 32:]
        got = imbrex.put_back("silu_multiply", y, layout, bias=bias)
        np.testing.assert_allclose(got, gate / (1 + np.exp(-gate)) * up, rtol=1e-4, atol=1e-4)


def test_refusals():
    a, b = operands(np.random.default_rng(2))
    with world_of_one() as world:
        y, layout = imbrex.matmul_all_reduce_packed(a, b, world)
        with pytest.raises(imbrex.InvalidInput, match="operation is 'norm': it must be one of copy"):
            imbrex.put_back("norm", y, layout)
        with pytest.raises(imbrex.InvalidInput, match="packed has shape"):
            imbrex.put_back("copy", y[:-1], layout)
        with pytest.raises(imbrex.InvalidInput, match="operand weight is missing"):
            imbrex.put_back("rms_norm", y, layout)
        with pytest.raises(imbrex.InvalidInput, match="weight has shape"):
            imbrex.put_back("rms_norm", y, layout, weight=np.ones(3, np.float32))


def packed_norms() -> None:
    import torch
    import torch.distributed as dist
    from device_for_tests import generator_of

    import imbrex.torch as it

    rank, size = dist.get_rank(), dist.get_world_size()
    generator = generator_of(3)
    a = torch.randint(-4, 4, (40, 16 * size), generator=generator).float()
    b = torch.randint(-4, 4, (16 * size, 128), generator=generator).float()
    weight = torch.randn(128, generator=generator)
    mine = slice(16 * rank, 16 * rank + 16)
    y, layout = it.matmul_all_reduce_packed(a[:, mine].contiguous(), b[mine].contiguous())
    assert torch.equal(it.put_back("copy", y, layout), a @ b)
    z, s = it.put_back("rms_norm", y, layout, weight=weight, residual=torch.ones(40, 128))
    assert torch.equal(s, a @ b + 1)
    torch.testing.assert_close(z, torch.nn.functional.rms_norm(a @ b + 1, (128,), weight, 1e-6))


def test_torch(ranks):
    pytest.importorskip("torch")
    ranks.run(packed_norms)
