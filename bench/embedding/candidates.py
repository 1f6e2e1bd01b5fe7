"""What looks up: ours, alone and as one of several ranks, FBGEMM's table-batched forward, torch's embedding_bag."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tables import DTYPES, OUT_TYPES, RANKS, ROW_TYPES, Lookup, Tables


def load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.embedding_error.restype = ctypes.c_char_p
    library.embedding_make.restype = pointer
    library.embedding_make.argtypes = [
        number,
        pointer,
        pointer,
        pointer,
        number,
        size,
        number,
        ctypes.c_uint32,
        ctypes.c_uint32,
        size,
    ]
    library.embedding_free.argtypes = [pointer]
    library.embedding_make_joint.restype = pointer
    library.embedding_make_joint.argtypes = [number, pointer, pointer, pointer, number, size, number, number, number]
    library.embedding_free_joint.argtypes = [pointer]
    library.embedding_launch_joint.argtypes = [pointer, pointer, pointer, size, size, number, pointer, pointer]
    library.embedding_launch.argtypes = [pointer, pointer, pointer, size, size, number, pointer, pointer]
    library.embedding_check.argtypes = [pointer, pointer, pointer, size, size, number, pointer]
    library.embedding_read.argtypes = [pointer, size, pointer, number, pointer]
    return library


def stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


class Lookups:
    """What the library makes of the tables, and its calls; `kind`: "" or "_joint", `more`: what its maker takes besides."""

    def __init__(self, library: ctypes.CDLL, kind: str, tables: Tables, batch: int, *more: int) -> None:
        count = len(tables.rows)
        rows = (ctypes.c_int64 * count)(*tables.rows)
        dims = (ctypes.c_int32 * count)(*[tables.dim] * count)
        addresses = (ctypes.c_void_p * count)(*[view.data_ptr() for view in tables.views])
        self.library, self.kind, self.batch = library, kind, batch
        make = getattr(library, f"embedding_make{kind}")
        self.made = make(count, rows, dims, addresses, ROW_TYPES[tables.kind], batch, OUT_TYPES[tables.kind], *more)
        if not self.made:
            raise RuntimeError(library.embedding_error().decode())
        self.out = torch.empty(batch, tables.columns, device="cuda", dtype=DTYPES[tables.kind])

    def call(self, name: str, lookup: Lookup, *to: Any) -> None:
        wide = int(lookup.indices.dtype == torch.int64)
        bags = (lookup.indices.data_ptr(), lookup.offsets.data_ptr(), lookup.indices.numel(), self.batch, wide)
        if getattr(self.library, name)(self.made, *bags, *to, stream()):
            raise RuntimeError(self.library.embedding_error().decode())

    def free(self) -> None:
        getattr(self.library, f"embedding_free{self.kind}")(self.made)


class Ours(Lookups):
    def __init__(self, library: ctypes.CDLL, tables: Tables, batch: int, tuning: tuple[int, int, int] = (0, 0, 0)) -> None:
        super().__init__(library, "", tables, batch, *tuning)

    def __call__(self, lookup: Lookup) -> torch.Tensor:
        self.call("embedding_launch", lookup, self.out.data_ptr())
        return self.out

    def check(self, lookup: Lookup) -> None:
        self.call("embedding_check", lookup)


class Joint(Lookups):
    """One of several ranks."""

    def __init__(self, library: ctypes.CDLL, tables: Tables, batch: int, slices: int) -> None:
        super().__init__(library, "_joint", tables, batch, RANKS, slices)
        self.parts = (ctypes.c_void_p * RANKS)(*[part.data_ptr() for part in self.out.chunk(RANKS)])

    def __call__(self, lookup: Lookup) -> torch.Tensor:
        self.call("embedding_launch_joint", lookup, self.parts)
        return self.out


def load_fbgemm(folder: str) -> str:
    """Why FBGEMM cannot be used; empty where it can."""
    try:
        for name in ("asmjit", "fbgemm", "fbgemm_gpu_config", "fbgemm_gpu_tbe_common"):
            ctypes.CDLL(str(Path(folder) / f"{name}.so"), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(Path(folder) / "fbgemm_gpu_tbe_training_forward.so"))
        _ = torch.ops.fbgemm.split_embedding_codegen_forward_unweighted_cuda
    except (OSError, RuntimeError, AttributeError) as error:
        return str(error).splitlines()[0]
    return ""


def fbgemm(tables: Tables) -> Callable[[Lookup], torch.Tensor]:
    count, device = len(tables.rows), "cuda"
    empty = torch.empty(0, device=device, dtype=tables.flat.dtype)
    cache = torch.zeros(0, 0, device=device, dtype=tables.flat.dtype)
    placements = torch.zeros(count, device=device, dtype=torch.int32)
    begins = torch.tensor([0, *tables.rows[:-1]], device=device, dtype=torch.int64).cumsum(0) * tables.dim
    columns = torch.arange(count + 1, device=device, dtype=torch.int32) * tables.dim
    none = torch.empty(0, device=device, dtype=torch.int32)
    kind = 1 if tables.kind == "fp16" else 0

    def call(lookup: Lookup) -> torch.Tensor:
        result: torch.Tensor = torch.ops.fbgemm.split_embedding_codegen_forward_unweighted_cuda(
            tables.flat,
            empty,
            cache,
            placements,
            begins,
            columns,
            tables.columns,
            tables.dim,
            lookup.indices,
            lookup.offsets,
            0,
            none,
            none,
            kind,
            False,
        )
        return result

    return call


def embedding_bags(tables: Tables, batch: int) -> Callable[[Lookup], torch.Tensor]:
    def call(lookup: Lookup) -> torch.Tensor:
        out, at = [], 0
        for t, (view, hotness) in enumerate(zip(tables.views, tables.hotness)):
            own = lookup.indices[at : at + batch * hotness]
            begins = lookup.offsets[t * batch : (t + 1) * batch] - at
            out.append(torch.nn.functional.embedding_bag(own, view, begins, mode="sum"))
            at += batch * hotness
        return torch.cat(out, 1)

    return call
