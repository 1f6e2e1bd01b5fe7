"""
imbrex/c.h and c/infer.h, as ctypes sees them.

Field for field, in the headers' order; a test compares sizes and offsets.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any

from ._errors import error_of
from ._library import library

BF16, FP16, FP32, E4M3 = range(4)
INT8, INT32, INT64 = range(16, 19)
ROWS_FP32, ROWS_FP16, ROWS_BF16, ROWS_INT8 = range(4)
POOLING_SUM, POOLING_MEAN = range(2)
NO_OPTIMIZER, SGD, ROW_WISE_ADAGRAD = range(3)
AUTOMATIC, CPU, CUDA = range(3)
SCALES_NONE, SCALES_TENSOR, SCALES_ROW = range(3)
REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL = range(3)
MOST_DIMS = 4
MOST_PRODUCTS = 3


class View(Structure):
    """A view of memory that somebody else owns; strides count elements."""

    _fields_ = (
        ("data", c_void_p),
        ("type", c_int32),
        ("dims", c_int32),
        ("extents", c_int64 * MOST_DIMS),
        ("strides", c_int64 * MOST_DIMS),
    )


class Operand(Structure):
    """A named view."""

    _fields_ = (("name", c_char_p), ("view", View))


class UniqueId(Structure):
    """What one rank makes, and hands to the others."""

    _fields_ = (("bytes", c_char * 128),)


class WorldOptions(Structure):
    """imbrex_world_options."""

    _fields_ = (
        ("size", c_size_t),
        ("heap_bytes", c_uint64),
        ("wait_limit", c_double),
        ("gpu", POINTER(c_int32)),
        ("ranks_per_gpu", c_int32),
        ("reserved", c_int32),
        ("sms_for_others", c_int32),
        ("reserved2", c_int32),
        ("entry_limit", c_double),
    )


class Gemm(Structure):
    """imbrex_gemm: sizes of the whole product."""

    _fields_ = (
        ("size", c_size_t),
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("type", c_int32),
        ("bias", c_int32),
        ("scales", c_int32),
        ("b_layout", c_int32),
        ("any_m", c_int32),
        ("gathered_a", c_int32),
        ("more_n", c_int64 * (MOST_PRODUCTS - 1)),
        ("lda", c_int64),
        ("ldb", c_int64),
        ("ldo", c_int64),
        ("more_ldb", c_int64 * (MOST_PRODUCTS - 1)),
        ("more_ldo", c_int64 * (MOST_PRODUCTS - 1)),
        ("packed", c_int32),
        ("reserved", c_int32),
    )


class OperatorOptions(Structure):
    """imbrex_operator_options."""

    _fields_ = (
        ("size", c_size_t),
        ("strategy", c_char_p),
        ("knobs", c_char_p),
        ("device", c_int32),
        ("cpu_workers", c_int32),
        ("heap_bytes", c_uint64),
        ("reserved", c_int32 * 2),
        ("codec", c_char_p),
        ("heap_limit", c_uint64),
    )


class OperatorRules(Structure):
    """imbrex_operator_rules."""

    _fields_ = (
        ("size", c_size_t),
        ("name", c_char_p),
        ("out_type", c_int32),
        ("sums", c_int32),
        ("several_b", c_int32),
        ("rows_times", c_int32),
        ("rows_over", c_int32),
        ("reserved", c_int32),
    )


class Call(Structure):
    """imbrex_call."""

    _fields_ = (
        ("size", c_size_t),
        ("kind", c_int32),
        ("ranks", c_int32),
        ("dim", c_int32),
        ("gathered_a", c_int32),
        ("operands", POINTER(Operand)),
        ("count", c_uint64),
    )


class Results(Structure):
    """imbrex_results."""

    _fields_ = (
        ("size", c_size_t),
        ("out", View),
        ("more_out", View * (MOST_PRODUCTS - 1)),
        ("gathered", View),
    )


class PackedLayoutFields(Structure):
    """imbrex_packed_layout."""

    _fields_ = (
        ("size", c_size_t),
        ("rows", c_int64),
        ("cols", c_int64),
        ("block_rows", c_int64),
        ("block_cols", c_int64),
        ("first_rows", c_void_p),
        ("device", c_int32),
        ("reserved", c_int32),
    )


class AllReduceOptions(Structure):
    """imbrex_all_reduce_options."""

    _fields_ = (
        ("size", c_size_t),
        ("codec", c_char_p),
        ("algorithm", c_char_p),
        ("tolerance", POINTER(c_float)),
        ("exact_below", c_int64),
        ("whole_call", c_int32),
        ("batch_invariant", c_int32),
        ("no_report", c_int32),
        ("ctas", c_int32),
        ("device", c_int32),
        ("reserved", c_int32),
    )


class RmsNormOptions(Structure):
    """imbrex_rms_norm_options."""

    _fields_ = (
        ("size", c_size_t),
        ("algorithm", c_char_p),
        ("eps", POINTER(c_float)),
        ("ctas", c_int32),
        ("device", c_int32),
        ("weight_type", POINTER(c_int32)),
    )


class Table(Structure):
    """imbrex_table."""

    _fields_ = (("rows", c_int64), ("dim", c_int32), ("reserved", c_int32), ("hotness", c_double))


class TableShard(Structure):
    """imbrex_table_shard."""

    _fields_ = (("table", c_int32), ("rank", c_int32), ("begin", c_int32), ("end", c_int32))


class EmbeddingShape(Structure):
    """imbrex_embedding_shape."""

    _fields_ = (
        ("size", c_size_t),
        ("tables", POINTER(Table)),
        ("table_count", c_uint64),
        ("shards", POINTER(TableShard)),
        ("shard_count", c_uint64),
        ("batch", c_int64),
        ("rows", c_int32),
        ("pooling", c_int32),
        ("index_type", c_int32),
        ("out", c_int32),
        ("weighted", c_int32),
        ("ignore_misfits", c_int32),
        ("optimizer", c_int32),
        ("reserved", c_int32),
        ("epsilon", POINTER(c_float)),
    )


class ReportFields(Structure):
    """imbrex_report."""

    _fields_ = (
        ("size", c_size_t),
        ("largest_error", c_double),
        ("non_finite", c_int64),
        ("groups", c_int64),
        ("raw_groups", c_int64),
        ("exact", c_int32),
        ("reserved", c_int32),
        ("algorithm", c_char_p),
    )


# Name: result, arguments. Handles are void*; a result of `int` is a status, which call() turns into an exception.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "error_message": (c_char_p, ()),
    "version": (c_char_p, ()),
    "make_unique_id": (c_int32, (POINTER(UniqueId),)),
    "world_connect": (c_int32, (POINTER(UniqueId), c_int32, c_int32, POINTER(WorldOptions), POINTER(c_void_p))),
    "world_from_environment": (c_int32, (POINTER(WorldOptions), POINTER(c_void_p))),
    "world_destroy": (c_int32, (c_void_p,)),
    "world_rank": (c_int32, (c_void_p,)),
    "world_size": (c_int32, (c_void_p,)),
    "world_barrier": (c_int32, (c_void_p,)),
    "world_all_gather": (c_int32, (c_void_p, c_void_p, c_void_p, c_size_t)),
    "world_fail": (c_int32, (c_void_p, c_char_p)),
    "world_check": (c_int32, (c_void_p,)),
    "world_refuse_call": (c_int32, (c_void_p, c_char_p)),
    "world_skip_call": (c_int32, (c_void_p, c_char_p)),
    "world_ask": (c_int32, (c_void_p, c_char_p, c_char_p)),
    "world_check_calls": (c_int32, (c_void_p,)),
    "operator_make": (
        c_int32,
        (c_void_p, c_int32, POINTER(Gemm), POINTER(OperatorOptions), POINTER(c_void_p)),
    ),
    "operator_rules_of": (c_int32, (c_int32, c_int32, c_int32, POINTER(OperatorRules))),
    "operator_infer": (
        c_int32,
        (POINTER(Call), POINTER(Gemm), POINTER(Results), POINTER(Operand), POINTER(c_uint64)),
    ),
    "operator_destroy": (c_int32, (c_void_p,)),
    "operator_run": (c_int32, (c_void_p, POINTER(Operand), c_size_t, c_void_p)),
    "operator_check": (c_int32, (c_void_p,)),
    "operator_codec_report": (c_int32, (c_void_p, c_void_p, POINTER(ReportFields))),
    "operator_packed_layout": (c_int32, (c_void_p, POINTER(PackedLayoutFields))),
    "put_back": (c_int32, (c_int32, POINTER(PackedLayoutFields), POINTER(Operand), c_size_t, c_float, c_void_p)),
    "place_tables": (
        c_int32,
        (POINTER(EmbeddingShape), c_int32, c_int64, POINTER(TableShard), POINTER(c_uint64), POINTER(c_double)),
    ),
    "embedding_make": (c_int32, (c_void_p, POINTER(EmbeddingShape), POINTER(OperatorOptions), POINTER(c_void_p))),
    "embedding_destroy": (c_int32, (c_void_p,)),
    "embedding_shards": (c_int32, (c_void_p, POINTER(POINTER(TableShard)), POINTER(c_uint64))),
    "embedding_run": (c_int32, (c_void_p, POINTER(Operand), c_size_t, c_void_p)),
    "embedding_update": (c_int32, (c_void_p, POINTER(Operand), c_size_t, c_float, c_void_p)),
    "embedding_refuse": (c_int32, (c_void_p, c_char_p)),
    "embedding_report": (c_int32, (c_void_p, POINTER(c_int64))),
    "embedding_check": (c_int32, (c_void_p,)),
    "embedding_device": (c_int32, (c_void_p,)),
    "all_reduce_make": (c_int32, (c_void_p, c_int64, c_int32, POINTER(AllReduceOptions), POINTER(c_void_p))),
    "all_reduce_rms_norm_make": (
        c_int32,
        (c_void_p, c_int64, c_int64, c_int32, POINTER(RmsNormOptions), POINTER(c_void_p)),
    ),
    "collective_destroy": (c_int32, (c_void_p,)),
    "collective_run": (c_int32, (c_void_p, POINTER(Operand), c_size_t, c_void_p)),
    "collective_report": (c_int32, (c_void_p, POINTER(ReportFields))),
}


@cache
def function(name: str) -> Callable[..., Any]:
    """imbrex_<name>, with its types."""
    result, arguments = _FUNCTIONS[name]
    found = getattr(library(), f"imbrex_{name}")
    found.restype, found.argtypes = result, arguments
    return found  # type: ignore[no-any-return]


def call(name: str, *arguments: Any) -> None:
    """Calls imbrex_<name> and raises what its status says."""
    status = function(name)(*arguments)
    if status:
        raise error_of(status, function("error_message")().decode(errors="replace"))


def make(name: str, *arguments: Any) -> c_void_p:
    """Calls a function that hands what it made to its last argument."""
    made = c_void_p()
    call(name, *arguments, ctypes.byref(made))
    return made


def new(kind: type[Structure], /, **fields: Any) -> Any:
    """A structure with its size filled in; what is left out is zero, the default of each field."""
    return kind(size=ctypes.sizeof(kind), **fields)
