"""Sharded embeddings in PyTorch beside torch's own embedding_bag: results, steps of the optimizers, refusals."""

from __future__ import annotations

import os
import random
import re
import signal
import time

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from bags_for_tests import (
    UNIT,
    Problem,
    bags_of,
    divided,
    draw,
    integers,
    local_bags,
    looked_up,
    module_of,
    own_shards,
    part_of,
)
from device_for_tests import DEVICE, generator_of, kills_a_rank
from groups_for_tests import group_of
from pool import expect_others_told
from torch import Tensor, nn

import imbrex
import imbrex.torch as it
from imbrex._arrays import Array
from imbrex.torch.bags import TensorArray
from imbrex.torch.nn import Bags, ShardedEmbeddingBag

COLUMNS = [(0, 0, 0, 8), (0, 1, 8, 16), (0, 3, 16, 20), (1, 1, 0, 8), (2, 3, 0, 32), (2, 3, 32, 40)]
TABLES = [(30, 20), (7, 8), (11, 40)]


def problem(**other) -> Problem:
    """Four ranks, of which one has no shards; two tables are cut by columns."""
    f32 = torch.float32
    return Problem(
        **{
            **dict(
                ranks=4,
                tables=TABLES,
                shards=COLUMNS,
                batch=16,
                mode="sum",
                weighted=False,
                dtype=f32,
                out=f32,
                index=torch.int64,
                seed=3,
            ),
            **other,
        }
    )


def exact(first_seed: int, count: int) -> None:
    """Integers: the very bits of torch's sums, and of a mean by one product."""
    for seed in range(first_seed, first_seed + count):
        p = draw(seed)
        tables = [integers(shape, seed * 7 + number) for number, shape in enumerate(p.tables)]
        bag = module_of(p, tables, optimizer=None)
        if bag is None:
            continue
        rank = dist.get_rank()
        bags = bags_of(p)
        want = divided(p, looked_up(p, tables, bags), bags)
        given = bag.exchange(*local_bags(p, bags, rank))
        got = bag(*given)
        assert not got.requires_grad and got.dtype == p.out and given.batch_size == p.batch
        assert torch.equal(got, want[part_of(p, rank)].to(p.out)), (p, (got - want[part_of(p, rank)]).abs().max())
        if p.mode == "mean" and not p.weighted and p.out == torch.float32:
            means = looked_up(p, tables, bags, "mean")[part_of(p, rank)]
            assert ((got - means).abs() <= 3 * UNIT * means.abs()).all()
        assert bag.report() == 0
        bag.close()


@pytest.mark.parametrize("first_seed", (0, 25, 50, 75))
def test_random_problems(ranks, first_seed):
    ranks.run(exact, first_seed=first_seed, count=25)


def near(p: Problem) -> None:
    """Rows of any numbers: within the bound that every order of additions keeps."""
    tables = [torch.randn(shape, generator=generator_of(number)) for number, shape in enumerate(p.tables)]
    bag = module_of(p, tables, optimizer=None)
    rank, bags = dist.get_rank(), bags_of(p)
    wide = [table.to(p.dtype).double() for table in tables]
    want = divided(p, looked_up(p, wide, bags), bags)[part_of(p, rank)]
    most = max(int(lengths.max()) for _, lengths, _ in bags)
    sizes = [(indices, lengths, weights.abs()) for indices, lengths, weights in bags]
    bound = (most + 3) * UNIT * divided(p, looked_up(p, [one.abs() for one in wide], sizes), bags)[part_of(p, rank)]
    got = bag(*bag.exchange(*local_bags(p, bags, rank)))
    assert ((got - want).abs() <= bound).all() and bool(want.any())


@pytest.mark.parametrize("mode", ("sum", "mean"))
@pytest.mark.parametrize("weighted", (False, True))
def test_any_numbers(ranks, mode, weighted):
    ranks.run(near, p=problem(mode=mode, weighted=weighted, dtype=torch.bfloat16))
    ranks.run(near, p=problem(mode=mode, weighted=weighted))


RATE, STEPS, EPS = 0.25, 5, 0.5


def stepped(bag: ShardedEmbeddingBag, p: Problem, gradient_of) -> None:
    """Steps of the module, each with bags and gradients of its own."""
    rank = dist.get_rank()
    for step in range(STEPS):
        y = bag(*bag.exchange(*local_bags(p, bags_of(p, step), rank)))
        (y * gradient_of(step)[part_of(p, rank)]).sum().backward()


def sgd(p: Problem) -> None:
    """Any numbers, beside float64: within the bound of the additions; and the same bits in a second run."""
    shapes = list(enumerate(p.tables))
    tables = [torch.randn(shape, generator=generator_of(number)) for number, shape in shapes]
    width, rank = sum(dim for _, dim in p.tables), dist.get_rank()

    def gradient_of(step: int) -> Tensor:
        return torch.randn(p.batch, width, generator=generator_of(90 + step))

    ends = []
    for _ in range(2):
        bag = module_of(p, tables, learning_rate=99.0)
        bag.learning_rate = RATE
        stepped(bag, p, gradient_of)
        assert all(one.grad is None for one in bag.parameters())
        ends.append([one.clone() for one in bag.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))

    wide = [table.double().requires_grad_() for table in tables]
    off = [torch.zeros_like(table) for table in wide]  # how far each element may be off
    for step in range(STEPS):
        bags = bags_of(p, step)

        def pushed(gradient: Tensor, bags=bags) -> list[Tensor]:
            y = divided(p, looked_up(p, wide, bags), bags)
            return list(torch.autograd.grad(y, wide, gradient.double()))

        steps = pushed(gradient_of(step))
        sizes = [(i, n, w.abs()) for i, n, w in bags]
        for number, (rows, gradient, size) in enumerate(
            zip(wide, steps, pushed(gradient_of(step).abs(), sizes), strict=True)
        ):
            # A row's sum has as many terms as bags hold it, each with two roundings of its own; then come the rate's
            # product and the difference.
            terms = torch.bincount(bags[number][0].long(), minlength=len(rows)).unsqueeze(1)
            with torch.no_grad():
                rows -= RATE * gradient
                off[number] += UNIT * (RATE * (terms + 4) * size + 1.01 * rows.abs()) + UNIT * off[number]
    for shard, rows in own_shards(bag, rank):
        cut = (slice(None), slice(shard.begin, shard.end))
        assert ((rows - wide[shard.table][cut]).abs() <= off[shard.table][cut]).all(), shard
        assert not torch.equal(rows, tables[shard.table][cut])


@pytest.mark.parametrize(
    "other",
    ({}, {"weighted": True}, {"mode": "mean"}, {"mode": "mean", "weighted": True}, {"index": torch.int32}),
    ids=str,
)
def test_sgd(ranks, other):
    ranks.run(sgd, p=problem(**other))


def adagrad(p: Problem) -> None:
    """Gradients are integers, so that only the state's and the step's own roundings are bounded."""
    tables = [integers(shape, number) for number, shape in enumerate(p.tables)]
    width, rank = sum(dim for _, dim in p.tables), dist.get_rank()

    def gradient_of(step: int) -> Tensor:
        return integers((p.batch, width), 80 + step)

    ends = []
    for _ in range(2):
        bag = module_of(p, tables, optimizer="row_wise_adagrad", learning_rate=RATE, eps=EPS)
        stepped(bag, p, gradient_of)
        ends.append([one.clone() for one in (*bag.parameters(), *bag.buffers())])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    for shard, rows in own_shards(bag, rank):
        cut = slice(shard.begin, shard.end)
        want = tables[shard.table][:, cut].double()
        state, off = want.new_zeros(len(want)), torch.zeros_like(want)
        for step in range(STEPS):
            bags = bags_of(p, step)
            wide = [table.double().requires_grad_() for table in tables]
            y = looked_up(p, wide, bags)
            gradient = torch.autograd.grad(y, wide, gradient_of(step).double())[shard.table][:, cut]
            state += gradient.square().mean(1)
            move = RATE * gradient / (state.sqrt() + EPS).unsqueeze(1)
            want -= move
            # The state has two roundings a step, halved by the root, which adds its own; sum, quotient, product, row.
            off += UNIT * ((step + 8) * move.abs() + 1.01 * want.abs()) + UNIT * off
        assert ((rows - want).abs() <= off).all() and bool((rows != tables[shard.table][:, cut]).any())
        kept = bag.get_buffer(f"table{shard.table}_{shard.begin}_{shard.end}_state")
        assert ((kept - state).abs() <= 2 * STEPS * UNIT * state).all()


def test_adagrad(ranks):
    ranks.run(adagrad, p=problem())
    ranks.run(adagrad, p=problem(shards=None))


def small_things() -> None:
    """Smaller batches, no_grad, an unused rank's backward pass, rows of 16 bits, states that are loaded again."""
    p, rank = problem(), dist.get_rank()
    tables = [integers(shape, number) for number, shape in enumerate(p.tables)]
    bag = module_of(p, tables, learning_rate=1.0)
    assert bag.dims == [20, 8, 40] and [tuple(one) for one in bag.shards] == COLUMNS
    assert "30 x 20" in repr(bag) and not any(one.requires_grad for one in bag.parameters())
    half = problem(batch=8)
    bags = bags_of(half)
    given = bag.exchange(*local_bags(half, bags, rank))
    got = bag(*given)
    assert got.requires_grad and torch.equal(got, looked_up(half, tables, bags)[part_of(half, rank)])
    with torch.no_grad():
        assert not bag(*given).requires_grad
    saved = {name: value.clone() for name, value in bag.state_dict().items()}
    assert sorted(saved) == sorted(f"table{t}_{b}_{e}" for t, r, b, e in COLUMNS if r == rank)
    versions = [one._version for one in bag.parameters()]
    got.sum().backward()
    assert all(one._version > before for one, before in zip(bag.parameters(), versions, strict=True))
    assert all(not torch.equal(bag.state_dict()[name], value) for name, value in saved.items())
    bag.load_state_dict(saved)
    assert torch.equal(bag(*given), got)
    other = ShardedEmbeddingBag(
        TABLES, batch_size=16, group=group_of(0, 1, 2, 3), shards=[(i, 2, 0, d) for i, (_, d) in enumerate(TABLES)]
    )
    if rank == 2:
        with pytest.raises(RuntimeError, match="Missing key"):
            other.load_state_dict(saved)
    # Tables that were moved, by a load that assigns, are found.
    bag.load_state_dict({name: value * 2 for name, value in saved.items()}, assign=True)
    assert torch.equal(bag(*given), 2 * got)
    narrow = module_of(problem(dtype=torch.bfloat16, out=torch.bfloat16), tables, learning_rate=1.0)
    narrow(*narrow.exchange(*local_bags(p, bags_of(p), rank))).sum().backward()
    for _, rows in own_shards(narrow, rank):
        assert rows.dtype == torch.bfloat16
    if DEVICE == "cpu":
        loose = module_of(p, tables, ignore_misfits=True)
        indices = torch.tensor([-1, 30, 2**40] if rank == 0 else [], dtype=torch.int64)
        offsets = torch.full((3 * 4 + 1,), len(indices))
        offsets[0] = 0
        assert not loose(*loose.exchange(indices, offsets)).any()
        assert loose.report() == 9  # three indices of table 0, which three ranks hold


def test_small_things(ranks):
    ranks.run(small_things)


def compiled() -> None:
    """torch.compile leaves the module out of its graphs: the result is the eager one's, and the tables step."""
    p, rank = problem(), dist.get_rank()
    tables = [integers(shape, number) for number, shape in enumerate(p.tables)]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = module_of(p, tables, learning_rate=1.0)
            torch.manual_seed(1)
            self.top = nn.Linear(68, 3)

        def forward(self, bags: Bags) -> Tensor:
            return self.top(self.bag(*bags)).relu()

    ends = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager")):
        model = Model()
        bags = model.bag.exchange(*local_bags(p, bags_of(p), rank))
        called = wrap(model)
        for _ in range(2):
            called(bags).sum().backward()
        ends.append([one.clone() for one in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="disable"):
        torch.compile(model, backend="eager", fullgraph=True)(bags)


def test_compile(ranks):
    ranks.run(compiled)


def _bags() -> tuple[Tensor, Tensor]:
    """One row of each rank, an index for each of three tables."""
    return torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2, 3])


def _changed(place: int, at: int, value: int) -> tuple[Tensor, Tensor]:
    bags = _bags()
    bags[place][at] = value
    return bags


# What rank 1 gives instead of its part of the batch, and what every rank is told.
BAD = {
    "float indices": (
        lambda: (torch.ones(3), _bags()[1]),
        "indices is \\(3,\\) of torch.float32.* a vector of torch.int64",
    ),
    "int32 offsets": (lambda: (_bags()[0], _bags()[1].int()), "offsets is \\(4,\\) of torch.int32"),
    "a matrix": (lambda: (_bags()[0].view(1, 3), _bags()[1]), "indices is \\(1, 3\\)"),
    "short offsets": (lambda: (_bags()[0], _bags()[1][:3]), "offsets has 3 elements"),
    "no offsets": (lambda: (_bags()[0], _bags()[1][:0]), "offsets has 0 elements"),
    "too many rows": (lambda: (_bags()[0], torch.zeros(3 * 9 + 1).long()), "offsets has 28 elements.* 0 to 4 rows"),
    "first offset": (lambda: _changed(1, 0, 1), "offsets begin at 1"),
    "last offset": (lambda: _changed(1, 3, 4), "end at 4: .* at the 3 indices"),
    "falling offsets": (lambda: _changed(1, 1, 3), "not decrease"),
    "wrapping offsets": (
        lambda: (_bags()[0], torch.tensor([0, 2**63 - 1, -(2**63), -1, 3, 3, 3])),
        "not decrease",
    ),
    "a list": (lambda: ([1, 2, 3], _bags()[1]), "indices is of type list: it must be a tensor"),
    "nothing": (lambda: (_bags()[0], None), "offsets is of type NoneType: it must be a tensor"),
    "far offsets": (lambda: _changed(1, 1, 2**62), "not decrease"),
    "weights": (lambda: (*_bags(), torch.ones(3)), "per_sample_weights are given.* weighted=False"),
    "negative index": (lambda: _changed(0, 0, -1), "-1"),
    "row too far": (lambda: _changed(0, 1, 7), "7"),
    "beyond 2^31": (lambda: _changed(0, 2, 2**31 + 3), str(2**31 + 3)),
}


def is_refused(name: str) -> str:
    """The text with which every rank refuses; tables are as they were, and a good call works afterwards."""
    p, rank = problem(batch=16), dist.get_rank()
    tables = [integers(shape, number) for number, shape in enumerate(p.tables)]
    bag = module_of(p, tables)
    with pytest.raises(imbrex.InvalidInput) as caught:
        bag(*bag.exchange(*(BAD[name][0]() if rank == 1 else _bags())))
        if DEVICE == "cuda":  # what does not fit on a GPU is told later
            bag.report()
    for shard, rows in own_shards(bag, rank):
        assert torch.equal(rows, tables[shard.table][:, shard.begin : shard.end])
    y = bag(*bag.exchange(*_bags()))
    assert torch.equal(y[0], torch.cat([tables[0][1], tables[1][2], tables[2][3]]))
    return str(caught.value)


@pytest.mark.parametrize("name", BAD)
def test_bad_input(ranks, name):
    for text in ranks.run(is_refused, name=name):
        assert re.search(BAD[name][1], text), text


def modules_refuse() -> None:
    """What a module is made with; what a call of its own bags gives; what a step is told."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    for arguments, text in (
        ({"tables": [(10, 6)]}, "6"),
        ({"batch_size": 6}, "ranks"),
        ({"mode": "max"}, "pooling is 'max'"),
        ({"optimizer": "adam"}, "optimizer is 'adam': it must be None, 'sgd' or 'row_wise_adagrad'"),
        ({"dtype": torch.float64}, "dtype is 'float64'"),
        ({"index_dtype": torch.int16}, "index_dtype is 'int16'"),
        ({"shards": [(0, 9, 0, 8)]}, "9"),
        ({"batch_size": 8 * (1 + (rank == 2))}, "rank 2"),
    ):
        with pytest.raises(imbrex.InvalidInput, match=text):
            ShardedEmbeddingBag(**{"tables": [(10, 8)], "batch_size": 8, "group": group, **arguments})
    bag = ShardedEmbeddingBag([(10, 8)], batch_size=8, group=group, shards=[(0, 1, 0, 8)], weighted=True)
    good = (torch.arange(8), torch.arange(9), torch.ones(8)) if rank == 1 else ()
    for bad, text in (
        ((torch.arange(8), torch.arange(9), torch.ones(8, requires_grad=True)), "requires a gradient"),
        ((torch.arange(8), torch.arange(9)), "weights is missing"),
        ((torch.arange(8), torch.arange(9), torch.ones(7)), "weights"),
        ((torch.arange(8), torch.arange(8), torch.ones(8)), "the batch has 7 rows: it must divide by the 4 ranks"),
        ((torch.arange(8), torch.arange(9), torch.ones(8), 4), "times the batch of 4"),
        ((torch.arange(8).float(), torch.arange(9), torch.ones(8)), "indices is of dtype float32"),
        ((list(range(8)), torch.arange(9), torch.ones(8)), "indices is of type list: it must be a tensor"),
        ((torch.arange(8), "9", torch.ones(8)), "offsets is of type str: it must be a tensor"),
        ((torch.arange(8), torch.zeros(1).long().expand(2**40 + 1), torch.ones(8)), "this module takes at most 8"),
    ):
        with pytest.raises(imbrex.InvalidInput, match=text):
            bag(*(bad if rank == 1 else good))
        y = bag(*good)
    for rows, text in ((2**40, "this module takes at most 8"), (8.0, "it must divide by the 4 ranks")):
        with pytest.raises(imbrex.InvalidInput, match=text):
            bag(*(good if rank == 1 else (None, None, None, rows)))
        y = bag(*good)
    bag.learning_rate = float("inf")
    with pytest.raises(imbrex.InvalidInput, match="rate"):
        y.sum().backward()
    with pytest.raises(imbrex.InvalidInput, match="tables have shapes"):
        bag.copy_tables([torch.ones(10, 4)])
    if rank == 1:
        bag.to(torch.float16)
    with pytest.raises(imbrex.InvalidInput, match="rows\\[0\\] is of dtype float16: it must be float32"):
        bag(*good)


@pytest.mark.skipif(DEVICE == "cuda", reason="on GPUs the other ranks hear of it with a later call")
def test_modules_refuse(ranks):
    ranks.run(modules_refuse)


def lose_a_rank() -> tuple[str, float]:
    """Rank 1 dies between two updates; the others' next ends soon, with its number."""
    p, rank = problem(), dist.get_rank()
    bag = module_of(p, [integers(shape, number) for number, shape in enumerate(p.tables)])
    given = bag.exchange(*local_bags(p, bags_of(p), rank))
    bag(*given).sum().backward()
    bag.report()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(imbrex.Error) as caught:
        while time.monotonic() - begin < 30:
            bag(*given).sum().backward()
            bag.report()
    with pytest.raises(imbrex.Error):
        bag.exchange(*local_bags(p, bags_of(p), rank))
    return str(caught.value), time.monotonic() - begin


@kills_a_rank
def test_a_killed_rank():
    expect_others_told(lose_a_rank)


def ended() -> None:
    """A module that was closed, or whose group's world has ended, says so."""
    bag = ShardedEmbeddingBag([(10, 8)], batch_size=4, group=group_of(0, 1, 2, 3))
    bag.close()
    bag.close()
    with pytest.raises(imbrex.InvalidInput, match="this operator is closed"):
        bag.report()
    bag = ShardedEmbeddingBag([(10, 8)], batch_size=4, group=dist.new_group([0, 1, 2, 3]))
    it.destroy(bag.group_name)
    with pytest.raises(imbrex.InvalidInput, match="closed"):
        bag.exchange(torch.tensor([1]), torch.tensor([0, 1]))
    with pytest.raises(imbrex.InvalidInput, match="closed"):
        bag.report()


def test_an_ended_world(ranks):
    ranks.run(ended)


def told_of(make, tensor):
    """What an array says of the tensor, or why it is refused."""
    try:
        array = make()
    except imbrex.InvalidInput as error:
        return str(error)
    lies = array.data if tensor.numel() else 0  # where there is none, an address says nothing
    return array.type, array.device, array.shape, array.strides, lies


@pytest.mark.parametrize("seed", range(20))
def test_tensors_are_read_as_by_dlpack(seed):
    """Shape, strides, type, device and address, of views with gaps and of no elements, too; and the same refusals."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    dtypes = ("float32", "float16", "bfloat16", "int32", "int64", "float64", "bool")
    for _ in range(50):
        name, dims = rng.choice(dtypes), rng.randint(1, 4)
        whole = torch.zeros([rng.randint(0, 5) for _ in range(dims)], dtype=getattr(torch, name))
        tensor = whole[rng.choice((slice(None), slice(1, None), slice(None, None, 2)))]
        if rng.random() < 0.3:
            tensor = tensor.transpose(0, dims - 1)
        if name.startswith("float") and rng.random() < 0.2:
            tensor = tensor.clone().requires_grad_()
        takes = tuple(rng.sample(("float32", "float16", "bfloat16", "int32", "int64"), 3))
        own = told_of(lambda t=tensor, of=takes: TensorArray("x", t, of), tensor)
        by_dlpack = told_of(lambda t=tensor, of=takes: Array("x", t, takes=of, may_be_empty=True), tensor)
        if isinstance(own, str) or tensor.numel() > 1:
            assert own == by_dlpack, (tensor.shape, tensor.stride(), name, takes)
        else:  # DLPack may say other strides of dimensions that have no second element
            assert own[:3] == by_dlpack[:3]
