"""A decoder layer in plain torch, split over ranks by a way, and a model of some of them."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def rotated(x, begin):
    """RoPE of [sequence, batch, heads, size], whose first position is `begin`."""
    half = x.shape[-1] // 2
    rates = 10000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.outer(torch.arange(begin, begin + x.shape[0], device=x.device), rates)[:, None, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Layer(nn.Module):
    """Weights are [out, in]; each rank has rows of the first of a pair and columns of the second."""

    def __init__(self, shape, way, device, dtype):
        super().__init__()
        self.shape, self.way = shape, way
        if shape.kv_heads % way.ranks:
            raise ValueError(f"{way.ranks} ranks: they must divide the {shape.kv_heads} heads of keys and values of {shape.name}")
        make = {"device": device, "dtype": dtype}
        queries, keys, wide = (count // way.ranks for count in (shape.hidden, shape.kv_heads * shape.head_size, shape.wide))

        def weight(rows, columns, inputs):
            return nn.Parameter(torch.randn(rows, columns, **make) / math.sqrt(inputs))

        self.q = weight(queries, shape.hidden, shape.hidden)
        self.k, self.v = (weight(keys, shape.hidden, shape.hidden) for _ in range(2))
        self.o = weight(shape.hidden, queries, shape.hidden)
        self.up = weight(wide, shape.hidden, shape.hidden)
        self.gate = weight(wide, shape.hidden, shape.hidden) if shape.gated else None
        self.down = weight(shape.hidden, wide, shape.wide)
        norm = nn.RMSNorm if shape.gated else nn.LayerNorm
        self.norms = nn.ModuleList(norm(shape.hidden, eps=1e-5, **make) for _ in range(2))

    def attention(self, q, k, v, cache):
        """Causal, over [sequence, batch, columns]; with a cache, one more token behind what it holds."""
        q, k, v = (one.unflatten(-1, (-1, self.shape.head_size)) for one in (q, k, v))
        if self.shape.gated:
            begin = 0 if cache is None else cache[0].shape[2] - q.shape[0]
            q, k = rotated(q, begin), rotated(k, begin)
        q, k, v = (one.permute(1, 2, 0, 3) for one in (q, k, v))
        if cache is not None:
            for kept, new in zip(cache, (k, v)):
                kept[:, :, -new.shape[2] :].copy_(new)
            k, v = cache
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=self.shape.kv_heads != self.shape.heads)
        return y.permute(2, 0, 1, 3).flatten(2).contiguous()

    def forward(self, x, cache=None):
        """[sequence, batch, hidden], or the rank's part of the sequence."""
        q, k, v = self.way.columns(self.norms[0](x), [self.q, self.k, self.v])
        x = x + self.way.rows(self.attention(q, k, v, cache), self.o)
        h = self.norms[1](x)
        if self.gate is None:
            return x + self.way.rows(F.gelu(self.way.columns(h, [self.up])[0]), self.down)
        gate, up = self.way.columns(h, [self.gate, self.up])
        return x + self.way.rows(F.silu(gate) * up, self.down)


class Model(nn.Module):
    """Embedding, layers and head; the first and the last are the same on every rank."""

    def __init__(self, shape, count, way, device, dtype):
        super().__init__()
        make = {"device": device, "dtype": dtype}
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden, **make)
        self.layers = nn.ModuleList(Layer(shape, way, device, dtype) for _ in range(count))
        self.norm = (nn.RMSNorm if shape.gated else nn.LayerNorm)(shape.hidden, eps=1e-5, **make)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False, **make)

    def forward(self, tokens):
        """Logits of [sequence, batch], or of the rank's part of the sequence."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    def copies(self):
        """Parameters that every rank has all of."""
        return [one for name, one in self.named_parameters() if name.split(".")[-1] not in PARTS]

    def take(self, whole):
        """This rank's parts of a whole model's weights."""
        with torch.no_grad():
            for (name, mine), theirs in zip(self.named_parameters(), whole.parameters()):
                dim = PARTS.get(name.split(".")[-1])
                way = self.layers[0].way
                mine.copy_(theirs if dim is None else theirs.chunk(way.ranks, dim)[way.rank])
        return self


# The dimension along which a weight of a layer is split.
PARTS = {"q": 0, "k": 0, "v": 0, "gate": 0, "up": 0, "o": 1, "down": 1}
