"""The tiles that kernels compute: the lines of src/execute/cuda/products/variants.def."""

import re
from typing import NamedTuple

from report import ROOT

LIST = ROOT / "src/execute/cuda/products/variants.def"
LINE = re.compile(r"^IMBREX_SM90\((\w+), (\d+), (\d+), (\w+), (\w+)\)$|^IMBREX_SM80\((\d+), (\d+), (\w+), (\w+)\)$", re.M)
# No machine file has constants of these: the simulator takes those of the nearest tile.
UNFITTED = {(64, 192)}


class Variant(NamedTuple):
    hopper: bool
    rows: int
    columns: int
    type: str


def variants(text=None):
    """The variants of the list, or of a text like it."""
    return [Variant(bool(m[1]), int(m[2] or m[6]), int(m[3] or m[7]), m[5] or m[9])
            for m in LINE.finditer(LIST.read_text() if text is None else text)]


def shapes():
    """Rows and columns of the tiles of bf16 on Hopper whose constants are fitted; the smallest first."""
    return sorted({(v.rows, v.columns) for v in variants() if v.hopper and v.type == "bf16"} - UNFITTED)


def shape(rows, columns):
    """(rows, columns), where a kernel has such a tile."""
    if (rows, columns) not in shapes():
        raise ValueError(f"{LIST.name} has no fitted tile of {rows} x {columns}; it has {shapes()}")
    return rows, columns
