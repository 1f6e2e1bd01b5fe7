"""Tests that read paths pass where package, torch and tests lie in folders whose names stand for something else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import imbrex

ROOT = Path(__file__).resolve().parents[2]
# Tests that read paths, or start programs by paths.
TESTS = (
    "test_drop_in.py::test_restored",
    "test_declarations.py::test_torch_declares_the_same",
    "test_declarations.py::test_structures_are_those_of_the_header",
    "test_docs.py::test_torch_examples",
)


def place_of(folder: Path) -> Path:
    """A clone's tests and package, and torch, all in this folder; what is large is linked."""
    site = folder / "site"
    shutil.copytree(
        Path(imbrex.__file__).parent,
        site / "imbrex",
        ignore=lambda path, names: [name for name in names if name in ("lib", "bin", "include", "__pycache__")],
    )
    for large in ("lib", "bin", "include"):
        if (Path(imbrex.__file__).parent / large).exists():
            (site / "imbrex" / large).symlink_to(Path(imbrex.__file__).parent / large)
    torch = pytest.importorskip("torch")
    (site / "torch").symlink_to(Path(torch.__file__).parent)
    for part in ("tests/python", "python/csrc", "include", "docs", "README.md"):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    return site


@pytest.mark.parametrize("name", ("imbrex", "a folder with a blank"))
def test_in_a_folder(tmp_path, name):
    """With a home of its own, which is empty, and a folder of its own for temporary files."""
    folder, home = tmp_path / name, tmp_path / f"{name} home"
    site = place_of(folder)
    home.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site), "HOME": str(home)}
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += [str(folder / "tests/python" / test) for test in TESTS]
    # Not within tmp_path: a socket's path is at most 107 bytes long.
    with tempfile.TemporaryDirectory(prefix=f"{name} ") as temporary:
        environment["TMPDIR"] = temporary
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout and str(site) != str(Path(imbrex.__file__).parents[1])
