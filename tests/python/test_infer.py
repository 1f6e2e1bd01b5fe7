"""Shapes and refusals of products: the library says them, and torch, its fakes, NumPy and C say the same."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from device_for_tests import DEVICE
from groups_for_tests import group_of
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import imbrex
import imbrex.torch as it
from imbrex import _c, _infer
from imbrex.torch import extension, groups

RANKS = 4
F32, F16, F8 = torch.float32, torch.float16, torch.float8_e4m3fn
TYPES = {F32: _c.FP32, F16: _c.FP16, torch.bfloat16: _c.BF16, F8: _c.E4M3}
PRODUCTS = tuple(_infer.kinds())

# Operator, its operands' shapes, perhaps a dtype with them, and what is said.
FAULTS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "k": (
        "matmul_all_reduce",
        {"a": (4, 8), "b": (6, 4)},
        0,
        "a is 4 x 8, b 6 x 4: a's last dimension must be b's first",
    ),
    "a of one": ("matmul_all_reduce", {"a": (8,), "b": (8, 4)}, 0, "a is 8: it must have 2 or 3 dimensions"),
    "a of none": ("matmul_all_reduce", {"a": (), "b": (8, 4)}, 0, "a is one element: it must have 2 or 3 dimensions"),
    "a of four": ("matmul_all_to_all", {"a": (1, 2, 4, 8), "b": (8, 4)}, 0, "a is 1 x 2 x 4 x 8: it must have 2 or 3"),
    "b of three": ("all_gather_matmul", {"a": (4, 8), "b": (1, 8, 4)}, 0, "b is 1 x 8 x 4: it must have 2 dimensions"),
    "types": (
        "matmul_all_reduce",
        {"a": (4, 8), "b": ((8, 4), F16)},
        0,
        "a is of type fp32, b of type fp16: they must be of one type",
    ),
    "empty b": ("matmul_all_reduce", {"a": (4, 8), "b": (8, 0)}, 0, "a is 4 x 8, b 8 x 0: only a's rows may be none"),
    "dimension": (
        "all_gather_matmul",
        {"a": (4, 8), "b": (8, 4)},
        1,
        "dim = 1 with a of 4 x 8: it must be a dimension of a before its last",
    ),
    "one scale": (
        "matmul_all_reduce",
        {"a": ((4, 8), F8), "b": ((8, 4), F8), "a_scale": (1,)},
        0,
        "scales of a and b: both must be given, or neither",
    ),
    "scales": (
        "matmul_all_reduce",
        {"a": (4, 8), "b": (8, 4), "a_scale": (1,), "b_scale": (1,)},
        0,
        "scales with a of type fp32: only e4m3 has scales",
    ),
    "rows": (
        "matmul_reduce_scatter",
        {"a": (2, 6, 8), "b": (8, 4)},
        1,
        "a is 2 x 6 x 8: its dimension 1 must divide by the 4 ranks",
    ),
    "blocks": (
        "matmul_all_to_all",
        {"a": (6, 8), "b": (8, 4)},
        0,
        "M = 6 does not divide by 4 ranks; gemm_all_to_all splits it over the ranks",
    ),
    "uneven rows": (
        "all_gather_matmul",
        {"a": (2, 8, 8), "b": (8, 4)},
        1,
        "a is 2 x 8 x 8 with strides of 64, 8, 1 elements: with dimension 1 in front, its rows must lie evenly",
    ),
    "out": ("all_gather_matmul", {"a": (4, 8), "b": (8, 4), "out": (4, 4)}, 0, "out is 4 x 4: it must be 16 x 4"),
}
# Fakes see no output, and not how operands lie.
OF_CALLS = ("uneven rows", "out")
OTHERWISE = {"a_scale": "scale_a", "b_scale": "scale_b"}


def tensors_of(operands: dict[str, Any]) -> dict[str, Any]:
    """Zeros of these shapes."""
    typed = {name: one if one and isinstance(one[0], tuple) else (one, F32) for name, one in operands.items()}
    return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in typed.items()}


def text_of(call: Any) -> str:
    """What is refused."""
    with pytest.raises(imbrex.InvalidInput) as caught:
        call()
    return str(caught.value)


def view_of(tensor: Any) -> _c.View:
    """The tensor, as C sees it."""
    return _c.View(type=TYPES[tensor.dtype], dims=tensor.dim(), extents=(*tensor.shape,), strides=(*tensor.stride(),))


def texts_of(name: str) -> dict[str, str]:
    """What each front says of a fault."""
    operator, operands, dim, _ = FAULTS[name]
    group = group_of(*range(RANKS)).group_name
    tensors = tensors_of(operands)
    a, b, out = tensors.pop("a"), tensors.pop("b"), tensors.pop("out", None)
    scales = {OTHERWISE[operand]: tensor for operand, tensor in tensors.items()}
    along = {} if dim == 0 else {"scatter_dim" if operator == "matmul_reduce_scatter" else "gather_dim": dim}
    given = [
        (key.encode(), view_of(one)) for key, one in {"a": a, "b": b, **tensors, "out": out}.items() if one is not None
    ]
    function = getattr(torch.ops.imbrex, operator)
    told = {"C": text_of(lambda: _infer.infer(operator, RANKS, dim, given))}
    if out is None:
        told["torch"] = text_of(lambda: called(group, lambda: function(a, b, group, dim, **scales)))
    else:
        told["torch"] = text_of(lambda: getattr(it, operator)(a, b, group, out=out))
    if name not in OF_CALLS:
        with FakeTensorMode() as mode:
            fake = {key: mode.from_tensor(one) for key, one in scales.items()}
            told["fake"] = text_of(lambda: function(mode.from_tensor(a), mode.from_tensor(b), group, dim, **fake))
    if DEVICE == "cpu" and a.dtype is not F8:
        world, arrays = groups._worlds[group], {key: one.numpy() for key, one in scales.items()}
        more = {} if out is None else {"out": out.numpy()}
        told["NumPy"] = text_of(
            lambda: getattr(imbrex, operator)(a.numpy(), b.numpy(), world, **along, **arrays, **more)
        )
    assert it.all_reduce(torch.ones(4), group)[0].item() == RANKS  # the ranks are in step
    return told


def called(group: str, call: Any) -> Any:
    """Calls an operator of torch's, whose error becomes Imbrex'."""
    try:
        return call()
    except Exception as error:
        extension.raise_for(error, group)


@pytest.mark.parametrize("name", FAULTS)
def test_all_fronts_say_the_same(ranks, name):
    for told in ranks.run(texts_of, name=name):
        assert set(told) >= {"C", "torch"}
        for front, text in told.items():
            assert text.startswith(FAULTS[name][3]), (front, text)
        assert len(set(told.values())) == 1, told


def fakes_and_results(seed: int) -> None:
    """Random calls: what their fakes say is what they give."""
    draw = random.Random(seed)
    group = group_of(*range(RANKS)).group_name
    for _ in range(40):
        operator, three = draw.choice(PRODUCTS), draw.random() < 0.5
        dim = draw.randrange(2) if three and operator in ("all_gather_matmul", "matmul_reduce_scatter") else 0
        shape = [draw.randint(1, 3) for _ in range(2 if three else 1)]
        shape[dim] *= RANKS
        k, n, dtype = draw.randint(2, 9), draw.randint(2, 9), draw.choice((F32, F16, torch.bfloat16))
        # The dimension of the collective comes first in memory.
        a = torch.zeros([shape[dim], *shape[:dim], *shape[dim + 1 :], k], dtype=dtype).movedim(0, dim)
        b = torch.zeros(k, n, dtype=dtype)
        bias = torch.zeros(n, dtype=dtype) if draw.random() < 0.5 else None
        function = getattr(torch.ops.imbrex, operator)
        result = function(a, b, group, dim, bias)
        with FakeTensorMode() as mode:
            fake = function(
                mode.from_tensor(a), mode.from_tensor(b), group, dim, None if bias is None else mode.from_tensor(bias)
            )
        told = f"seed {seed}: {operator} of {tuple(a.shape)} along {dim}"
        assert (fake.shape, fake.dtype) == (result.shape, result.dtype), told
        longer = [i for i, size in enumerate(result.shape) if size > 1]
        assert all(fake.stride(i) == result.stride(i) for i in longer), told


def test_fakes_are_as_results(ranks):
    ranks.run(fakes_and_results, seed=20261130)


def symbols() -> None:
    """Sizes that are symbols stay so, and are refused by what they were seen as."""
    group = group_of(*range(RANKS)).group_name
    mode = FakeTensorMode(shape_env=ShapeEnv())
    rows = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])

    def fake(*shape: int) -> Any:
        return mode.from_tensor(torch.zeros(shape), symbolic_context=rows)

    def of(operator: str, *shape: int) -> Any:
        a, b = fake(*shape), fake(8, 6)[:, :4]  # outside of the mode, in which zeros would be fakes without symbols
        with mode:
            return getattr(torch.ops.imbrex, operator)(a, b, group)

    for operator in PRODUCTS:
        rules = _infer.rules_of(operator, RANKS)
        result = of(operator, 12, 8)
        assert isinstance(result.shape[0], torch.SymInt), operator
        assert result.shape[0].node.hint == 12 * rules.rows_times // rules.rows_over
        assert result.shape[1] == 4
    assert (
        text_of(lambda: of("matmul_reduce_scatter", 10, 8)) == "a is 10 x 8: its dimension 0 must divide by the 4 ranks"
    )
    assert "a is 12 x 7, b 8 x 4" in text_of(lambda: of("matmul_all_reduce", 12, 7))


def test_symbols_stay_symbols(ranks):
    ranks.run(symbols)


def test_rules_are_those_of_the_operators():
    """The names that Python has, and what the library says of each."""
    assert PRODUCTS == ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all")
    assert [_infer.rules_of(name, 3)[2:] for name in PRODUCTS] == [(3, 1), (1, 3), (1, 1), (1, 1)]
    for name in PRODUCTS:
        schema = next(one for one in extension.schemas() if one.startswith(f"{name}("))
        assert ("codec" in schema) == _infer.rules_of(name, 3).sums
        assert callable(getattr(imbrex, name)) and callable(getattr(it, name))
    assert _infer.out_type_of(_c.E4M3) == _c.BF16 and _infer.out_type_of(_c.FP16) == _c.FP16


@pytest.mark.parametrize("dim", [1.5, "0", None, 2**40])
def test_a_dimension_of_numpy_is_an_integer(dim):
    with imbrex.World.connect(imbrex.World.make_unique_id(), 0, 1) as world:
        with pytest.raises(imbrex.InvalidInput, match=r"^dim = .*: it must be a dimension of a before its last"):
            imbrex.all_gather_matmul(np.ones((4, 8), "f"), np.ones((8, 4), "f"), world, gather_dim=dim)
