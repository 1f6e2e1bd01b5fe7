"""The operators for NumPy and DLPack, also where torch is absent."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import imbrex
from imbrex._library import program

# Run by each rank, with torch made impossible to import.
SCRIPT = r'''
import hashlib
import sys
sys.modules["torch"] = None
import numpy as np
import imbrex

class Spoken:
    """An array of another library: all that is known of it is DLPack."""
    def __init__(self, array): self.array = array
    def __dlpack__(self, **kwargs): return self.array.__dlpack__(**kwargs)
    def __dlpack_device__(self): return self.array.__dlpack_device__()

def ints(shape, seed, dtype):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)

with imbrex.World.from_environment() as world:
    R, r = world.size, world.rank
    assert world.all_gather(bytes([r])) == [bytes([i]) for i in range(R)]
    for dtype in (np.float32, np.float16):
        a = [ints((4, 24), 10 + i, dtype) for i in range(R)]
        b = [ints((24, 6), 20 + i, dtype) for i in range(R)]
        bias = [ints((6,), 30 + i, dtype) for i in range(R)]
        whole = np.concatenate(a).astype(np.float32)
        want = whole @ b[r].astype(np.float32)
        assert (imbrex.all_gather_matmul(a[r], b[r], world) == want).all()
        assert (imbrex.all_gather_matmul(a[r], b[r], world, bias=bias[r]) == want + bias[r]).all()
        out = np.empty((4 * R, 6), dtype)
        assert imbrex.all_gather_matmul(a[r], b[r], world, out=out) is out and (out == want).all()
        out[:] = 0
        spoken = Spoken(out)
        assert imbrex.all_gather_matmul(Spoken(a[r]), Spoken(b[r]), world, out=spoken) is spoken and (out == want).all()
        total = sum(x.astype(np.float32) @ y.astype(np.float32) for x, y in zip(a, b))
        part = 4 // R * r
        mine = total[part:part + 4 // R] + bias[0]
        assert (imbrex.matmul_reduce_scatter(a[r], b[r], world, bias=bias[0]) == mine).all()
        assert (imbrex.matmul_all_reduce(a[r], b[r], world) == total).all()
        sent = [(x.astype(np.float32) @ y.astype(np.float32)).astype(dtype) for x, y in zip(a, b)]
        want = np.concatenate([s[part:part + 4 // R] for s in sent])
        assert (imbrex.matmul_all_to_all(a[r], b[r], world) == want).all()
        assert (imbrex.all_reduce(a[r], world) == sum(x.astype(np.float32) for x in a)).all()
        three = [ints((2, 4, 8), 40 + i, dtype) for i in range(R)]
        first = [np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, 0)), 0, 1) for x in three]
        got = imbrex.all_gather_matmul(first[r], ints((8, 3), 9, dtype), world, gather_dim=1)
        assert (got == np.concatenate(three, 1).astype(np.float32) @ ints((8, 3), 9, np.float32)).all()
        # Rows of a, b and out that lie apart, with what must be neither read nor written between them.
        def apart(x, value, rows=None):
            wide = np.full((x.shape[0], x.shape[1] + 3), value, dtype)
            wide[:, :x.shape[1]] = x
            return wide[:, :x.shape[1]]
        calls = (
            (imbrex.all_gather_matmul, whole @ b[r].astype(np.float32)),
            (imbrex.matmul_reduce_scatter, total[part:part + 4 // R]),
            (imbrex.matmul_all_reduce, total),
            (imbrex.matmul_all_to_all, np.concatenate([s[part:part + 4 // R] for s in sent])),
        )
        for call, want in calls:
            for turned in (False, True):
                x, y = apart(a[r], np.nan), apart(b[r].T, np.nan).T if turned else apart(b[r], np.nan)
                out = apart(np.zeros(want.shape, dtype), -7)
                assert call(x, y, world, out=out) is out and (out == want).all()
                assert (out.base[:, want.shape[1]:] == -7).all()
                assert (call(x, y, world) == want).all()
                assert (call(a[r], b[r], world) == want).all()
    x = np.random.default_rng(1).standard_normal((R, 4096)).astype(np.float32)
    got, told = imbrex.all_reduce(x[r], world, codec="int8", report=True)
    assert 0 < abs(got - x.astype(np.float64).sum(0)).max() <= told.largest_error + 1e-5
    one = np.eye(64, dtype=np.float32)
    quantized = imbrex.matmul_all_reduce(x[r].reshape(64, 64), one, world, codec="int8", tolerance=.5)
    assert abs(quantized.ravel() - x.astype(np.float64).sum(0)).max() < .5
    exact = x.astype(np.float64).sum(0).reshape(64, 64)
    mine = exact[64 // R * r:64 // R * (r + 1)]
    for codec in ("int8", "int4+int8", "fp8-g64"):
        quantized, told = imbrex.matmul_all_reduce(x[r].reshape(64, 64), one, world, codec=codec, report=True)
        assert told.exact == (R == 1) and told.groups >= 64 * 64 // 64 * (R > 1) and told.non_finite == 0
        assert (R == 1 or told.largest_error > 0) and abs(quantized - exact).max() <= told.largest_error + 1e-12
        assert len(set(world.all_gather(hashlib.sha256(quantized.tobytes()).digest()))) == 1
    quantized, told = imbrex.matmul_reduce_scatter(x[r].reshape(64, 64), one, world, codec="int8", report=True)
    assert quantized.shape == mine.shape and abs(quantized - mine).max() <= told.largest_error + 1e-12
    bias = np.ones(64, np.float32)
    with_bias = imbrex.matmul_reduce_scatter(x[r].reshape(64, 64), one, world, codec="int8", bias=bias)
    assert (with_bias == quantized + np.float32(1)).all()
    with imbrex.World.connect(world.all_gather(imbrex.World.make_unique_id())[0], r, R, gpu=0) as other:
        assert (imbrex.matmul_all_reduce(a[r], b[r], other) == imbrex.matmul_all_reduce(a[r], b[r], world)).all()
    ones, weight = np.ones((2, 8), np.float32), np.full(8, 2, np.float32)
    y, s = imbrex.all_reduce_rms_norm(ones, ones, weight, world)
    assert (s == R + 1).all() and abs(y - 2).max() < 1e-5
    # Float32 beside rows of float16, which would round this weight to 1.
    weight = np.full(8, 1 + 2.0**-11, np.float32)
    half = np.array([[5, -2, 1, 1, -1, 0, 0, 0]], np.float16)
    y, s = imbrex.all_reduce_rms_norm(half if r == 0 else half * 0, None, weight, world, eps=0)
    assert y.dtype == np.float16 and (y == (half.astype(np.float32) / 2 * weight).astype(np.float16)).all()
    assert (y != (half / 2).astype(np.float16)).any()
    for call, text in (
        (lambda: imbrex.matmul_all_reduce(a[r], b[r][:5], world), "a's last dimension"),
        (lambda: imbrex.matmul_all_reduce(a[r].astype(np.float64), b[r], world), "dtype float64"),
        (lambda: imbrex.matmul_all_reduce([1], b[r], world), "is a list"),
        (lambda: imbrex.matmul_all_reduce(a[r], b[r], world, codec="int9"), "int9"),
        (lambda: imbrex.matmul_reduce_scatter(a[r], b[r], world, codec="int4+int8"), "one phase"),
        (lambda: imbrex.matmul_all_reduce(a[r], b[r], world, report=True), "without a codec"),
        (
            lambda: imbrex.all_reduce_rms_norm(ones, None, np.ones(8, np.float16), world),
            "weight is fp16, x fp32: weight must be fp32, or of x's type",
        ),
        (lambda: imbrex.all_reduce(np.ones((4, 4), np.float32).T[:, :2], world), "operand in"),
        (lambda: imbrex.matmul_all_reduce(Spoken(a[r]), b[r], world), "out is missing"),
        (lambda: imbrex.matmul_all_reduce(a[r], b[r], world, out=np.empty((4, 5), dtype)), "out is 4 x 5: it must be"),
    ):
        try:
            call()
        except imbrex.InvalidInput as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)
    assert "torch" not in sys.modules or sys.modules["torch"] is None
assert world.close() is None
try:
    imbrex.all_reduce(np.ones(3, np.float32), world)
except imbrex.InvalidInput as error:
    assert "closed" in str(error)
print("rank", r, "is right")
'''


@pytest.mark.parametrize("count", (1, 2, 4))
def test_without_torch(tmp_path, count):
    """Every operator with NumPy's arrays and with arrays that only speak DLPack."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [str(program()), "launch", "-n", str(count), "--", sys.executable, str(script)]
    folder = str(Path(imbrex.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": folder, "IMBREX_WAIT_LIMIT": "20"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("is right") == count


def test_torch_is_named_where_it_is_missing():
    """imbrex.torch says what to install."""
    code = "import sys; sys.modules['torch'] = None; import imbrex; import imbrex.torch"
    folder = str(Path(imbrex.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode != 0
    assert "imbrex.torch needs PyTorch 2.10 or later" in done.stderr and "pip install 'torch>=2.10'" in done.stderr


def test_an_exception_in_a_world_tells_the_peers(tmp_path):
    """The others end at once, with the reason."""
    script = tmp_path / "script.py"
    script.write_text(
        "import imbrex\nwith imbrex.World.from_environment() as world:\n"
        "    if world.rank == 1:\n        raise ValueError('enough')\n    world.barrier()\n"
    )
    command = [str(program()), "launch", "-n", "2", "--", sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "IMBREX_WAIT_LIMIT": "20"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode != 0 and "rank 1 failed: ValueError: enough" in done.stderr


def test_the_program_and_doctor(capfd):
    """`python -m imbrex` is the program; doctor tells of library, torch and machine."""
    done = subprocess.run([sys.executable, "-m", "imbrex", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "0." in done.stdout
    assert imbrex.doctor()
    told = capfd.readouterr().out
    assert ("library: version" in told and "torch" in told and "ranks" in told.lower()) or "cpu" in told.lower()


def test_what_is_no_world():
    """A world is made by its functions, and nothing else is taken for one."""
    one = np.ones((4, 4), np.float32)
    for given in ((), (4,), ("tp",)):
        with pytest.raises(imbrex.InvalidInput, match=r"World\(.*\): World.from_environment\(\) and World.connect\(\)"):
            imbrex.World(*given)
    for call in (
        lambda: imbrex.matmul_all_reduce(one, one, None),
        lambda: imbrex.all_reduce(one, None),
        lambda: imbrex.all_reduce_rms_norm(one, None, one[0], None),
        lambda: imbrex.EmbeddingAllToAll(None, [(4, 4)], batch=1),
    ):
        with pytest.raises(imbrex.InvalidInput, match=r"world is of type NoneType: it must be an imbrex\.World"):
            call()


def test_what_is_not_copied():
    """A copy would end the library's object once more; the object itself stays of use."""
    with imbrex.World.from_environment() as world:
        bag = imbrex.EmbeddingAllToAll(world, [(4, 4)], batch=1)
        for one in (world, bag):
            for made in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(imbrex.InvalidInput, match=f"{type(one).__name__} is neither copied nor pickled"):
                    made(one)
            with pytest.raises(imbrex.InvalidInput, match="neither copied nor pickled"):
                copy.deepcopy({"held": [one]})
        world.barrier()
    bag.close()


def test_read_only_output():
    """An output that cannot be written is refused."""
    out = np.zeros(4, np.float32)
    out.flags.writeable = False
    with imbrex.World.from_environment() as world, pytest.raises(imbrex.InvalidInput, match="read-only"):
        imbrex.all_reduce(np.ones(4, np.float32), world, out=out)
