"""What is declared twice says the same twice: torch's interface, and c.h for ctypes."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from imbrex import _c, _infer

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "python/csrc/torch_abi.hpp"


def compile_beside_torch(folder: Path, header: str) -> subprocess.CompletedProcess[str]:
    """Compiles torch's headers and the text of ours in one file: C functions cannot be declared in two ways."""
    import torch

    (folder / "ours.hpp").write_text(header)
    (folder / "both.cpp").write_text(
        "#include <torch/csrc/inductor/aoti_torch/c/shim.h>\n"
        '#include <torch/csrc/stable/c/shim.h>\n#include "ours.hpp"\n'
    )
    include = Path(torch.__file__).parent / "include"
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{folder}", f"-isystem{include}", str(folder / "both.cpp")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_torch_declares_the_same(tmp_path):
    pytest.importorskip("torch")
    text = OURS.read_text()
    done = compile_beside_torch(tmp_path, text)
    assert done.returncode == 0, done.stderr[:2000]
    # Every function is torch's, too: a name that torch does not have would be noticed only when it is called.
    theirs = "".join(
        (Path(__import__("torch").__file__).parent / "include/torch/csrc" / name).read_text()
        for name in ("inductor/aoti_torch/c/shim.h", "stable/c/shim.h")
    )
    names = re.findall(r"\b((?:aoti_)?torch_\w+)\(", text)
    assert len(names) > 15
    for name in names:
        assert re.search(rf"\b{name}\(", theirs), name


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ("int64_t* ret_dim", "int32_t* ret_dim"),
        ("const int64_t* strides_ptr", "int64_t* strides_ptr"),
        ("uint64_t, uint64_t), uint64_t", "uint64_t, uint64_t), uint32_t"),
    ],
)
def test_a_difference_is_noticed(tmp_path, ours, other):
    pytest.importorskip("torch")
    assert ours in OURS.read_text()
    assert compile_beside_torch(tmp_path, OURS.read_text().replace(ours, other, 1)).returncode != 0


STRUCTURES = {
    "imbrex_view": _c.View,
    "imbrex_operand": _c.Operand,
    "imbrex_unique_id": _c.UniqueId,
    "imbrex_world_options": _c.WorldOptions,
    "imbrex_gemm": _c.Gemm,
    "imbrex_operator_options": _c.OperatorOptions,
    "imbrex_all_reduce_options": _c.AllReduceOptions,
    "imbrex_rms_norm_options": _c.RmsNormOptions,
    "imbrex_report": _c.ReportFields,
    "imbrex_packed_layout": _c.PackedLayoutFields,
    "imbrex_operator_rules": _c.OperatorRules,
    "imbrex_call": _c.Call,
    "imbrex_results": _c.Results,
    "imbrex_table": _c.Table,
    "imbrex_table_shard": _c.TableShard,
    "imbrex_embedding_shape": _c.EmbeddingShape,
}


def test_structures_are_those_of_the_header(tmp_path):
    """Sizes, and where each field lies; fields of the header that ctypes lacks would change the size."""
    lines, expected = [], []
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        expected.append(ctypes.sizeof(structure))
        for field, *_ in structure._fields_:
            lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
            expected.append(getattr(structure, field).offset)
    numbers = [
        ("IMBREX_E4M3", _c.E4M3),
        ("IMBREX_INT8", _c.INT8),
        ("IMBREX_INT64", _c.INT64),
        ("IMBREX_ROWS_INT8", _c.ROWS_INT8),
        ("IMBREX_POOLING_MEAN", _c.POOLING_MEAN),
        ("IMBREX_ROW_WISE_ADAGRAD", _c.ROW_WISE_ADAGRAD),
        ("IMBREX_CUDA", _c.CUDA),
        ("IMBREX_SCALES_ROW", _c.SCALES_ROW),
        ("IMBREX_GEMM_ALL_TO_ALL", _infer.kinds()["matmul_all_to_all"]),
        ("IMBREX_GEMM_REDUCE_SCATTER", _infer.kinds()["matmul_reduce_scatter"]),
        ("IMBREX_MOST_DIMS", _c.MOST_DIMS),
        ("IMBREX_MOST_PRODUCTS", _c.MOST_PRODUCTS),
        ("IMBREX_INVALID_INPUT", 2),
    ]
    for name, value in numbers:
        lines.append(f'printf("%zu\\n", (size_t){name});')
        expected.append(value)
    source = "#include <stddef.h>\n#include <stdio.h>\n#include <imbrex/c.h>\nint main(void) {" + "".join(lines) + "}\n"
    (tmp_path / "sizes.c").write_text(source)
    program = tmp_path / "sizes"
    command = ["gcc", f"-I{ROOT / 'include'}", str(tmp_path / "sizes.c"), "-o", str(program)]
    subprocess.run(command, check=True)
    told = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in told.split()] == expected


def test_functions_are_those_of_the_header():
    """The library has every function, with as many arguments as the header says."""
    header = "".join((ROOT / "include/imbrex" / name).read_text() for name in ("c.h", "c/infer.h"))
    for name, (_, arguments) in _c._FUNCTIONS.items():
        _c.function(name)
        match = re.search(rf"\bimbrex_{name}\(([^)]*)\)", header)
        assert match, name
        given = [one for one in match[1].split(",") if one.strip() not in ("", "void")]
        assert len(given) == len(arguments), name
