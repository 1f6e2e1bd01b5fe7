"""Finds sums of products that a collective takes, and replaces each by one operator."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

_aten = torch.ops.aten
_c10d = torch.ops._c10d_functional
_VIEWS = (_aten.reshape.default, _aten.view.default, _aten._unsafe_view.default)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

Product = tuple[Node, Node]


@dataclass(frozen=True)
class Reduced:
    """The sum over the ranks of a sum of products; scattered: the rank's part of it along `dim`, as `lead` x N."""

    products: tuple[Product, ...]
    group: str
    scattered: bool = False
    lead: tuple[Any, ...] = ()
    dim: int = 0

    def fits(self, other: Reduced) -> bool:
        """Whether one collective can do both."""
        mine, theirs = self.products[0], other.products[0]
        return (self.group, self.scattered, self.lead, self.dim) == (
            other.group,
            other.scattered,
            other.lead,
            other.dim,
        ) and value(mine[0]).dtype == value(theirs[0]).dtype


def value(node: Node) -> torch.Tensor:
    """What tracing knows of a node's tensor."""
    result: torch.Tensor = node.meta["val"]
    return result


def _is_call(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target == target


def _alone(node: Node) -> bool:
    return len(node.users) == 1


def _terms(node: Node) -> list[Node] | None:
    """Both sides of a plain sum of two tensors of one shape and dtype."""
    if not _is_call(node, _aten.add.Tensor) or node.kwargs or len(node.args) != 2:
        return None
    sides = [side for side in node.args if isinstance(side, Node)]
    here = value(node)
    if len(sides) != 2 or any(value(side).shape != here.shape or value(side).dtype != here.dtype for side in sides):
        return None
    return sides


def _products(node: Any) -> list[Product] | None:
    """The products whose sum a node is, where nothing else uses any part of it."""
    if not isinstance(node, Node) or not _alone(node):
        return None
    if _is_call(node, _aten.mm.default):
        a, b = node.args
        assert isinstance(a, Node) and isinstance(b, Node)
        return [(a, b)] if value(a).dtype in DTYPES and value(a).dtype == value(b).dtype else None
    if node.target in _VIEWS:
        inner = node.args[0]
        if isinstance(inner, Node) and value(inner).shape[-1] == value(node).shape[-1]:
            return _products(inner)
        return None
    sides = _terms(node)
    if sides is None:
        return None
    found: list[Product] = []
    for side in sides:
        part = _products(side)
        if part is None:
            return None
        found += part
    return found


def _whole(node: Any, ranks: int) -> tuple[Node, int] | None:
    """What a reduce-scatter scatters, and along which dimension: torch cuts it up and puts the parts first."""
    if not _is_call(node, _aten.cat.default):
        return (node, 0) if isinstance(node, Node) else None
    parts = node.args[0]
    if (len(node.args) > 1 and node.args[1] != 0) or len(parts) != ranks or not _alone(node):
        return None
    split = parts[0].args[0] if _is_call(parts[0], operator.getitem) else None
    if split is None or not _is_call(split, _aten.split.Tensor) or len(split.users) != ranks:
        return None
    if any(not _is_call(p, operator.getitem) or p.args != (split, i) or not _alone(p) for i, p in enumerate(parts)):
        return None
    dim = split.args[2] if len(split.args) > 2 else 0
    whole = split.args[0]
    return whole, dim % value(whole).dim()


def reduced(node: Any) -> Reduced | None:
    """What a node is, if it is the sum over the ranks of a sum of products."""
    if not isinstance(node, Node):
        return None
    if sides := _terms(node):
        parts = [reduced(side) if _alone(side) else None for side in sides]
        one, other = parts
        if one is None or other is None or not one.fits(other):
            return None
        return Reduced(one.products + other.products, one.group, one.scattered, one.lead, one.dim)
    if not _is_call(node, _c10d.wait_tensor.default):
        return None
    collective = node.args[0]
    if not isinstance(collective, Node) or not _alone(collective):
        return None
    if _is_call(collective, _c10d.all_reduce.default):
        given, reduction, group = collective.args
        products = _products(given) if reduction == "sum" else None
        return Reduced(tuple(products), str(group)) if products else None
    if _is_call(collective, _c10d.reduce_scatter_tensor.default):
        given, reduction, ranks, group = collective.args
        assert isinstance(ranks, int)
        whole = _whole(given, ranks) if reduction == "sum" else None
        products = _products(whole[0]) if whole else None
        if whole is None or products is None:
            return None
        lead = tuple(value(whole[0]).shape[:-1])
        if not 1 <= len(lead) <= 2 or whole[1] >= len(lead) or _unknown(lead) > 1:
            return None
        return Reduced(tuple(products), str(group), True, lead, whole[1])
    return None


def put(graph: Graph, before: Node, target: Any, args: tuple[Any, ...]) -> Node:
    """A new node with what tracing knows of its result."""
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    values = torch.utils._pytree.tree_map_only(Node, value, args)
    with next(one for one in _nodes_of(args)).meta["val"].fake_mode:
        node.meta["val"] = target(*values)
    return node


def _nodes_of(args: Any) -> list[Node]:
    return [one for one in torch.utils._pytree.tree_leaves(args) if isinstance(one, Node)]


def reshaped(graph: Graph, before: Node, node: Node, shape: Any) -> Node:
    """The node's tensor in another shape."""
    if len(value(node).shape) == len(shape):
        return node
    return put(graph, before, _aten.reshape.default, (node, _sizes(shape)))


def _unknown(shape: Any) -> int:
    return sum(not isinstance(size, int) for size in shape)


def _sizes(shape: Any) -> list[int]:
    """A shape for a view: the one size that tracing does not know follows from the others."""
    return [size if isinstance(size, int) else -1 for size in shape]


def replaces(new: Node, node: Node) -> bool:
    """Whether shapes and strides are the same, as far as tracing knows them."""
    mine, theirs = ([*value(one).shape, *value(one).stride()] for one in (new, node))
    both = zip(mine, theirs, strict=True)
    return all(one == other for one, other in both if isinstance(one, int) and isinstance(other, int))


def clean(graph: Graph, unwanted: set[Node]) -> None:
    """Leaves out what is used no more: of calls that other ranks make, too, only these."""
    graph.eliminate_dead_code(lambda node: node.is_impure() and node not in unwanted)


def rewrite(graph: Graph) -> None:
    """Each such sum that torch has no operator for becomes one."""
    ops = torch.ops.imbrex_graph
    done: set[Node] = set()
    unwanted: set[Node] = set()
    for node in reversed(list(graph.nodes)):
        found = None if node in done else reduced(node)
        # A product that is scattered alone is torch's own pass' to take.
        if found is None or (found.scattered and len(found.products) < 2):
            continue
        parts = _parts(node)
        done.update(parts)
        a, b = ([product[i] for product in found.products] for i in (0, 1))
        if found.scattered:
            args: tuple[Any, ...] = (a, b, _sizes(found.lead), found.dim, found.group)
            made = new = put(graph, node, ops.matmul_reduce_scatter.default, args)
        elif _unknown(value(node).shape) < 2 or value(node).dim() == 2:
            made = put(graph, node, ops.matmul_all_reduce.default, (a, b, found.group))
            new = reshaped(graph, node, made, value(node).shape)
        else:
            continue
        if not replaces(new, node):
            unwanted.add(made)
            continue
        node.replace_all_uses_with(new)
        # A wait counts as what must not be left out, so it does not go by itself.
        for part in parts:
            graph.erase_node(part)
    clean(graph, unwanted)


def _parts(node: Node) -> list[Node]:
    """A sum of collectives, and the sums and waits within it."""
    return [node, *(part for side in _terms(node) or [] for part in _parts(side))]
