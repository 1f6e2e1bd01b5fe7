"""What the parts of the pass share: nodes of a graph, what is known of them, and new ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from ..._errors import InvalidInput
from ..groups import size_of

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
VIEWS = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)

Product = tuple[Node, Node, Node | None]
"""A x B, and a row that is added to it."""


class Unfit(Exception):
    """Why a collective stays torch's."""


def why_not(match: Callable[[Node], Any], collective: Node) -> str:
    """Why torch's collective was not taken by a pass that matches so."""
    try:
        match(collective)
    except Unfit as unfit:
        return str(unfit)
    return "layout or use of the result"


def value(node: Node) -> torch.Tensor:
    """What tracing knows of a node's tensor."""
    result: torch.Tensor = node.meta["val"]
    return result


def is_call(node: Any, target: Any) -> bool:
    """Whether it is a call of this operator."""
    return isinstance(node, Node) and node.op == "call_function" and node.target == target


def ranks_of(group: str) -> int:
    """How many ranks a group has."""
    try:
        return size_of(group)
    except InvalidInput:
        raise Unfit("group that is none of this process's") from None


def is_collective(node: Node) -> bool:
    """Whether other ranks have a part in it; a wait has none."""
    if node.op != "call_function" or node.target == c10d.wait_tensor.default:
        return False
    name = getattr(node.target, "namespace", "")
    return name in ("_c10d_functional", "_c10d_functional_autograd", "c10d", "symm_mem", "imbrex", "imbrex_graph")


def is_alone(node: Node) -> bool:
    """Whether one other node uses it."""
    return len(node.users) == 1


def product_of(node: Node) -> Product | None:
    """The product that a node is, of two matrices of one dtype."""
    if is_call(node, aten.mm.default) and not node.kwargs:
        (a, b), bias = node.args, None
    elif is_call(node, aten.addmm.default) and not node.kwargs:
        bias, a, b = node.args
        if not isinstance(bias, Node) or value(bias).shape != value(node).shape[-1:]:
            return None
    else:
        return None
    assert isinstance(a, Node) and isinstance(b, Node)
    if any(value(one).dtype != value(a).dtype for one in (b, bias) if isinstance(one, Node)):
        return None
    return a, b, bias if isinstance(bias, Node) else None


def cut_up(parts: Any, ranks: int) -> tuple[Node, int] | None:
    """What `torch.split` made these parts of, one for each rank, and along which dimension; nothing else uses them."""
    if not isinstance(parts, (list, tuple)) or len(parts) != ranks:
        return None
    split = parts[0].args[0] if is_call(parts[0], operator.getitem) else None
    if not isinstance(split, Node) or not is_call(split, aten.split.Tensor) or len(split.users) != ranks:
        return None
    # Parts that nothing uses are in no graph.
    if len(split.meta["val"]) != ranks:
        return None
    for i, part in enumerate(parts):
        if not is_call(part, operator.getitem) or part.args != (split, i) or not is_alone(part):
            return None
    whole, dim = split.args[0], split.args[2] if len(split.args) > 2 else 0
    assert isinstance(whole, Node) and isinstance(dim, int)
    return whole, dim % value(whole).dim()


def put(graph: Graph, before: Node, target: Any, args: tuple[Any, ...]) -> Node:
    """A new node with what tracing knows of its result."""
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    values = torch.utils._pytree.tree_map_only(Node, value, args)
    with next(one for one in _nodes_of(args)).meta["val"].fake_mode:
        node.meta["val"] = target(*values)
    return node


def item(graph: Graph, before: Node, node: Node, i: int) -> Node:
    """A new node of one of a node's results."""
    with graph.inserting_before(before):
        one = graph.call_function(operator.getitem, (node, i))
    one.meta["val"] = node.meta["val"][i]
    return one


def _nodes_of(args: Any) -> list[Node]:
    return [one for one in torch.utils._pytree.tree_leaves(args) if isinstance(one, Node)]


def reshaped(graph: Graph, before: Node, node: Node, shape: Any) -> Node:
    """The node's tensor in another shape."""
    if len(value(node).shape) == len(shape):
        return node
    return put(graph, before, aten.reshape.default, (node, sizes(shape)))


def unknown(shape: Any) -> int:
    """How many of its sizes tracing does not know."""
    return sum(not isinstance(size, int) for size in shape)


def sizes(shape: Any) -> list[int]:
    """A shape for a view: the one size that tracing does not know follows from the others."""
    return [size if isinstance(size, int) else -1 for size in shape]


def replaces(new: Node, node: Node) -> bool:
    """Whether shapes and strides are the same, as far as tracing knows them."""
    mine, theirs = ([*value(one).shape, *value(one).stride()] for one in (new, node))
    both = zip(mine, theirs, strict=True)
    return all(one == other for one, other in both if isinstance(one, int) and isinstance(other, int))


def clean(graph: Graph, unwanted: set[Node]) -> None:
    """Leaves out what is used no more: of calls that other ranks make, too, only these."""
    graph.eliminate_dead_code(lambda node: (node.is_impure() or is_collective(node)) and node not in unwanted)


def places_of(graph: Graph) -> dict[Node, int]:
    """Each node's number, in order."""
    return {node: i for i, node in enumerate(graph.nodes)}


def collectives_within(graph: Graph, members: Iterable[Node]) -> bool:
    """
    Whether another collective comes between the first and the last of these.

    Were one of them moved past it, a rank that moves none would meet it in another order.
    """
    own = set(members)
    order = places_of(graph)
    first, last = min(order[one] for one in own), max(order[one] for one in own)
    return any(is_collective(node) and node not in own for node, i in order.items() if first < i < last)
