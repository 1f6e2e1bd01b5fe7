"""
What stands for vLLM: how it finds general plug-ins, and how the graphs of its AsyncTP pass call torch's operators.

torchrun --nproc-per-node 2 tests/python/stand_in_vllm.py      prints what Imbrex ran, in each rank
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from device_for_tests import generator_of
from torch import Tensor

E4M3 = torch.float8_e4m3fn


def load_general_plugins() -> None:
    """Each process calls every plug-in of the group, or those that VLLM_PLUGINS names; it may do so more than once."""
    allowed = os.environ.get("VLLM_PLUGINS")
    for point in importlib.metadata.entry_points(group="vllm.general_plugins"):
        if allowed is None or point.name in allowed.split(","):
            plugin: Callable[[], None] = point.load()
            plugin()


@torch.library.custom_op("stand_in_vllm::patched_fused_scaled_matmul_reduce_scatter", mutates_args=())
def patched_fused_scaled_matmul_reduce_scatter(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    reduce_op: str,
    orig_scatter_dim: int,
    scatter_dim_after_maybe_reshape: int,
    group_name: str,
    output_shape: list[int],
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """vLLM's thin operator around torch's."""
    return torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
        A,
        B,
        A_scale,
        B_scale,
        reduce_op,
        orig_scatter_dim,
        scatter_dim_after_maybe_reshape,
        group_name,
        output_shape,
        bias,
        result_scale,
        out_dtype,
        use_fast_accum,
    )


def whole_numbers(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randint(-2, 3, (rows, columns), generator=generator_of(seed)).float()


def layer(group: dist.ProcessGroup) -> None:
    """The two products of an MLP that is split by sequence, in bf16 and in fp8, against the same on one rank."""
    name, rank, ranks = group.group_name, group.rank(), group.size()
    symmetric.enable_symm_mem_for_group(name)
    every = [whole_numbers(4, 16, rank) for rank in range(ranks)]
    up, down = whole_numbers(8, 16, 10), whole_numbers(16, 8, 11)  # the same on every rank
    x = every[rank]
    gathered, (h,) = torch.ops.symm_mem.fused_all_gather_matmul(
        x.bfloat16(), [up.bfloat16().t()], gather_dim=0, group_name=name
    )
    whole = torch.cat(every)
    assert torch.equal(gathered.float(), whole) and torch.equal(h.float(), whole @ up.t())
    small = whole_numbers(4 * ranks, 8, 20)
    y = torch.ops.symm_mem.fused_matmul_reduce_scatter(
        small.bfloat16(), down.bfloat16().t(), "sum", scatter_dim=0, group_name=name
    )
    assert torch.equal(y.float(), ranks * (small @ down.t()).chunk(ranks)[rank])

    rows, columns = torch.full((4 * ranks, 1), 0.5), torch.full((1, 16), 2.0)
    _, (h,) = torch.ops.symm_mem.fused_all_gather_scaled_matmul(
        x.to(E4M3),
        [up.to(E4M3).t()],
        rows,
        [torch.full((1, 8), 2.0)],
        gather_dim=0,
        biases=[None],
        result_scales=[None],
        out_dtypes=[torch.bfloat16],
        use_fast_accum=[False],
        group_name=name,
    )
    assert torch.equal(h.float(), whole @ up.t()) and h.dtype == torch.bfloat16
    wide, weight = whole_numbers(4 * ranks, 16, 30), whole_numbers(16, 16, 31)
    y = torch.ops.stand_in_vllm.patched_fused_scaled_matmul_reduce_scatter(
        wide.to(E4M3),
        weight.to(E4M3).t(),
        rows,
        columns,
        "sum",
        0,
        0,
        name,
        [4 * ranks, 16],
        None,
        None,
        torch.bfloat16,
        False,
    )
    assert torch.equal(y.float(), ranks * (wide @ weight.t()).chunk(ranks)[rank])


def main() -> None:
    load_general_plugins()
    load_general_plugins()
    dist.init_process_group("gloo")
    try:
        layer(dist.group.WORLD)
    except NotImplementedError as error:
        print(f"torch's own: {str(error).splitlines()[0]}", flush=True)
        return
    import imbrex.torch

    print(json.dumps(imbrex.torch.stats().calls), flush=True)
    imbrex.torch.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
