"""Embedding tables over the ranks, for NumPy's arrays and for those of any library that speaks DLPack."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from . import _c
from ._arguments import LARGEST_32, LARGEST_63, flag, integer, items, optional_text, real, stream_handle
from ._arrays import Array, numpy_dtype, operand_list
from ._calls import Preparing
from ._errors import InvalidInput
from ._world import OwnsHandle, World, expect_world

_ROWS = {"float32": _c.ROWS_FP32, "float16": _c.ROWS_FP16, "bfloat16": _c.ROWS_BF16, "uint8": _c.ROWS_INT8}
_OUT = {"float32": _c.FP32, "float16": _c.FP16, "bfloat16": _c.BF16}
_INDICES = {"int32": _c.INT32, "int64": _c.INT64}
_POOLING = {"sum": _c.POOLING_SUM, "mean": _c.POOLING_MEAN}
_OPTIMIZERS = {None: _c.NO_OPTIMIZER, "sgd": _c.SGD, "row_wise_adagrad": _c.ROW_WISE_ADAGRAD}
_DEVICES = {"cpu": _c.CPU, "cuda": _c.CUDA}


class EmbeddingTable(NamedTuple):
    """A whole table, of all ranks together."""

    rows: int
    dim: int
    """Columns: a multiple of 4 from 4 to 1024."""
    hotness: float = 1.0
    """How many rows a bag holds on average: by it go the placement and, on GPUs, the memory of updates; no result."""


class EmbeddingShard(NamedTuple):
    """Columns `begin` to, not including, `end` of a table, on one rank; both are multiples of 4."""

    table: int
    rank: int
    begin: int
    end: int


class Placement(NamedTuple):
    """Which rank holds what, and how even that is."""

    shards: list[EmbeddingShard]
    balance: float
    """The largest of the ranks' loads over their mean, as predicted: 1 is the best."""


def _chosen(name: str, given: Any, choices: dict[Any, int]) -> int:
    if not isinstance(given, (str, type(None))) or given not in choices:
        *others, last = map(repr, choices)
        raise InvalidInput(f"{name} is {given!r}: it must be {', '.join(others)} or {last}")
    return choices[given]


def _shape(
    tables: Sequence[Any], shards: Sequence[Any] | None, dtype: str, out_dtype: str, **fields: Any
) -> tuple[Any, list[EmbeddingTable]]:
    """imbrex_embedding_shape, and the tables as they were understood. ctypes keeps its arrays alive."""
    understood = []
    for i, one in enumerate(items("tables", tables, "tables")):
        if not isinstance(one, Sequence) or not 2 <= len(one) <= 3:
            raise InvalidInput(f"tables[{i}] is {one!r}: it must be an EmbeddingTable, or (rows, dim)")
        rows, dim = integer(f"tables[{i}]", one[0], 0, LARGEST_63), integer(f"tables[{i}]", one[1], 0, LARGEST_32)
        understood.append(EmbeddingTable(rows, dim, *(real(f"tables[{i}]", hotness) for hotness in one[2:])))
    shape = _c.new(_c.EmbeddingShape, table_count=len(understood), **fields)
    shape.rows, shape.out = _chosen("dtype", dtype, _ROWS), _chosen("out_dtype", out_dtype, _OUT)
    shape.tables = (_c.Table * len(understood))(*(_c.Table(t.rows, t.dim, 0, t.hotness) for t in understood))
    if shards is not None:
        given = []
        for i, one in enumerate(items("shards", shards, "shards")):
            if not isinstance(one, Sequence) or len(one) != 4:
                raise InvalidInput(f"shards[{i}] is {one!r}: it must be an EmbeddingShard")
            given.append(_c.TableShard(*(integer(f"shards[{i}]", number, 0, LARGEST_32) for number in one)))
        shape.shards, shape.shard_count = (_c.TableShard * len(given))(*given), len(given)
    return shape, understood


def _shards(found: Any, count: int) -> list[EmbeddingShard]:
    return [EmbeddingShard(one.table, one.rank, one.begin, one.end) for one in found[:count]]


def place_tables(
    tables: Sequence[EmbeddingTable | tuple[int, int]],
    ranks: int,
    *,
    dtype: str = "float32",
    out_dtype: str = "float32",
    memory: int = 0,
) -> Placement:
    """
    Deals tables to ranks so that each gathers and stores about as many bytes, and cuts heavy ones by columns.

    Needs no world, and comes to the same on every rank.

    Args:
        tables: `EmbeddingTable` or `(rows, dim)`, in the order of their columns in the output.
        ranks: how many there are.
        dtype: of the rows: "float32", "float16", "bfloat16" or "uint8".
        out_dtype: of the output: "float32", "float16" or "bfloat16".
        memory: bytes of a rank's tables at most; 0: as many as there are.

    Returns:
        A `Placement`: the shards by table, then by column, and the predicted balance.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names, or the tables do not fit.

    Example:
        >>> import imbrex
        >>> placement = imbrex.place_tables([(1000, 64), (1000, 64)], 2)
        >>> [shard.rank for shard in placement.shards], placement.balance
        ([0, 1], 1.0)
    """
    shape, _ = _shape(tables, None, dtype, out_dtype)
    count, balance = ctypes.c_uint64(), ctypes.c_double()

    def place(into: Any) -> None:
        numbers = (integer("ranks", ranks, 0, LARGEST_32), integer("memory", memory, 0, LARGEST_63))
        _c.call("place_tables", ctypes.byref(shape), *numbers, into, ctypes.byref(count), ctypes.byref(balance))

    place(None)
    made = (_c.TableShard * count.value)()
    place(made)
    return Placement(_shards(made, count.value), balance.value)


class EmbeddingAllToAll(OwnsHandle):
    """
    Embedding tables that are spread over the ranks; each gets its part of the batch for all of them.

    A rank holds shards, tables or columns of them, and looks the bags of the whole batch up in these. With n shards of
    its own, R ranks, a batch of B rows, which R divides, and T the columns of all tables together, a call takes

    - `rows`: a list of n arrays [rows, columns of the shard] of `dtype`, in the order of `own`. Those of uint8 are
      [rows, columns + 8]: codes, then a scale and a bias in float32. Rows may lie apart, by a multiple of 4
      elements.
    - `indices`, any number, and `offsets`, [n * B + 1], of `index_dtype`: the bag of shard s and row b of the batch
      holds the indices from `offsets[s * B + b]` up to, not including, `offsets[s * B + b + 1]`. Shards of one table
      look up the same bags, so their ranks give the same.
    - `weights`, float32, as many as indices, where the operator was made with `weighted`.
    - `out` [B/R, T] of `out_dtype`, by rows: rows `rank * B/R ...` of the batch.

    A rank without shards gives empty `rows`, and neither indices nor offsets. All ranks make the operator, and each
    call, together. It lives until `close`, or until the world is closed. On the CPU results are there on return; bad
    input of one rank is refused by every rank, nothing is changed, and the next call works. On GPUs an index that is no
    row is left out, and the next `report` raises InvalidInput for it.

    Args:
        world: the ranks.
        tables: `EmbeddingTable` or `(rows, dim)`, in the order of their columns in the output.
        batch: rows of the largest global batch; the ranks divide it.
        shards: which rank holds what, an `EmbeddingShard` or `(table, rank, begin, end)` each, the same list on every
            rank. Not given: as `place_tables` deals them.
        dtype: of the rows: "float32", "float16", "bfloat16" or "uint8".
        out_dtype: "float32", "float16" or "bfloat16"; of gradients, too.
        index_dtype: of indices and offsets: "int64" or "int32".
        pooling: "sum", or "mean": the sum times 1 / n, n the rows that were added.
        weighted: whether calls give a weight for each index.
        ignore_misfits: whether an index that is no row is left out and counted, not refused.
        optimizer: what `update` does: "sgd", "row_wise_adagrad", or None: there is no update.
        epsilon: of row_wise_adagrad.
        strategy: "fused", "sequential" or "decomposed"; not given: fused where the ranks reach each other's memory.
        device: where the arrays of all calls lie: "cpu" or "cuda".
        cpu_workers: threads of this rank that compute, on the CPU.

    Raises:
        InvalidInput: an argument breaks a rule, or differs between ranks; the text names it.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> import imbrex, numpy as np
        >>> with imbrex.World.from_environment() as world:
        ...     op = imbrex.EmbeddingAllToAll(world, [(10, 4)], batch=2 * world.size)
        ...     rows = [np.ones((10, shard.end - shard.begin), "f") for shard in op.own]
        ...     bags = ([1, 2, 3], [0, 2] + [3] * (2 * world.size - 1)) if op.own else ([], [])
        ...     y = op.lookup(rows, *(np.array(one) for one in bags)) if op.own else op.lookup([])
        >>> y.shape
        (2, 4)
    """

    def __init__(
        self,
        world: World,
        tables: Sequence[EmbeddingTable | tuple[int, int]],
        *,
        batch: int,
        shards: Sequence[EmbeddingShard | tuple[int, int, int, int]] | None = None,
        dtype: str = "float32",
        out_dtype: str = "float32",
        index_dtype: str = "int64",
        pooling: str = "sum",
        weighted: bool = False,
        ignore_misfits: bool = False,
        optimizer: str | None = None,
        epsilon: float = 1e-8,
        strategy: str | None = None,
        device: str = "cpu",
        cpu_workers: int = 1,
    ) -> None:
        """Makes the operator. Collective."""
        expect_world(world)
        with Preparing(world):
            shape, self.tables = _shape(
                tables,
                shards,
                dtype,
                out_dtype,
                batch=integer("batch", batch, 0, LARGEST_63),
                pooling=_chosen("pooling", pooling, _POOLING),
                index_type=_chosen("index_dtype", index_dtype, _INDICES),
                optimizer=_chosen("optimizer", optimizer, _OPTIMIZERS),
                weighted=flag("weighted", weighted),
                ignore_misfits=flag("ignore_misfits", ignore_misfits),
            )
            shape.epsilon = ctypes.pointer(ctypes.c_float(real("epsilon", epsilon)))
            options = _c.new(
                _c.OperatorOptions,
                device=_chosen("device", device, _DEVICES),
                strategy=optional_text("strategy", strategy),
                cpu_workers=integer("cpu_workers", cpu_workers, 0, 1024),
                heap_limit=world._gpu_heap_limit,
            )
        self.world, self.batch, self.dtype, self.out_dtype = world, batch, dtype, out_dtype
        self.index_dtype, self.weighted, self.optimizer = index_dtype, weighted, optimizer
        self.device = options.device

        def make() -> ctypes.c_void_p:
            return _c.make("embedding_make", world.handle, ctypes.byref(shape), ctypes.byref(options))

        # Each is an operator of its own: what it counts is for its maker.
        self._key: object | None = object()
        self._made = world.made(self._key, make, "embedding_destroy")
        # On GPUs, a report looks at the indices again in which the last call of a kind and batch found something.
        self._kept: dict[tuple[str, tuple[int, ...]], list[Array]] = {}
        found, count = ctypes.POINTER(_c.TableShard)(), ctypes.c_uint64()
        _c.call("embedding_shards", self._made, ctypes.byref(found), ctypes.byref(count))
        self.shards = _shards(found, count.value)
        """All ranks' shards, in their order."""
        self.own = [shard for shard in self.shards if shard.rank == world.rank]
        """This rank's shards, in the order of the arrays that calls take."""
        self.width = sum(table.dim for table in self.tables)
        """Columns of the output."""

    def lookup(
        self,
        rows: Sequence[Any],
        indices: Any = None,
        offsets: Any = None,
        weights: Any = None,
        *,
        out: Any = None,
        stream: int | None = None,
    ) -> Any:
        """
        Looks the batch's bags up in this rank's shards, and gets its part of the batch for all tables. Collective.

        Args:
            rows: this rank's shards' rows.
            indices: of all bags, one bag after the other.
            offsets: where each bag begins, and where the last one ends.
            weights: of each index.
            out: where the result goes. Not given: a new NumPy array, of as many rows as the offsets say, or, on a rank
                without shards, as the largest batch has.
            stream: GPUs only: the CUDA stream, as an integer. The call returns when it is queued.

        Returns:
            `out`, or the new array.

        Raises:
            InvalidInput: an argument of some rank breaks a rule; the text names the rank, the argument and the rule.
            Error: a rank was lost, or a wait passed its limit.

        Example:
            >>> import imbrex, numpy as np
            >>> with imbrex.World.connect(imbrex.World.make_unique_id(), 0, 1) as world:
            ...     op = imbrex.EmbeddingAllToAll(world, [(3, 4)], batch=2, pooling="mean")
            ...     table = np.arange(12, dtype="f").reshape(3, 4)
            ...     y = op.lookup([table], np.array([0, 1, 2]), np.array([0, 2, 3]))
            >>> y.tolist()
            [[2.0, 3.0, 4.0, 5.0], [8.0, 9.0, 10.0, 11.0]]
        """
        try:
            stream = stream_handle(stream)
            operands, kept = self._bags(rows, (), indices, offsets, weights, stream, False)
            result = self._empty(rows, kept) if out is None else out
            kept.append(self._array("out", result, (self.out_dtype,), stream, writes=True))
            operands.append((b"out", kept[-1].view()))
        except InvalidInput as error:
            self.refuse(str(error))
        self._call("run", operands, kept, stream)
        return result

    def update(
        self,
        rows: Sequence[Any],
        gradients: Any,
        indices: Any = None,
        offsets: Any = None,
        weights: Any = None,
        *,
        rate: float,
        states: Sequence[Any] = (),
        stream: int | None = None,
    ) -> None:
        """
        Takes an optimizer step: each row that bags hold is changed once, by the sum of its gradients. Collective.

        The same bits come out in every run, on the CPU and on GPUs.

        Args:
            rows: this rank's shards' rows, which are changed.
            gradients: of `out`, [B/R, T]: of this rank's part of the batch.
            indices: as for `lookup`.
            offsets: as for `lookup`.
            weights: as for `lookup`.
            rate: how far a step goes, the same on every rank.
            states: of row_wise_adagrad: for each shard [rows] of float32, zeros at first, which are changed, too.
            stream: as for `lookup`.

        Raises:
            InvalidInput: as for `lookup`; nothing has been changed.
            Error: a rank was lost, or a wait passed its limit.

        Example:
            >>> import imbrex, numpy as np
            >>> with imbrex.World.connect(imbrex.World.make_unique_id(), 0, 1) as world:
            ...     op = imbrex.EmbeddingAllToAll(world, [(3, 4)], batch=2, optimizer="sgd")
            ...     table, bags = np.zeros((3, 4), "f"), (np.array([1, 1]), np.array([0, 1, 2]))
            ...     op.update([table], np.ones((2, 4), "f"), *bags, rate=0.5)
            >>> table[:, 0].tolist()
            [0.0, -1.0, 0.0]
        """
        try:
            stream, rate = stream_handle(stream), real("rate", rate)
            operands, kept = self._bags(rows, states, indices, offsets, weights, stream, True)
            kept.append(self._array("gradients", gradients, (self.out_dtype,), stream))
            operands.append((b"gradients", kept[-1].view()))
        except InvalidInput as error:
            self.refuse(str(error))
        self._call("update", operands, kept, rate, stream)

    def refuse(self, reason: str) -> NoReturn:
        """Has this rank's next call refused for `reason`, on every rank, and raises InvalidInput. Collective."""
        _c.call("embedding_refuse", self._handle(), reason.encode(errors="replace"))
        raise InvalidInput(reason)

    def report(self) -> int:
        """
        Waits for the calls so far, and tells how many indices of all ranks were left out since the last report.

        Collective. Raises InvalidInput on every rank where misfits are refused and a GPU found one.
        """
        ignored = ctypes.c_int64()
        _c.call("embedding_report", self._handle(), ctypes.byref(ignored))
        self._kept.clear()
        return ignored.value

    def check(self) -> None:
        """Raises Error where a call is known to have failed, on any rank. Waits for no call."""
        _c.call("embedding_check", self._handle())

    def close(self) -> None:
        """Ends the operator before its world. Collective; the second time nothing."""
        if self._key is not None:
            self.world.unmake(self._key)
            self._key = None

    def _handle(self) -> ctypes.c_void_p:
        if self._key is None:
            raise InvalidInput("this operator is closed")
        _ = self.world.handle  # says so where it is closed, and took this operator with it
        return self._made

    def _call(self, kind: str, operands: list[tuple[bytes, _c.View]], kept: list[Array], *more: Any) -> None:
        if self.device == _c.CUDA:
            self._kept[kind, kept[-1].shape[:1]] = [one for one in kept if one.name in ("indices", "offsets")]
        _c.call(f"embedding_{kind}", self._handle(), operand_list(operands), len(operands), *more)

    def _array(
        self, name: str, source: Any, takes: tuple[str, ...], stream: int | None, *, writes: bool = False
    ) -> Array:
        array = (
            source
            if isinstance(source, Array)
            else Array(name, source, stream=stream, writes=writes, takes=takes, may_be_empty=True)
        )
        if array.device != self.device:
            where = ("the CPU", "a GPU")
            raise InvalidInput(
                f"{name} is on {where[array.device == _c.CUDA]}: the operator was made for "
                f"{where[self.device == _c.CUDA]}"
            )
        return array

    def _bags(
        self,
        rows: Sequence[Any],
        states: Sequence[Any],
        indices: Any,
        offsets: Any,
        weights: Any,
        stream: int | None,
        writes: bool,
    ) -> tuple[list[tuple[bytes, _c.View]], list[Array]]:
        """The operands except the last, and what keeps their memory alive."""
        many = len(self.own)
        lists = [("rows", rows, self.dtype)]
        if writes and self.optimizer == "row_wise_adagrad":
            lists.append(("states", states, "float32"))
        elif unwanted := items("states", states, "arrays"):
            raise InvalidInput(f"states has {len(unwanted)} arrays: only an update of row_wise_adagrad takes them")
        operands, kept = [], []
        for name, given, dtype in lists:
            arrays = items(name, given, "arrays")
            if len(arrays) != many:
                raise InvalidInput(
                    f"{name} has {len(arrays)} arrays: it must have one for each of this rank's {many} shards"
                )
            for i, one in enumerate(arrays):
                kept.append(self._array(f"{name}[{i}]", one, (dtype,), stream, writes=writes))
                operands.append((f"{name}{i}".encode(), kept[-1].view()))
        vectors = [("indices", indices, self.index_dtype), ("offsets", offsets, self.index_dtype)]
        if self.weighted:
            vectors.append(("weights", weights, "float32"))
        elif weights is not None:
            raise InvalidInput("weights: the operator was made without `weighted`")
        for name, one, dtype in vectors:
            if not many:  # nothing to look up, whatever is given
                continue
            if one is None:
                raise InvalidInput(f"{name} is missing: this rank holds {many} shards")
            kept.append(self._array(name, one, (dtype,), stream))
            operands.append((name.encode(), kept[-1].view()))
        return operands, kept

    def _empty(self, rows: Sequence[Any], kept: list[Array]) -> Any:
        batch = self.batch
        if self.own:
            numbers = next(one for one in kept if one.name == "offsets").shape
            batch, rest = divmod(numbers[0] - 1 if len(numbers) == 1 else -1, len(self.own))
            if rest or batch < 0 or batch % self.world.size:
                raise InvalidInput(
                    f"offsets has shape {numbers}: it must be one more than this rank's {len(self.own)} shards times a "
                    f"batch that divides by the {self.world.size} ranks"
                )
            if batch > self.batch:
                raise InvalidInput(f"the batch has {batch} rows: this operator takes at most {self.batch}")
        if self.device == _c.CUDA or not all(isinstance(one.source, np.ndarray) for one in kept):
            raise InvalidInput("out is missing: it must be given where rows are no NumPy arrays")
        return np.empty((batch // self.world.size, self.width), numpy_dtype(self.out_dtype))
