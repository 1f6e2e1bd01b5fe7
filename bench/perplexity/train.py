#!/usr/bin/env python3
"""Trains the model of model.py and writes its weights, float16, to weights.npz.

usage: train.py [STEPS]    700 steps take some ten minutes on one core; needs jax and numpy
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import model

OUT = Path(__file__).resolve().parent / "weights.npz"
STEPS, BATCH, RATE, DECAY, SEED = 700, 16, 3e-3, 0.1, 7


def initial(random):
    p = {}
    for name, shape in model.SHAPES.items():
        if name.endswith("norm"):
            p[name] = jnp.ones(shape)
        else:
            scale = 0.02 if name == "embedding" else shape[-2] ** -0.5 / (2 * model.LAYERS if name in ("o", "down") else 1) ** 0.5
            p[name] = jnp.asarray(random.normal(0, scale, shape), jnp.float32)
    return p


def loss_of(p, tokens):
    return model.negative_log_likelihood(p, tokens, jnp).mean()


@jax.jit
def step(p, first, second, i, steps, tokens):
    """AdamW, its rate warmed up and then falling as a cosine."""
    loss, gradients = jax.value_and_grad(loss_of)(p, tokens)
    norm = jnp.sqrt(sum((g * g).sum() for g in gradients.values()))
    rate = RATE * jnp.minimum((i + 1) / 100, 0.05 + 0.475 * (1 + jnp.cos(jnp.pi * i / steps)))
    result = {}, {}, {}
    for name, g in gradients.items():
        g = g / jnp.maximum(norm, 1)
        m, v = 0.9 * first[name] + 0.1 * g, 0.98 * second[name] + 0.02 * g * g
        move = (m / (1 - 0.9 ** (i + 1))) / (jnp.sqrt(v / (1 - 0.98 ** (i + 1))) + 1e-8)
        decay = 0 if name.endswith("norm") else DECAY
        for to, value in zip(result, (p[name] - rate * (move + decay * p[name]), m, v)):
            to[name] = value
    return *result, loss


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    random = np.random.default_rng(SEED)
    train, held_out = (np.array(model.codes(part)) for part in model.text())
    p = initial(random)
    first = second = {name: jnp.zeros_like(w) for name, w in p.items()}
    print(f"{sum(w.size for w in p.values())} parameters, {len(train)} characters to train on, {len(held_out)} held out", flush=True)
    begin = time.monotonic()
    for i in range(steps):
        starts = random.integers(0, len(train) - model.CONTEXT - 1, BATCH)
        tokens = jnp.asarray(np.stack([train[s : s + model.CONTEXT + 1] for s in starts]))
        p, first, second, loss = step(p, first, second, i, steps, tokens)
        if i % 100 == 99:
            print(f"step {i + 1}: {float(loss):.3f} nats a character, {time.monotonic() - begin:.0f} s", flush=True)
    np.savez_compressed(OUT, text=model.digest(), **{name: np.asarray(w, np.float16) for name, w in p.items()})
    print(f"{OUT.name}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
