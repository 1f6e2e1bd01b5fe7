"""Plain arguments of NumPy's front: nothing is cut on its way to C, and whatever is wrong gets InvalidInput."""

from __future__ import annotations

import ctypes
import random
import threading
import warnings

import numpy as np
import pytest

import imbrex
from imbrex import _c

SEED = 20261126


@pytest.fixture(name="world")
def _world():
    with imbrex.World.connect(imbrex.World.make_unique_id(), 0, 1) as world:
        yield world


@pytest.mark.parametrize(
    ("rank", "size", "options", "told"),
    [
        (2**32, 1, {}, r"rank is 4294967296: .* from 0 to 2147483647"),
        (0, 2**32 + 1, {}, r"size is 4294967297: .* from 1 to"),
        (0, 2**40, {}, r"size is 1099511627776"),
        (0, 0, {}, r"size is 0"),
        (-1, 1, {}, r"rank is -1"),
        (0.0, 1, {}, r"rank is 0.0"),
        (True, 1, {}, r"rank is True"),
        ("0", 1, {}, r"rank is '0'"),
        (0, 1, {"heap_bytes": 2**64}, r"heap_bytes is 18446744073709551616"),
        (0, 1, {"heap_bytes": -1}, r"heap_bytes is -1"),
        (0, 1, {"gpu": 2**32}, r"gpu is 4294967296"),
        (0, 1, {"ranks_per_gpu": 2**32 + 1}, r"ranks_per_gpu is 4294967297"),
        (0, 1, {"sms_for_others": -1}, r"sms_for_others is -1: it must be an integer from 0"),
        (0, 1, {"sms_for_others": 2.5}, r"sms_for_others is 2.5"),
        (0, 1, {"wait_limit": "5"}, r"wait_limit is '5': it must be a number"),
        (0, 1, {"wait_limit": 10**400}, r"wait_limit is 10+: it must be a number"),
    ],
)
def test_a_world_is_the_one_that_was_asked_for(rank, size, options, told):
    with pytest.raises(imbrex.InvalidInput, match=told):
        imbrex.World.connect(imbrex.World.make_unique_id(), rank, size, **options)


def test_numbers_of_other_libraries_are_numbers():
    unique = imbrex.World.make_unique_id()
    with imbrex.World.connect(unique, np.int64(0), np.int32(1), wait_limit=np.float32(5)) as world:
        assert (world.rank, world.size) == (0, 1)


def worlds_with(asked: list[int]) -> list[str]:
    """What each of as many ranks is told that leave so many SMs to others; nothing where it has its world."""
    unique, told = imbrex.World.make_unique_id(), [""] * len(asked)

    def connect(rank: int) -> None:
        try:
            imbrex.World.connect(unique, rank, len(asked), wait_limit=20, sms_for_others=asked[rank]).close()
        except imbrex.InvalidInput as error:
            told[rank] = str(error)

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_all_ranks_leave_as_many_sms_to_others():
    assert worlds_with([16, 16]) == ["", ""]
    told = "sms_for_others is 16 on rank 0 and 32 on rank 1: it must be the same on every rank"
    assert worlds_with([16, 32]) == [told, told]


def test_c_refuses_what_python_would():
    options = _c.new(_c.WorldOptions, sms_for_others=-1)
    with pytest.raises(imbrex.InvalidInput, match="sms_for_others = -1: it must be 0 or more"):
        _c.make("world_from_environment", ctypes.byref(options))


def test_an_id_is_bytes():
    for given in ("x" * 128, 128, None):
        with pytest.raises(imbrex.InvalidInput, match="unique_id is of type"):
            imbrex.World.connect(given, 0, 1)
    with pytest.raises(imbrex.InvalidInput, match="unique_id has 5 bytes"):
        imbrex.World.connect(b"short", 0, 1)


def test_bytes_are_gathered_as_they_are(world):
    assert world.all_gather(bytearray(b"xy")) == [b"xy"]
    assert world.all_gather(memoryview(b"x\0y")) == [b"x\0y"]
    assert world.all_gather(memoryview(np.arange(2, dtype=np.int16))) == [b"\0\0\1\0"]
    for given in ("xy", 3, None, [1, 2]):
        with pytest.raises(imbrex.InvalidInput, match="mine is of type"):
            world.all_gather(given)


def test_texts_are_not_cut(world):
    x = np.ones(8, np.float32)
    for codec, told in (("int8\0x", "must not hold a NUL"), (8, "codec is of type int"), (b"int8", "of type bytes")):
        with pytest.raises(imbrex.InvalidInput, match=told):
            imbrex.all_reduce(x, world, codec=codec)
        with pytest.raises(imbrex.InvalidInput, match=told):
            imbrex.matmul_all_reduce(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), world, codec=codec)
    with pytest.raises(imbrex.InvalidInput, match="strategy is 'fused"):
        imbrex.EmbeddingAllToAll(world, [(3, 4)], batch=2, strategy="fused\0")
    with pytest.raises(imbrex.InvalidInput, match="message is of type bytes"):
        world.fail(b"why")
    assert (imbrex.all_reduce(x, world) == x).all()


def test_a_layout_is_refused_with_the_shape_that_was_given(world):
    b, whole = np.ones((16, 2), np.float32), np.ones((2, 8, 16), np.float32)
    for a, told in (
        (whole.transpose(1, 0, 2)[:, ::2], None),
        (whole[:, 1:5], r"a is 2 x 4 x 16 with strides of .*: with dimension 0 in front, its rows must lie"),
        (
            np.ones((2, 4, 32), np.float32)[:, :, ::2],
            r"a is 2 x 4 x 16 with strides .*: its last one must be 1",
        ),
    ):
        if told is None:
            assert (imbrex.matmul_all_reduce(a, b, world) == 16).all()
            continue
        with pytest.raises(imbrex.InvalidInput, match=told):
            imbrex.matmul_all_reduce(a, b, world)
    # Along the second dimension, a batch of two has its rows apart.
    with pytest.raises(imbrex.InvalidInput, match=r"a is 2 x 8 x 16 .*: with dimension 1 in front"):
        imbrex.all_gather_matmul(whole, b, world, gather_dim=1)


class Broken:
    """Claims to speak DLPack."""

    def __init__(self, device, capsule):
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self):
        if isinstance(self.device, Exception):
            raise self.device
        return self.device

    def __dlpack__(self, **kwargs):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule


def _junk(draw):
    return draw.choice(
        [
            None,
            "text",
            "",
            "a\0b",
            b"bytes",
            -1,
            2**31,
            2**63,
            2**64,
            2**200,
            1.5,
            float("nan"),
            float("inf"),
            1j,
            True,
            [],
            [1, 2],
            {},
            object(),
            np.float32(1),
            np.zeros((), np.float32),
            np.zeros(0, np.float32),
            np.zeros((0, 0), np.float32),
            np.zeros((3, 0, 2), np.float32),
            np.ones(3, np.complex64),
            np.ones((1, 1, 1, 1, 1), np.float32),
            np.ones((4, 8), np.float64),
            np.ones((4, 8), ">f4"),
            np.array("text"),
            np.array([object()]),
            np.ma.masked_array(np.ones((4, 8), np.float32), True),
            Broken((1, 0), ValueError("no")),
            Broken((1, 0), "no capsule"),
            Broken((1, 0), None),
            Broken((99, 0), None),
            Broken((), None),
            Broken("x", None),
            Broken(RuntimeError("none"), None),
        ]
    )


def _calls(world):
    def ones(*shape):
        return np.ones(shape, np.float32)

    table, bags = ones(3, 4), (np.array([0, 1, 2]), np.array([0, 2, 3]))
    op = imbrex.EmbeddingAllToAll(world, [(3, 4)], batch=2, optimizer="sgd")
    packed, layout = imbrex.matmul_all_reduce_packed(ones(4, 8), ones(8, 2), world)
    two = {
        "a": ones(4, 8),
        "b": ones(8, 2),
        "bias": None,
        "scale_a": None,
        "scale_b": None,
        "out": None,
        "stream": None,
    }
    codecs = {"codec": None, "report": False, "tolerance": None}
    return op, [
        (lambda **k: imbrex.all_gather_matmul(k.pop("a"), k.pop("b"), world, **k), two | {"gather_dim": 0}),
        (
            lambda **k: imbrex.matmul_reduce_scatter(k.pop("a"), k.pop("b"), world, **k),
            two | codecs | {"scatter_dim": 0},
        ),
        (lambda **k: imbrex.matmul_all_reduce(k.pop("a"), k.pop("b"), world, **k), two | codecs),
        (
            lambda **k: imbrex.matmul_all_reduce(k.pop("a"), k.pop("b"), world, **k),
            two | codecs | {"codec": "int8", "tolerance": 1.0},
        ),
        (lambda **k: imbrex.matmul_all_to_all(k.pop("a"), k.pop("b"), world, **k), two),
        (lambda **k: imbrex.all_reduce(k.pop("x"), world, **k), {"x": ones(5), "out": None, "stream": None} | codecs),
        (
            lambda **k: imbrex.all_reduce_rms_norm(k.pop("x"), k.pop("residual"), k.pop("weight"), world, **k),
            {"x": ones(2, 8), "residual": ones(2, 8), "weight": ones(8), "eps": 1e-6, "out": None, "stream": None}
            | {"residual_out": None},
        ),
        (
            lambda **k: imbrex.matmul_all_reduce_packed(k.pop("a"), k.pop("b"), world, **k),
            {"a": ones(4, 8), "b": ones(8, 2), "bias": None, "out": None, "stream": None},
        ),
        (
            lambda **k: imbrex.put_back(k.pop("operation"), k.pop("packed"), layout, **k),
            {"operation": "rms_norm", "packed": packed, "weight": ones(2), "residual": None, "bias": None}
            | {"eps": 1e-6, "out": None, "residual_out": None, "stream": None},
        ),
        (
            lambda **k: op.lookup(k.pop("rows"), k.pop("indices"), k.pop("offsets"), **k),
            {"rows": [table], "indices": bags[0], "offsets": bags[1], "weights": None, "out": None, "stream": None},
        ),
        (
            lambda **k: op.update(k.pop("rows"), k.pop("gradients"), k.pop("indices"), k.pop("offsets"), **k),
            {"rows": [table], "gradients": ones(2, 4), "indices": bags[0], "offsets": bags[1], "weights": None}
            | {"states": (), "rate": 0.5, "stream": None},
        ),
        (
            lambda **k: imbrex.EmbeddingAllToAll(world, k.pop("tables"), **k).close(),
            {"tables": [(3, 4)], "batch": 2, "shards": None, "dtype": "float32", "out_dtype": "float32"}
            | {"index_dtype": "int64", "pooling": "sum", "weighted": False, "ignore_misfits": False, "optimizer": None}
            | {"epsilon": 1e-8, "strategy": None, "device": "cpu", "cpu_workers": 1},
        ),
        (
            lambda **k: imbrex.place_tables(k.pop("tables"), k.pop("ranks"), **k),
            {"tables": [(3, 4)], "ranks": 2, "dtype": "float32", "out_dtype": "float32", "memory": 0},
        ),
        (lambda **k: world.all_gather(**k), {"mine": b"x"}),
    ]


def test_whatever_is_wrong_gets_an_error_of_imbrex(world):
    """One argument of a right call is another thing: the call goes well or raises Error, and the next call is right."""
    draw = random.Random(SEED)
    print("seed", SEED)
    op, calls = _calls(world)
    refused = 0
    for i in range(1500):
        function, right = draw.choice(calls)
        name = draw.choice(sorted(right))
        given = right | {name: _junk(draw)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(**given)
        except imbrex.Error:
            refused += 1
        except Exception as error:
            raise AssertionError(f"draw {i}: {name} = {given[name]!r}: {type(error).__name__}: {error}") from error
        x = np.full(3, i, np.float32)
        assert (imbrex.all_reduce(x, world) == x).all()
    assert refused > 300
    op.close()
