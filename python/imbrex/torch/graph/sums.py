"""Finds sums of products that a collective takes, and replaces each by one operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from ..refusals import DTYPES
from .nodes import (
    VIEWS,
    Product,
    Unfit,
    aten,
    c10d,
    clean,
    collectives_within,
    cut_up,
    is_alone,
    is_call,
    places_of,
    product_of,
    put,
    ranks_of,
    replaces,
    reshaped,
    sizes,
    unknown,
    value,
)


@dataclass(frozen=True)
class Reduced:
    """
    The sum over the ranks of a sum of products; scattered: the rank's part of it along `dim`, as `lead` x N.

    `collectives` are torch's, of which each takes as many of the products as `counts` says.
    """

    products: tuple[Product, ...]
    group: str
    collectives: tuple[Node, ...]
    counts: tuple[int, ...]
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

    def and_also(self, other: Reduced) -> Reduced:
        """The sum of both."""
        return Reduced(
            self.products + other.products,
            self.group,
            self.collectives + other.collectives,
            self.counts + other.counts,
            self.scattered,
            self.lead,
            self.dim,
        )

    def in_order(self, order: dict[Node, int]) -> Reduced:
        """The same by the order of the collectives: ranks that keep torch's call these in it."""
        parts, begin = [], 0
        for collective, count in zip(self.collectives, self.counts, strict=True):
            parts.append((collective, count, self.products[begin : begin + count]))
            begin += count
        parts.sort(key=lambda part: order[part[0]])
        collectives, counts, products = zip(*parts, strict=True)
        return replace(self, products=sum(products, ()), collectives=collectives, counts=counts)


def _terms(node: Node) -> list[Node] | None:
    """Both sides of a plain sum of two tensors of one shape and dtype."""
    if not is_call(node, aten.add.Tensor) or node.kwargs or len(node.args) != 2:
        return None
    sides = [side for side in node.args if isinstance(side, Node)]
    here = value(node)
    if len(sides) != 2 or any(value(side).shape != here.shape or value(side).dtype != here.dtype for side in sides):
        return None
    return sides


def _products(node: Any) -> list[Product]:
    """The products whose sum a node is, where nothing else uses any part of it."""
    assert isinstance(node, Node)
    if product := product_of(node):
        if not is_alone(node):
            raise Unfit("the product has another user")
        if value(product[0]).dtype not in DTYPES:
            raise Unfit("dtype")
        return [product]
    inner = node.args[0] if node.target in VIEWS else None
    if isinstance(inner, Node) and value(inner).dim() > 0 and value(node).dim() > 0:
        if value(inner).shape[-1] != value(node).shape[-1]:
            raise Unfit("a view that cuts the product's rows")
        found = _products(inner)
    elif sides := _terms(node):
        found = [product for side in sides for product in _products(side)]
    else:
        raise Unfit("what it sums is no product")
    if not is_alone(node):
        raise Unfit("the product has another user")
    return found


def _whole(node: Any, ranks: int) -> tuple[Node, int]:
    """What a reduce-scatter scatters, and along which dimension: torch cuts it up and puts the parts first."""
    if not is_call(node, aten.cat.default):
        return node, 0
    whole = cut_up(node.args[0], ranks) if len(node.args) < 2 or node.args[1] == 0 else None
    if whole is None or not is_alone(node):
        raise Unfit("what it sums is no product")
    return whole


def reduction_of(collective: Node) -> Reduced:
    """What one of torch's collectives does; raises Unfit where it is none of products."""
    given, reduction, *_, group = collective.args
    name = str(group)
    if reduction != "sum":
        raise Unfit(f"reduce op is {reduction}")
    ranks = ranks_of(name)
    if ranks < 2:
        raise Unfit("group has one rank")
    if is_call(collective, c10d.all_reduce.default):
        products = tuple(_products(given))
        return Reduced(products, name, (collective,), (len(products),))
    whole, dim = _whole(given, ranks)
    products = tuple(_products(whole))
    lead = tuple(value(whole).shape[:-1])
    if dim >= len(lead):
        raise Unfit("scatters the last dimension")
    if len(lead) > 2 and dim > 0:
        raise Unfit("number of dimensions")
    if len(lead) > 2:
        lead = (lead[0], _times(lead[1:]))
    if unknown(lead) > 1:
        raise Unfit("more than one size that is not known")
    return Reduced(products, name, (collective,), (len(products),), True, lead, dim)


def _times(shape: Any) -> Any:
    product = shape[0]
    for size in shape[1:]:
        product = product * size
    return product


def reduced(node: Any) -> Reduced | None:
    """What a node is, if it is the sum over the ranks of a sum of products."""
    if not isinstance(node, Node):
        return None
    if sides := _terms(node):
        one, other = [reduced(side) if is_alone(side) else None for side in sides]
        if one is None or other is None or not one.fits(other):
            return None
        both = one.and_also(other)
        return None if collectives_within(node.graph, both.collectives) else both
    if not is_call(node, c10d.wait_tensor.default):
        return None
    collective = node.args[0]
    if not isinstance(collective, Node) or not is_alone(collective):
        return None
    if collective.target not in (c10d.all_reduce.default, c10d.reduce_scatter_tensor.default):
        return None
    try:
        return reduction_of(collective)
    except Unfit:
        return None


def rewrite(graph: Graph) -> None:
    """Each such sum becomes one operator, where the last of its collectives is: calls keep their order."""
    ops = torch.ops.imbrex_graph
    done: set[Node] = set()
    unwanted: set[Node] = set()
    for node in reversed(list(graph.nodes)):
        found = None if node in done else reduced(node)
        if found is None:
            continue
        parts = _parts(node)
        done.update(parts)
        found = found.in_order(places_of(graph))
        before = found.collectives[-1]
        a, b, bias = ([product[i] for product in found.products] for i in range(3))
        args: tuple[Any, ...] = (a, b, bias, [*found.counts])
        shape = value(node).shape
        if found.scattered:
            made = put(
                graph, before, ops.matmul_reduce_scatter.default, (*args, sizes(found.lead), found.dim, found.group)
            )
        elif unknown(shape) < 2 or len(shape) == 2:
            made = put(graph, before, ops.matmul_all_reduce.default, (*args, found.group))
        else:
            continue
        new = reshaped(graph, before, made, shape)
        if not replaces(new, node):
            unwanted.add(made)
            continue
        node.replace_all_uses_with(new)
        # A wait counts as what must not be left out, so it does not go by itself.
        for part in parts:
            graph.erase_node(part)
        unwanted.update(found.collectives)
    clean(graph, unwanted)


def _parts(node: Node) -> list[Node]:
    """A sum of collectives, and the sums and waits within it."""
    return [node, *(part for side in _terms(node) or [] for part in _parts(side))]
