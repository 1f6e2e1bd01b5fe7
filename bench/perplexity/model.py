"""A small transformer over characters, split over ranks as tensor parallelism splits it, and the text it is about.

Heads and hidden units are split; each rank has a partial sum at o_proj and at down_proj, and an all-reduce adds them. The
same code trains (one rank, jax.numpy, no rounding) and is evaluated (numpy, rounded to bf16 where a GPU's kernels round).
"""

import hashlib
import pydoc_data.topics

LAYERS, WIDTH, HEADS, HEAD_WIDTH, HIDDEN, CONTEXT = 4, 256, 4, 32, 384, 128
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
SITES = ("o_proj", "down_proj")
HELD_OUT = 0.08

SHAPES = {
    "embedding": (len(CHARACTERS), WIDTH),
    "attention_norm": (LAYERS, WIDTH), "q": (LAYERS, WIDTH, HEADS * HEAD_WIDTH), "k": (LAYERS, WIDTH, HEADS * HEAD_WIDTH),
    "v": (LAYERS, WIDTH, HEADS * HEAD_WIDTH), "o": (LAYERS, HEADS * HEAD_WIDTH, WIDTH),
    "mlp_norm": (LAYERS, WIDTH), "up": (LAYERS, WIDTH, HIDDEN), "down": (LAYERS, HIDDEN, WIDTH),
    "last_norm": (WIDTH,),
}


def text():
    """(to train on, held out): the manual that Python ships for help(), every paragraph once, other characters left out.
    What is held out occurs nowhere in the other."""
    topics = pydoc_data.topics.topics
    paragraphs = dict.fromkeys(part for name in sorted(topics) for part in topics[name].split("\n\n"))
    whole = "".join(c for c in "\n\n".join(paragraphs) if c in CHARACTERS)
    cut = round(len(whole) * (1 - HELD_OUT))
    train, rest = whole[:cut], whole[cut:]
    return train, "\n\n".join(part for part in rest.split("\n\n") if part not in train)


def digest():
    """A digest of the text: another Python ships another manual."""
    return hashlib.sha256("".join(text()).encode()).hexdigest()


def codes(string):
    place = {c: i for i, c in enumerate(CHARACTERS)}
    return [place[c] for c in string]


def normed(x, weight, xp):
    return x * weight / xp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def rotated(x, xp):
    """Rotary positions of [window, position, head, width]."""
    half = x.shape[-1] // 2
    angles = xp.arange(x.shape[1], dtype=xp.float32)[:, None] * 10000.0 ** (-xp.arange(half, dtype=xp.float32) / half)
    cos, sin = xp.cos(angles)[None, :, None, :], xp.sin(angles)[None, :, None, :]
    a, b = x[..., :half], x[..., half:]
    return xp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def attention(h, q, k, v, rounded, xp):
    """Causal, of the heads whose weights these are; [window, position, heads * width]."""
    windows, length, _ = h.shape
    heads = lambda w: rounded(h @ w).reshape(windows, length, -1, HEAD_WIDTH)
    q, k, v = rounded(rotated(heads(q), xp)), rounded(rotated(heads(k), xp)), heads(v)
    scores = xp.einsum("bihd,bjhd->bhij", q, k) / HEAD_WIDTH**0.5
    scores = xp.where(xp.tril(xp.ones((length, length), dtype=bool)), scores, -1e30)
    weights = xp.exp(scores - scores.max(-1, keepdims=True))
    weights = rounded(weights / weights.sum(-1, keepdims=True))
    return rounded(xp.einsum("bhij,bjhd->bihd", weights, v)).reshape(windows, length, -1)


def gelu(x, xp):
    return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def logits(p, tokens, xp, ranks=1, rounded=lambda x: x, reduce=lambda site, parts: parts[0]):
    """[window, position, character]. `reduce` adds the ranks' partial sums at a site of SITES."""
    part = lambda w, rank, axis: xp.split(w, ranks, axis)[rank]
    x = p["embedding"][tokens]
    for i in range(LAYERS):
        h = rounded(normed(x, p["attention_norm"][i], xp))
        qkv = lambda rank: [part(p[name][i], rank, 1) for name in "qkv"]
        sums = [rounded(attention(h, *qkv(rank), rounded, xp) @ part(p["o"][i], rank, 0)) for rank in range(ranks)]
        x = rounded(x + reduce("o_proj", sums))
        h = rounded(normed(x, p["mlp_norm"][i], xp))
        hidden = lambda rank: rounded(gelu(rounded(h @ part(p["up"][i], rank, 1)), xp))
        sums = [rounded(hidden(rank) @ part(p["down"][i], rank, 0)) for rank in range(ranks)]
        x = rounded(x + reduce("down_proj", sums))
    return rounded(normed(x, p["last_norm"], xp)) @ p["embedding"].T


def negative_log_likelihood(p, tokens, xp, **how):
    """The likelihood of each next character, [window, position]; tokens [window, position + 1]."""
    scores = logits(p, tokens[:, :-1], xp, **how)
    scores = scores - scores.max(-1, keepdims=True)
    chosen = xp.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0]
    return xp.log(xp.exp(scores).sum(-1)) - chosen
