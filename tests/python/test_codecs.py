"""Products whose sums go through a codec: within the codec's bound, the same bits on every rank, with gradients."""

from __future__ import annotations

import hashlib

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import generator_of
from groups_for_tests import group_of

import imbrex
import imbrex.torch as it

DTYPES = ("float32", "bfloat16", "float16")
# Half a step over the largest value, a little more for the step's own rounding.
HALF_STEPS = {"int8": (0.51 / 127, 0.51 / 127), "int4+int8": (0.51 / 7, 0.51 / 127), "int6": (0.51 / 31, 0.51 / 31)}
ROUNDING = {"float32": 2**-22, "bfloat16": 2**-7, "float16": 2**-10}


def operands(rows: int, k: int, n: int, dtype: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's A and B; small integers, so that its product is exact in float32."""
    generator = generator_of(seed * 10 + dist.get_rank())
    draw = [torch.randint(-3, 4, shape, generator=generator) for shape in ((rows, k), (k, n))]
    return draw[0].to(getattr(torch, dtype)), draw[1].to(getattr(torch, dtype))


def gathered(x: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return parts


def within_the_bound() -> None:
    """Both operators against the sum of float32 products."""
    group = group_of(0, 1, 2, 3)
    for seed, dtype in enumerate(DTYPES):
        for codec, (of_parts, of_sums) in HALF_STEPS.items():
            a, b = operands(32, 6, 40, dtype, seed)
            parts = gathered(a.float() @ b.float())
            want = torch.stack(parts).sum(0)
            largest = sum(part.abs().max().item() for part in parts)
            got = it.matmul_all_reduce(a, b, group, codec=codec)
            bound = largest * (of_parts + 1.1 * of_sums + 6 * ROUNDING[dtype])
            off = (got.float() - want).abs().max().item()
            assert 0 < off <= bound, f"{dtype} {codec}: {off} off, the bound is {bound}"
            digests = [None] * 4
            dist.all_gather_object(digests, hashlib.sha256(got.view(torch.uint8).cpu().numpy().tobytes()).hexdigest())
            assert len(set(digests)) == 1
            out = torch.empty_like(got)
            assert it.matmul_all_reduce(a, b, group, codec=codec, out=out) is out and torch.equal(out, got)
            assert torch.equal(it.matmul_all_reduce(a, b.t().contiguous().t(), group, codec=codec), got)
            if "+" in codec:
                continue
            mine = want.chunk(4)[dist.get_rank()]
            got = it.matmul_reduce_scatter(a, b, group, codec=codec, bias=torch.ones(40, dtype=a.dtype))
            off = (got.float() - 1 - mine).abs().max().item()
            assert off <= largest * (of_parts + 8 * ROUNDING[dtype]) + 4 * ROUNDING[dtype], f"{dtype} {codec}: {off}"
            out = torch.empty_like(got)
            it.matmul_reduce_scatter(a, b, group, codec=codec, bias=torch.ones(40, dtype=a.dtype), out=out)
            assert torch.equal(out, got)


def test_within_the_bound(ranks):
    ranks.run(within_the_bound)


def eight_bits() -> None:
    """Operands of e4m3 with scales; the sum, of bfloat16, goes through a codec."""
    group = group_of(0, 1, 2, 3)
    a, b = operands(16, 16, 24, "float32", 3)
    parts = gathered(a @ b)
    want = torch.stack(parts).sum(0) / 4
    one = torch.full((1,), 0.5)
    a8, b8 = a.to(torch.float8_e4m3fn), b.t().contiguous().to(torch.float8_e4m3fn).t()
    got = it.matmul_all_reduce(a8, b8, group, scale_a=one, scale_b=one, codec="int8")
    assert got.dtype == torch.bfloat16
    bound = sum(part.abs().max().item() for part in parts) / 4 * (1.1 / 127 + 6 * 2**-7)
    assert (got.float() - want).abs().max().item() <= bound


def test_eight_bits(ranks):
    ranks.run(eight_bits)


def modules_and_gradients() -> None:
    """The layer with a codec; its gradients are those of the exact one."""
    group = group_of(0, 1, 2, 3)
    for sequence_parallel in (False, True):
        torch.manual_seed(5)
        layers = [
            it.nn.RowParallelLinear(32, 24, group, sequence_parallel=sequence_parallel, bias=True, codec=codec)
            for codec in (None, "int8")
        ]
        layers[1].load_state_dict(layers[0].state_dict())
        generator = generator_of(7 + dist.get_rank())
        x = torch.randn(16, 8, generator=generator)
        xs = [x.clone().requires_grad_() for _ in layers]
        exact, quantized = (layer(one) for layer, one in zip(layers, xs, strict=True))
        scale = torch.stack(gathered((x @ layers[0].weight.t()).detach())).abs().amax().item()
        off = (exact - quantized).abs().max().item()
        assert 0 < off <= 4 * scale * 1.1 / 127, f"{off} off at a scale of {scale}"
        for one in (exact, quantized):
            one.sum().backward()
        assert torch.equal(xs[0].grad, xs[1].grad)
        assert torch.equal(layers[0].weight.grad, layers[1].weight.grad)


def test_modules_and_gradients(ranks):
    ranks.run(modules_and_gradients)


def compiled() -> None:
    """In a graph, after warm_up, as without."""
    group = group_of(0, 1, 2, 3)
    a, b = operands(16, 8, 32, "float32", 9)
    name = group.group_name
    made = it.warm_up([(it.matmul_all_reduce, (16, 8), (8, 32), torch.float32, {"codec": "int6"})], group)
    assert made == 1
    want = it.matmul_all_reduce(a, b, group, codec="int6")
    traced = torch.compile(
        lambda x, y: torch.ops.imbrex.matmul_all_reduce(x, y, name, codec="int6"), backend="aot_eager", fullgraph=True
    )
    assert torch.equal(traced(a, b), want)
    tests = ("test_schema", "test_faketensor")
    for op in (torch.ops.imbrex.matmul_all_reduce, torch.ops.imbrex.matmul_reduce_scatter):
        torch.library.opcheck(op, (a, b, name), {"codec": "int8"}, test_utils=tests)


def test_compiled(ranks):
    ranks.run(compiled)


def refusals() -> None:
    """What is no codec, or has one phase."""
    group = group_of(0, 1, 2, 3)
    a, b = operands(16, 8, 32, "float32", 9)
    one = torch.ones(1)
    for call, words in (
        (lambda: it.matmul_all_reduce(a, b, group, codec="int9"), "int9"),
        (lambda: it.matmul_reduce_scatter(a, b, group, codec="int4+int8"), "one phase"),
        (lambda: it.matmul_all_reduce(a, b, group, codec="int8", tolerance=1.0, scale_a=one, scale_b=one), "tolerance"),
    ):
        try:
            call()
        except imbrex.InvalidInput as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)


def test_refusals(ranks):
    ranks.run(refusals)
