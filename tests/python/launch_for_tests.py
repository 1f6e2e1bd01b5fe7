"""How tests start ranks by torchrun: at a port of its own, so that other jobs of the machine are in no way."""

from __future__ import annotations

import sys


def torchrun(ranks: int) -> list[str]:
    """The command, up to the program."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
