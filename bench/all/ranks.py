#!/usr/bin/env python3
"""
Starts a program once per rank, as torchrun does, all in this process's session: ending that ends them.

usage: ranks.py COUNT PROGRAM [ARGUMENT...]

Ends with the first code that is not 0, and ends the other ranks then.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main(arguments: list[str]) -> int:
    """Starts, and waits."""
    if len(arguments) < 2 or not arguments[0].isdigit() or int(arguments[0]) < 1:
        sys.exit(__doc__)
    count, command = int(arguments[0]), arguments[1:]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    ranks = [subprocess.Popen(command, env={**shared, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(count)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    code = 0
    try:
        codes: list[int | None] = [None]
        while code == 0 and None in codes:
            time.sleep(0.05)
            codes = [rank.poll() for rank in ranks]
            code = next((one for one in codes if one), 0)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
