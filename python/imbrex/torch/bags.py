"""Bags of embeddings on their way to the ranks that hold the tables, of parts of the batch that may be unlike."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .. import _c
from .._arrays import Array, type_of
from .._errors import InvalidInput
from .._world import World

if TYPE_CHECKING:
    from .embeddings import ShardedEmbeddingBag

_TEXT = 512  # bytes of a refusal that the other ranks are told

_NAMES = {
    getattr(torch, name): name
    for name in ("float32", "float16", "bfloat16", "float8_e4m3fn", "uint8", "int32", "int64")
}
_DEVICES = {"cpu": _c.CPU, "cuda": _c.CUDA}


class Bags(NamedTuple):
    """What `ShardedEmbeddingBag` looks up: bags of this rank's own shards, for the whole batch."""

    indices: Tensor | None
    offsets: Tensor | None
    per_sample_weights: Tensor | None = None
    batch_size: int | None = None
    batches: list[int] | None = None


def tensor_of(name: str, given: object) -> Tensor:
    """What is given, if it is a tensor."""
    if not isinstance(given, Tensor):
        raise InvalidInput(f"{name} is of type {type(given).__name__}: it must be a tensor")
    return given


class TensorArray(Array):
    """
    A tensor's memory, read without DLPack, whose capsule costs more than a call takes altogether.

    It is for work on torch's current stream: DLPack would have other streams wait for that one.
    """

    def __init__(self, name: str, source: Tensor, takes: tuple[str, ...], *, writes: bool = False) -> None:
        """Reads the tensor. Raises InvalidInput for what Imbrex does not take, as `Array`."""
        dtype, device = _NAMES.get(source.dtype, ""), _DEVICES.get(source.device.type)
        is_plain = source.layout is torch.strided and not (source.requires_grad or source.is_neg() or source.is_conj())
        if dtype not in takes or device is None or not is_plain or source.dim() > _c.MOST_DIMS:
            super().__init__(name, source, takes=takes, writes=writes, may_be_empty=True)  # which says why
            return
        self.name, self.source, self.takes = name, source, takes
        self.type, self.device = type_of(dtype), device
        try:
            self.data = source.data_ptr()
        except RuntimeError as error:
            raise InvalidInput(f"{name}: its memory cannot be had: {error}") from error
        self.shape, self.strides = tuple(source.shape), source.stride()


def padded(bags: Bags, batches: list[int], shards: int, largest: int) -> Bags:
    """Bags of parts that are as long as the longest, with empty bags after each rank's own."""
    most, whole = max(batches), sum(batches)
    if bags.batch_size not in (None, whole):
        raise InvalidInput(f"batch_size = {bags.batch_size} with batches = {batches}: it must be {whole}")
    if most * len(batches) > largest:
        raise InvalidInput(f"batches = {batches}: this module takes at most {largest // len(batches)} rows of a rank")
    offsets = bags.offsets
    if shards and offsets is not None:
        if tensor_of("offsets", offsets).dim() != 1 or offsets.numel() != shards * whole + 1:
            raise InvalidInput(
                f"offsets is {tuple(offsets.shape)}: it must be a vector, and have one more than this rank's {shards} "
                f"shards times the batch of {whole}"
            )
        # The empty bags of a rank begin where the next rank's first one does.
        counts = torch.tensor(batches, device="cpu")
        begins, rows = counts.cumsum(0) - counts, torch.arange(most, device="cpu")
        places = (begins[:, None] + torch.minimum(rows, counts[:, None])).flatten()
        every = (torch.arange(shards, device="cpu")[:, None] * whole + places).flatten().to(offsets.device)
        offsets = torch.cat((offsets[every], offsets[-1:]))
    return Bags(bags.indices, offsets, bags.per_sample_weights, most * len(batches), batches)


def split(bag: ShardedEmbeddingBag, indices: Tensor, offsets: Tensor, weights: Tensor | None) -> tuple[int, list[int]]:
    """B/R, and where each table's indices begin and end, of bags that are split by the batch."""
    tables = len(bag.dims)
    for name, one in (("indices", indices), ("offsets", offsets), ("per_sample_weights", weights)):
        dtype = torch.float32 if name == "per_sample_weights" else bag.index_dtype
        if one is None and name == "per_sample_weights":
            continue
        given = tensor_of(name, one)
        if given.dtype != dtype or given.dim() != 1 or given.device != bag.device:
            raise InvalidInput(
                f"{name} is {tuple(given.shape)} of {given.dtype} on {given.device}: it must be a vector of "
                f"{dtype} on {bag.device}"
            )
    if (weights is not None) != bag._op.weighted:
        raise InvalidInput(
            f"per_sample_weights {'are' if weights is not None else 'are not'} given, and the module was made with "
            f"weighted={bag._op.weighted}"
        )
    if weights is not None and weights.numel() != indices.numel():
        raise InvalidInput(f"per_sample_weights has {weights.numel()} elements: there are {indices.numel()} indices")
    part, rest = divmod(offsets.numel() - 1, tables)
    if rest or not 0 <= part <= bag._op.batch // bag._world.size:
        raise InvalidInput(
            f"offsets has {offsets.numel()} elements: it must have one more than the {tables} tables times 0 to "
            f"{bag._op.batch // bag._world.size} rows"
        )
    ends: list[int] = offsets[::part].tolist() if part else offsets.tolist() * (tables + 1)
    if ends[0] != 0 or ends[-1] != indices.numel() or bool((offsets[1:] < offsets[:-1]).any()):
        raise InvalidInput(
            f"offsets begin at {ends[0]} and end at {ends[-1]}: they must begin at 0, not decrease, and end at the "
            f"{indices.numel()} indices"
        )
    return part, ends


def agreed(world: World, part: int, counts: list[int], refusal: str) -> tuple[list[int], list[int]]:
    """Each rank's part of the batch, and its indices for this rank; what one rank refuses, all do."""
    ranks, rank = world.size, world.rank
    layout = f"{2 + ranks}q{_TEXT}s"
    told = [
        struct.unpack(layout, one)
        for one in world.all_gather(struct.pack(layout, bool(refusal), part, *counts, refusal.encode()[:_TEXT]))
    ]
    if refusal:
        raise InvalidInput(refusal)
    for peer, (refused, *_, text) in enumerate(told):
        if refused:
            raise InvalidInput(f"rank {peer}: {text.rstrip(bytes(1)).decode(errors='replace')}")
    return [one[1] for one in told], [one[2 + rank] for one in told]
