"""Gradients of operators and layers, against the unsharded layer in float64."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, generator_of
from groups_for_tests import group_of

import imbrex.torch as it

RANKS, TOKENS, HIDDEN, WIDE = 4, 16, 24, 32


def bound(terms: int, *factors: torch.Tensor) -> float:
    """How far fp32 sums of so many products of elements of these tensors may be off: each addition rounds once."""
    largest = 1.0
    for factor in factors:
        largest *= factor.abs().max().item()
    return 2 * terms * 2.0**-24 * terms * largest


def expect_near(got: torch.Tensor, want: torch.Tensor, limit: float, what: str) -> None:
    off = (got.double() - want).abs().max().item()
    assert off <= limit, f"{what}: {off} off, at most {limit}"


def shards(whole: torch.Tensor, dim: int) -> torch.Tensor:
    return whole.chunk(RANKS, dim)[dist.get_rank()].contiguous()


def operator_gradients(op: str, dim: int, batch: int) -> None:
    """dX, dW and dbias of one operator."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    generator = generator_of(11)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    lead = (TOKENS,) if not batch else (TOKENS, batch) if dim == 0 else (batch, TOKENS)
    gather = op == "all_gather_matmul"
    k, n = (HIDDEN, WIDE) if gather else (WIDE, HIDDEN)
    x, w, bias = draw(*lead, k), draw(n, k), draw(n)
    dy = draw(*lead, n)
    wide = [one.clone().requires_grad_() for one in (x, w, bias)]
    torch.nn.functional.linear(*wide).backward(dy)
    dx, dw, db = (one.grad for one in wide)

    def lying(one: torch.Tensor) -> torch.Tensor:
        return one.movedim(dim, 0).contiguous().movedim(0, dim)

    if gather:
        mine = [lying(shards(x, dim)), shards(w, 0), shards(bias, 0)]
        wants = [shards(dx, dim), shards(dw, 0), shards(db, 0)]
        own_dy = shards(dy, -1)
    else:
        mine = [lying(shards(x, -1)), shards(w, 1), bias]
        wants = [shards(dx, -1), shards(dw, 1), db]
        own_dy = shards(dy, dim) if op == "matmul_reduce_scatter" else dy
    mine = [one.float().requires_grad_() for one in mine]
    mine[0] = lying(mine[0].detach()).requires_grad_()
    dims = {"all_gather_matmul": {"gather_dim": dim}, "matmul_reduce_scatter": {"scatter_dim": dim}}.get(op, {})
    y = getattr(it, op)(mine[0], mine[1].t(), group, bias=mine[2], **dims)
    y.backward(own_dy.float())
    terms = max(TOKENS * max(batch, 1), WIDE)
    limit = bound(terms, x, w, dy) + 1e-4
    for name, got, want in zip(("x", "w", "bias"), mine, wants, strict=True):
        expect_near(got.grad, want, limit, f"{op}, gradient of {name} on rank {rank}")


@pytest.mark.parametrize("op", ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"))
@pytest.mark.parametrize(("dim", "batch"), ((0, 0), (0, 2), (1, 1), (1, 3)))
def test_operator_gradients(ranks, op, dim, batch):
    if op == "matmul_all_reduce" and dim == 1:
        pytest.skip("it splits nothing")
    ranks.run(operator_gradients, op=op, dim=dim, batch=batch)


def partial_gradients() -> None:
    """Only what needs a gradient gets one."""
    group = group_of(0, 1, 2, 3)
    for op in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all"):
        for needs in range(3):
            given = [torch.ones(8, 8), torch.ones(4, 8), torch.ones(4)]
            given[needs].requires_grad_()
            getattr(it, op)(given[0], given[1].t(), group, bias=given[2]).sum().backward()
            assert [one.grad is not None for one in given] == [i == needs for i in range(3)], (op, needs)


def test_partial_gradients(ranks):
    ranks.run(partial_gradients)


def exchange_gradients() -> None:
    """matmul_all_to_all: against the same by torch's collectives."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    generator = generator_of(12)
    a, b, dy = (torch.randn(4, *shape, generator=generator, dtype=torch.float64) for shape in ((8, 6), (5, 6), (8, 5)))
    wide = [a.clone().requires_grad_(), b.clone().requires_grad_()]
    products = [x @ w.t() for x, w in zip(*wide, strict=True)]
    outputs = [torch.cat([product[2 * r : 2 * r + 2] for product in products]) for r in range(4)]
    sum((out * grad).sum() for out, grad in zip(outputs, dy, strict=True)).backward()
    mine = [one[rank].float().requires_grad_() for one in (a, b)]
    it.matmul_all_to_all(mine[0], mine[1].t(), group).backward(dy[rank].float())
    for got, want in zip(mine, wide, strict=True):
        expect_near(got.grad, want.grad[rank], 1e-4, "matmul_all_to_all")


def test_exchange_gradients(ranks):
    ranks.run(exchange_gradients)


def list_gradients() -> None:
    """Several B of one gather, with the gathered A used as well."""
    group = group_of(0, 1, 2, 3)
    generator = generator_of(13)
    x = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    ws = [torch.randn(4 * n, HIDDEN, generator=generator, dtype=torch.float64) for n in (3, 2)]
    wide = [one.clone().requires_grad_() for one in (x, *ws)]
    loss = (wide[0] @ wide[1].t()).pow(2).sum() + (wide[0] @ wide[2].t()).sum() + wide[0].pow(2).sum()
    loss.backward()
    own = [shards(x, 0), *(shards(w, 0) for w in ws)]
    mine = [one.float().requires_grad_() for one in own]
    gathered, (first, second) = it.all_gather_matmul(mine[0], [mine[1].t(), mine[2].t()], group, return_gathered=True)
    # Each rank counts a quarter of what all of them have.
    (first.pow(2).sum() + second.sum() + gathered.pow(2).sum() / RANKS).backward()
    for got, want in zip(mine, [shards(one.grad, 0) for one in wide], strict=True):
        expect_near(got.grad, want, 1e-2, "a list")


def test_list_gradients(ranks):
    ranks.run(list_gradients)


def norm_gradients() -> None:
    """The RMSNorm after the all-reduce."""
    group = group_of(0, 1, 2, 3)
    rank = dist.get_rank()
    generator = generator_of(14)
    parts, residual, weight, dy, ds = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((4, 6, 8), (6, 8), (8,), (6, 8), (6, 8))
    )
    wide = [one.clone().requires_grad_() for one in (parts, residual, weight)]
    s = wide[0].sum(0) + wide[1]
    y = s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-5) * wide[2]
    ((y * dy).sum() + (s * ds).sum()).backward()
    mine = [one.float().requires_grad_() for one in (parts[rank], residual, weight)]
    y, s = it.all_reduce_rms_norm(mine[0], mine[1], mine[2], 1e-5, group)
    ((y * dy.float()).sum() + (s * ds.float()).sum()).backward()
    for got, want in zip(mine, (wide[0].grad[rank], wide[1].grad, wide[2].grad), strict=True):
        expect_near(got.grad, want, 1e-4, "all_reduce_rms_norm")
    # The weight is float32 beside rows of bfloat16, and so is its gradient.
    x, weight = parts[rank].bfloat16(), wide[2].detach().float().requires_grad_()
    x.requires_grad_()
    y, s = it.all_reduce_rms_norm(x, None, weight, 1e-5, group)
    (y.double() * dy).sum().backward()
    s = s.detach().double().requires_grad_()
    known = wide[2].detach().clone().requires_grad_()
    (s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-5) * known * dy).sum().backward()
    assert weight.grad.dtype == torch.float32 and x.grad.dtype == torch.bfloat16
    expect_near(weight.grad, known.grad, 2.0**-6, "a weight of float32")
    expect_near(x.grad, s.grad, 2.0**-6, "rows of bfloat16")
    x = torch.ones(4, requires_grad=True)
    it.all_reduce(x, group, codec="int8").sum().backward()
    assert torch.equal(x.grad, torch.ones(4))


def test_norm_gradients(ranks):
    ranks.run(norm_gradients)


class Unsharded(torch.nn.Module):
    """The MLP that the parallel ones are parts of."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, WIDE, dtype=torch.float64)
        self.down = torch.nn.Linear(WIDE, HIDDEN, dtype=torch.float64)
        for parameter in self.parameters():
            parameter.data.normal_(0, 0.3, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.silu(self.up(x)))


def layers(sequence_parallel: bool, plan: bool) -> None:
    """Both modules, or both plans, as an MLP: output and all gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import parallelize_module

    generator = generator_of(15)
    model = Unsharded(generator)
    x = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    want = model(x)
    want.backward(dy)
    if plan:
        mesh = init_device_mesh(DEVICE, (RANKS,))
        split = Unsharded(generator_of(15))
        split.load_state_dict(model.state_dict())
        split = split.float()
        ends = Shard(0) if sequence_parallel else Replicate()
        parallelize_module(
            split,
            mesh,
            {
                "up": it.parallel.ColwiseParallel(input_layouts=ends),
                "down": it.parallel.RowwiseParallel(output_layouts=ends),
            },
        )
    else:
        options = {"sequence_parallel": sequence_parallel, "bias": True}
        split = torch.nn.Module()
        split.up = it.nn.ColumnParallelLinear(HIDDEN, WIDE, **options)
        split.down = it.nn.RowParallelLinear(WIDE, HIDDEN, **options)
        for name, dims in (("up", (0, 0)), ("down", (1, None))):
            for kind, dim in zip(("weight", "bias"), dims, strict=True):
                whole = getattr(getattr(model, name), kind).detach()
                getattr(getattr(split, name), kind).data.copy_(whole if dim is None else shards(whole, dim))
    mine = (shards(x.detach(), 0) if sequence_parallel else x.detach()).float().requires_grad_()
    y = split.down(torch.nn.functional.silu(split.up(mine)))
    own_dy = shards(dy, 0) if sequence_parallel else dy
    y.backward(own_dy.float())
    expect_near(y, shards(want, 0) if sequence_parallel else want, 1e-4, "output")
    expect_near(mine.grad, shards(x.grad, 0) if sequence_parallel else x.grad, 1e-4, "gradient of x")
    for name, dims in (("up", (0, 0)), ("down", (1, None))):
        for kind, dim in zip(("weight", "bias"), dims, strict=True):
            whole = getattr(getattr(model, name), kind).grad
            got = getattr(getattr(split, name), kind).grad
            got = got.to_local() if isinstance(got, DTensor) else got
            expect_near(got, whole if dim is None else shards(whole, dim), 1e-3, f"gradient of {name}.{kind}")


@pytest.mark.parametrize("sequence_parallel", (False, True))
@pytest.mark.parametrize("plan", (False, True))
def test_layers(ranks, sequence_parallel, plan):
    ranks.run(layers, sequence_parallel=sequence_parallel, plan=plan)


def second_derivatives() -> None:
    """A penalty on the gradient of a column-parallel layer's input, against the unsharded layer."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    generator = generator_of(21)
    x = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    w = torch.randn(WIDE, HIDDEN, generator=generator, dtype=torch.float64) / 4
    wide = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    (slope,) = torch.autograd.grad((wide[0] @ wide[1].t()).pow(3).sum(), wide[0], create_graph=True)
    slope.pow(2).sum().backward()
    layer = it.nn.ColumnParallelLinear(HIDDEN, WIDE, group, dtype=torch.float32)
    layer.weight.data.copy_(shards(w, 0))
    mine = x.float().requires_grad_()
    (slope,) = torch.autograd.grad(layer(mine).pow(3).sum(), mine, create_graph=True)
    slope.pow(2).sum().backward()
    for name, got, want in (
        ("x", mine.grad, wide[0].grad),
        ("w", layer.weight.grad, shards(wide[1].grad, 0)),
    ):
        off = (got.double() - want).abs().max() / want.abs().max()
        assert off < 1e-4, f"second derivative, {name} on rank {rank}: {off} off"
    # An all-reduce is linear: the second derivative goes through it, too.
    y = torch.full((4,), rank + 1.0, requires_grad=True)
    (slope,) = torch.autograd.grad(it.all_reduce(y, group).pow(3).sum(), y, create_graph=True)
    assert torch.equal(slope, torch.full((4,), 300.0))  # 3 * 10^2, on every rank
    # Every rank adds its own term: sum over ranks of 3 s^2 c, with c = 1, 2, 3, 4.
    (second,) = torch.autograd.grad((slope * (rank + 1)).sum(), y)
    assert torch.equal(second, torch.full((4,), 600.0)), second


def test_second_derivatives(ranks):
    ranks.run(second_derivatives)


def second_derivatives_that_raise() -> None:
    """Products have none, and never give a part of one: also where the gradient that comes in depends on nothing."""
    group = group_of(0, 1, 2, 3)
    a, w = torch.ones(8, 8), torch.ones(8, 8)
    calls = {
        "all_gather_matmul": lambda x, y: it.all_gather_matmul(x, y.t(), group),
        "matmul_reduce_scatter": lambda x, y: it.matmul_reduce_scatter(x, y.t(), group),
        "a codec": lambda x, y: it.matmul_reduce_scatter(x, y.t(), group, codec="int8"),
        "matmul_all_reduce": lambda x, y: it.matmul_all_reduce(x, y.t(), group),
        "matmul_all_to_all": lambda x, y: it.matmul_all_to_all(x, y.t(), group),
        "a list": lambda x, y: it.all_gather_matmul(x, [y.t(), y.t()], group)[1],
        "gathered": lambda x, y: it.all_gather_matmul(x, y.t(), group, return_gathered=True)[1],
        "all_reduce_rms_norm": lambda x, y: it.all_reduce_rms_norm(x, None, y[0], 1e-5, group)[0],
    }
    for name, call in calls.items():
        for loss in (torch.sum, lambda y: y.pow(2).sum()):
            x, y = a.clone().requires_grad_(), w.clone().requires_grad_()
            (slope,) = torch.autograd.grad(loss(call(x, y)), x, create_graph=True)
            # Another term has derivatives, so that torch itself misses nothing.
            with pytest.raises(RuntimeError, match="no second derivatives"):
                (slope.pow(2).sum() + y.pow(2).sum() + x.pow(2).sum()).backward()
            assert name
        x, y = a.clone().requires_grad_(), w.clone().requires_grad_()
        (slope,) = torch.autograd.grad(call(x, y).sum(), x)
        assert not slope.requires_grad


def test_second_derivatives_that_raise(ranks):
    ranks.run(second_derivatives_that_raise)
