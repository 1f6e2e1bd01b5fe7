"""Functions that torch.compile takes into a graph, and makes no graph of where they are called outside of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

F = TypeVar("F", bound=Callable[..., Any])


def no_graph_of_its_own(function: F) -> F:
    """
    For what a call does when a graph has ended before it, because the graph could not hold the call.

    A graph of such a function alone sees less than the function: of a dual tensor it sees no tangent.
    """
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
    eval_frame.set_code_exec_strategy(function.__code__, skip)
    return function
