"""What all tests share: one pool of ranks, replaced after a test that broke it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pool import Failure, Pool

# Without these, operators on GPUs do without NCCL. The ranks' processes begin later.
for name in ("NCCL_NVLS_ENABLE", "NCCL_GRAPH_REGISTER"):
    os.environ.setdefault(name, "0")


class Ranks:
    """A pool that is made when it is first used, and again when a test has left it broken."""

    def __init__(self) -> None:
        self.pool: Pool | None = None

    def run(self, function: Any, **kwargs: Any) -> list[Any]:
        """As Pool.run."""
        if self.pool is None:
            self.pool = Pool()
        try:
            return self.pool.run(function, **kwargs)
        except Failure:
            self.close()
            raise

    def close(self) -> None:
        """Ends the pool."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Four ranks."""
    made = Ranks()
    yield made
    made.close()
