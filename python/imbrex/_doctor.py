"""What this installation offers, and what it lacks, in words."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from . import _c
from ._errors import Error
from ._library import package_folder, program


def doctor() -> bool:
    """
    Prints what this machine and this installation offer, and what is missing.

    Returns:
        Whether everything that is installed can be used. What is merely absent, such as torch or a GPU, is told only.

    Example:
        >>> import imbrex
        >>> usable = imbrex.doctor()  # doctest: +ELLIPSIS
        Python ...
    """
    print(f"Python {sys.version.split()[0]}: imbrex in {package_folder()}")
    sound = True
    try:
        print(f"library: version {_c.function('version')().decode()}")
    except Error as error:
        sound = False
        print(f"library: {error}")
    if importlib.util.find_spec("torch") is None:
        print("torch: not installed; imbrex.torch needs 2.10 or later (pip install 'torch>=2.10')")
    else:
        try:
            import torch

            import imbrex.torch

            print(f"torch {torch.__version__}: {imbrex.torch.describe()}")
        except Exception as error:
            sound = False
            print(f"torch: imbrex.torch cannot be used: {error}")
    sys.stdout.flush()
    # The program asks python3 for its packages: let that be this one.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    done = subprocess.run([str(program()), "doctor"], check=False, env={**os.environ, "PATH": path})
    return done.returncode == 0 and sound
