"""
The pass over graphs that torch.compile makes under the drop-in, forward or backward, before Inductor's own.

It looks for products of what is gathered, for sums of products that an all-reduce or a reduce-scatter takes, and for
the norm after an all-reduce. It replaces them by one operator of the namespace `imbrex_graph`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from ... import _c
from ..._library import package_folder
from ..stats import count_rewritten, count_unmatched
from . import gathers, norms, operators, sums
from .nodes import c10d, places_of, why_not

# What each of torch's collectives is matched by.
_MATCHES: dict[Any, Callable[[Node], Any]] = {
    c10d.all_gather_into_tensor.default: gathers.matched,
    c10d.all_reduce.default: sums.reduction_of,
    c10d.reduce_scatter_tensor.default: sums.reduction_of,
}


def _digest(graph: torch.fx.Graph) -> bytes:
    """A digest of all that a graph does. A graph that is made again, where a cache has lost it, has the same."""
    order = places_of(graph)

    def told(one: Any) -> str:
        return f"%{order[one]}" if isinstance(one, Node) else repr(one)

    said = hashlib.sha256()
    for node in graph.nodes:
        target = "" if node.op == "placeholder" else str(node.target)
        given = torch.utils._pytree.tree_map(told, (node.args, node.kwargs))
        made = node.meta.get("val")
        shape = (tuple(map(str, made.shape)), made.dtype, made.device.type) if isinstance(made, torch.Tensor) else ""
        said.update(repr((node.op, target, given, shape)).encode())
    return said.digest()


def _number(graph: torch.fx.Graph) -> None:
    """Tells operators their places, and counts them, and what stayed torch's."""
    digest = _digest(graph)
    for i, node in enumerate(graph.nodes):
        if node.op == "call_function" and getattr(node.target, "namespace", "") == "imbrex_graph":
            # A graph that comes from a cache never passes here: its places are counted where it runs.
            place = 1 + secrets.randbits(62)
            site = int.from_bytes(hashlib.sha256(digest + i.to_bytes(8, "big")).digest()[:7], "big")
            node.kwargs = {"place": place, "site": site}
            count_rewritten(node.target.name().split("::")[1], place)
        elif node.op == "call_function" and (match := _MATCHES.get(node.target)) is not None:
            count_unmatched(node.target.name().split("::")[1], why_not(match, node))


def _make_pass(before: Any) -> Any:
    """The pass, which first runs the pass that was installed before."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Pass(CustomGraphPass):
        def __init__(self) -> None:
            self.before = before

        def __call__(self, graph: torch.fx.Graph) -> None:
            if self.before is not None:
                self.before(graph)
            if operators.is_in_force():
                gathers.rewrite(graph)
                sums.rewrite(graph)
                norms.rewrite(graph)
                _number(graph)

        def uuid(self) -> Any:
            """What a cached graph hangs on; None, nothing is cached, where the pass before has no name."""
            theirs = None if self.before is None else getattr(self.before, "uuid", lambda: None)()
            if self.before is not None and theirs is None:
                return None
            # Graphs hold operators by name: those of another version or build of the package are other ones.
            folder = Path(__file__).parents[1]
            files = (*sorted(folder.rglob("*.py")), package_folder() / "lib" / "libimbrex_torch.so")
            ours = get_hash_for_files(tuple(map(str, files)), extra=_c.function("version")().decode())
            return ours, theirs, operators.is_in_force()

    return Pass()


_pass: Any = None


def install() -> None:
    """Puts the pass before Inductor's own."""
    global _pass
    from torch._inductor import config

    operators.put_in_force(True)
    _pass = _make_pass(config.post_grad_custom_pre_pass)
    config.post_grad_custom_pre_pass = _pass


def remove() -> None:
    """Takes the pass away: where another one replaced it meanwhile, ours does nothing from here on."""
    global _pass
    from torch._inductor import config

    operators.put_in_force(False)
    ours, _pass = _pass, None
    now: Any = config.post_grad_custom_pre_pass
    if ours is not None and now is ours:
        config.post_grad_custom_pre_pass = ours.before
