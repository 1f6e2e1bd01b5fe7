#!/usr/bin/env python3
"""Checks that the tree is laid out as docs/architecture.md says: who includes whom, and that nothing is left over.

usage: check_structure.py [ROOT]      prints each fault as file: rule; exits 1 if there is one
"""

import re
import sys
from pathlib import Path

# The table that says which folder of src/ may include which others, and its rows.
TABLE = "docs/architecture.md"
ROW = re.compile(r"^\| `src/(\w+)` \|.*\|([^|]*)\|$", re.M)

# Public header -> the module that implements it. device/ headers are included by kernels of any module.
PUBLIC = {
    "error.hpp": "base",
    "types.hpp": "base",
    "environment.hpp": "base",
    "version.hpp": "base",
    "all_reduce_record.hpp": "tune",
    "codec.hpp": "codec",
    "collectives.hpp": "collectives",
    "machine.hpp": "machine",
    "plan.hpp": "plan",
    "gpu.hpp": "runtime",
    "world.hpp": "runtime",
    "timeline.hpp": "execute",
    "execute.hpp": "execute",
    "npy.hpp": "base",
    "measure.hpp": "ops",
    "ops.hpp": "ops",
    "run.hpp": "ops",
    "run_all_reduce.hpp": "ops",
}

# Users of the library: they see public headers and their own only.
USERS = ["cli", "python", "examples"]
NO_CUDA = ["plan", "codec", "machine"]
CODE_FOLDERS = ["include", "src", "cli", "python", "examples", "tests", "bench"]
CODE = {".cpp", ".hpp", ".cu", ".cuh", ".c", ".h", ".inc"}
LINES = CODE | {".py", ".cmake", ".sh", ""}
MAX_LINES = 500

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
CUDA_HEADER = re.compile(r"^(cuda|nccl|nvml|nvtx|cublas|cutlass/|cute/|cooperative_groups|cub/|thrust/|mma\.h|nv/)")
TORCH = re.compile(r'^[ \t]*#\s*include\s*[<"](torch|ATen|c10)/|^\s*(import|from)\s+torch\b', re.M)
TORCH_PEERS = ("bench/peers_torch.py", "bench/peers_all_reduce.py")  # measure it
GETENV = re.compile(r"\b(secure_)?getenv\s*\(")


def files(root, folder):
    """Files under a folder of the tree, without what tools leave there."""
    base = root / folder
    if not base.is_dir():
        return
    for path in sorted(base.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
            yield path


def text_of(path):
    return path.read_text(encoding="utf-8", errors="replace")


def without_comments(text):
    """C++ text with comments blanked; strings stay, which is enough for the searches here."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def module_of_include(root, path, name, faults):
    """The module that `#include "name"` in `path` reaches, "device" for kernels' headers, or None for outside."""
    where = path.relative_to(root)
    if name.startswith("imbrex/"):
        header = name.removeprefix("imbrex/")
        if header.startswith("device/"):
            return "device"
        if header not in PUBLIC:
            faults.append(f"{where}: includes {name}, which has no module in the table of {Path(__file__).name}")
            return None
        return PUBLIC[header]
    for candidate in (path.parent / name, root / "src" / name):
        candidate = candidate.resolve()
        if candidate.is_file() and candidate.is_relative_to((root / "src").resolve()):
            return candidate.relative_to((root / "src").resolve()).parts[0]
    return None


def arrows_of(root, faults):
    """Module -> modules it may include, besides itself."""
    text = text_of(root / TABLE) if (root / TABLE).is_file() else ""
    arrows = {module: re.findall(r"[^,\s]+", cell) for module, cell in ROW.findall(text)}
    faults += [f"{TABLE}: {module} may include {target}, which is no row of the table"
               for module, targets in arrows.items() for target in targets if target not in arrows]
    return arrows


def check_arrows(root):
    faults = []
    arrows = arrows_of(root, faults)
    for path in list(files(root, "src")) + list(files(root, "include")):
        if path.suffix not in CODE:
            continue
        where = path.relative_to(root)
        if where.parts[0] == "src":
            if len(where.parts) < 3:
                faults.append(f"{where}: source files belong in a folder of src/")
                continue
            module = where.parts[1]
        elif "device" in where.parts:
            continue
        elif where.name in PUBLIC:
            module = PUBLIC[where.name]
        else:
            faults.append(f"{where}: public header without a module in the table of {Path(__file__).name}")
            continue
        if module not in arrows:
            faults.append(f"{where}: src/{module} has no row in the table of {TABLE}")
            continue
        for _, name in INCLUDE.findall(text_of(path)):
            target = module_of_include(root, path, name, faults)
            if target in (None, "device", module):
                continue
            if target not in arrows[module]:
                faults.append(f"{where}: includes {name}; {module} may not include {target}")
    for user in USERS:
        for path in files(root, user):
            if path.suffix not in CODE:
                continue
            for _, name in INCLUDE.findall(text_of(path)):
                if not name.startswith("imbrex/") and module_of_include(root, path, name, []) is not None:
                    faults.append(f"{path.relative_to(root)}: includes {name}; {user} may include public headers only")
    return faults


def check_foreign(root):
    """CUDA, torch and getenv stay where they belong."""
    faults = []
    for module in NO_CUDA:
        for path in files(root, f"src/{module}"):
            if path.suffix in (".cu", ".cuh"):
                faults.append(f"{path.relative_to(root)}: src/{module} holds no CUDA sources")
            elif path.suffix in CODE:
                for _, name in INCLUDE.findall(text_of(path)):
                    if CUDA_HEADER.match(name):
                        faults.append(f"{path.relative_to(root)}: includes {name}; src/{module} includes no CUDA header")
    for folder in CODE_FOLDERS:
        for path in files(root, folder):
            where = path.relative_to(root)
            if path.suffix not in CODE | {".py"}:
                continue
            text = text_of(path)
            in_torch_tests = where.parts[:2] == ("tests", "python")
            if where.parts[0] != "python" and not in_torch_tests and str(where) not in TORCH_PEERS and TORCH.search(text):
                faults.append(f"{where}: uses torch; torch appears only under python/ and in {', '.join(TORCH_PEERS)}")
            if folder in ("include", "src", "cli", "python", "examples") and path.suffix in CODE:
                if str(where) != "src/base/environment.cpp" and GETENV.search(without_comments(text)):
                    faults.append(f"{where}: calls getenv; only src/base/environment.cpp may")
    return faults


def check_sizes(root):
    faults = []
    for folder in CODE_FOLDERS + ["scripts", "cmake"]:
        for path in files(root, folder):
            if path.suffix in LINES and "corpus" not in path.parts:
                count = text_of(path).count("\n")
                if count > MAX_LINES:
                    faults.append(f"{path.relative_to(root)}: {count} lines; split it by role, at most {MAX_LINES}")
    return faults


def check_listed(root):
    """Every source file is named in some CMakeLists.txt, as a path from there or from the root."""
    listed = set()
    lists = [root / "CMakeLists.txt"] + [path for folder in CODE_FOLDERS for path in files(root, folder)
                                         if path.name == "CMakeLists.txt"]
    for path in lists:
        if not path.is_file():
            continue
        for word in re.sub(r"#.*", "", text_of(path)).replace("(", " ").replace(")", " ").split():
            word = re.sub(r"^\$\{(CMAKE|PROJECT)_SOURCE_DIR\}", str(root), word.strip('"'))
            word = re.sub(r"^\$\{CMAKE_CURRENT_(SOURCE|LIST)_DIR\}", str(path.parent), word)
            listed.add((path.parent / word).resolve())
    return [f"{path.relative_to(root)}: in no CMakeLists.txt" for folder in CODE_FOLDERS for path in files(root, folder)
            if path.suffix in (".cpp", ".cu", ".c") and path.resolve() not in listed]


CHECKS = [check_arrows, check_foreign, check_sizes, check_listed]


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[2]
    faults = [fault for check in CHECKS for fault in check(root)]
    print("\n".join(faults) if faults else "structure: sound")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
