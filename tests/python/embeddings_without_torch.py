"""
What one rank does of the test of embeddings for NumPy and DLPack: started by `imbrex launch`, torch made impossible.

Rows are small integers, so that sums are exact in every type, and a mean is one product.
"""

from __future__ import annotations

import sys

sys.modules["torch"] = None  # type: ignore[assignment]

import numpy as np  # noqa: E402

import imbrex  # noqa: E402


class Spoken:
    """An array of another library: all that is known of it is DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


TABLES = [(17, 8), (5, 64), (40, 12), (3, 4), (11, 128)]
BATCH = 24


def drawn(random, misfits=False):
    """Bags of every table, [table][row of the batch]: indices and weights, empty ones among them."""
    bags = []
    for rows, _ in TABLES:
        low, high = (-3, rows + 3) if misfits else (0, rows)
        lengths = random.choice([0, 0, 1, 2, 4, 9], BATCH)
        bags.append([(random.integers(low, high, n), random.integers(-2, 3, n)) for n in lengths])
    return bags


def vectors(op, bags, batch, index):
    """Indices, offsets and weights of a rank's own shards."""
    mine = [bag for shard in op.own for bag in bags[shard.table][:batch]]
    if not mine:
        return (), ()
    indices = np.concatenate([one for one, _ in mine]).astype(index)
    weights = np.concatenate([one for _, one in mine]).astype(np.float32)
    return (indices, np.cumsum([0, *(len(one) for one, _ in mine)]).astype(index)), (weights,)


def own_rows(op, tables, dtype, apart):
    """The rank's shards of whole tables, with gaps between the rows where they are to lie apart."""
    made = []
    for shard in op.own:
        part = tables[shard.table][:, shard.begin : shard.end]
        if dtype == "uint8":  # of scale 0.5 and bias -3
            numbers = np.array([0.5, -3], np.float32).view(np.uint8)
            part = np.hstack([(part + 3) * 2, np.broadcast_to(numbers, (len(part), 8))])
        room = np.full((part.shape[0], part.shape[1] + (4 if apart else 0)), 77).astype(dtype)
        room[:, : part.shape[1]] = part
        made.append(room[:, : part.shape[1]])
    return made


def wanted(tables, bags, batch, mean, weighted):
    """The whole result in float32, as the operator is to add it up."""
    result = np.zeros((batch, sum(dim for _, dim in TABLES)), np.float32)
    begin = 0
    for table, (rows, dim) in zip(tables, TABLES, strict=True):
        for b, (indices, weights) in enumerate(bags[TABLES.index((rows, dim))][:batch]):
            fits = (indices >= 0) & (indices < rows)
            rows_of = table[indices[fits]] * (weights[fits, None] if weighted else 1)
            total = rows_of.sum(0).astype(np.float32)
            result[b, begin : begin + dim] = total * np.float32(1 / max(1, fits.sum())) if mean else total
        begin += dim
    return result


def refused(call, text):
    try:
        call()
    except imbrex.InvalidInput as error:
        assert text in str(error), (text, str(error))
    else:
        raise AssertionError(f"not refused: {text}")


def lookups(world):
    ranks, rank = world.size, world.rank
    cut = [(0, 0, 0, 8), (1, ranks - 1, 0, 32), (1, 0, 32, 64), (2, ranks // 2, 0, 12), (3, 0, 0, 4), (4, 0, 0, 128)]
    for seed in range(24):
        random = np.random.default_rng(seed)
        dtype, out_dtype = random.choice(["float32", "float16", "uint8"]), random.choice(["float32", "float16"])
        index, mean = random.choice(["int32", "int64"]), bool(random.integers(2))
        weighted, misfits, apart = (bool(one) for one in random.integers(0, 2, 3))
        tables = [random.integers(-3, 4, shape) for shape in TABLES]
        bags = drawn(random, misfits)
        op = imbrex.EmbeddingAllToAll(
            world,
            TABLES if seed % 3 else [imbrex.EmbeddingTable(*one, hotness=3) for one in TABLES],
            batch=BATCH,
            shards=cut if seed % 2 else None,
            dtype=str(dtype),
            out_dtype=str(out_dtype),
            index_dtype=str(index),
            pooling="mean" if mean else "sum",
            weighted=weighted,
            ignore_misfits=misfits,
        )
        placed = imbrex.place_tables(op.tables, ranks, dtype=str(dtype), out_dtype=str(out_dtype))
        assert op.shards == (cut if seed % 2 else placed.shards)
        rows = own_rows(op, tables, str(dtype), apart)
        for batch in (BATCH, BATCH // 2):
            given, weights = vectors(op, bags, batch, index)
            whole = wanted(tables, bags, batch, mean, weighted).astype(out_dtype)
            mine = whole[rank * batch // ranks : (rank + 1) * batch // ranks]
            out = np.full(mine.shape, 5, out_dtype)
            got = op.lookup(rows, *given, *(weights if weighted else ()), out=out)
            assert got is out and (out == mine).all(), (seed, np.abs(out - mine).max())
            if op.own:
                assert (op.lookup(rows, *given, *(weights if weighted else ())) == mine).all()
            elif batch == BATCH:
                assert op.lookup([]).shape == mine.shape
            else:
                op.lookup([], out=out)
            out[:] = 0
            spoken = [Spoken(one) for one in (*given, *(weights if weighted else ()))]
            op.lookup([Spoken(one) for one in rows], *spoken, out=Spoken(out))
            assert (out == mine).all()
        misfit = sum(((i < 0) | (i >= TABLES[s.table][0])).sum() for s in op.shards for i, _ in bags[s.table])
        half = sum(
            ((i < 0) | (i >= TABLES[s.table][0])).sum() for s in op.shards for i, _ in bags[s.table][: BATCH // 2]
        )
        assert op.report() == 3 * (misfit + half) and op.report() == 0
        op.close()


def updates(world):
    """Five steps; twice, to the same bits. Gradients are integers, so that SGD's steps are exact."""
    ranks, rank = world.size, world.rank
    for optimizer in ("sgd", "row_wise_adagrad"):
        ends = []
        for _ in range(2):
            random = np.random.default_rng(5)
            tables = [random.integers(-3, 4, shape).astype(np.float64) for shape in TABLES]
            states = [np.zeros(rows) for rows, _ in TABLES]
            op = imbrex.EmbeddingAllToAll(
                world,
                TABLES,
                batch=BATCH,
                optimizer=optimizer,
                shards=[(i, i % ranks, 0, d) for i, (_, d) in enumerate(TABLES)],
                epsilon=0.5,
            )
            rows = own_rows(op, tables, "float32", True)
            own_states = [np.zeros(len(one), np.float32) for one in rows]
            for _ in range(5):
                bags = drawn(random)
                gradients = random.integers(-2, 3, (BATCH, op.width)).astype(np.float32)
                given, _ = vectors(op, bags, BATCH, np.int64)
                mine = gradients[rank * BATCH // ranks : (rank + 1) * BATCH // ranks]
                more = {"states": own_states} if optimizer != "sgd" else {}
                op.update(rows, mine, *given, rate=0.25, **more)
                begin = 0
                for i, (_, dim) in enumerate(TABLES):
                    step = np.zeros(tables[i].shape)
                    for b, (indices, _) in enumerate(bags[i]):
                        np.add.at(step, indices, gradients[b, begin : begin + dim])
                    begin += dim
                    held = np.unique(np.concatenate([one for one, _ in bags[i]]))
                    scale = np.full(len(tables[i]), 0.25)
                    if optimizer != "sgd":
                        states[i][held] += (step[held] ** 2).mean(1)
                        scale[held] = 0.25 / (np.sqrt(states[i][held]) + 0.5)
                    tables[i] -= scale[:, None] * step
            for shard, own, state in zip(op.own, rows, own_states, strict=True):
                want = tables[shard.table]
                # Adagrad: each of 5 steps rounds the state, root, quotient, product and row; a step is at most 0.25
                # times a row's sum over its root, which is at most the root of the columns.
                bound = (
                    0
                    if optimizer == "sgd"
                    else 5 * 8 * 2**-24 * (np.abs(want).max() + 5 * 0.25 * np.sqrt(own.shape[1]))
                )
                assert np.abs(own - want).max() <= bound, (optimizer, shard, np.abs(own - want).max(), bound)
                if optimizer != "sgd":
                    assert np.allclose(state, states[shard.table], rtol=5 * 140 * 2**-24, atol=0)
            ends.append([one.tobytes() for one in (*rows, *own_states)])
        assert ends[0] == ends[1]


def refusals(world):
    """What rank 0 gives wrongly, every rank refuses; nothing is changed, and the next call works."""
    ranks, rank = world.size, world.rank
    tables = [(10, 8), (10, 8)]
    op = imbrex.EmbeddingAllToAll(
        world, tables, batch=2 * ranks, shards=[(0, 0, 0, 8), (1, ranks - 1, 0, 8)], optimizer="sgd"
    )
    rows = [np.ones((10, 8), np.float32) for _ in op.own]
    n = 2 * ranks * len(op.own)
    indices, offsets = np.arange(n) % 10, np.arange(n + 1)
    bags = (indices, offsets) if op.own else ()
    changed, behind, falling = indices.copy(), offsets.copy(), offsets.copy()
    changed[1:2], behind[-1:], falling[1:2] = 10, n + 1, -(2**40)
    far = indices.copy()
    far[:1] = 2**31
    out = np.zeros((2, 16), np.float32)

    def calls(*given, rows=rows):
        if rank:
            given, rows = bags, [np.ones((10, 8), np.float32) for _ in op.own]
        op.lookup(rows, *given, out=out)

    for call, text in (
        (lambda: calls(changed, offsets), "10"),
        (lambda: calls(far, offsets), str(2**31)),
        (lambda: calls(indices - 1, offsets), "-1"),
        (lambda: calls(indices, behind), "offset"),
        (lambda: calls(indices, falling), "offset"),
        (lambda: calls(indices, offsets[:-1]), "offsets"),
        (lambda: calls(indices.astype(np.int32), offsets), "indices is of dtype int32: it must be int64"),
        (lambda: calls(indices.astype(np.float32), offsets), "indices is of dtype float32: it must be int64"),
        (lambda: calls([1, 2], offsets), "indices is a list"),
        (lambda: calls(indices), "offsets is missing"),
        (lambda: calls(indices, offsets, np.ones(n, np.float32)), "weights: the operator was made without"),
        (lambda: calls(indices, offsets, rows=[]), "rows has 0 arrays"),
        (lambda: calls(indices, offsets, rows=[one[:, :4] for one in rows]), "rows0"),
        (lambda: calls(indices, offsets, rows=[one.astype(np.float64) for one in rows]), "dtype float64"),
        (lambda: calls(indices, offsets, rows=[one[:9] for one in rows]), "rows0"),
    ):
        before = out.copy()
        refused(call, text)
        assert (out == before).all()
        op.lookup(rows, *bags, out=out)
        assert (out == 1).all()
    gradients = np.ones((2, 16), np.float32)
    if not rank:
        rows[0].flags.writeable = False
    refused(lambda: op.update(rows, gradients, *bags, rate=1.0), "rows[0] is read-only")
    if not rank:
        rows[0].flags.writeable = True
    refused(lambda: op.update(rows, gradients, *bags, rate=float("nan")), "rate")
    if ranks > 1:
        refused(lambda: op.update(rows, gradients, *bags, rate=1.0 + rank), "rate")
    assert all((one == 1).all() for one in rows)
    op.update(rows, gradients, *bags, rate=1.0)
    assert all((one < 1).any() for one in rows)
    for arguments, text in (
        ({"pooling": "max"}, "pooling is 'max': it must be 'sum' or 'mean'"),
        ({"dtype": "float64"}, "dtype is 'float64'"),
        ({"dtype": "uint8", "optimizer": "sgd"}, "int8"),
        ({"batch": 2 * ranks + 1} if ranks > 1 else {"batch": 0}, "batch" if ranks == 1 else "ranks"),
        ({"batch": -1}, "batch is -1"),
        ({"tables": [(10, 6)]}, "6"),
        ({"tables": [10]}, "tables[0] is 10"),
        ({"shards": [(0, 0, 0, 8)]}, "shard"),
        ({"shards": [(0, ranks, 0, 8), (1, 0, 0, 8)]}, str(ranks)),
        ({"strategy": "magic"}, "magic"),
    ):
        whole = {"tables": tables, "batch": 2 * ranks, **arguments}
        refused(lambda whole=whole: imbrex.EmbeddingAllToAll(world, **whole), text)
    refused(lambda: imbrex.place_tables([(10, 8)], 0), "0")
    return op, rows, bags


if __name__ == "__main__":
    with imbrex.World.from_environment() as world:
        lookups(world)
        updates(world)
        op, rows, bags = refusals(world)
        number = world.rank
    refused(lambda: op.lookup(rows, *bags), "closed")
    assert sys.modules["torch"] is None
    print("rank", number, "is right")
