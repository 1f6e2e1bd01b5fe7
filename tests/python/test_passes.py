"""The drop-in's pass over graphs: what it puts an operator in place of, what it leaves, and that results stay."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import group_of
from problems import DTYPES, integers
from test_drop_in import flat, steps
from torch import Tensor

import imbrex.torch as it
from imbrex.torch import extension
from imbrex.torch.graph.nodes import cut_up

c10d = torch.ops._c10d_functional
aten = torch.ops.aten
STEP = 8 if DEVICE == "cuda" else 1  # rows of whole 16 bytes are what the drop-in takes there


def all_reduce(x: Tensor, name: str, reduction: str = "sum") -> Tensor:
    return c10d.wait_tensor(c10d.all_reduce(x, reduction, name))


def reduce_scatter(x: Tensor, name: str, dim: int = 0, ranks: int = 4) -> Tensor:
    if dim:
        x = torch.cat(x.chunk(ranks, dim))
    return c10d.wait_tensor(c10d.reduce_scatter_tensor(x, "sum", ranks, name))


def rewritten(function: Callable[..., Any], *args: Tensor, mode: str = "fake") -> Any:
    """The function's graph as Inductor has it before its own passes, with ours behind."""
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    decomposed = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode=mode)(*args)
    graph = make_fx(torch.func.functionalize(decomposed), tracing_mode=mode)(*args)
    config.post_grad_custom_pre_pass(graph.graph)
    graph.graph.lint()
    graph.recompile()
    return graph


def agreed(function: Callable[..., Any], *args: Any, mode: str = "fake") -> Any:
    """The same once it was called: by the first call, which is torch's, the ranks agree."""
    graph = rewritten(function, *args, mode=mode)
    before = extension.calls()
    for got, want in zip(flat(graph(*args)), flat(function(*args)), strict=True):
        assert torch.allclose(got.float(), want.float(), rtol=2.0**-6, atol=2.0**-6)
    after = extension.calls()
    assert after == before, {name: (before[name], count) for name, count in after.items() if count != before[name]}
    return graph


def operators(graph: Any) -> list[str]:
    """Ours and torch's collectives among a graph's nodes."""
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return [name.split(".")[1] for name in names if name.startswith(("imbrex_graph", "_c10d_functional"))]


def matrices(
    r: random.Random, terms: int, lead: tuple[int, ...], n: int, dtype: torch.dtype, rank: int
) -> list[Tensor]:
    """As and Bs of a sum of products, the Bs by rows or by columns."""
    found = []
    for _ in range(terms):
        k, seed = r.randint(2, 8) * STEP, r.randint(0, 1000)  # torch makes no product of K = 1
        b = integers((k, n), seed + 50 + rank, dtype)
        found += [integers((*lead, k), seed + rank, dtype), b.t().contiguous().t() if r.random() < 0.5 else b]
    return found


def summed(tensors: tuple[Tensor, ...]) -> Tensor:
    products = [torch.matmul(a, b) for a, b in zip(tensors[::2], tensors[1::2], strict=True)]
    total = products[0]
    for product in products[1:]:
        total = total + product
    return total


def summed_first(collective: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    return collective(summed(tensors))


def summed_apart(collective: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    parts = [collective(summed(pair)) for pair in zip(tensors[::2], tensors[1::2], strict=True)]
    return sum(parts[1:], parts[0])


def saves(tensors: tuple[Tensor, ...], ranks: int) -> bool:
    """Whether it pays to copy a sum's parts side by side, as docs/pytorch.md has it."""
    a, b = tensors[::2], tensors[1::2]
    m, n, k = a[0].numel() // a[0].shape[-1], b[0].shape[1], sum(one.shape[0] for one in b)
    return len(a) == 1 or 2 * k * (m + n) <= 3 * (len(a) - 1) * m * n + 10 * m * n * (ranks - 1) / ranks


def random_sums(begin: int, count: int) -> None:
    """Sums of one to three products, whole or scattered along either dimension, each summed first or last."""
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    with it.drop_in():
        for seed in range(begin, begin + count):
            r = random.Random(seed)
            lead = r.choice(((8,), (4, 3), (1, 8), (3, 4)))
            dim = r.choice([i for i, size in enumerate(lead) if size % 4 == 0])
            terms, scattered, sums_collectives = r.randint(1, 3), r.random() < 0.5, r.random() < 0.5
            tensors = matrices(r, terms, lead, r.randint(2, 12) * STEP, r.choice(tuple(DTYPES.values())), rank)

            collective = partial(reduce_scatter, name=name, dim=dim) if scattered else partial(all_reduce, name=name)
            function = partial(summed_apart if sums_collectives else summed_first, collective)
            graph = agreed(function, *tensors, mode="symbolic" if lead == (8,) and r.random() < 0.5 else "fake")
            want, before = function(*tensors), extension.calls()
            got, after = graph(*tensors), extension.calls()
            what = f"seed {seed}: {lead}, {dim}, {terms} terms, scattered {scattered}, apart {sums_collectives}"
            assert torch.equal(got, want) and steps(got) == steps(want), what
            op = "matmul_reduce_scatter" if scattered else "matmul_all_reduce"
            assert operators(graph) == [op], (what, operators(graph))
            if saves(tensors, 4):
                assert after[op] - before[op] == 1, what
            else:
                assert after[op] == before[op], what
                assert scattered or after["all_reduce"] - before["all_reduce"] == 1, what


def test_sums_of_products(ranks):
    ranks.run(random_sums, begin=0, count=24)


def parts_of_one() -> None:
    """Factors that are parts of one tensor are taken as they lie; few rows of others are added up instead."""
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    # Another number of rows is another place, of which the ranks agree by themselves.
    grads, weights = integers((8, 24), rank, torch.float32), integers((24, 16), 50 + rank, torch.float32)
    apart = [*(one[:4].clone() for one in grads.split(8, 1)), *(one.clone() for one in weights.split(8))]
    with it.drop_in():
        for scattered in (False, True):
            collective = partial(reduce_scatter if scattered else all_reduce, name=name)
            op = "matmul_reduce_scatter" if scattered else "matmul_all_reduce"

            def function(*parts: Tensor, collective: Any = collective) -> Tensor:
                return collective(sum((x @ w for x, w in zip(parts[1:3], parts[4:], strict=True)), parts[0] @ parts[3]))

            for lie, parts in (("side by side", [*grads.split(8, 1), *weights.split(8)]), ("apart", apart)):
                graph, want = agreed(function, *parts), function(*parts)
                before, then = extension.calls(), it.stats()
                assert torch.equal(graph(*parts), want)
                after, now = extension.calls(), it.stats()
                assert now.copies == then.copies, (lie, now.copies)
                assert after[op] - before[op] == int(lie == "side by side"), (op, lie)
                key = f"{op}: parts of a sum that are not worth laying side by side"
                handed_back = now.fallbacks.get(key, 0) - then.fallbacks.get(key, 0)
                assert handed_back == int(scattered and lie == "apart"), (op, lie, now.fallbacks)


def test_parts_of_one_tensor(ranks):
    ranks.run(parts_of_one)


def test_another_build_is_another_pass(monkeypatch, tmp_path):
    """Graphs in a cache that outlives a process are those of one version and one build."""
    from torch._inductor import config

    from imbrex import _c
    from imbrex.torch.graph import passes

    with it.drop_in():
        ours = config.post_grad_custom_pre_pass
        first = ours.uuid()
        assert first is not None and first == ours.uuid()
        with monkeypatch.context() as patched:
            patched.setattr(_c, "function", lambda name: lambda: b"9.9.9")
            assert ours.uuid() != first
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib/libimbrex_torch.so").write_bytes(b"another build")
        with monkeypatch.context() as patched:
            patched.setattr(passes, "package_folder", lambda: tmp_path)
            assert ours.uuid() != first
        assert ours.uuid() == first


def torchs_norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (16,), weight, 1e-5)


def llamas_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def normalised(
    norm: Any, has_residual: bool, name: str, a: Tensor, b: Tensor, weight: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor]:
    total = all_reduce(torch.matmul(a, b), name)
    total = residual + total if has_residual else total
    return norm(total, weight), total * 2


def joined(
    function: Callable[..., tuple[Tensor, ...]], operands: tuple[Tensor, ...], what: object
) -> tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...], dict[str, int], dict[str, int]]:
    """A graph of one operator; what torch and it give, whose sums are the same; counts of calls around the graph's."""
    graph = agreed(function, *operands)
    want, before = function(*operands), extension.calls()
    got, after = graph(*operands), extension.calls()
    assert operators(graph) == ["matmul_all_reduce_rms_norm"], (what, operators(graph))
    assert torch.equal(got[1], want[1]), what
    return graph, want, got, before, after


def norms() -> None:
    """The norm in each form in which models write it, with and without a residual, for few rows and for many."""
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name

    with it.drop_in():
        for dtype in (torch.float32, torch.bfloat16):
            for i, norm in enumerate((torchs_norm, llamas_norm)):  # torch's may be the same graph, of the same sizes
                for lead in ((8 + i,), (2, 3 + i), (2, 160 + i)):
                    for has_residual in (False, True):
                        a, b = integers((*lead, 8), rank, dtype), integers((8, 16), 9 + rank, dtype)
                        weight, residual = integers((16,), 3, dtype), integers((*lead, 16), 4, dtype)

                        what = (dtype, norm.__name__, lead, has_residual)
                        function = partial(normalised, norm, has_residual, name)
                        _, want, got, before, after = joined(function, (a, b, weight, residual), what)
                        tolerance = 1e-5 if dtype == torch.float32 else 2.0**-6
                        assert torch.allclose(got[0].float(), want[0].float(), rtol=tolerance, atol=tolerance), what
                        op = "all_reduce_rms_norm" if len(lead) < 2 or lead[1] < 100 else "matmul_all_reduce"
                        assert after[op] - before[op] == 1, what


def megatrons_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.float()).to(x.dtype)


def wide_norms() -> None:
    """A weight of float32 is taken as it is, and one that becomes float32 for the product as it was before."""
    group = group_of(0, 1, 2, 3)
    rank, name, dtype = dist.get_rank(), group.group_name, torch.bfloat16

    def rounded(x: Tensor, weight: Tensor) -> Tensor:
        return llamas_norm(x, weight).to(x.dtype)

    with it.drop_in():
        forms = (
            (torchs_norm, torch.float32),
            (rounded, torch.float32),
            (megatrons_norm, torch.float32),
            (megatrons_norm, dtype),
        )
        for i, (norm, kind) in enumerate(forms):  # graphs of other sizes are other places
            for lead in ((8 * i + 8,), (2, 8 * i + 160)):
                a, b = integers((*lead, 8), rank, dtype), integers((8, 16), 9 + rank, dtype)
                weight, residual = integers((16,), 3, kind), integers((*lead, 16), 4, dtype)
                what = (norm.__name__, kind, lead)
                function = partial(normalised, norm, True, name)
                graph, want, got, before, after = joined(function, (a, b, weight, residual), what)
                assert got[0].dtype == dtype, what
                assert torch.allclose(got[0].float(), want[0].float(), rtol=2.0**-6, atol=2.0**-6), what
                op = "all_reduce_rms_norm" if len(lead) < 2 else "matmul_all_reduce"
                assert after[op] - before[op] == 1, what
                (node,) = graph.graph.find_nodes(
                    op="call_function", target=torch.ops.imbrex_graph.matmul_all_reduce_rms_norm.default
                )
                assert node.args[5].op == "placeholder", (what, node.args)


def test_norms_with_weights_of_float32(ranks):
    ranks.run(wide_norms)


def test_norms(ranks):
    ranks.run(norms)


def left_alone() -> None:
    """What is no sum over the ranks of products, or is used otherwise too, stays as it is."""
    group, pair = group_of(0, 1, 2, 3), group_of(0, 1, 2)
    rank, name = dist.get_rank(), group.group_name
    a, b, c = (integers((4, 4), i + rank, torch.float32) for i in range(3))
    cases = {
        "another reduction": lambda a, b, c: all_reduce(a @ b, name, "max"),
        "no product": lambda a, b, c: all_reduce(a + b, name),
        "a sum with what is no product": lambda a, b, c: reduce_scatter(a @ b + c, name),
        "a product that is used twice": lambda a, b, c: (lambda p: (all_reduce(p, name), p))(a @ b),
        "a difference": lambda a, b, c: reduce_scatter(torch.sub(a @ b, a @ c), name),
        "a weighted sum": lambda a, b, c: reduce_scatter(torch.add(a @ b, a @ c, alpha=2), name),
        "another type": lambda a, b, c: all_reduce(a.double() @ b.double(), name),
        "a sum that is broadcast": lambda a, b, c: reduce_scatter(a @ b + a[:1] @ c, name),
    }
    with it.drop_in():
        for what, function in cases.items():
            graph = rewritten(function, a, b, c)
            assert not [op for op in operators(graph) if op.startswith("matmul")], what
            got, want = graph(a, b, c), function(a, b, c)
            for mine, theirs in zip(flat(got), flat(want), strict=True):
                assert torch.equal(mine, theirs), what

        def sums_of_two_groups(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            return all_reduce(a @ b, name) + all_reduce(a @ c, pair.group_name)

        if rank < 3:
            graph = rewritten(sums_of_two_groups, a, b, c)
            assert operators(graph) == ["matmul_all_reduce", "matmul_all_reduce"], operators(graph)


def test_what_is_left_alone(ranks):
    ranks.run(left_alone)


def waited_for_twice() -> None:
    """Gathers of one tensor that torch (2.15) has made one, each with a wait of its own, are one operator."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    name = group.group_name
    b, c = integers((16, 8), 5, torch.float32), integers((16, 24), 6, torch.float32)

    def function(dim: int, x: Tensor, b: Tensor, c: Tensor) -> Any:
        begun = c10d.all_gather_into_tensor(x, 4, name)

        def product(factor: Tensor) -> Tensor:
            whole = c10d.wait_tensor(begun)
            if dim:
                whole = torch.cat(whole.split(x.shape[0]), dim)
            return (whole.reshape(-1, 16) @ factor).reshape(*whole.shape[:-1], -1)

        return product(b), product(c), product(b + 1)

    with it.drop_in():
        for dim, shape in ((0, (8, 16)), (0, (2, 8, 16)), (1, (2, 8, 16))):
            x = integers(shape, rank, torch.float32)
            graph = agreed(partial(function, dim), x, b, c)
            assert operators(graph) == ["all_gather_matmul"], (dim, operators(graph))
            for mine, theirs in zip(graph(x, b, c), function(dim, x, b, c), strict=True):
                assert torch.equal(mine, theirs), (dim, shape)


def test_one_gather_with_several_waits(ranks):
    ranks.run(waited_for_twice)


def test_parts_of_a_split():
    """Parts are one tensor only where `split` made all of them, in order, and nothing else uses one."""

    def found(target: Any, *args: int, order: tuple[int, ...] = (0, 1, 2, 3), used: str = "") -> int | None:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(8, 4, 16)
        cut = graph.call_function(target, (x, *args))
        cut.meta["val"] = target(x.meta["val"], *args)
        parts = [graph.call_function(operator.getitem, (cut, i)) for i in order]
        graph.call_function(aten.cat.default, (parts,))
        if used:
            again = parts[1] if used == "as it is" else graph.call_function(operator.getitem, (cut, 1))
            graph.call_function(aten.neg.default, (again,))
        whole = cut_up(parts, 4)
        assert whole is None or whole[0] is x
        return None if whole is None else whole[1]

    split = aten.split.Tensor
    assert [found(split, 2), found(split, 1, 1), found(split, 4, -1)] == [0, 1, 2]
    # The rows of these lie in another order.
    assert found(aten.unbind.int, 1) is None
    assert found(split, 2, order=(1, 0, 2, 3)) is None
    # Others are left over.
    assert found(split, 2, order=(0, 1, 2)) is None
    assert found(split, 1) is None
    assert found(split, 2, used="as it is") is None
    assert found(split, 2, used="taken out again") is None


def ended() -> None:
    """Graphs that were made under the drop-in run as torch's once it has ended; the configuration is what it was."""
    from torch._inductor import config

    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    a, b, c = (integers((4, 4), i + rank, torch.float32) for i in range(3))

    def function(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        weight = c[0]
        normal = torch.nn.functional.rms_norm(all_reduce(b @ c, name), (4,), weight, 1e-5)
        return all_reduce(a @ b, name), reduce_scatter(a @ b + a @ c, name), normal

    seen = []
    for before in (None, seen.append):
        config.post_grad_custom_pre_pass = before
        with it.drop_in(), it.drop_in():
            graph = rewritten(function, a, b, c)
            ours = config.post_grad_custom_pre_pass
            assert ours is not before and (ours.uuid() is None) == (before is not None)
        assert config.post_grad_custom_pre_pass is before
    config.post_grad_custom_pre_pass = None
    assert len(seen) == 1
    # What names a graph in the cache names the pass before, too, where that one has a name.
    for other in ("a pass", "another one"):
        config.post_grad_custom_pre_pass = SimpleNamespace(uuid=lambda other=other: other)
        with it.drop_in():
            assert config.post_grad_custom_pre_pass.uuid()[1] == other
    config.post_grad_custom_pre_pass = None
    names = ["matmul_all_reduce", "matmul_reduce_scatter", "matmul_all_reduce_rms_norm"]
    assert sorted(operators(graph)) == sorted(names), operators(graph)
    calls, fallbacks = extension.calls(), it.stats().fallbacks
    for got, want in zip(graph(a, b, c), function(a, b, c), strict=True):
        assert torch.allclose(got, want, atol=1e-6)
    assert extension.calls() == calls
    now = it.stats().fallbacks
    for op in names:
        key = f"{op}: the drop-in has ended"
        assert now[key] - fallbacks.get(key, 0) == 1, now
    # Where another pass took its place, it stays, and ours does nothing any more.
    kept = it.drop_in()
    ours = config.post_grad_custom_pre_pass

    def wrapped(graph: Any) -> None:
        ours(graph)

    config.post_grad_custom_pre_pass = wrapped
    kept.__exit__(None, None, None)
    assert config.post_grad_custom_pre_pass is wrapped
    assert "matmul_all_reduce" not in operators(rewritten(function, a, b, c))
    config.post_grad_custom_pre_pass = None


def test_the_end(ranks):
    ranks.run(ended)


def from_a_cache() -> None:
    """Places are counted of graphs that Inductor has from its cache, too, as in a program that runs again."""
    from torch._dynamo.utils import counters

    counts = sys.modules["imbrex.torch.stats"]  # the package has a function of that name
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    name = group.group_name
    a, b = integers((8, 8), rank, torch.float32), integers((8, 8), 50 + rank, torch.float32)
    wanted = it.matmul_all_reduce(a, b, group)
    placed, hits = [], 0
    for _ in range(2):
        torch._dynamo.reset()
        counts._rewritten.clear()  # type: ignore[attr-defined]
        counters.clear()
        with it.drop_in(), torch.no_grad():
            graph = torch.compile(lambda a, b: all_reduce(a @ b, name), fullgraph=True)
            for _ in range(3):
                assert torch.equal(graph(a, b), wanted)
        placed.append(it.stats().rewritten)
        hits = sum(count for key, count in counters["inductor"].items() if key.endswith("cache_hit"))
    assert placed == [{"matmul_all_reduce": 1}] * 2, placed
    assert hits > 0, "the second graph is not the first one's, from the cache"


def test_graphs_from_a_cache(ranks):
    ranks.run(from_a_cache)
