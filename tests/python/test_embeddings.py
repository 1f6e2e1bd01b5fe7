"""Embeddings for NumPy and DLPack, also where torch is absent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import imbrex
from imbrex._library import program

SCRIPT = Path(__file__).with_name("embeddings_without_torch.py")


@pytest.mark.parametrize("count", (1, 2, 4))
@pytest.mark.parametrize("checked", ("0", "1"))
def test_without_torch(count, checked):
    """Lookups, updates and refusals, also where ranks compare their calls."""
    command = [str(program()), "launch", "-n", str(count), "--", sys.executable, str(SCRIPT)]
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "IMBREX_WAIT_LIMIT": "30"}
    environment["IMBREX_CHECK_CALLS"] = checked
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("is right") == count


def test_placement():
    """Heavy tables are cut, every column is placed once, and memory bounds what a rank holds."""
    tables = [imbrex.EmbeddingTable(1000, 128, 50), (1000, 16), (1000, 16), (500, 64)]
    placed = imbrex.place_tables(tables, 4)
    assert 1 <= placed.balance < 1.5
    for number, table in enumerate(tables):
        cuts = sorted((one.begin, one.end) for one in placed.shards if one.table == number)
        assert [begin for begin, _ in cuts] == [0, *(end for _, end in cuts[:-1])] and cuts[-1][1] == table[1]
    assert len([one for one in placed.shards if one.table == 0]) > 1
    with pytest.raises(imbrex.InvalidInput):
        imbrex.place_tables(tables, 4, memory=1000)
