"""Every public function has a docstring of a kind, and its examples run; so do the programs of the documents."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch_for_tests import launch, torchrun

import imbrex

ROOT = Path(__file__).resolve().parents[2]
PLAIN = ("imbrex", "imbrex._world", "imbrex._operators", "imbrex._embeddings", "imbrex._doctor", "imbrex.vllm")
TORCH = tuple(
    f"imbrex.torch{name}"
    for name in ("", ".groups", ".ops", ".reductions", ".stats", ".drop_in", ".nn.linear", ".embeddings", ".parallel")
)


def public(module: Any) -> list[tuple[str, Any]]:
    """What `__all__` names, and methods of the classes among it."""
    found = []
    for name in module.__all__:
        one = getattr(module, name)
        if inspect.ismodule(one):
            continue
        found.append((f"{module.__name__}.{name}", one))
        if inspect.isclass(one) and not issubclass(one, Exception):
            methods = [(key, value) for key, value in vars(one).items() if not key.startswith("_") and callable(value)]
            found += [(f"{module.__name__}.{name}.{key}", value) for key, value in methods]
    return found


def functions() -> list[tuple[str, Any]]:
    found = public(imbrex)
    found.append(("imbrex.vllm.register", importlib.import_module("imbrex.vllm").register))
    if importlib.util.find_spec("torch"):
        found += public(importlib.import_module("imbrex.torch"))
        for name in ("imbrex.torch.nn.linear", "imbrex.torch.embeddings", "imbrex.torch.parallel"):
            module = importlib.import_module(name)
            own = [one for one in vars(module).values() if getattr(one, "__module__", "") == name]
            found += [(f"{name}.{one.__name__}", one) for one in own if not one.__name__.startswith("_")]
    return found


def test_docstrings_tell_what_is_needed():
    """Arguments one by one, what is raised, and an example."""
    for name, one in functions():
        text = inspect.getdoc(one)
        assert text, name
        if inspect.isclass(one) and ".torch." in name and not name.endswith((".Stats", ".DropIn", ".Bags")):
            assert "Args:" in text and "Raises:" in text and "Example:" in text, name
        if not inspect.isfunction(one):
            continue
        parameters = [key for key in inspect.signature(one).parameters if key not in ("self", "cls")]
        is_method = "." in name.removeprefix("imbrex.").removeprefix("torch.")
        assert is_method or "Example:" in text, name
        if len(parameters) < 2 or ".fail" in name or ".made" in name:
            continue
        for key in parameters:
            assert re.search(rf"^\s+{key}: ", text, re.M), f"{name}: {key} is not told of"
        assert ("Example:" in text and "Raises:" in text) or name.endswith("drop_in"), name


def run_doctests(modules: tuple[str, ...], **names: Any) -> None:
    """The examples of these modules, with these names at hand."""
    tried = 0
    for name in modules:
        module = importlib.import_module(name) if name != "imbrex.torch.drop_in" else sys.modules[name]
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, name, extraglobs=names):
            if not test.examples or (inspect.ismodule(module) and not test.name.startswith(name)):
                continue
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            told: list[str] = []
            runner.run(test, out=told.append)
            assert runner.failures == 0, "".join(told)
            tried += 1
    assert tried >= 6, tried


def test_examples():
    run_doctests(PLAIN)


def test_torch_examples():
    """In a group of one rank."""
    torch = pytest.importorskip("torch")
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r})\nimport test_docs\ntest_docs.torch_examples()\n"
    folder = str(Path(imbrex.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**_environment(), "PYTHONPATH": folder},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert torch.__version__


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


def torch_examples() -> None:
    """What the examples take for given: tensors of one rank, and a model."""
    import tempfile

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import parallelize_module

    import imbrex.torch

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        mlp = torch.nn.Sequential()
        mlp.up, mlp.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        run_doctests(
            TORCH,
            torch=torch,
            imbrex=imbrex,
            group=dist.group.WORLD,
            x=torch.ones(8, 16),
            h=torch.ones(8, 16),
            tokens=torch.ones(8, 16),
            weight=torch.ones(4, 16),
            expert=torch.ones(4, 16),
            wq=torch.ones(4, 16),
            wk=torch.ones(4, 16),
            wv=torch.ones(4, 16),
            residual=torch.ones(8, 16),
            norm=torch.nn.RMSNorm(16),
            mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("tp",)),
            mlp=mlp,
            Shard=Shard,
            parallelize_module=parallelize_module,
        )
        imbrex.torch.destroy()
        dist.destroy_process_group()


def pages() -> list[str]:
    """README and the users' pages."""
    return ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def blocks(document: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)


def samples(document: str) -> list[str]:
    """The complete Python programs of a document: those that say what they print."""
    return [block for block in blocks(document) if "imbrex" in block and "print(" in block]


def exists(name: str) -> bool:
    """Whether `imbrex.torch.drop_in` or the like is there to import."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_names_in_documents():
    """Every `imbrex....` of the pages' prose, tables and Python code is there."""
    assert exists("imbrex.World.from_environment") and not exists("imbrex.gone") and not exists("imbrex.World.gone")
    has_torch = importlib.util.find_spec("torch") is not None
    named: set[tuple[str, str]] = set()
    for document in pages():
        plain = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.M | re.S)
        named |= {(document, name) for name in re.findall(r"`(imbrex(?:\.[a-zA-Z_]\w*)+)", plain)}
        for block in blocks(document):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.Attribute) and re.fullmatch(r"imbrex(\.\w+)+", ast.unparse(node)):
                    named.add((document, ast.unparse(node)))
    assert len(named) > 20
    for document, name in sorted(named):
        if ".torch" in name and not has_torch:
            continue
        assert exists(name), f"{document} names {name}, which is not there"


@pytest.mark.parametrize("document", [page for page in pages() if samples(page)])
def test_documents(tmp_path, document):
    """Each complete program runs on four ranks: README's by torchrun, or by `imbrex launch` where it needs no torch."""
    from imbrex._library import program

    for number, text in enumerate(samples(document)):
        script = tmp_path / f"sample{number}.py"
        script.write_text(text)
        command = [str(program()), "launch", "-n", "4", "--", sys.executable, str(script)]
        folder = str(Path(imbrex.__file__).parents[1])
        environment = {**_environment(), "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        if "torch" in text:
            pytest.importorskip("torch")
            from device_for_tests import fewer_gpus_than

            environment |= fewer_gpus_than(4)
            command = [*torchrun(4), str(script)]
        if "torch" in text and document != "README.md":
            done = launch(4, [str(script)], environment)
        else:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180, check=False)
        assert done.returncode == 0, f"{text}\n{done.stderr[-2000:]}"
        assert done.stdout.strip(), text
