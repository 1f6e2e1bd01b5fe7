"""What bad input gets: InvalidInput with argument, value and rule, on every rank; and what a lost rank's peers get."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, kills_a_rank
from groups_for_tests import group_of
from launch_for_tests import Program
from pool import Pool, expect_others_told

import imbrex
import imbrex.torch as it

F32, BF16, F8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn


def _z(*shape, dtype=F32):
    return torch.zeros(shape, dtype=dtype)


# Call, and what its text says. `g` is the group of all four ranks.
BAD = {
    "k differs": (lambda g: it.matmul_all_reduce(_z(4, 8), _z(6, 4), g), "a is 4 x 8, b 6 x 4: a's last dimension"),
    "types differ": (lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4, dtype=BF16), g), "of type fp32, b of type bf16"),
    "dtype": (
        lambda g: it.matmul_all_reduce(_z(4, 8, dtype=torch.int32), _z(8, 4), g),
        "a is of torch.int32: its dtype must be",
    ),
    "dtype of 64 bits": (
        lambda g: it.matmul_all_reduce(_z(4, 8, dtype=torch.float64), _z(8, 4), g),
        "a is of torch.float64: its dtype must be",
    ),
    "other dtype": (
        lambda g: it.matmul_all_reduce(_z(4, 8, dtype=torch.complex64), _z(8, 4), g),
        "a: its dtype must be",
    ),
    "no tensor": (
        lambda g: it.matmul_all_reduce(_z(4, 8).cpu().numpy(), _z(8, 4), g),
        "a is of type ndarray: it must be a",
    ),
    "list": (lambda g: it.matmul_reduce_scatter(_z(4, 8), [[1.0]], g), "b is of type list: it must be a torch.Tensor"),
    "one dimension": (lambda g: it.matmul_all_reduce(_z(8), _z(8, 4), g), "a is 8: it must have 2 or 3 dimensions"),
    "b of three": (lambda g: it.matmul_all_reduce(_z(4, 8), _z(1, 8, 4), g), "b is 1 x 8 x 4: it must have 2"),
    "empty": (lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 0), g), "a is 4 x 8, b 8 x 0: only a's rows may be none"),
    "rows": (lambda g: it.matmul_reduce_scatter(_z(6, 8), _z(8, 4), g), "must divide by the 4 ranks"),
    "all-to-all rows": (lambda g: it.matmul_all_to_all(_z(6, 8), _z(8, 4), g), "M = 6 does not divide by 4 ranks"),
    "last dim": (lambda g: it.all_gather_matmul(_z(4, 8), _z(8, 4), g, gather_dim=1), "gather_dim = 1 with a of"),
    "bias width": (lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4), g, bias=_z(3)), "operand bias is 3; it must be"),
    "bias type": (
        lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4), g, bias=_z(4, dtype=BF16)),
        "bias is of type bf16",
    ),
    "out shape": (
        lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4), g, out=_z(4, 5)),
        "out is 4 x 5: it must be 4 x 4",
    ),
    "out type": (
        lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4), g, out=_z(4, 4, dtype=BF16)),
        "out is of type bf16",
    ),
    "one scale": (lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4), g, scale_a=_z(1)), "scales of a and b: both"),
    "scales of fp32": (
        lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4), g, scale_a=_z(1), scale_b=_z(1)),
        "scales with a of type fp32: only e4m3",
    ),
    "out_dtype": (lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4), g, out_dtype=BF16), "the result is fp32"),
    "a with gaps": (lambda g: it.matmul_all_reduce(_z(8, 4).t(), _z(8, 4), g), "operand a has strides"),
    "x with gaps": (lambda g: it.all_reduce(_z(8, 4).t(), g), "operand in: extent 1 has a stride of 4"),
    "no codec": (lambda g: it.all_reduce(_z(8), g, codec="int99"), "int99"),
    "tolerance alone": (lambda g: it.all_reduce(_z(8), g, tolerance=0.1), "tolerance"),
    "all-reduce of e4m3": (lambda g: it.all_reduce(_z(8).to(F8), g), "e4m3"),
    "weight": (lambda g: it.all_reduce_rms_norm(_z(2, 8), None, _z(4), 1e-6, g), "weight is 4 of fp32"),
    "weight's dtype": (
        lambda g: it.all_reduce_rms_norm(_z(2, 8, dtype=BF16), None, _z(8, dtype=torch.float16), 1e-6, g),
        "with x of 2 x 8 it must be 8 of bf16 or fp32 on",
    ),
    "weight below fp32": (
        lambda g: it.all_reduce_rms_norm(_z(2, 8), None, _z(8, dtype=BF16), 1e-6, g),
        "with x of 2 x 8 it must be 8 of fp32 on",
    ),
    "residual": (lambda g: it.all_reduce_rms_norm(_z(2, 8), _z(2, 4), _z(8), 1e-6, g), "residual is 2 x 4"),
    "no group": (lambda g: it.all_reduce(_z(8), "nobody"), "group 'nobody' is none of this process's"),
    "a number as group": (lambda g: it.all_reduce(_z(8), 3), "group is 3: it must be a ProcessGroup"),
    "empty list": (lambda g: it.all_gather_matmul(_z(4, 8), [], g), "b is an empty list"),
    "list of biases": (lambda g: it.all_gather_matmul(_z(4, 8), [_z(8, 4)], g, bias=[]), "bias has 0 elements, b 1"),
    "long B of a list": (
        lambda g: it.all_gather_matmul(_z(4, 8), [_z(8, 4), _z(9, 4)], g),
        "a is 4 x 8, b 9 x 4: a's last dimension must be b's first",
    ),
    "vector of a list": (
        lambda g: it.all_gather_matmul(_z(4, 8), [_z(8, 4), _z(8)], g),
        "b is 8: it must have 2 dimensions",
    ),
    "type of a B of a list": (
        lambda g: it.all_gather_matmul(_z(4, 8), [_z(8, 4), _z(8, 4, dtype=BF16)], g),
        "a is of type fp32, b of type bf16: they must be of one type",
    ),
    "device of a B of a list": (
        lambda g: it.all_gather_matmul(_z(4, 8), [_z(8, 4), _z(8, 4).to("meta")], g),
        "b is on meta, a on .*: all must be on one device",
    ),
    "out with gradient": (
        lambda g: it.matmul_all_reduce(_z(4, 8).requires_grad_(), _z(8, 4), g, out=_z(4, 4)),
        "out: what is written into it has no gradient",
    ),
    "codec with a NUL": (lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4), g, codec="int8\0x"), "int8' with a NUL"),
    "codec with a NUL of a sum": (lambda g: it.all_reduce(_z(8), g, codec="int8\0x"), "int8' with a NUL"),
    "codec a number": (lambda g: it.matmul_all_reduce(_z(4, 8), _z(8, 4), g, codec=8), "argument 'codec'"),
    "codec of a sum a number": (lambda g: it.all_reduce(_z(8), g, codec=8), "argument 'codec'"),
    "tolerance a text": (lambda g: it.all_reduce(_z(8), g, codec="int8", tolerance="x"), "argument 'tolerance'"),
    "eps a text": (lambda g: it.all_reduce_rms_norm(_z(4, 8), None, _z(8), "x", g), "argument 'eps'"),
    "sparse": (lambda g: it.matmul_all_reduce(_z(4, 8).to_sparse(), _z(8, 4), g), "a has layout torch.sparse_coo"),
    "sparse, of a sum": (lambda g: it.all_reduce(_z(4, 8).to_sparse(), g), "x has layout torch.sparse_coo"),
    "x no tensor": (lambda g: it.all_reduce(3, g), "x is of type int"),
    "weight no tensor": (lambda g: it.all_reduce_rms_norm(_z(4, 8), None, [1], 1e-6, g), "weight is of type list"),
    "scale no tensor": (
        lambda g: it.matmul_all_reduce(_z(4, 8, dtype=F8), _z(4, 8, dtype=F8).t(), g, scale_a=1, scale_b=_z(1)),
        "scale_a is of type int",
    ),
    "dimension a text": (lambda g: it.all_gather_matmul(_z(4, 8), _z(8, 4), g, gather_dim="x"), "gather_dim = 'x'"),
    "dimension a fraction": (
        lambda g: it.matmul_reduce_scatter(_z(4, 8), _z(8, 4), g, scatter_dim=1.5),
        "scatter_dim = 1.5",
    ),
    "rows that lie unevenly": (
        lambda g: it.matmul_all_reduce(_z(2, 8, 8)[:, 1:5], _z(8, 4), g),
        "a is 2 x 4 x 8 with strides of 64, 8, 1 elements: with dimension 0 in front, its rows must lie evenly",
    ),
    "every second element of three dimensions": (
        lambda g: it.matmul_all_reduce(_z(2, 4, 16)[:, :, ::2], _z(8, 4), g),
        "a is 2 x 4 x 8 with strides of 64, 16, 2 elements: its last one must be 1",
    ),
    "a batch along the sequence": (
        lambda g: it.all_gather_matmul(_z(2, 8, 8), _z(8, 4), g, gather_dim=1),
        "a is 2 x 8 x 8 with strides of .*: with dimension 1 in front",
    ),
    "meta": (lambda g: it.matmul_all_reduce(_z(4, 8).to("meta"), _z(8, 4), g), "one device|on the CPU or"),
}


def is_refused(name: str) -> str:
    """The text with which a bad call is refused; a good one works afterwards."""
    group = group_of(0, 1, 2, 3)
    with pytest.raises(imbrex.InvalidInput) as caught:
        BAD[name][0](group)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, imbrex.Error)
    assert it.all_reduce(torch.ones(4), group)[0].item() == 4
    return str(caught.value)


@pytest.mark.parametrize("name", BAD)
def test_bad_input(ranks, name):
    """Every rank refuses, and the group stays usable."""
    import re

    for text in ranks.run(is_refused, name=name):
        assert re.search(BAD[name][1], text), text


def one_element() -> list[float]:
    """Sums of a tensor without a dimension, as a loss is."""
    x = torch.ones(())
    out = torch.empty_like(x)
    it.all_reduce(x, out=out)
    assert out.shape == ()
    return [it.all_reduce(x).item(), out.item()]


def test_one_element_is_summed(ranks):
    for said in ranks.run(one_element):
        assert said == [4.0, 4.0]


def compiled_says_the_same() -> None:
    """A compiled graph raises what torch makes of a refusal, and the next call is right."""
    group = group_of(0, 1, 2, 3)
    quantized = torch.compile(lambda x: it.all_reduce(x, group, codec="int99") * 1, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="codec 'int99'"):
        quantized(torch.ones(4))
    assert it.all_reduce(torch.ones(4), group)[0].item() == 4


def test_compiled_graphs_refuse(ranks):
    ranks.run(compiled_says_the_same)


def raw_says_the_same() -> None:
    """The operators themselves raise RuntimeError with the same text, and fakes InvalidInput."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    name = group_of(0, 1, 2, 3).group_name
    ops = torch.ops.imbrex
    for arguments in (
        (_z(4, 8), _z(6, 4), name),
        (_z(4, 8), _z(8, 4, dtype=BF16), name),
        (_z(8), _z(8, 4), name),
        (_z(4, 8), _z(8, 4), name, 1),
        (_z(6, 8), _z(8, 4), name),
        (_z(4, 8, dtype=torch.int32), _z(8, 4), name),
        (_z(4, 8), _z(8, 4), name, 0, None, _z(1), None),
        (_z(4, 8), _z(8, 4), name, 0, None, _z(1), _z(1)),
        (_z(4, 8), _z(8, 4), name, 0, None, None, None, BF16),
    ):
        with pytest.raises(RuntimeError) as raw:
            ops.matmul_reduce_scatter(*arguments)
        with FakeTensorMode() as mode, pytest.raises(imbrex.InvalidInput) as fake:
            fakes = [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in arguments]
            ops.matmul_reduce_scatter(*fakes)
        assert str(fake.value) in str(raw.value), (str(fake.value), str(raw.value))


def test_raw_operators_and_fakes_say_the_same(ranks):
    """One text, wherever it is noticed."""
    ranks.run(raw_says_the_same)


def one_rank_differs() -> str:
    """Rank 2 asks for another shape."""
    group = group_of(0, 1, 2, 3)
    width = 6 if dist.get_rank() == 2 else 5
    with pytest.raises(imbrex.Error) as caught:
        it.matmul_all_reduce(_z(4, 8), _z(8, width), group)
    return str(caught.value)


def test_ranks_that_differ():
    """Every rank learns who differs in what."""
    pool = Pool()
    try:
        for text in pool.run(one_rank_differs):
            assert "rank 2" in text and "n = 6" in text, text
    finally:
        pool.close()


def lose_a_rank() -> tuple[str, float]:
    """Rank 1 dies; the others' next call ends soon, with its number."""
    group = group_of(0, 1, 2, 3)
    it.all_reduce(torch.ones(8), group)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(imbrex.Error) as caught:
        while time.monotonic() - begin < 30:
            it.matmul_all_reduce(_z(4, 8), _z(8, 4), group)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            it.check(group)
    with pytest.raises(imbrex.Error):
        it.check(group)
    return str(caught.value), time.monotonic() - begin


@kills_a_rank
def test_a_killed_rank():
    """The others end within a few seconds, and name it."""
    expect_others_told(lose_a_rank)


@pytest.mark.parametrize("kind", ("all_reduce", "embedding"))
def test_a_rank_that_raises(tmp_path, kind):
    """A process that ends by an exception tells the others what it was."""
    script = Path(__file__).with_name("raising_rank.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    processes = [
        Program([str(script), str(rank), "4", str(tmp_path / "store"), kind], environment) for rank in range(4)
    ]
    try:
        told = [process.communicate(timeout=120) for process in processes]
        statuses = [process.returncode for process in processes]
    finally:
        for process in processes:
            process.close()
    assert statuses[1] == 1 and "this rank has had enough" in told[1][1], told[1]
    for rank in (0, 2, 3):
        assert statuses[rank] == 0, told[rank]
        assert "rank 1" in told[rank][0] and "this rank has had enough" in told[rank][0], told[rank]
