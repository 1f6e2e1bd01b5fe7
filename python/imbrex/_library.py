"""Finds and loads what is compiled: the library, the operators for torch, the program."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path

from ._errors import Error

# Libraries that Imbrex takes where it finds them when it runs. torch's own wheels hold them in these folders.
_NVIDIA = ("libcublasLt.so.13", "libnccl.so.2")


def package_folder() -> Path:
    """The folder that holds lib/, bin/ and share/."""
    here = Path(__file__).resolve().parent
    if (here / "lib").is_dir():
        return here
    # An editable install keeps what is compiled in site-packages, and the Python sources where they are.
    for entry in sys.path:
        folder = Path(entry) / "imbrex"
        if (folder / "lib").is_dir():
            return folder
    raise Error(f"{here} holds no lib/: Imbrex is not built here; `pip install .` in its source tree installs it")


def program() -> Path:
    """The command line program that comes with the package."""
    return package_folder() / "bin" / "imbrex"


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Error(f"{path} cannot be loaded: {error}") from None


@cache
def library() -> ctypes.CDLL:
    """libimbrex.so, loaded once."""
    found = sorted((package_folder() / "lib").glob("libimbrex.so.*"))
    if not found:
        raise Error(f"{package_folder() / 'lib'} holds no libimbrex.so: install the package again")
    return _load(found[0])


@cache
def torch_operators() -> ctypes.CDLL:
    """libimbrex_torch.so, which tells torch of the operators when it is loaded. torch is loaded before."""
    library()
    return _load(package_folder() / "lib" / "libimbrex_torch.so")


@cache
def preload_nvidia() -> None:
    """
    Loads cuBLASLt and NCCL from NVIDIA's wheels where they are installed and there is a GPU.

    With torch they are loaded already, and the system's are found without help.
    """
    if not os.path.exists("/dev/nvidiactl") or "torch" in sys.modules:
        return
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for name in _NVIDIA:
            for path in sorted(Path(root).glob(f"*/lib/{name}")):
                try:
                    ctypes.CDLL(str(path))
                except OSError:
                    continue
