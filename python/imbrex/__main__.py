"""`imbrex` at the command line and `python -m imbrex`: the program that comes with the package."""

from __future__ import annotations

import os
import sys

from ._errors import Error
from ._library import program


def main() -> None:
    """Becomes the program, with the same arguments."""
    try:
        path = str(program())
    except Error as error:
        sys.exit(f"imbrex: {error}")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
