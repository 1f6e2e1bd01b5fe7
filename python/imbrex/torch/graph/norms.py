"""Finds the norm after a product's all-reduce, with the residual between them, and puts it into the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from .nodes import VIEWS, aten, clean, collectives_within, item, places_of, put, replaces, reshaped, value

_convert = torch.ops.prims.convert_element_type.default


@dataclass(frozen=True)
class Norm:
    """RMSNorm of the rows of `total`: `result` = total / rms(total) * weight, which is fp32 or of the rows' dtype."""

    total: Node
    weight: Node
    eps: float
    result: Node


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _takes(node: Node | None, target: Any) -> bool:
    return node is not None and node.op == "call_function" and node.target == target


def _converted(node: Node, dtype: torch.dtype) -> Node:
    """What a node becomes in a dtype: itself, where it has that or is used otherwise."""
    user = _only_user(node)
    return user if user is not None and _takes(user, _convert) and user.args[1] == dtype else node


def _unwidened(weight: Node, dtype: torch.dtype) -> Node:
    """What a weight was before it became fp32, which changes no value: itself, where it was not of that dtype."""
    before = weight.args[0] if _takes(weight, _convert) and weight.args[1] == torch.float32 else weight
    return before if isinstance(before, Node) and value(before).dtype == dtype else weight


def _scaled_by(node: Node) -> tuple[Node, Node] | None:
    """The product of a node with a weight of one dimension, and the weight."""
    user = _only_user(node)
    if user is None or not _takes(user, aten.mul.Tensor):
        return None
    weight = user.args[1] if user.args[0] is node else user.args[0]
    return (user, weight) if isinstance(weight, Node) and value(weight).dim() == 1 else None


def _norm_of(total: Node, wide: Node) -> Norm | None:
    """The norm of `total`, of which `wide` is the same in fp32."""
    uses = [user for user in wide.users if _takes(user, aten.pow.Tensor_Scalar) and user.args[1] == 2]
    for squares in uses:
        mean = _only_user(squares)
        if mean is None or not _takes(mean, aten.mean.dim) or len(mean.args) < 3 or not mean.args[2]:
            continue
        if list(mean.args[1]) not in ([-1], [value(wide).dim() - 1]):  # type: ignore[arg-type]
            continue
        raised = _only_user(mean)
        if raised is None or raised.target not in (aten.add.Scalar, aten.add.Tensor) or raised.args[0] is not mean:
            continue
        eps = raised.args[1]
        root = _only_user(raised)
        if not isinstance(eps, float) or root is None or not _takes(root, aten.rsqrt.default):
            continue
        normal = _only_user(root)
        if normal is None or not _takes(normal, aten.mul.Tensor) or set(normal.args) != {wide, root}:
            continue
        dtype = value(total).dtype
        scaled = _scaled_by(_converted(normal, dtype))
        if scaled is None:
            continue
        result, weight = _converted(scaled[0], dtype), _unwidened(scaled[1], dtype)
        if value(result).dtype != dtype or value(result).shape != value(total).shape:
            continue
        if value(weight).dtype in (dtype, torch.float32):
            return Norm(total, weight, eps, result)
    return None


def norm_behind(total: Node) -> Norm | None:
    """The norm of a node's rows, if it is taken."""
    wides = [user for user in total.users if _takes(user, _convert) and user.args[1] == torch.float32]
    if value(total).dtype == torch.float32:
        wides.append(total)
    return next((norm for wide in wides if (norm := _norm_of(total, wide))), None)


def _residual(total: Node) -> tuple[Node, Node] | None:
    """The sum of a node and a residual like it, and the residual."""
    for user in total.users:
        if _takes(user, aten.add.Tensor) and not user.kwargs and len(total.users) == 1:
            other = user.args[1] if user.args[0] is total else user.args[0]
            same = isinstance(other, Node) and other is not total
            if same and value(other).shape == value(total).shape and value(other).dtype == value(total).dtype:  # type: ignore[arg-type]
                return user, other  # type: ignore[return-value]
    return None


def rewrite(graph: Graph) -> None:
    """Each product with its all-reduce that a norm follows takes the norm in."""
    ops = torch.ops.imbrex_graph
    unwanted: set[Node] = set()
    for node in graph.find_nodes(op="call_function", target=ops.matmul_all_reduce.default):
        seen = _only_user(node)
        shaped = seen if seen is not None and seen.target in VIEWS else node
        total, residual = _residual(shaped) or (shaped, None)
        norm = norm_behind(total)
        if norm is None or value(norm.weight).shape[0] != value(total).shape[-1]:
            continue
        before = total if total is not node else node.next
        order = places_of(graph)
        if order[norm.weight] >= order[before] or collectives_within(graph, (node, before)):
            continue
        *args, group = node.args
        flat = None if residual is None else reshaped(graph, before, residual, value(node).shape)
        new = put(graph, before, ops.matmul_all_reduce_rms_norm.default, (*args, flat, norm.weight, norm.eps, group))
        outputs = [
            reshaped(graph, before, item(graph, before, new, i), value(old).shape)
            for i, old in enumerate((norm.result, total))
        ]
        if not all(replaces(mine, old) for mine, old in zip(outputs, (norm.result, total), strict=True)):
            unwanted.add(new)
            continue
        unwanted.add(node)
        norm.result.replace_all_uses_with(outputs[0])
        total.replace_all_uses_with(outputs[1])
    clean(graph, unwanted)
