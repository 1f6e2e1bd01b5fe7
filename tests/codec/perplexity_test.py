#!/usr/bin/env python3
"""The perplexities of bench/perplexity: the split model is the whole one, its all-reduces are the program's, the table.

usage: perplexity_test.py    exits 77 where there is no numpy; IMBREX_PROGRAM names the program
"""

import os
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/perplexity"))
try:
    import numpy as np
except ImportError:
    print("no numpy")
    sys.exit(77)
import evaluate  # noqa: E402
import model  # noqa: E402
import tables  # noqa: E402

PROGRAM = os.environ["IMBREX_PROGRAM"]


def random_parts(rows=24, spread=1.0):
    random = np.random.default_rng(3)
    return [evaluate.bf16(random.normal(0, spread, (2, rows, model.WIDTH))) for _ in range(evaluate.RANKS)]


def random_model():
    random = np.random.default_rng(5)
    return {name: np.ones(shape, np.float32) if name.endswith("norm") else random.normal(0, shape[-2] ** -0.5, shape).astype(np.float32)
            for name, shape in model.SHAPES.items()}


class Sums(unittest.TestCase):
    def test_rounding_is_to_nearest_even(self):
        x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3, 0], np.float32)
        self.assertEqual(evaluate.bf16(x).tolist(), [1, 1, 1 + 2**-6, 1 + 2**-7, -3, 0])

    def test_exact_sums_are_the_programs(self):
        parts = random_parts()
        self.assertTrue(np.array_equal(evaluate.reduced(PROGRAM, "exact", parts), evaluate.exact(parts)))

    def test_codecs_lose_what_they_should(self):
        parts = random_parts()
        error = lambda codec: float(np.abs(evaluate.reduced(PROGRAM, codec, parts) - sum(parts)).max())
        eight, four = error("int8"), error("int4")
        self.assertTrue(0 < eight < 0.15 < four < 2, (eight, four))

    def test_an_unknown_codec_is_told(self):
        with self.assertRaisesRegex(RuntimeError, "int9"):
            evaluate.reduced(PROGRAM, "int9", random_parts(1))


class Model(unittest.TestCase):
    def test_split_over_ranks_it_is_the_same(self):
        p = random_model()
        tokens = np.random.default_rng(6).integers(0, len(model.CHARACTERS), (2, 33))
        whole = model.negative_log_likelihood(p, tokens, np)
        sites = []

        def reduce(site, parts):
            sites.append((site, len(parts)))
            return sum(parts)

        split = model.negative_log_likelihood(p, tokens, np, ranks=4, reduce=reduce)
        self.assertEqual(sites, [(site, 4) for _ in range(model.LAYERS) for site in model.SITES])
        self.assertLess(np.abs(whole - split).max(), 1e-3)
        lossy = model.negative_log_likelihood(p, tokens, np, ranks=4, reduce=lambda site, parts: parts[0])
        self.assertGreater(np.abs(whole - lossy).max(), 0.1)

    def test_no_character_sees_a_later_one(self):
        p = random_model()
        tokens = np.random.default_rng(7).integers(0, len(model.CHARACTERS), (1, 17))
        other = tokens.copy()
        other[0, 10:] = (other[0, 10:] + 1) % len(model.CHARACTERS)
        a, b = (model.logits(p, t, np)[0] for t in (tokens, other))
        self.assertLess(np.abs(a[:10] - b[:10]).max(), 1e-4)
        self.assertGreater(np.abs(a[10:] - b[10:]).max(), 0.1)

    def test_held_out_text_is_not_trained_on(self):
        train, rest = model.text()
        self.assertGreater(len(rest), 20000)
        self.assertFalse([part for part in rest.split("\n\n") if part in train])


class Table(unittest.TestCase):
    def test_a_row_a_codec(self):
        row = lambda sites, perplexity: {"codec": "int8", "sites": sites, "perplexity": perplexity, "nats_more": 0.001, "standard_error": 0.0002}
        rows = [row(["o_proj", "down_proj"], 3.5), row(["o_proj"], 3.4), row(["down_proj"], 3.45)]
        text = tables.table({"exact": 3.3, "rows": rows})
        self.assertIn("| exact | 3.300 |", text)
        self.assertIn("| `int8` | 3.500 | +0.10 ± 0.02 | 3.400 | 3.450 |", text)
        self.assertIn("| `int8` | 3.500 | +0.10 ± 0.02 | 3.400 | - |", tables.table({"exact": 3.3, "rows": rows[:2]}))


if __name__ == "__main__":
    unittest.main()
