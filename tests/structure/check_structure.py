#!/usr/bin/env python3
"""Checks that the tree is laid out as arrows.json says: who includes whom, and that nothing is left over.

usage: check_structure.py [ROOT]      prints each fault as file: rule; exits 1 if there is one
"""

import json
import re
import sys
from pathlib import Path

# Which rooms, folders of src/, each room may include; which of them the users of the library may, who see public headers
# else; and the room that each public header is the face of. device/ headers are included by kernels of any room.
ARROWS = "tests/structure/arrows.json"
# The document that tells what each room does, and the rows that name them.
TABLE = "docs/dev/architecture.md"
ROW = re.compile(r"^\| `src/(\w+)` \|", re.M)

NO_CUDA = ["plan", "codec", "machine", "records"]
CODE_FOLDERS = ["include", "src", "program", "apps", "cli", "python", "examples", "tests", "bench"]
CODE = {".cpp", ".hpp", ".cu", ".cuh", ".c", ".h", ".inc"}
LINES = CODE | {".py", ".cmake", ".sh", ""}
MAX_LINES = 500

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
CUDA_HEADER = re.compile(r"^(cuda|nccl|nvml|nvtx|cublas|cutlass/|cute/|cooperative_groups|cub/|thrust/|mma\.h|nv/)")
TORCH = re.compile(r'^[ \t]*#\s*include\s*[<"](torch|ATen|c10)/|^\s*(import|from)\s+torch\b', re.M)
TORCH_FOLDERS = (("tests", "python"), ("examples", "dlrm"), ("examples", "python"), ("bench", "embedding"), ("bench", "model"), ("bench", "python"))
TORCH_PEERS = ("bench/peers_torch.py", "bench/peers_all_reduce.py")  # measure it
# Folders in which no number is cast to a small integer. src/execute: without what lies in its folders.
CHECKED_NUMBERS = ["src/plan", "src/execute", "src/execute/cpu"]
NARROWING = re.compile(r"static_cast<(int|short|unsigned( int)?|std::u?int(8|16|32)_t)>\s*\(")
WRITES = re.compile(r"\b(ofstream|fopen|freopen|O_CREAT|O_TMPFILE|mkstemp|creat\s*\()")
WRITER = "src/base/files/file.cpp"
# A sentence that begins so says what it is about before it says what it is; it names its subject first instead.
DANGLING = re.compile(r"\bO[f]\b")
GETENV = re.compile(r"\b(secure_)?getenv\s*\(")
SETENV = re.compile(r"\b(setenv|unsetenv|putenv|clearenv)\s*\(")
DOWN_CAST = re.compile(r"\bdynamic_cast\s*<")
CASTER = "src/runtime/host_world.cpp"  # every World is one class, which its users do not see
MAKER = re.compile(r"\bmake_(cpu|cuda|world)_executor\s*\(")
SETTER = "program/nccl_environment.cpp"  # the program's: the library leaves its user's environment as it is


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


def room_of_include(root, path, name, public):
    """The room that `#include "name"` in `path` reaches, "device" for kernels' headers, None for outside; and a fault or none."""
    if name.startswith("imbrex/"):
        header = name.removeprefix("imbrex/")
        if header.startswith("device/"):
            return "device", None
        if header not in public:
            return None, f"{path.relative_to(root)}: includes {name}, which is in no room of {ARROWS}"
        return public[header], None
    source = (root / "src").resolve()
    for candidate in (path.parent / name, root / "src" / name):
        candidate = candidate.resolve()
        if candidate.is_file() and candidate.is_relative_to(source):
            return candidate.relative_to(source).parts[0], None
    return None, None


def includes_of(root, path, public, faults):
    """Pairs of what a file includes and its room."""
    for _, name in INCLUDE.findall(text_of(path)):
        room, fault = room_of_include(root, path, name, public)
        faults += [fault] if fault else []
        if room:
            yield name, room


def house_of(root):
    """The data file, and its faults; nothing but faults where it cannot be read."""
    try:
        house = json.loads(text_of(root / ARROWS))
        rooms, users, public = house["rooms"], house["users"], house["public"]
    except (OSError, ValueError, KeyError) as error:
        return None, [f"{ARROWS}: {error!r}; it must hold rooms, users and public"]
    faults = [f"{ARROWS}: {one} may include {other}, which is no room" for table in (rooms, users)
              for one, others in table.items() for other in others if other not in rooms]
    faults += [f"{ARROWS}: {header} is of {room}, which is no room" for header, room in public.items() if room not in rooms]
    faults += [f"{ARROWS}: include/imbrex/{header} does not exist" for header in public
               if not (root / "include/imbrex" / header).is_file()]
    # Each room comes behind those that it may include, so there is no ring.
    place = {room: i for i, room in enumerate(rooms)}
    faults += [f"{ARROWS}: {room} stands before {other}, which it may include" for room, others in rooms.items()
               for other in others if place.get(other, -1) >= place[room]]
    return house, faults


def check_rooms(root):
    """Rooms, folders of src/ and rows of the document are the same."""
    house, faults = house_of(root)
    if house is None:
        return faults
    folders = {path.name for path in (root / "src").iterdir() if path.is_dir() and not path.name.startswith(".")}
    rows = set(ROW.findall(text_of(root / TABLE))) if (root / TABLE).is_file() else set()
    for where, names in (("src/", folders), (TABLE, rows)):
        faults += [f"{where}: {name} is no room of {ARROWS}" for name in sorted(names - set(house["rooms"]))]
        faults += [f"{where}: lacks {name}, a room of {ARROWS}" for name in sorted(set(house["rooms"]) - names)]
    return faults


def check_arrows(root):
    house, _ = house_of(root)
    if house is None:
        return []  # check_rooms says so
    faults, rooms, public = [], house["rooms"], house["public"]
    for path in list(files(root, "src")) + list(files(root, "include")):
        if path.suffix not in CODE:
            continue
        where = path.relative_to(root)
        if where.parts[0] == "src":
            if len(where.parts) < 3:
                faults.append(f"{where}: source files belong in a folder of src/")
                continue
            room = where.parts[1]
        elif "device" in where.parts:
            continue
        elif where.relative_to("include/imbrex").as_posix() in public:
            room = public[where.relative_to("include/imbrex").as_posix()]
        else:
            faults.append(f"{where}: public header in no room of {ARROWS}")
            continue
        for name, target in includes_of(root, path, public, faults):
            if room in rooms and target not in ("device", room, *rooms[room]):
                faults.append(f"{where}: includes {name}; {room} may not include {target}")
    for user, allowed in house["users"].items():
        for path in files(root, user):
            if path.suffix not in CODE:
                continue
            for name, target in includes_of(root, path, public, []):
                if not name.startswith("imbrex/") and target not in allowed:
                    faults.append(f"{path.relative_to(root)}: includes {name}; {user} may include "
                                  + " and ".join(["public headers", *allowed]) + " only")
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
            is_pythons = where.parts[0] == "python" or where.parts[:2] in TORCH_FOLDERS
            if not is_pythons and str(where) not in TORCH_PEERS and TORCH.search(text):
                faults.append(f"{where}: uses torch; torch appears only under python/, {', '.join('/'.join(one) for one in TORCH_FOLDERS)} and in {', '.join(TORCH_PEERS)}")
            if folder in ("include", "src", "program", "apps", "cli", "python", "examples") and path.suffix in CODE:
                if str(where) != "src/base/environment.cpp" and GETENV.search(without_comments(text)):
                    faults.append(f"{where}: calls getenv; only src/base/environment.cpp may")
                if str(where) != SETTER and SETENV.search(without_comments(text)):
                    faults.append(f"{where}: changes the environment; only {SETTER} may")
    return faults


def check_casts(root):
    """What the library asks of an object is in its interface."""
    return [f"{path.relative_to(root)}: has a dynamic_cast; only {CASTER} may"
            for folder in ("include", "src", "program", "apps") for path in files(root, folder)
            if path.suffix in CODE and str(path.relative_to(root)) != CASTER and DOWN_CAST.search(without_comments(text_of(path)))]


def check_makers(root):
    """What is run and measured is what users call: an operator."""
    return [f"{path.relative_to(root)}: makes an executor; operators do"
            for folder in ("src", "program", "apps", "cli", "bench") for path in files(root, folder)
            if path.suffix in CODE and not str(path.relative_to(root)).startswith(("src/execute/", "src/ops/"))
            and MAKER.search(without_comments(text_of(path)))]


def check_narrowing(root):
    """Numbers that a plan decides go through base::narrow, which checks them, or base::wrapped, which says why not."""
    return [f"{path.relative_to(root)}:{number}: casts to 32 bits or fewer; base::narrow checks that the value fits"
            for folder in CHECKED_NUMBERS for path in files(root, folder) if path.suffix in (".cpp", ".hpp")
            if path.parent == root / folder or folder != "src/execute"
            for number, line in enumerate(without_comments(text_of(path)).split("\n"), 1) if NARROWING.search(line)]


def check_writers(root):
    """One place makes files, so that all are made safely."""
    return [f"{path.relative_to(root)}: opens a file for writing; only {WRITER} may"
            for folder in ("include", "src", "program", "apps", "cli", "python", "examples", "bench") for path in files(root, folder)
            if path.suffix in CODE and str(path.relative_to(root)) != WRITER and WRITES.search(without_comments(text_of(path)))]


def check_sizes(root):
    faults = []
    for folder in CODE_FOLDERS + ["scripts", "cmake"]:
        for path in files(root, folder):
            if path.suffix in LINES and "corpus" not in path.parts:
                count = text_of(path).count("\n")
                if count > MAX_LINES:
                    faults.append(f"{path.relative_to(root)}: {count} lines; split it by role, at most {MAX_LINES}")
    return faults


def check_sentences(root):
    """No sentence of a comment, a document or a message begins with its complement."""
    paths = sorted(root.glob("*.md")) + [path for folder in CODE_FOLDERS + ["scripts", "cmake", "docs", "machines"]
                                         for path in files(root, folder) if "corpus" not in path.parts]
    return [f"{path.relative_to(root)}:{number}: a sentence begins with a preposition's phrase; it names its subject first"
            for path in paths if path.suffix in LINES | {".md", ".def", ".in"}
            for number, line in enumerate(text_of(path).split("\n"), 1) if DANGLING.search(line)]


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


CHECKS = [check_rooms, check_arrows, check_foreign, check_casts, check_makers, check_narrowing, check_writers, check_sizes, check_sentences, check_listed]


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[2]
    faults = [fault for check in CHECKS for fault in check(root)]
    print("\n".join(faults) if faults else "structure: sound")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
