"""What follows from the operands of a product: the library says it, for every front alike."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

from . import _c
from ._arrays import operand_list
from ._errors import InvalidInput

_MOST_OPERANDS = 16


class Rules(NamedTuple):
    """What sets an operator apart from the others, over this many ranks. imbrex_operator_rules tells of the numbers."""

    sums: bool
    several_b: bool
    rows_times: int
    rows_over: int


def _rules(kind: int, ranks: int, of_type: int) -> _c.OperatorRules:
    rules = _c.new(_c.OperatorRules)
    _c.call("operator_rules_of", kind, of_type, ranks, ctypes.byref(rules))
    return rules  # type: ignore[no-any-return]


@cache
def kinds() -> dict[str, int]:
    """c.h's number of each product, by its name in Python: "matmul_reduce_scatter" for "gemm_reduce_scatter"."""
    found: dict[str, int] = {}
    while True:
        try:
            name = _rules(len(found), 1, _c.BF16).name
        except InvalidInput:  # there is no such kind any more
            return found
        found[name.decode().replace("gemm", "matmul")] = len(found)


@cache
def rules_of(name: str, ranks: int) -> Rules:
    """The rules of the product of that name."""
    told = _rules(kinds()[name], ranks, _c.BF16)
    return Rules(bool(told.sums), bool(told.several_b), told.rows_times, told.rows_over)


@cache
def out_type_of(of_type: int) -> int:
    """The type of a product of matrices of that one."""
    return int(_rules(0, 1, of_type).out_type)


class Inferred(NamedTuple):
    """
    What a call comes to.

    Attributes:
        gemm: what the operator is made from.
        results: views of all that the call gives, as its caller sees them.
        operands: the call's, as the operator takes them; NULL where a result is not there yet.
        length: how many operands there are.
    """

    gemm: _c.Gemm
    results: _c.Results
    operands: ctypes.Array[_c.Operand]
    length: int

    def place(self, name: bytes, data: int) -> None:
        """Says where a result lies that was not there."""
        for operand in self.operands[: self.length]:
            if operand.name == name:
                operand.view.data = data


def infer(name: str, ranks: int, dim: int, given: list[tuple[bytes, _c.View]], gathered_a: bool = False) -> Inferred:
    """What follows from these operands of a call. Raises InvalidInput with the library's text where they make none."""
    call = _c.new(_c.Call, kind=kinds()[name], ranks=ranks, dim=dim, gathered_a=gathered_a, count=len(given))
    call.operands = operand_list(given)
    gemm, results, count = _c.new(_c.Gemm), _c.new(_c.Results), ctypes.c_uint64(_MOST_OPERANDS)
    taken = (_c.Operand * _MOST_OPERANDS)()
    _c.call(
        "operator_infer",
        ctypes.byref(call),
        ctypes.byref(gemm),
        ctypes.byref(results),
        taken,
        ctypes.byref(count),
    )
    return Inferred(gemm, results, taken, count.value)


def shape_of(view: _c.View) -> tuple[int, ...]:
    """Its extents."""
    return tuple(view.extents[: view.dims])
