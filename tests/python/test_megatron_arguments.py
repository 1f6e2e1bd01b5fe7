"""The parallel linear layers, made and called as Megatron-core makes and calls its own."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import group_of
from problems import integers
from torch import Tensor, nn

import imbrex
from imbrex.torch.nn import ColumnParallelLinear, RowParallelLinear

RANKS, ROWS, BATCH, DEPTH, COLUMNS = 4, 8, 3, 16, 8
LAYERS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (ColumnParallelLinear, {"bias": True}),
    (RowParallelLinear, {"bias": True, "input_is_parallel": True, "skip_bias_add": False}),
)


def config(**fields: Any) -> Any:
    """What the layers read of Megatron-core's ModelParallelConfig."""
    plain = {
        "tensor_model_parallel_size": RANKS,
        "expert_model_parallel_size": 1,
        "sequence_parallel": False,
        "params_dtype": torch.float32,
        "use_cpu_initialization": DEVICE == "cpu",
        "perform_initialization": True,
        "gradient_accumulation_fusion": False,
        "defer_embedding_wgrad_compute": False,
        "cpu_offloading": False,
    }
    return SimpleNamespace(**(plain | fields))


def whole() -> nn.Linear:
    made = nn.Linear(DEPTH, COLUMNS, device=DEVICE)
    with torch.no_grad():
        made.weight.copy_(integers((COLUMNS, DEPTH), 1, torch.float32))
        made.bias.copy_(integers((COLUMNS,), 2, torch.float32))
    return made


def mine(x: Tensor, cut: int | None) -> Tensor:
    """This rank's part along a dimension, or all."""
    return x if cut is None else x.chunk(RANKS, cut)[dist.get_rank()].contiguous()


def filled(layer: Any, cut: int) -> Any:
    """The layer with this rank's part of the whole one's weight and bias."""
    of = whole()
    with torch.no_grad():
        layer.weight.copy_(mine(of.weight, cut))
        layer.bias.copy_(mine(of.bias, 0 if cut == 0 else None))
    return layer


def beside_the_whole(compiled: bool) -> None:
    """Every honoured argument: outputs, and gradients of input, weight and bias, are those of the whole layer."""
    x = integers((ROWS, BATCH, DEPTH), 3, torch.float32)
    grad = integers((ROWS, BATCH, COLUMNS), 4, torch.float32)
    of, wanted_x = whole(), x.clone().requires_grad_()
    product = nn.functional.linear(wanted_x, of.weight, None)
    biased = product + of.bias
    biased.backward(grad)
    # The class, the cut of its weight, the option of its own, and how inputs and outputs lie with it.
    cases = itertools.product((ColumnParallelLinear, RowParallelLinear), (False, True), (False, True), (False, True))
    for kind, sequence, option, skip in cases:
        column = kind is ColumnParallelLinear
        name = "gather_output" if column else "input_is_parallel"
        if sequence and not column and not option:
            continue
        layer = kind(
            DEPTH,
            COLUMNS,
            config=config(sequence_parallel=sequence),
            init_method=nn.init.zeros_,
            bias=True,
            skip_bias_add=skip,
            tp_group=dist.group.WORLD,
            tp_comm_buffer_name="fc1",
            **{name: option},
        )
        cut = 0 if column else 1
        filled(layer, cut)
        of_x = (0 if sequence else None) if column else (2 if option else None)
        of_y = (None if option else 2) if column else (0 if sequence else None)
        given = mine(x, of_x).clone().requires_grad_()
        y, bias = (torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer)(given)
        what = (kind.__name__, sequence, option, skip)
        assert torch.equal(y, mine(product if skip else biased, of_y)), what
        assert bias is (layer.bias if skip else None), what
        if skip and not (column and option):
            y = y + bias
        y.backward(mine(grad, of_y))
        assert torch.equal(given.grad, mine(wanted_x.grad, of_x)), what
        assert torch.equal(layer.weight.grad, mine(of.weight.grad, cut)), what
        if layer.bias.grad is None:
            continue
        partial = layer.bias.grad.clone()
        if getattr(layer.bias, "sequence_parallel", False):  # Megatron-core sums these
            dist.all_reduce(partial)
        assert torch.equal(partial, mine(of.bias.grad, 0 if column else None)), what


@pytest.mark.parametrize("compiled", (False, True))
def test_what_is_honoured(ranks, compiled):
    ranks.run(beside_the_whole, compiled=compiled)


def forms() -> None:
    """Names of sizes, what is returned, how weights are drawn, and what Megatron-core finds on parameters."""
    for kind, needed in LAYERS:
        torch.manual_seed(1)
        drawn = kind(
            input_size=DEPTH, output_size=COLUMNS, config=config(), init_method=nn.init.normal_, **needed
        ).weight.detach()
        parts = [torch.empty_like(drawn) for _ in range(RANKS)]
        dist.all_gather(parts, drawn)
        assert all(not torch.equal(a, b) for a, b in itertools.combinations(parts, 2))
        own = torch.rand(1, device=DEVICE)
        told = [torch.empty_like(own) for _ in range(RANKS)]
        dist.all_gather(told, own)
        assert all(torch.equal(told[0], one) for one in told)

        def fail(weight: Tensor) -> None:
            raise AssertionError("drawn")

        half = config(perform_initialization=False, params_dtype=torch.bfloat16)
        layer = kind(DEPTH, COLUMNS, config=half, init_method=fail, **needed)
        assert layer.weight.dtype == layer.bias.dtype == torch.bfloat16
        column = kind is ColumnParallelLinear
        weight, bias = layer.weight, layer.bias
        assert (weight.tensor_model_parallel, weight.partition_dim, weight.partition_stride) == (True, 1 - column, 1)
        assert weight.allreduce and bias.allreduce
        assert getattr(bias, "tensor_model_parallel", False) == column
        for skip in (False, True):
            options = needed | {"skip_bias_add": skip, "config": config(sequence_parallel=True)}
            marked = kind(DEPTH, COLUMNS, init_method=nn.init.zeros_, **options)
            assert getattr(marked.bias, "sequence_parallel", False) == (skip and not column)
        layer.load_state_dict({**layer.state_dict(), "_extra_state": None})

        plain = kind(DEPTH, COLUMNS, init_method=nn.init.ones_)
        assert (plain.weight == 1).all() and plain.bias is None and not hasattr(plain.weight, "allreduce")
        x = torch.ones(ROWS, DEPTH if column else DEPTH // RANKS, device=DEVICE)
        assert isinstance(plain(x), Tensor)
        y, none = kind(DEPTH, COLUMNS, skip_bias_add=True)(x)
        assert isinstance(y, Tensor) and none is None
    up = filled(ColumnParallelLinear(DEPTH, COLUMNS, bias=True), 0)
    x = torch.ones(ROWS, DEPTH, device=DEVICE)
    assert up(x, runtime_gather_output=True).shape == (ROWS, COLUMNS)
    assert up(x).shape == (ROWS, COLUMNS // RANKS)
    assert ColumnParallelLinear(DEPTH, COLUMNS, config=config(), init_method=nn.init.ones_).bias is not None


def test_both_forms(ranks):
    ranks.run(forms)


def refusals() -> None:
    """What is not honoured raises, and names the argument, its value and the rule."""
    for kind, needed in LAYERS:
        column, name = kind is ColumnParallelLinear, kind.__name__
        options = needed | {"config": config(), "init_method": nn.init.zeros_}
        refused: dict[str, tuple[Any, Any]] = {
            "stride": (2, 1),
            "keep_master_weight_for_test": (True, False),
            "is_expert": (True, False),
        }
        if column:
            refused |= {
                "skip_weight_param_allocation": (True, False),
                "embedding_activation_buffer": ([], None),
                "grad_output_buffer": ([], None),
                "disable_grad_reduce": (True, False),
            }
        for key, (value, rule) in refused.items():
            text = f"{key} = {value!r}: Imbrex' {name} does not do it; it must be {rule!r}"
            with pytest.raises(NotImplementedError) as caught:
                kind(DEPTH, COLUMNS, **options, **{key: value})
            assert str(caught.value) == text
            kind(DEPTH, COLUMNS, **options, **{key: rule})
        for key in ("gradient_accumulation_fusion", "defer_embedding_wgrad_compute", "cpu_offloading"):
            with pytest.raises(NotImplementedError, match=rf"config\.{key} = True: .* it must be False"):
                kind(DEPTH, COLUMNS, **options | {"config": config(**{key: True})})
        with pytest.raises(TypeError, match=f"{name} got an unexpected keyword argument 'overlap'"):
            kind(DEPTH, COLUMNS, **options, overlap=True)
        with pytest.raises(TypeError, match=rf"{name} needs out_features, or output_size, and not both"):
            kind(DEPTH, **options)
        with pytest.raises(TypeError, match=rf"{name} needs in_features, or input_size, and not both"):
            kind(DEPTH, COLUMNS, input_size=DEPTH, **options)
        with pytest.raises(imbrex.InvalidInput, match=r"group and tp_group = .*: one of them may be given"):
            kind(DEPTH, COLUMNS, dist.group.WORLD, tp_group=dist.group.WORLD, **options)
        with pytest.raises(imbrex.InvalidInput, match=r"tensor_model_parallel_size = 2: there are 4 ranks, so it must"):
            kind(DEPTH, COLUMNS, **options | {"config": config(tensor_model_parallel_size=2)})
        with pytest.raises(NotImplementedError, match=f"sharded_state_dict of Imbrex' {name}"):
            kind(DEPTH, COLUMNS, **options).sharded_state_dict()
    with pytest.raises(TypeError, match="RowParallelLinear got an unexpected keyword argument 'disable_grad_reduce'"):
        RowParallelLinear(DEPTH, COLUMNS, disable_grad_reduce=False)
    with pytest.raises(imbrex.InvalidInput, match="input_is_parallel = False with sequence_parallel: it must be True"):
        RowParallelLinear(DEPTH, COLUMNS, input_is_parallel=False, config=config(sequence_parallel=True))
    up = ColumnParallelLinear(DEPTH, COLUMNS)
    with pytest.raises(NotImplementedError, match=r"weight is \(2, 16\): the layer uses its own; it must be None"):
        up(torch.ones(ROWS, DEPTH, device=DEVICE), up.weight)
    down = RowParallelLinear(DEPTH, COLUMNS, input_is_parallel=False)
    with pytest.raises(imbrex.InvalidInput, match=r"input is \(8, 15\): its last dimension must divide by the 4 ranks"):
        down(torch.ones(ROWS, DEPTH - 1, device=DEVICE))


def test_what_is_refused(ranks):
    ranks.run(refusals)


def megatron_s_group() -> None:
    """Without a group the layers take Megatron-core's, where it is in use."""
    halves = group_of(0, 1), group_of(2, 3)
    half = halves[dist.get_rank() // 2]
    state: Any = ModuleType("megatron.core.parallel_state")
    state.get_tensor_model_parallel_group = lambda check_initialized=True: None if check_initialized else half
    sys.modules["megatron.core.parallel_state"] = state
    try:
        layer = ColumnParallelLinear(
            DEPTH, COLUMNS, config=config(tensor_model_parallel_size=2), init_method=nn.init.ones_
        )
        assert layer.weight.shape == (COLUMNS // 2, DEPTH) and layer.group_name == half.group_name
    finally:
        del sys.modules["megatron.core.parallel_state"]


def test_megatron_s_group(ranks):
    ranks.run(megatron_s_group)
