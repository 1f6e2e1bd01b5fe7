"""The rooms that mutants are drawn in: their sources, and which tests would see that one is wrong, the fast ones first."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Room:
    sources: tuple[str, ...]  # patterns of paths, whose * goes through folders
    tests: tuple[str, ...] = ()  # of CTest, and so are their programs called
    python: tuple[str, ...] = ()  # of pytest, in tests/python
    without: tuple[str, ...] = ()  # patterns of sources that another room has


# No compiler of a CPU sees these.
LEFT_OUT = ("/cuda/", ".cu", ".cuh")

ROOMS = {
    "checker": Room(("src/plan/check/*.[ch]pp",), ("plan_test", "extension_test", "embedding_plan_test")),
    "device": Room(
        ("include/imbrex/device/*.hpp",),
        ("runtime_test", "shmem_heap_test", "shmem_loss_test", "shmem_checked_test", "shmem_mlx5_refusals_test",
         "shmem_ring_refusals_test", "shmem_mlx5_random_test", "shmem_ring_random_test", "shmem_ring_registered_test",
         "shmem_mlx5_suite_test", "shmem_ring_suite_test", "shmem_suite_test", "shmem_litmus_test"),
    ),
    "codec": Room(("src/codec/*.[ch]pp",), ("codec_test", "all_reduce_test")),
    "hosts": Room(("src/runtime/hosts/*.[ch]pp",), ("hosts_test",)),
    "calls": Room(("src/runtime/calls*.[ch]pp",), ("check_calls_test", "refusals_test", "runtime_test")),
    "torch": Room(
        ("python/imbrex/torch/*.py",),
        python=("test_operators.py", "test_drop_in.py", "test_scales.py", "test_packed.py", "test_places.py", "test_groups.py",
                "test_gradients.py", "test_codecs.py", "test_errors.py", "test_embedding_bag.py", "test_compile.py",
                "test_transforms.py", "test_forward_mode.py", "test_refusals.py", "test_recording.py", "test_first_call.py", "test_uneven_rows.py"),
        without=("python/imbrex/torch/nn/*", "python/imbrex/torch/parallel.py", "python/imbrex/torch/graph/*"),
    ),
    "layers": Room(
        ("python/imbrex/torch/nn/*.py", "python/imbrex/torch/parallel.py"),
        python=("test_parallel_styles.py", "test_megatron_arguments.py", "test_first_weights.py", "test_checkpoints.py",
                "test_sharded_checkpoints.py", "test_llama_plan.py", "test_transforms.py"),
    ),
    "graph": Room(
        ("python/imbrex/torch/graph/*.py",),
        python=("test_passes.py", "test_agreement.py", "test_functional_collectives.py", "test_llama_plan.py", "test_compile.py"),
    ),
}


def sources_of(room, paths):
    def is_in(path, patterns):
        return any(fnmatchcase(path, one) for one in patterns)

    asked = ROOMS[room]
    return [path for path in paths if is_in(path, asked.sources) and not is_in(path, asked.without) and not any(part in path for part in LEFT_OUT)]
