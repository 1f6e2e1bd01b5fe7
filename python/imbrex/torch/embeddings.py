"""Embedding tables that are split over the ranks of a group, with the optimizer within the backward pass."""

# torch's Functions have signatures of their own, and its collectives none.
# mypy: disable-error-code="override,no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from .._calls import ask_call, skip_call
from .._embeddings import EmbeddingAllToAll, EmbeddingShard, EmbeddingTable
from .._errors import InvalidInput
from .bags import Bags, TensorArray, agreed, padded, split, tensor_of
from .frames import outside_graphs
from .groups import Group, connect, process_group, world_of
from .recording import expect_no_transform, has_tangent
from .shapes import counts_of, in_blocks, stream_of
from .stats import count_copy


class _Lookup(torch.autograd.Function):
    """The lookup; its backward is a step of the optimizer, and gives no gradients."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, bag: ShardedEmbeddingBag, bags: Bags) -> Tensor:
        """The rank's part of the batch. `anchor` requires a gradient, so ranks without shards are recorded, too."""
        bags = bag._of_equal_parts(bags)
        ctx.bag, ctx.batches = bag, bags.batches
        ctx.save_for_backward(*bags[:3])
        return bag._look_up(bags)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[None, None, None]:
        """Changes the tables."""
        indices, offsets, weights = ctx.saved_tensors
        ctx.bag._update(gradients.contiguous(), Bags(indices, offsets, weights, None, ctx.batches))
        return None, None, None


class ShardedEmbeddingBag(nn.Module):
    """
    Embedding tables over the ranks: each gets its part of the batch for all tables. Collective, as is every call.

    Each rank holds some tables, or columns of them, looks up the bags of the **whole batch** in these, and sends every
    rank its part. The result is [B/R, sum of dims], for R ranks and a batch of B: rows `rank * B/R` and on, the tables'
    columns side by side (`y.split(bag.dims, 1)`). A rank with bags of all tables for a part of the batch, as data is
    loaded for data parallelism, calls `exchange` first, which gives each rank what `forward` takes.

    The optimizer runs within the backward pass. Gradients of the result travel to the ranks that hold the tables. Each
    row that bags held is changed once, by the sum of its gradients over the **whole batch**. Where the loss is a mean
    over each rank's own part of the batch, divide it by the ranks. Tables get no `.grad`, and no other optimizer may
    step them. It is deterministic: the same bits in every run, on the CPU and on GPUs.

    Tables are parameters `table{number}_{first column}_{end}` of the rank's own shards, Adagrad's states buffers of
    that name with `_state`. So torch.distributed.checkpoint saves all ranks' shards, and loads them on whatever ranks
    hold the same columns; other columns are refused. A `state_dict` is of one rank, also with `full_state_dict`.
    DistributedDataParallel would copy rank 0's over the others': it is for the other layers. `torch.compile` leaves it
    out of its graphs, which end before it and begin after it; with `fullgraph=True` it refuses. On GPUs an index that
    is no row is left out, and `report` raises InvalidInput for it.

    Args:
        tables: `(num_embeddings, dim)` or `imbrex.EmbeddingTable`; dims are multiples of 4 from 4 to 1024.
        batch_size: B, of the largest batch of all ranks together, which R divides. Calls may have smaller ones. Where
            ranks' parts differ, R times the largest part counts as the batch.
        group: the ranks, as for `all_gather_matmul`.
        mode: "sum" or "mean", as for nn.EmbeddingBag; a mean with weights is the weighted sum times 1 / n.
        weighted: whether calls give `per_sample_weights`.
        optimizer: "sgd", "row_wise_adagrad", or None: tables do not change, and there is no backward pass.
        learning_rate: of its steps; the attribute of that name may be set, alike on every rank, at any time.
        eps: of row_wise_adagrad.
        shards: which rank holds what, an `imbrex.EmbeddingShard` or `(table, rank, begin, end)` each, the same list on
            every rank. Not given: as `imbrex.place_tables` deals them.
        index_dtype: torch.int64 or torch.int32, of indices and offsets.
        ignore_misfits: whether an index that is no row is left out and counted (`report`), not refused.
        output_dtype: float32, float16 or bfloat16; not given: the tables' dtype.
        strategy: "fused", "sequential" or "decomposed"; not given: fused where the ranks reach each other's memory.
        device: of the tables and all tensors, the CPU or this rank's GPU.
        dtype: of the tables: float32, float16 or bfloat16.

    Raises:
        InvalidInput: an argument breaks a rule, or differs between ranks; the text names it.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> bag = imbrex.torch.nn.ShardedEmbeddingBag([(100, 8), (50, 4)], batch_size=2, group=group, learning_rate=0.1)
        >>> indices, offsets = torch.tensor([7, 7, 99, 3]), torch.tensor([0, 2, 3, 3, 4])   # 2 tables x 2 rows
        >>> y = bag(*bag.exchange(indices, offsets))
        >>> y.shape
        torch.Size([2, 12])
        >>> before = bag.table1_0_4.detach().clone()
        >>> y.sum().backward()                                     # a step: table 1, row 3 was held once
        >>> changed = (bag.table1_0_4 != before).any(1).nonzero().flatten()
        >>> changed.tolist()
        [3]
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingTable | tuple[int, int]],
        *,
        batch_size: int,
        group: Group = None,
        mode: str = "sum",
        weighted: bool = False,
        optimizer: str | None = "sgd",
        learning_rate: float = 0.01,
        eps: float = 1e-8,
        shards: Sequence[EmbeddingShard | tuple[int, int, int, int]] | None = None,
        index_dtype: torch.dtype = torch.int64,
        ignore_misfits: bool = False,
        output_dtype: torch.dtype | None = None,
        strategy: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Makes this rank's shards. Collective."""
        super().__init__()
        like = torch.empty(0, device=device, dtype=dtype)
        self.device, self.index_dtype = like.device, index_dtype
        self.output_dtype = like.dtype if output_dtype is None else output_dtype
        self.learning_rate = learning_rate
        self.group_name = connect(group, device=like.device if like.is_cuda else None)
        self._world = world_of(self.group_name)
        self._op = EmbeddingAllToAll(
            self._world,
            tables,
            batch=batch_size,
            shards=shards,
            dtype=_name(like.dtype),
            out_dtype=_name(self.output_dtype),
            index_dtype=_name(index_dtype),
            pooling=mode,
            weighted=weighted,
            ignore_misfits=ignore_misfits,
            optimizer=optimizer,
            epsilon=eps,
            strategy=strategy,
            device=like.device.type,
        )
        self.dims = [table.dim for table in self._op.tables]
        for shard, name in zip(self._op.own, self._names(), strict=True):
            table = self._op.tables[shard.table]
            rows = torch.empty(table.rows, shard.end - shard.begin, device=like.device, dtype=like.dtype)
            self.register_parameter(name, nn.Parameter(rows, requires_grad=False))
            if optimizer == "row_wise_adagrad":
                self.register_buffer(f"{name}_state", torch.zeros(table.rows, device=like.device))
        self._known: dict[str, TensorArray] = {}
        self.reset_parameters()

    @property
    def shards(self) -> list[EmbeddingShard]:
        """All ranks' shards."""
        return list(self._op.shards)

    def _names(self) -> list[str]:
        return [f"table{shard.table}_{shard.begin}_{shard.end}" for shard in self._op.own]

    def reset_parameters(self) -> None:
        """
        Draws rows as nn.EmbeddingBag does, each rank its own; Adagrad's states become zeros.

        Ranks seeded alike draw unlike rows, and their generators stay alike.
        """
        seed = int(torch.randint(2**62, (), device="cpu").item())
        generator = torch.Generator(self.device).manual_seed(seed + self._world.rank)
        for name in self._names():
            nn.init.normal_(self.get_parameter(name), generator=generator)
            if self._op.optimizer == "row_wise_adagrad":
                nn.init.zeros_(self.get_buffer(f"{name}_state"))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Tells of tables that were saved in other shards, which torch would name as missing and unexpected keys."""
        errors: list[str] = rest[-1]
        own = self._names()
        for shard, name in zip(self._op.own, own, strict=True):
            begin = f"{prefix}table{shard.table}_"
            given = [key for key in state_dict if key.startswith(begin) and not key.endswith("_state")]
            if given and prefix + name not in state_dict:
                errors.append(
                    f"{prefix}{name} is not given, but {', '.join(sorted(given))}: shards are loaded with the columns "
                    "that they were saved with; give the module the same `shards`, or whole tables to `copy_tables`"
                )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @torch.no_grad()
    def copy_tables(self, tables: Sequence[Tensor]) -> None:
        """
        Copies this rank's shards from whole tables, of all of which every rank has a copy. Not collective.

        Args:
            tables: [num_embeddings, dim] each.

        Raises:
            InvalidInput: a shape is another.

        Example:
            >>> bag = imbrex.torch.nn.ShardedEmbeddingBag([(10, 4)], batch_size=2, group=group)
            >>> bag.copy_tables([torch.ones(10, 4)])
        """
        shapes = [(table.rows, table.dim) for table in self._op.tables]
        if [tuple(one.shape) for one in tables] != shapes:
            raise InvalidInput(f"tables have shapes {[tuple(one.shape) for one in tables]}: they must be {shapes}")
        for shard, name in zip(self._op.own, self._names(), strict=True):
            self.get_parameter(name).copy_(tables[shard.table][:, shard.begin : shard.end])

    @outside_graphs
    def forward(
        self,
        indices: Tensor | None = None,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
        batch_size: int | None = None,
        batches: Sequence[int] | None = None,
    ) -> Tensor:
        """
        The rank's part of the batch, [B/R, sum of dims]; collective. Takes what `exchange` returns: `bag(*bags)`.

        Args:
            indices: of the bags of this rank's shards, one bag after the other.
            offsets: [own shards * B + 1]: the bag of shard s, in the order of `shards`, and row b of the batch begins
                at `offsets[s * B + b]`; the last number is that of the indices.
            per_sample_weights: float32, of each index; it gets no gradient.
            batch_size: B; not given: what the offsets say, and, on a rank without shards, the largest.
            batches: each rank's rows of the batch, where they are not as many: the same list on every rank. The result
                is [batches[rank], sum of dims].

        Raises:
            InvalidInput: an argument of some rank breaks a rule, on every rank; nothing has been changed.
            Error: a rank was lost, or a wait passed its limit.

        Example:
            >>> bag = imbrex.torch.nn.ShardedEmbeddingBag([(10, 4)], batch_size=2, group=group, optimizer=None)
            >>> bag(torch.tensor([1, 2]), torch.tensor([0, 0, 2]))[0].tolist()          # an empty bag
            [0.0, 0.0, 0.0, 0.0]
        """
        bags = Bags(indices, offsets, per_sample_weights, batch_size, batches)  # type: ignore[arg-type]
        if self._op.optimizer is None or not torch.is_grad_enabled():
            return self._look_up(self._of_equal_parts(bags))
        expect_no_transform()
        return _Lookup.apply(torch.empty(0, device=self.device, requires_grad=True), self, bags)  # type: ignore[no-any-return]

    def _rows(self, suffix: str = "") -> list[TensorArray]:
        """The tables or states as the operator takes them, which are read again where they have moved."""
        found = []
        for i, name in enumerate(self._names()):
            tensor = getattr(self, name + suffix)
            known = self._known.get(name + suffix)
            if known is None or known.data != tensor.data_ptr() or known.source.dtype != tensor.dtype:
                dtype = self._op.dtype if not suffix else "float32"
                known = TensorArray(f"{'states' if suffix else 'rows'}[{i}]", tensor.detach(), (dtype,), writes=True)
                self._known[name + suffix] = known
            found.append(known)
        return found

    def _arrays(self, bags: Bags) -> list[TensorArray | None]:
        """Indices, offsets and weights as the operator takes them; a rank without shards gives none."""
        if not self._op.own:
            return [None, None, None]
        index = (self._op.index_dtype,)
        takes = (("indices", index), ("offsets", index), ("weights", ("float32",)))
        return [
            None if one is None else TensorArray(name, one, of) for (name, of), one in zip(takes, bags[:3], strict=True)
        ]

    def _look_up(self, bags: Bags) -> Tensor:
        try:
            for name, one in zip(("indices", "offsets", "per_sample_weights"), bags, strict=False):
                if one is not None:
                    tensor_of(name, one)
            if bags.per_sample_weights is not None and bags.per_sample_weights.requires_grad:
                raise InvalidInput("per_sample_weights requires a gradient, and gets none: give it detached")
            if forward_ad._current_level >= 0 and has_tangent(bags.per_sample_weights):
                raise InvalidInput("per_sample_weights has a forward-mode tangent, and gives none: give it detached")
            batches = bags.batches
            part = self._part(bags) if batches is None else max(batches)
            out = torch.empty(part, self._op.width, device=self.device, dtype=self.output_dtype)
            result = TensorArray("out", out, (self._op.out_dtype,), writes=True)
            rows, given = self._rows(), self._arrays(bags)
        except InvalidInput as error:
            self._op.refuse(str(error))
        if batches is not None:
            ask_call(self._world, "batches", batches)
        if part == 0:
            skip_call(self._world, "no rank has rows of the batch")
            return out
        try:
            self._op.lookup(rows, *given, out=result, stream=stream_of(out))
        except InvalidInput as error:
            if batches is None and " batch = " in str(error):
                raise InvalidInput(f"{error}; batches=[...] takes parts that are not as many on every rank") from None
            raise
        return out if batches is None else out[: batches[self._world.rank]]

    def _of_equal_parts(self, bags: Bags) -> Bags:
        if bags.batches is None:
            return bags
        try:
            batches = counts_of("batches", bags.batches, self._world.size)
            return padded(bags, batches, len(self._op.own), self._op.batch)
        except InvalidInput as error:
            self._op.refuse(str(error))

    def _update(self, gradients: Tensor, bags: Bags) -> None:
        adagrad = self._op.optimizer == "row_wise_adagrad"
        batches = bags.batches
        if batches is not None and max(batches) == 0:
            return
        try:
            rows, states = self._rows(), self._rows("_state") if adagrad else []
            given = self._arrays(bags)
            if batches is not None and batches[self._world.rank] < max(batches):
                count_copy("embedding_all_to_all", "rows are padded")
                gradients = in_blocks(gradients, 0, [batches[self._world.rank]], max(batches))
            step = TensorArray("gradients", gradients, (self._op.out_dtype,))
        except InvalidInput as error:
            self._op.refuse(str(error))
        if batches is not None:
            ask_call(self._world, "batches", batches)
        self._op.update(rows, step, *given, rate=self.learning_rate, states=states, stream=stream_of(gradients))
        # torch is told of what it did not see.
        torch.autograd.graph.increment_version([array.source for array in (*rows, *states)])

    def _part(self, bags: Bags) -> int:
        """B/R."""
        ranks, shards, batch = self._world.size, len(self._op.own), bags.batch_size
        if shards and bags.offsets is not None:
            said, rest = divmod(bags.offsets.numel() - 1, shards)
            if rest or (batch is not None and said != batch):
                raise InvalidInput(
                    f"offsets has {bags.offsets.numel()} elements: it must have one more than this rank's {shards} "
                    f"shards times the batch{'' if batch is None else f' of {batch}'}"
                )
            batch = said
        batch = self._op.batch if batch is None else batch
        if not isinstance(batch, int) or batch < ranks or batch % ranks:
            raise InvalidInput(
                f"the batch has {batch} rows: it must divide by the {ranks} ranks, or `batches` say how many each has"
            )
        if batch > self._op.batch:
            raise InvalidInput(f"the batch has {batch} rows: this module takes at most {self._op.batch}")
        return batch // ranks

    @torch.no_grad()
    def exchange(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Bags:
        """
        Gives each rank the bags of its own shards for the whole batch, of bags that are split by the batch. Collective.

        The numbers go through the group's own all-to-all, which waits for the GPU where they are on one.

        Args:
            indices: of this rank's part of the batch, for all tables, one bag after the other.
            offsets: [tables * B/R + 1]: the bag of table t and row b of this part begins at `offsets[t * B/R + b]`.
                Ranks may have unlike parts, or none: then each has its own number of rows for B/R.
            per_sample_weights: float32, of each index, if the module is `weighted`.

        Returns:
            `Bags`, for `forward`: `bag(*bags)`. Its rows are the ranks' parts, one after another.

        Raises:
            InvalidInput: an argument of some rank breaks a rule, on every rank.
            Error: a rank was lost, or a wait passed its limit.

        Example:
            >>> bag = imbrex.torch.nn.ShardedEmbeddingBag([(10, 4)], batch_size=2, group=group)
            >>> bags = bag.exchange(torch.tensor([1, 2]), torch.tensor([0, 0, 2]))
            >>> bags.offsets.tolist(), bags.batch_size
            ([0, 0, 2], 2)
        """
        ranks, own = self._world.size, len(self._op.own)
        # The tables that each rank is sent bags of, one rank after another, a table as often as it has shards there.
        wanted = [[shard.table for shard in self._op.shards if shard.rank == rank] for rank in range(ranks)]
        part, counts, ends, refusal = 0, [0] * ranks, [0], ""
        try:
            part, ends = split(self, indices, offsets, per_sample_weights)
            counts = [sum(ends[t + 1] - ends[t] for t in tables) for tables in wanted]
        except InvalidInput as error:
            refusal = str(error)
        parts, given = agreed(self._world, part, counts, refusal)
        is_even = min(parts) == max(parts) > 0
        if max(parts) == 0:
            return Bags(indices, offsets, per_sample_weights, 0, parts)
        every = [t for tables in wanted for t in tables]

        def sent(numbers: Tensor, out: list[int], into: list[int]) -> Tensor:
            received = numbers.new_empty(sum(into))
            dist.all_to_all_single(received, numbers, into, out, group=process_group(self.group_name))
            return received

        lengths = sent(
            offsets.diff().view(len(self.dims), part)[every].flatten(),
            [len(tables) * part for tables in wanted],
            [own * its_part for its_part in parts],
        )
        # What comes is [rank, shard, row]; the lookup takes [shard, rank, row].
        if is_even:
            lengths = lengths.view(ranks, own, part)
            sizes, lengths = lengths.sum(-1), lengths.transpose(0, 1).flatten()
        else:
            blocks = [
                one.view(own, its_part)
                for one, its_part in zip(lengths.split([own * its_part for its_part in parts]), parts, strict=True)
            ]
            sizes, lengths = torch.stack([one.sum(1) for one in blocks]), torch.cat(blocks, 1).flatten()
        begins = (sizes.flatten().cumsum(0) - sizes.flatten()).view(ranks, own)
        moved = sizes.t().flatten()
        shifts = begins.t().flatten() - (moved.cumsum(0) - moved)
        total = sum(given)
        order = torch.arange(total, device=indices.device) + shifts.repeat_interleave(moved, output_size=total)

        def of_shards(numbers: Tensor) -> Tensor:
            return sent(torch.cat([numbers[ends[t] : ends[t + 1]] for t in every]), counts, given)[order]

        behind = lengths.cumsum(0)
        return Bags(
            of_shards(indices),
            torch.cat((behind.new_zeros(1), behind)).to(offsets.dtype),
            None if per_sample_weights is None else of_shards(per_sample_weights),
            sum(parts),
            None if is_even else parts,
        )

    def report(self) -> int:
        """
        Waits for the calls so far, and tells how many indices of all ranks were left out since the last report.

        Collective. Raises InvalidInput on every rank where misfits are refused and a GPU found one.
        """
        return self._op.report()

    def close(self) -> None:
        """Gives back what the lookups need, except the tables, before the group's world ends. Collective."""
        self._op.close()

    def extra_repr(self) -> str:
        """The whole tables, and how many shards are here."""
        sizes = ", ".join(f"{table.rows} x {table.dim}" for table in self._op.tables)
        return (
            f"tables=[{sizes}], own shards={len(self._op.own)}, optimizer={self._op.optimizer}, "
            f"group={self.group_name!r}"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
