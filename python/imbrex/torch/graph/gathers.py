"""Finds products of what a gather makes, and replaces gather and products by one operator."""

from __future__ import annotations

from operator import getitem
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
    cut_up,
    is_alone,
    is_call,
    is_collective,
    item,
    places_of,
    product_of,
    put,
    replaces,
    sizes,
    unknown,
    value,
)


def _gathered(wait: Node, ranks: int) -> tuple[Node, int]:
    """The gathered tensor, and along which dimension: torch gathers the first, cuts up, and puts the parts so."""
    split = next(iter(wait.users)) if is_alone(wait) else None
    if split is None or not is_call(split, aten.split.Tensor):
        return wait, 0
    cats = {cat for part in split.users for cat in part.users}
    cat = cats.pop() if len(cats) == 1 else None
    whole = cut_up(cat.args[0], ranks) if cat is not None and is_call(cat, aten.cat.default) else None
    if cat is None or whole != (wait, 0):
        raise Unfit("the gathered tensor is cut up")
    dim = cat.args[1] if len(cat.args) > 1 else 0
    assert isinstance(dim, int)
    dim %= value(cat).dim()
    if dim == value(cat).dim() - 1:
        raise Unfit("gathers the last dimension")
    return cat, dim


def _products(node: Node) -> tuple[list[tuple[Node, Product]], bool]:
    """The products of a tensor's rows, and whether anything else uses it."""
    found: list[tuple[Node, Product]] = []
    else_used = False
    for user in node.users:
        product = product_of(user)
        if product is not None and product[0] is node and node not in product[1:]:
            found.append((user, product))
        elif user.op == "call_function" and user.target in VIEWS and _keeps_rows(user, node):
            deeper, used = _products(user)
            found += deeper
            else_used |= used
        else:
            else_used = True
    return found, else_used


def _keeps_rows(view: Node, node: Node) -> bool:
    return value(view).dim() > 1 and value(view).shape[-1] == value(node).shape[-1]


def _needed(node: Node, before: int, order: dict[Node, int], found: dict[Node, None]) -> bool:
    """Whether a node can be had at that place: adds what must move there, and what that is made of before it."""
    if order[node] < before or node in found:
        return True
    # The collective that a wait ends begins, perhaps, after that place.
    if node.op != "call_function" or node.is_impure() or is_collective(node):
        return False
    if not all(_needed(one, before, order, found) for one in node.all_input_nodes):
        return False
    found[node] = None
    return True


def matched(gather: Node) -> tuple[Node, int, list[tuple[Node, Product]], bool, list[Node]]:
    """The gathered tensor, its dimension, its products, whether it is used otherwise, and what must move."""
    shard, ranks, _ = gather.args
    assert isinstance(shard, Node) and isinstance(ranks, int)
    if ranks < 2:
        raise Unfit("group has one rank")
    wait = next(iter(gather.users)) if is_alone(gather) else None
    if wait is None or not is_call(wait, c10d.wait_tensor.default):
        raise Unfit("the gather has another user than its wait")
    if value(shard).dtype not in DTYPES:
        raise Unfit("dtype")
    if value(shard).dim() < 2:
        raise Unfit("number of dimensions")
    whole, dim = _gathered(wait, ranks)
    products, is_used = _products(whole)
    if not products:
        raise Unfit("no product takes the gathered tensor")
    order = places_of(gather.graph)
    moved: dict[Node, None] = {}
    taken = []
    for node, product in products:
        mine = dict(moved)
        if all(_needed(one, order[gather], order, mine) for one in product[1:] if one is not None):
            moved = mine
            taken.append((node, product))
        else:
            is_used = True
    if not taken:
        raise Unfit("the product's other factor is made after the gather, by what cannot move")
    return whole, dim, taken, is_used, [*moved]


def _batch(shard: Node, dim: int) -> Any:
    """How many blocks the shard has of what lies together in the gathered tensor."""
    batch = 1
    for size in value(shard).shape[:dim]:
        batch = batch * size
    return batch


_ALIKE = (c10d.wait_tensor.default, aten.split.Tensor, getitem, aten.cat.default)


def _merge_alike(gather: Node) -> None:
    """Torch (2.15) merges gathers of one tensor, and leaves what each was followed by: a wait, and how it is laid."""
    order = places_of(gather.graph)
    open_nodes = [gather]
    while open_nodes:
        node = open_nodes.pop()
        kept: dict[str, Node] = {}
        for user in sorted(node.users, key=order.__getitem__):
            if user.op != "call_function" or user.target not in _ALIKE:
                continue
            first = kept.setdefault(f"{user.target} {user.args} {user.kwargs}", user)
            if first is not user:
                user.replace_all_uses_with(first)
                gather.graph.erase_node(user)
        open_nodes += kept.values()


def rewrite(graph: Graph) -> None:
    """Each gather with its products becomes one operator, where the gather is: calls keep their order."""
    operator = torch.ops.imbrex_graph.all_gather_matmul.default
    unwanted: set[Node] = set()
    for gather in list(graph.find_nodes(op="call_function", target=c10d.all_gather_into_tensor.default)):
        _merge_alike(gather)
        try:
            whole, dim, products, is_used, moved = matched(gather)
        except Unfit:
            continue
        shard, _, group = gather.args
        batch = _batch(shard, dim)
        shapes = [value(whole).shape] if is_used else []
        if not isinstance(batch, int) or any(unknown(shape) > 1 for shape in shapes):
            continue
        for node in moved:
            gather.prepend(node)
        bs, biases = ([product[i] for _, product in products] for i in (1, 2))
        made = put(graph, gather, operator, (shard, bs, biases, batch, is_used, str(group)))
        results = [item(graph, gather, made, i) for i in range(len(products) + is_used)]
        old = [node for node, _ in products]
        if is_used:
            results[0] = put(graph, gather, aten.reshape.default, (results[0], sizes(value(whole).shape)))
            old.insert(0, whole)
        if not all(replaces(mine, theirs) for mine, theirs in zip(results, old, strict=True)):
            unwanted.add(made)
            continue
        # The products first: they use the gathered tensor, too.
        for mine, theirs in reversed([*zip(results, old, strict=True)]):
            theirs.replace_all_uses_with(mine)
        unwanted.update((gather, next(iter(gather.users))))
    clean(graph, unwanted)
