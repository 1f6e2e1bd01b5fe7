"""The models' layers as numbers, whole or scaled down, and the products that a layer consists of."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Shape:
    """A decoder layer, and how many of them the model has. `gated`: SwiGLU, RMSNorm and RoPE; else GELU and LayerNorm."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    wide: int
    gated: bool
    vocabulary: int

    @property
    def hidden(self):
        return self.heads * self.head_size

    def products(self, rows):
        """(operator, M, N, K) of a layer that is split by sequence, of the whole product."""
        queries = (self.heads + 2 * self.kv_heads) * self.head_size
        return [("all_gather_gemm", rows, queries, self.hidden),
                ("gemm_reduce_scatter", rows, self.hidden, self.hidden),
                ("all_gather_gemm", rows, self.wide * (2 if self.gated else 1), self.hidden),
                ("gemm_reduce_scatter", rows, self.hidden, self.wide)]


SHAPES = {shape.name: shape for shape in (
    Shape("llama2-70b", 80, 64, 8, 128, 28672, True, 32000),
    Shape("llama3-8b", 32, 32, 8, 128, 14336, True, 128256),
    Shape("gpt3-175b", 96, 96, 96, 128, 49152, False, 50257),
)}


def scaled(shape, divisor):
    """The same heads, each of a smaller size, and an MLP that is narrower by as much."""
    if divisor < 1 or shape.head_size % divisor or shape.wide % divisor or shape.head_size // divisor % 2:
        raise ValueError(f"scale {divisor}: it must divide {shape.head_size} and {shape.wide}, and leave heads of even size")
    return replace(shape, head_size=shape.head_size // divisor, wide=shape.wide // divisor)
