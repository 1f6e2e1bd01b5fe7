"""How the ranks' parts of a layer meet: torch's functional collectives, Imbrex, neither, or one rank that needs none.

A way has two halves. `columns(x, weights)`: x times each weight's transpose, the outputs split over the ranks. `rows(x,
weight)`: the inputs are split, and the products summed. Where `split`, the ranks hold parts of the sequence between them,
which are dimension 0; else each holds all of it, and gradients are not asked for.
"""

import torch
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F

import imbrex.torch


class Alone:
    """One rank that holds the whole model."""

    name, ranks, rank = "one rank", 1, 0

    def columns(self, x, weights):
        return [F.linear(x, weight) for weight in weights]

    def rows(self, x, weight):
        return F.linear(x, weight)


class Functional:
    """torch's functional collectives before and behind its products."""

    name = "functional collectives"

    def __init__(self, group, split):
        self.group, self.split, self.ranks, self.rank = group, split, group.size(), group.rank()

    def columns(self, x, weights):
        if self.split:
            x = functional.all_gather_tensor_autograd(x, 0, self.group)
        return [F.linear(x, weight) for weight in weights]

    def rows(self, x, weight):
        y = F.linear(x, weight)
        if self.split:
            return functional.reduce_scatter_tensor_autograd(y, "sum", 0, self.group)
        return functional.all_reduce(y, "sum", self.group)


class SymmetricMemory(Functional):
    """The same, compiled by torch with its asynchronous tensor parallelism, which needs GPUs."""

    name = "torch symmetric memory, compiled"


class Imbrex(Functional):
    """Imbrex' operators; with a codec, sums travel in so many bits."""

    def __init__(self, group, split, codec=None):
        super().__init__(group, split)
        self.codec, self.name = codec, f"Imbrex {codec}" if codec else "Imbrex"

    def columns(self, x, weights):
        if self.split:
            return imbrex.torch.all_gather_matmul(x, [weight.t() for weight in weights], self.group)
        return super().columns(x, weights)

    def rows(self, x, weight):
        if self.split:
            return imbrex.torch.matmul_reduce_scatter(x, weight.t(), self.group, codec=self.codec)
        return imbrex.torch.matmul_all_reduce(x, weight.t(), self.group, codec=self.codec)


class Reported(Imbrex):
    """Imbrex with a codec behind the product, which tells the largest error that it may have caused in a sum."""

    def __init__(self, group, codec):
        super().__init__(group, False, codec)
        self.bound = 0.0

    def rows(self, x, weight):
        y, report = imbrex.torch.all_reduce(F.linear(x, weight), self.group, codec=self.codec, report=True)
        self.bound = max(self.bound, report.largest_error)
        return y


class _Gathered(torch.autograd.Function):
    """What a gather of x would have the shape of; back: this rank's part."""

    @staticmethod
    def forward(ctx, x, whole):
        ctx.part = x.shape[0]
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx, dy):
        return dy[: ctx.part], None


class _Scattered(torch.autograd.Function):
    """This rank's part, not summed; back: what a gather would have the shape of."""

    @staticmethod
    def forward(ctx, y, part, whole):
        ctx.save_for_backward(whole)
        return y[:part]

    @staticmethod
    def backward(ctx, _):
        return ctx.saved_tensors[0], None, None


class Neither(Functional):
    """No communication: the same products on numbers of the same shapes, whose results mean nothing."""

    name = "no communication"

    def __init__(self, group, split):
        super().__init__(group, split)
        self._kept = {}

    def _whole(self, like, rows):
        key = (rows, *like.shape[1:], like.dtype)
        if key not in self._kept:
            self._kept[key] = torch.randn(key[:-1], device=like.device).to(like.dtype)
        return self._kept[key]

    def columns(self, x, weights):
        if self.split:
            x = _Gathered.apply(x, self._whole(x, x.shape[0] * self.ranks))
        return [F.linear(x, weight) for weight in weights]

    def rows(self, x, weight):
        y = F.linear(x, weight)
        return _Scattered.apply(y, y.shape[0] // self.ranks, self._whole(y, y.shape[0])) if self.split else y
