"""
What torch.compile does with functions of this package.

torch.compiler's decorators load torch's compiler, which takes a process more than a second. Most processes compile
nothing, so here it is said by the marks alone that those decorators leave; test_frames.py compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

F = TypeVar("F", bound=Callable[..., Any])
_SKIP, _DEFAULT = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT


def _skip(function: Callable[..., Any], what_it_calls: eval_frame._FrameAction) -> None:
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(_SKIP, what_it_calls))


def no_graph_of_its_own(function: F) -> F:
    """
    For what a call does when a graph has ended before it, because the graph could not hold the call.

    A graph of such a function alone sees less than the function: of a dual tensor it sees no tangent.
    """
    _skip(function, _DEFAULT)
    return function


def constant_in_graphs(function: F) -> F:
    """As torch.compiler.assume_constant_result: what it returns while a graph is traced is the graph's."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def outside_graphs(function: F) -> F:
    """As torch.compiler.disable: a graph ends where it is called, and none is made of it or of what it calls."""
    _skip(function, _SKIP)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = None  # type: ignore[attr-defined]
    function._torchdynamo_disable_recursive = True  # type: ignore[attr-defined]
    return function
