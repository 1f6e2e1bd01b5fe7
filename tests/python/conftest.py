"""What all tests share: one pool of ranks, replaced after a test that broke it."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


from pool import Failure, Pool

# torch keeps compiled graphs by what they are made of, without the schemas of operators that are not its own: those of
# another version of the package would be found in a cache that outlives a run.
_cache = tempfile.mkdtemp(prefix="imbrex-inductor-")
atexit.register(shutil.rmtree, _cache, ignore_errors=True)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _cache
# Four ranks compile at once on a few cores: threads of a rank's own would only be more to wait for.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Inductor's own kernels do without vectors: else each rank has g++, and a Python that loads torch, try every kind.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

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
