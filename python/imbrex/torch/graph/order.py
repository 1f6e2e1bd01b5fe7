"""
Keeps calls in their order in graphs whose sizes differ between the ranks.

Inductor orders what does not depend on each other by the memory that it needs, and so by sizes. Ranks that have unlike
numbers of rows would make their calls in unlike orders.
"""

# Inductor has no types.
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..frames import constant_in_graphs

_in_order: set[Any] = set()
_last: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of a graph that is made: the buffer of its last call


@constant_in_graphs
def keep_order(names: tuple[str, ...]) -> None:
    """Has Inductor leave calls of these operators of Imbrex in their order, in graphs that are made from here on."""
    from torch._inductor import lowering
    from torch._library.utils import get_layout_constraint_tag

    for name in names:
        operator = getattr(torch.ops.imbrex, name).default
        if operator in _in_order:
            continue
        _in_order.add(operator)
        if operator not in lowering.lowerings:
            tag = get_layout_constraint_tag(operator, with_default=True)
            lowering.make_fallback(operator, layout_constraint=lowering.tag_to_layout_constraint(tag), warn=False)
        lowering.lowerings[operator] = _behind_the_last(lowering.lowerings[operator])


def _behind_the_last(lower: Callable[..., Any]) -> Callable[..., Any]:
    def lowered(*args: Any, **kwargs: Any) -> Any:
        from torch._inductor import ir
        from torch._inductor.virtualized import V

        graph = V.graph
        begin, before = len(graph.operations), _last.get(graph)
        result = lower(*args, **kwargs)
        for made in graph.operations[begin:]:
            if before is not None:
                graph.additional_buffer_deps[made.get_operation_name()].add(before)
            if isinstance(made, ir.FallbackKernel):
                _last[graph] = made.get_name()
        return result

    return lowered
