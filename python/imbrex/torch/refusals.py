"""What of torch's calls Imbrex does not take: decided by what is the same on every rank, so that all decide alike."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import Placement

from .._errors import Error, InvalidInput
from .groups import apart, connect, name_of, size_of
from .stats import count_copy

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_BYTES = 16  # rows on GPUs are whole multiples of so many


class Refusal(Exception):
    """Why a call goes back to torch."""


def expect(condition: bool, reason: str) -> None:
    """Raises Refusal where the condition does not hold."""
    if not condition:
        raise Refusal(reason)


def expect_group(name: str) -> int:
    """How many ranks the group has; connected from here on, or handed back for ever."""
    expect(name not in apart, "group that Imbrex does not connect")
    ranks = size_of(name)
    expect(ranks > 1, "one rank")
    expect(is_connected(name), "group that Imbrex does not connect")
    return ranks


def is_connected(name: str) -> bool:
    """Whether Imbrex works for the group: connected from here on, or not for ever."""
    if name not in apart:
        try:
            connect(name)
        except Error as error:
            level = logging.INFO if isinstance(error, InvalidInput) else logging.WARNING
            logging.getLogger("imbrex.torch").log(level, "group '%s': torch runs its operators: %s", name, error)
            apart.add(name)
    return name not in apart


def expect_product(a: Tensor, b: Tensor, dim: int, dtypes: tuple[torch.dtype, ...]) -> int:
    """The collective's dimension, not negative."""
    reason = why_no_product(a, b, dim, dtypes)
    if reason is not None:
        raise Refusal(reason)
    return dim + a.dim() if dim < 0 else dim


def why_no_product(a: Tensor, b: Tensor, dim: int, dtypes: tuple[torch.dtype, ...] = DTYPES) -> str | None:
    """Why the library has no product of these with a collective along that dimension; None where it has."""
    if a.dim() not in (2, 3) or b.dim() != 2:
        return "number of dimensions"
    if not 0 <= (dim + a.dim() if dim < 0 else dim) < a.dim() - 1:
        return "last dimension"
    if a.dtype not in dtypes or a.dtype != b.dtype:
        return "dtype"
    if a.shape[-1] != b.shape[0] or a.numel() == 0 or b.numel() == 0:
        return "shapes"
    if a.is_cuda:
        for row in (a.shape[-1] * a.element_size(), b.shape[1] * max(2, a.element_size())):  # of 8 bits is bf16
            if row % _BYTES:
                return "rows that are no multiple of 16 bytes"
    return None


def why_not_parted(a: Tensor, b: Tensor, dim: int, whole: torch.Size, ranks: int) -> str | None:
    """As why_no_product, of a dimension of which each rank has as much; `whole` is the shape over all ranks."""
    # First, for uneven parts may be empty on some ranks alone.
    if -a.dim() <= dim < a.dim() and whole[dim] % ranks:
        return "dimension that does not divide by the ranks"
    return why_no_product(a, b, dim)


def why_not_of_dtype(x: Tensor) -> str | None:
    """Why the library has no collective of such numbers; None where it has."""
    return None if x.dtype in DTYPES else "dtype"


def why_not_placed(what: str, lies: Placement) -> str | None:
    """Why no operator takes or gives what lies so; None where one does."""
    return None if lies.is_replicate() or isinstance(lies, Shard) else f"{what} that lies as {lies}"


def why_not_split(module: nn.Module, mesh: DeviceMesh, dim: int, is_split: bool) -> str | None:
    """Why torch splits the layer along that dimension of its weight; None where Imbrex does, or has done so."""
    if not isinstance(module, nn.Linear):
        return f"layer of type {type(module).__name__}"
    if getattr(module, "_distribute_module_applied", False) and not is_split:
        raise InvalidInput(
            f"{module} was split before, by torch's own style or under a forward of one's own: split a layer once"
        )
    if type(module).forward is not nn.Linear.forward or ("forward" in vars(module) and not is_split):
        return "forward that is not nn.Linear's"
    if {name for name, _ in module.named_parameters()} - {"weight", "bias"} or "weight" not in module._parameters:
        return "parameters that are not nn.Linear's"
    if mesh.ndim != 1 or mesh.get_coordinate() is None:
        return "mesh that is not of one dimension, or of other ranks"
    if mesh.device_type not in ("cpu", "cuda"):
        return "device that Imbrex has no operators for"
    if module.weight.shape[dim] % mesh.size():
        return "in_features that do not divide by the ranks" if dim else "out_features that do not divide by the ranks"
    return None if is_connected(name_of(mesh)) else "group that Imbrex does not connect"


def lies_in_rows(x: Tensor) -> bool:
    """Whether its rows, of the last dimension, are whole and lie evenly, perhaps with something between them."""
    *rows, length = x.shape
    *steps, step = x.stride()
    if step != 1 and length != 1:
        return False
    if x.is_cuda and torch.compiler.is_dynamo_compiling():
        return x.is_contiguous()  # where it begins cannot be traced
    if x.is_cuda and x.storage_offset() * x.element_size() % _BYTES:
        return False
    between = None
    for extent, own in zip(reversed(rows), reversed(steps), strict=True):
        if extent == 1:
            continue
        if own < length or (between is not None and own != between):
            return False
        between = own * extent
    return not x.is_cuda or all([own * x.element_size() % _BYTES == 0 for own in steps])


def lying(a: Tensor, dim: int, operator: str) -> Tensor:
    """A as the library takes it: its dimension `dim` first in memory, in rows that may lie apart."""
    first = a.movedim(dim, 0)
    if first.is_contiguous() or lies_in_rows(first):
        return a
    count_copy(operator, "A is not row-major")
    return first.contiguous().movedim(0, dim)


def b_lying(b: Tensor, operator: str) -> Tensor:
    """B by rows or by columns, which may lie apart."""
    if b.is_contiguous() or b.t().is_contiguous() or lies_in_rows(b) or lies_in_rows(b.t()):
        return b
    count_copy(operator, "B lies neither by rows nor by columns")
    return b.contiguous()
