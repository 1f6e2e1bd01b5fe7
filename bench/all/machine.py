"""What the machine has, and what of it is free: GPUs, MPS, torch, NVSHMEM, NCCL, cuBLAS, programs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60  # of each question
MOST_GPUS = 8
# A GPU of which others hold more is in use, whether or not their processes can be seen from here.
MOST_USED_GIB = 1.5
QUERY = (
    "index",
    "name",
    "memory.total",
    "memory.used",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "driver_version",
    "compute_mode",
    "mig.mode.current",
    "power.limit",
    "uuid",
)
# Never NVLink multicast, in no child.
WITHOUT_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_GRAPH_REGISTER": "0",
}
TORCH = """
import importlib.util, json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": torch.cuda.device_count(), "imbrex": False}
if torch.cuda.is_available():
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
try:
    import imbrex.torch
    found["imbrex"] = True
except Exception as error:
    found["why"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""
LIBRARIES = """
import ctypes, json
import importlib.util
from pathlib import Path
found, folders = {}, []
spec = importlib.util.find_spec("nvidia")
places = [str(p) for root in (spec.submodule_search_locations if spec else []) for p in Path(root).glob("*/lib")]
def asked(name, library, call):
    for place in ["", *places]:
        try:
            version = ctypes.c_int(0)
            got = getattr(ctypes.CDLL(str(Path(place, library))), call)
            if name == "nccl":
                got(ctypes.byref(version))
                number = version.value
                found[name] = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
            else:
                got.restype = ctypes.c_size_t
                number = got()
                found[name] = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
            folders.append(place)
            return
        except (OSError, AttributeError):
            pass
for library in ("libnccl.so.2",):
    asked("nccl", library, "ncclGetVersion")
for library in ("libcublasLt.so.13", "libcublasLt.so.12"):
    if "cublas" not in found:
        asked("cublas", library, "cublasLtGetVersion")
print(json.dumps({"versions": found, "folders": [place for place in folders if place]}))
"""


@dataclass
class Machine:
    """What was found; `has` are the names that measurements need, `lacks` says why others are not there."""

    gpus: list[dict[str, str]] = field(default_factory=list)  # GPUs that are free
    in_use: dict[str, str] = field(default_factory=dict)  # index -> why it is left alone
    has: set[str] = field(default_factory=set)
    lacks: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    cores: int = 0
    memory_gib: float = 0.0
    nvshmem: str = ""
    doctor: list[dict[str, str]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # of libraries that only Python's packages have

    def says(self, name: str, there: bool, why: str) -> None:
        """Notes down whether it has something, and why not."""
        if there:
            self.has.add(name)
        else:
            self.lacks[name] = why

    def kind(self) -> str:
        """In words."""
        if not self.gpus:
            return f"{self.cores} cores, no GPU"
        names = sorted({gpu["name"] for gpu in self.gpus})
        return f"{len(self.gpus)} x {' and '.join(names)}"

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        return {
            "kind": self.kind(),
            "gpus": self.gpus,
            "in_use": self.in_use,
            "has": sorted(self.has),
            "lacks": self.lacks,
            "versions": self.versions,
            "cores": self.cores,
            "memory_gib": round(self.memory_gib, 1),
            "doctor": self.doctor,
        }


def answer(command: list[str], environment: dict[str, str] | None = None, patience: float = PATIENCE_S) -> str:
    """What a command prints; empty where it fails, or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=environment, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def surveyed_gpus(machine: Machine, most: int) -> None:
    """GPUs as nvidia-smi tells, those that others use apart."""
    lines = answer(["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]).splitlines()
    gpus = [
        dict(zip(QUERY, (word.strip() for word in line.split(",")), strict=False))
        for line in lines
        if line.count(",") >= 3
    ]
    gpus = visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    apps = [
        line.split(",")
        for line in answer(
            ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
        ).splitlines()
    ]
    used_by = {words[0].strip(): words[1].strip() for words in apps if len(words) >= 2}
    for gpu in gpus:
        used = used_gib(gpu)
        if (pid := used_by.get(gpu.get("uuid", ""))) is not None:
            machine.in_use[gpu["index"]] = f"process {pid} uses it"
        elif used > MOST_USED_GIB:
            machine.in_use[gpu["index"]] = f"{used:.1f} GiB of its memory are in use"
        elif "enabled" in gpu.get("mig.mode.current", "").lower():
            machine.in_use[gpu["index"]] = "it is cut into parts (MIG)"
        elif len(machine.gpus) < most:
            machine.gpus.append(gpu)


def visible(gpus: list[dict[str, str]], listed: str | None) -> list[dict[str, str]]:
    """Those that CUDA_VISIBLE_DEVICES lists, by number or by the beginning of a UUID; what it cannot read ends it."""
    if listed is None:
        return gpus
    found = []
    for word in filter(None, (part.strip() for part in listed.split(","))):
        one = [gpu for gpu in gpus if gpu["index"] == word or (not word.isdigit() and gpu["uuid"].startswith(word))]
        if not one:
            break
        found += one[:1]
    return found


def used_gib(gpu: dict[str, str]) -> float:
    """Memory that is in use; 0 where nvidia-smi does not tell."""
    with contextlib.suppress(ValueError):
        return float(gpu["memory.used"]) / 1024
    return 0.0


def free_gib(machine: Machine) -> float:
    """Memory that is free now on each of the machine's GPUs, at least; infinite where no tool tells."""
    lines = answer(
        ["nvidia-smi", "--query-gpu=index,memory.free", "--format=csv,noheader,nounits"], patience=20
    ).splitlines()
    free = {}
    for line in lines:
        with contextlib.suppress(ValueError):
            index, mib = line.split(",")
            free[index.strip()] = float(mib) / 1024
    return min((free[gpu["index"]] for gpu in machine.gpus if gpu["index"] in free), default=float("inf"))


def nvshmem_folder(given: Path | None) -> Path | None:
    """Where NVSHMEM's lib/ lies: what was given, else in this Python's packages, or in those of torch's Python."""
    places = [given] if given else [Path(folder, "nvidia/nvshmem") for folder in sys.path if folder]
    return next((place for place in places if place and list((place / "lib").glob("libnvshmem_host.so*"))), None)


def program_digest(program: Path) -> str:
    """So that results of two builds are not put together."""
    digest = hashlib.sha256()
    for path in (program, *sorted((program.parent.parent / "lib").glob("libimbrex.so*"))):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def commit_of(given: str) -> str:
    """The checkout's; 'unknown' where git does not tell and none was given."""
    return given or answer(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], patience=10).strip() or "unknown"


def child_environment(machine: Machine) -> dict[str, str]:
    """What every child has: the free GPUs only, and no multicast."""
    environment = {**os.environ, **WITHOUT_MULTICAST, "PYTHONDONTWRITEBYTECODE": "1"}
    if machine.gpus and machine.in_use and "CUDA_VISIBLE_DEVICES" not in environment:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu["index"] for gpu in machine.gpus)
    return environment


def survey(program: Path, python: str, nvshmem: Path | None, most: int, patience: float, only_itself: bool) -> Machine:
    """
    Asks for everything at once, without changing anything; no answer may take longer than `patience` seconds.

    `only_itself`: of GPUs, libraries and Python nothing is asked.
    """
    machine = Machine(cores=len(os.sched_getaffinity(0)))
    machine.memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    machine.versions |= {"kernel": platform.release(), "python": platform.python_version()}
    if only_itself:
        machine.says("gpu", False, "nobody asked for one")
        machine.says("cpu", True, "")
        return machine
    if most:
        surveyed_gpus(machine, most)
    environment = child_environment(machine)
    commands = {
        "version": [str(program), "version"],
        "doctor": [str(program), "doctor", "--json", "-"],
        "machines": [str(program), "machine", "4xh200"],
        "torch": [python, "-c", TORCH],
        "libraries": [python, "-c", LIBRARIES],
    }
    with ThreadPoolExecutor(len(commands)) as pool:
        answers = dict(
            zip(commands, pool.map(lambda c: answer(c, environment, patience), commands.values()), strict=True)
        )
    machine.versions["imbrex"] = answers["version"].strip()
    told = last_json(answers["doctor"], whole=True)
    machine.doctor = told.get("findings", [])
    survey_gpus_of_program(machine, told)
    nowhere = "the program finds no machine files: share/imbrex/machines has to lie beside bin/"
    machine.says("machines", bool(answers["machines"]), nowhere)
    machine.says("mps", bool(shutil.which("nvidia-cuda-mps-control")), "no nvidia-cuda-mps-control")
    survey_python(machine, python, last_json(answers["torch"]), last_json(answers["libraries"]))
    folder = nvshmem_folder(nvshmem)
    machine.nvshmem = str(folder or "")
    peer = (program.parent / "nvshmem_peer").exists() or shutil.which("nvcc") is not None
    why = "no NVSHMEM (--nvshmem names its folder)" if folder is None else "neither nvcc nor bin/nvshmem_peer"
    machine.says("nvshmem", folder is not None and peer, why)
    machine.says("compiler", shutil.which(os.environ.get("CXX", "c++")) is not None, "no C++ compiler")
    return machine


def last_json(text: str, whole: bool = False) -> dict[str, Any]:
    """The object that a program printed, in its last line or in all; empty where it is none."""
    lines = [text] if whole else text.strip().splitlines()[-1:]
    with contextlib.suppress(ValueError):
        found = json.loads(lines[0]) if lines else {}
        return found if isinstance(found, dict) else {}
    return {}


def survey_gpus_of_program(machine: Machine, told: dict[str, Any]) -> None:
    """Which GPUs `imbrex doctor` can work on; without NVLink between all of them it is one."""
    works = bool(told.get("gpus")) and bool(machine.gpus)
    if machine.gpus and not works:
        why = f"imbrex doctor finds no GPU: {told.get('reason', 'it does not say why')}"
        machine.in_use |= {gpu["index"]: why for gpu in machine.gpus}
        machine.gpus = []
    links = [link for gpu in told.get("gpus", []) for link in gpu.get("links", [])]
    if len(machine.gpus) > 1 and any(link not in ("self", "nvlink") for link in links):
        machine.in_use |= {
            gpu["index"]: f"no NVLink between it and GPU {machine.gpus[0]['index']}" for gpu in machine.gpus[1:]
        }
        machine.gpus = machine.gpus[:1]
    others = "; ".join(f"GPU {index}: {text}" for index, text in machine.in_use.items())
    machine.says("gpu", works, others or str(told.get("reason") or "there is no GPU"))
    machine.says("two_gpus", len(machine.gpus) >= 2, "there are not two free GPUs")
    machine.says("cpu", not machine.gpus, "there is a GPU")
    if machine.gpus:
        machine.versions["driver"] = machine.gpus[0].get("driver_version", "")


def survey_python(machine: Machine, python: str, told: dict[str, Any], libraries: dict[str, Any]) -> None:
    """Whether it has torch and this package, and what versions the libraries have."""
    without = f"{python} has no torch"
    machine.says("torch", bool(told), without)
    machine.says("torch_gpu", bool(told.get("gpus")), f"torch of {python} sees no GPU" if told else without)
    why = f"{python} cannot import imbrex.torch: {told.get('why', 'no torch')}"
    machine.says("imbrex_torch", bool(told.get("imbrex")), why)
    machine.versions |= {name: str(told[name]) for name in ("torch", "cuda") if told.get(name)}
    machine.versions |= libraries.get("versions", {})
    machine.folders = libraries.get("folders", [])
    if told.get("nccl"):
        machine.versions.setdefault("nccl", str(told["nccl"]))
