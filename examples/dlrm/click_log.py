"""
A synthetic click log, the same for each seed: numbers and rows of tables of what was shown, and whether it was clicked.

python3 examples/dlrm/click_log.py clicks.npz [--rows 25600] [--seed 0]
"""

import argparse

import numpy as np

NUMBERS = 13  # that each row of the log has
TABLES = ((20000, 20), (5000, 1), (3000, 1), (1000, 3), (1000, 1), (200, 1), (50, 1), (10, 1))  # rows, mean of a bag's


def click_log(rows: int, seed: int) -> dict[str, np.ndarray]:
    """
    `numbers` [rows, 13], `clicked` [rows], `lengths` [rows, tables], and `indices`, bag by bag and row by row.

    Few rows of a table are shown often, and many seldom. The rows shown decide, with the numbers, on the click.
    """
    random = np.random.default_rng(seed)
    numbers = random.standard_normal((rows, NUMBERS), np.float32)
    score = numbers @ random.standard_normal(NUMBERS, np.float32) / NUMBERS**0.5
    bags, lengths = [], np.zeros((rows, len(TABLES)), np.int64)
    for t, (count, mean) in enumerate(TABLES):
        lengths[:, t] = random.poisson(mean, rows) if mean > 1 else random.random(rows) < 0.95
        indices = (count * random.random(lengths[:, t].sum()) ** 3).astype(np.int64)
        liked = random.standard_normal(count, np.float32)
        ends = lengths[:, t].cumsum()
        behind = np.concatenate([[0], liked[indices].cumsum()])
        score += (behind[ends] - behind[ends - lengths[:, t]]) / max(1, mean)
        bags.append(np.split(indices, ends[:-1]))
    clicked = (random.random(rows) < 1 / (1 + np.exp(-score))).astype(np.float32)
    indices = np.concatenate([bag[row] for row in range(rows) for bag in bags])
    return {"numbers": numbers, "clicked": clicked, "lengths": lengths, "indices": indices}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--rows", type=int, default=25600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    np.savez(options.out, **click_log(options.rows, options.seed))
