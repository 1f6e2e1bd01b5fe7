"""
The fixed list of measurements, for several GPUs, for ranks that share one, and for the CPU.

Weights are what a row is worth to a reader: what is told of first, and what has a peer, counts most. Seconds are what
one H100 took, or a guess; the planner corrects them by what the first ones take.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from measurement import Measurement

TOPICS = {
    "correctness": "Correctness of several ranks",
    "gemm": "Products with collectives",
    "layouts": "Layouts of B, and lists of B",
    "codecs": "Codecs within operators",
    "all_reduce": "All-reduces, exact and through codecs",
    "signaled": "Signaled plans",
    "embedding": "Embedding lookups and exchanges",
    "shmem": "OpenSHMEM calls in kernels",
    "jacobi": "Jacobi's ways",
    "sparse": "Sparse triangular solves",
    "model": "Layers of models in PyTorch",
    "host_cost": "What a call costs the host",
    "constants": "Constants of this machine",
    "predicted": "Predicted against measured",
}
# Threads that share a GPU: a kernel that is loaded at its first launch may wait for kernels that run.
THREADS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
OF_PROCESSES = {
    "IMBREX_TEST_RANKS": "processes",
    "IMBREX_TEST_RANKS_PER_GPU": "4",
    "IMBREX_TEST_NEEDS_MPS": "1",
    "IMBREX_TEST_GPU_CASES": "1",
}
# Layers of Llama-3-8B, Llama-3-70B and GPT-3 as a rank of four multiplies them.
FEW = "4096x3584 7168x4096 8192x7168"
PARTS = f"{FEW} 14336x8192 12288x12288"
# Tests of several ranks: weight, seconds, and what of each runs. Tests of losses and of waits past their limit tell
# nothing of a machine, and take theirs.
GTESTS = (
    ("gpu_signaled_test", 99, 20, "GpuSignaled.OneRank*:*RandomPlans*:*GraphsWithDelays*:*SharesAnExecutor*"),
    ("gpu_operator_test", 98, 40, "*GiveWhatTheReferenceSays*:*Alternate*:*ReplayFromGraphs*:*OperandsThatMove*"),
    ("gpu_shmem_test", 92, 20, "-*EndsTheOthers*"),
    ("gpu_all_reduce_test", 87, 20, "-*PastTheirLimit*:*Mistakes*"),
    ("gpu_correctness_test", 85, 30, "GpuFused.RandomProblems*:GpuFused.*Delays:GpuFused.CountersWrap"),
    ("gpu_library_test", 83, 15, "*RandomProblems*:*GraphsReplay*:*Fp8*"),
    ("gpu_embedding_operator_test", 73, 15, "*GivesTheCpusBits*:*AnyBatch*:*Updates*:*TenThousand*"),
    ("gpu_exchange_test", 59, 12, "*"),
    ("gpu_sparse_solve_test", 58, 15, "-*PastTheirLimit*"),
    ("gpu_quantized_all_reduce_test", 45, 40, "-*TenThousand*:*RuleOutMostKeys*"),
    ("gpu_device_memory_test", 44, 3, "-*IsBounded*"),
    ("gpu_put_back_test", 36, 15, "*"),
    ("gpu_rms_norm_test", 35, 60, "-*PastTheirLimit*:*Mistakes*"),
)
OPERATORS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all")
ALONE = "{program} bench --ranks 1 --strategy fused --ops gemm_all_to_all --rounds 3 --json {out}"
TOGETHER = "{program} bench --ranks {ranks} --rounds 3 --json {out}"


def made(
    topic: str, name: str, weight: float, seconds: float, reader: str, title: str, command: str, needs: str, **more: Any
) -> Measurement:
    """A measurement of words without blanks."""
    return Measurement(name, topic, weight, seconds, command.split(), reader, title, needs=needs.split(), **more)


def runs(kind: str, topic: str, name: str, weight: float, seconds: float, title: str) -> Measurement:
    """A set of runs.py, on what the machine is: gpus, shared or cpu."""
    device = "cpu" if kind == "cpu" else "cuda"
    command = (
        "{python} {bench}/all/runs.py --program {program} --out {out} --ranks {ranks} --ranks-per-gpu {per_gpu} "
        f"--seconds {{seconds}} --set {name} --device {device}"
    )
    is_test = name == "verify"
    more: dict[str, Any] = {"codes": [0, 1], "phase": 0} if is_test else {}
    needs = "cpu" if kind == "cpu" else "gpu"
    full = f"runs-{name}"
    return made(topic, full, weight, seconds, "runs", title, command, needs, mps=kind == "shared", memory_gib=8, **more)


def gtests(shared: bool) -> list[Measurement]:
    """Tests of several ranks, where their programs are."""
    environment = OF_PROCESSES if shared else {"IMBREX_TEST_GPU_CASES": "3"}
    more: dict[str, Any] = {"output": "text", "phase": 0, "codes": [0, 1, 77], "mps": shared, "memory_gib": 8}
    return [
        made("correctness", name, weight, seconds, "gtest", "", f"{{bin}}/{name} --gtest_filter={part}",
             f"gpu machines bin:{name}", environment=environment, **more)
        for name, weight, seconds, part in GTESTS
    ]  # fmt: skip


def one_card() -> list[Measurement]:
    """What one GPU tells by itself, alone or among several: products, lookups, and what these predict."""
    lookups = "{python} {bench}/embedding/measure.py {lib}/embedding_bench.so --json {out} --joint --seconds {seconds}"
    found = [
        made("gemm", "products", 95, 15, "bench", "Products alone beside cuBLAS, bf16: what a rank of four multiplies",
             f"{ALONE} --m 64 512 2048 8192 --layers {PARTS}", "gpu machines", memory_gib=20),
        made("gemm", "products-e4m3", 52, 5, "bench", "Products alone beside cuBLAS, e4m3",
             f"{ALONE} --type e4m3 --m 64 2048 --layers {FEW}", "gpu machines", memory_gib=20),
        made("layouts", "products-nxk", 62, 5, "bench", "Products alone beside cuBLAS, B as N x K",
             f"{ALONE} --b-layout nxk --m 64 2048 --layers {FEW}", "gpu machines", memory_gib=20),
        made("layouts", "layouts", 50, 8, "text", "The same plan on B as K x N and as N x K",
             "{bin}/layouts 3", "gpu machines bin:layouts", output="text", memory_gib=8),
        made("embedding", "lookups", 66, 15, "lookups", "Lookups beside torch's and FBGEMM's",
             lookups, "gpu torch_gpu lib:embedding_bench.so", memory_gib=60),
        made("signaled", "signaled-product", 60, 12, "signaled_product", "A product under signals beside the plain one",
             "{bin}/signaled_product {out} 3", "gpu machines bin:signaled_product", memory_gib=8),
        made("signaled", "signaled-predictor", 68, 30, "signaled_predictor",
             "Signaled plans beside a stand-in for NCCL: predicted and measured",
             "{bin}/signaled_predictor {out} {seconds}", "gpu machines bin:signaled_predictor", memory_gib=8,
             environment={"LD_LIBRARY_PATH": "{stand_in}:{libraries}"}),
        made("signaled", "put-back", 40, 6, "put_back", "Norms through the map",
             "{bin}/put_back {out} 5", "gpu bin:put_back", memory_gib=8),
        made("constants", "constants-1", 89, 30, "text", "What a machine file is fitted to, of one GPU",
             "sh {bench}/simulator/measure 1 {dir}/constants/1 {bin}", "gpu machines", output="text", memory_gib=20),
    ]  # fmt: skip
    return [replace(one, one_gpu=True) for one in found]


def made_of_times() -> list[Measurement]:
    """What is computed of the others."""
    fit = (
        "{python} {bench}/simulator/fit.py {program} --measured {dir}/constants --quick --gpu {gpu} "
        "--out {dir}/machine-fitted.json"
    )
    predict = "{python} {bench}/all/predicted.py --dir {dir} --program {program} --out {out} --seconds {seconds}"
    return [
        made("constants", "fit", 88, 6, "text", "A machine file fitted to this run", fit, "gpu machines",
             output="text", phase=2, memory_gib=0),
        made("predicted", "predicted", 88, 15, "predicted", "", predict, "gpu machines", phase=3, memory_gib=0),
    ]  # fmt: skip


def exchanges(kind: str, weight: float, seconds: float, batches: str) -> Measurement:
    """The strategies of an embedding exchange, in turn."""
    where = "--type fp32 --device cpu" if kind == "cpu" else "--type fp16 --device cuda --ranks-per-gpu {per_gpu}"
    command = "{program} bench embedding_all_to_all --tables {tables} --ranks {ranks} --index-type int32 --rounds 5"
    title = "Exchanges by strategy; DLRMv2's tables, cut"
    needs = "cpu" if kind == "cpu" else "gpu"
    command = f"{command} --batch {batches} {where} --json {{out}}"
    return made(
        "embedding",
        "exchanges",
        weight,
        seconds,
        "exchanges",
        title,
        command,
        needs,
        mps=kind == "shared",
        memory_gib=20,
    )


def python_level(kind: str, ranks: int) -> list[Measurement]:
    """Layers, and the host's cost, by the package."""
    model = (
        "{python} {bench}/model/measure.py --out {out} --program {program} --models llama3-8b --rounds 2 --layers 1 "
        "--check-scale 0 --predict none "
    )
    cost = "{python} {bench}/python/host_cost.py --out {out} "
    if kind == "cpu":
        model += "--scale 16 --sequence 64 --batch 2 --tokens 16 --calls 2"
        cost += "--calls 200 --rows 64 --columns 64 --depth 64"
    else:
        model += "--batch 4 --tokens 64 512"
        cost += "--calls 4000"
    needs = "cpu torch imbrex_torch" if kind == "cpu" else "gpu torch_gpu imbrex_torch"
    more: dict[str, Any] = {"ranks": ranks, "mps": kind == "shared"}
    return [
        made("model", "model", 64, 40 if kind == "cpu" else 25, "model", "Llama-3-8B's layers, several ways in turn",
             model, needs, memory_gib=20, **more),
        made("host_cost", "host-cost", 56, 25, "host_cost", "A call from Python beside one from C++", cost,
             f"{needs} compiler", memory_gib=4, **more),
    ]  # fmt: skip


def in_kernels(kind: str) -> list[Measurement]:
    """OpenSHMEM's calls, and what stands on them; PEs have a GPU each, or share one."""
    shared = kind == "shared"
    where = "on one GPU" if shared else "on two GPUs"
    gpus = "1" if shared else "{gpus}"
    needs = "gpu" if shared else "two_gpus"
    peers = (
        "{python} {bench}/shmem/peers.py --program {program} --rounds 3 --full --json {out} --nvshmem {nvshmem} "
        "--peer={peer} --dormant={dormant}"
    )
    own = "{program} bench shmem --device cuda --quick --rounds 3 --json {out}"
    jacobi = (
        "{python} {bench}/shmem/jacobi.py --program {program} --out {out} --ranks {ranks} --rounds 1 --repeat 6 "
        f"--gpus {gpus}"
    )
    sparse = (
        "{python} {bench}/sparse/matrices.py {program} --device cuda --pes 1,{ranks} --json {out} --repeat 5 "
        f"--most-rows 1000000 --gpus {gpus}"
    )
    return [
        made("shmem", "shmem", 86, 30, "shmem_peers", f"Calls beside NVSHMEM's, two PEs {where}",
             f"{peers} --gpus {1 if shared else 2}", f"{needs} nvshmem", codes=[0, 1], mps=shared),
        made("shmem", "shmem-own", 34 if shared else 61, 20, "shmem", "Calls, PEs in pairs",
             f"{own} --ranks {'2 --ranks-per-gpu 2' if shared else '{ranks}'}", needs, mps=shared),
        made("jacobi", "jacobi", 65, 25, "jacobi", "Ways to exchange a field's borders", jacobi, needs, codes=[0, 1],
             mps=shared),
        made("sparse", "sparse", 55, 25, "sparse", "Solves beside cuSPARSE's", sparse, needs, mps=shared),
    ]  # fmt: skip


def of_one_gpu(ranks: int) -> list[Measurement]:
    """Ranks share the GPU, as processes under MPS; products and lookups have it alone."""
    sums = "{bin}/all_reduce_bench --ranks {ranks} --ranks-per-gpu {ranks} --threads --no-nccl --rounds 3 --json {out}"
    as_threads: dict[str, Any] = {"environment": THREADS, "memory_gib": 8}
    return [
        runs("shared", "correctness", "verify", 100, 20, "Every operator in every strategy against float64"),
        *gtests(True),
        *one_card(),
        runs("shared", "gemm", "operators", 80, 20, "Strategies on ranks that share the GPU"),
        runs("shared", "layouts", "layouts", 46, 30, "Layouts and lists of B on ranks that share the GPU"),
        made("layouts", "gathered-a", 38, 25, "gathered_a", "The gathered A as an output",
             "{bin}/gathered_a 4 4 {out}", "gpu bin:gathered_a", mps=True),
        runs("shared", "codecs", "codecs", 54, 30, "Codecs within operators, on ranks that share the GPU"),
        made("all_reduce", "all-reduce", 84, 15, "all_reduce", "All-reduces of threads that share the GPU",
             f"{sums} --most 16777216 --codecs int8 int4+int8 flash6", "gpu bin:all_reduce_bench", **as_threads),
        made("all_reduce", "all-reduce-norm", 48, 5, "all_reduce", "All-reduces with a norm, of threads",
             f"{sums} --rms-norm --most 4194304", "gpu bin:all_reduce_bench", **as_threads),
        runs("shared", "signaled", "signaled", 44, 30, "Signaled plans through NCCL over sockets"),
        exchanges("shared", 70, 20, "4096 16384 65536"),
        *in_kernels("shared"),
        *python_level("shared", ranks),
        *made_of_times(),
    ]  # fmt: skip


def beside_torch_and_nccl(ranks: int) -> list[Measurement]:
    """The layers of the documents' tables, the rows that are told of first; torch in the same turns where it is."""
    found = []
    for weight, rows in ((96, "512 2048 8192"), (66, "16 64 128 256"), (64, "1024 3000 4096 16384")):
        first = rows.split(" ")[0]
        for place, op in enumerate(OPERATORS):
            seconds = 6.0 * len(rows.split(" "))
            torch = "{python} {bench}/peers_torch.py --imbrex {program} --out {out} --turns 2"
            layers = {"all_gather_gemm": "28672x4096 57344x8192", "gemm_all_to_all": "4096x3584 8192x7168"}
            own = f"{TOGETHER} --ops {op} --m {rows} --layers {layers.get(op, '4096x14336 8192x28672')}"
            found += [
                made("gemm", f"gemm-{op}-{first}", weight - place, seconds, "bench",
                     f"{op} beside cuBLAS + NCCL and torch, M {rows}", f"{torch} --ops {op} --rows {rows}",
                     "two_gpus machines torch_gpu", ranks=ranks, memory_gib=40),
                made("gemm", f"bench-{op}-{first}", weight - place, seconds / 2, "bench",
                     f"{op} beside cuBLAS + NCCL, M {rows}", own, "two_gpus machines !torch_gpu", memory_gib=20),
            ]  # fmt: skip
    return found


def of_gpus(ranks: int) -> list[Measurement]:
    """A GPU for each rank."""
    sums = "{bin}/all_reduce_bench --ranks {ranks} --rounds 3 --json {out}"
    torch_sums = "{python} {bench}/peers_all_reduce.py --bench {bin}/all_reduce_bench --out {out} --turns 2"
    needs = "two_gpus bin:all_reduce_bench"
    return [
        runs("gpus", "correctness", "verify", 100, 25, "Every operator in every strategy against float64"),
        *gtests(False),
        made("constants", "links", 74, 5, "text", "What the links carry", "{bin}/link_bench {ranks} 32",
             "two_gpus bin:link_bench", output="text"),
        *beside_torch_and_nccl(ranks),
        made("layouts", "bench-nxk", 70, 12, "bench", "B as N x K beside cuBLAS + NCCL",
             f"{TOGETHER} --b-layout nxk --m 512 2048 --layers 8192x28672", "two_gpus machines", memory_gib=20),
        made("gemm", "bench-e4m3", 71, 12, "bench", "e4m3 beside cuBLAS + NCCL",
             f"{TOGETHER} --type e4m3 --m 512 2048 --layers 8192x28672", "two_gpus machines", memory_gib=20),
        runs("gpus", "layouts", "layouts", 55, 35, "Layouts and lists of B"),
        made("layouts", "gathered-a", 45, 20, "gathered_a", "The gathered A as an output",
             "{bin}/gathered_a {ranks} 1 {out}", "two_gpus bin:gathered_a"),
        runs("gpus", "codecs", "codecs", 69, 35, "Codecs within operators"),
        made("all_reduce", "all-reduce", 94, 6, "all_reduce", "All-reduces beside NCCL's",
             f"{sums} --most 268435456 --codecs int8 int4+int8 flash6", needs, memory_gib=10),
        made("all_reduce", "all-reduce-coded", 60, 15, "all_reduce", "All codecs, numbers of CTAs, and errors",
             f"{sums} --coded --errors --ctas-sweep", needs, memory_gib=10),
        made("all_reduce", "all-reduce-norm", 63, 8, "all_reduce", "All-reduces with a norm",
             f"{sums} --rms-norm --most 67108864", needs, memory_gib=10),
        made("all_reduce", "all-reduce-torch", 67, 15, "all_reduce_torch", "All-reduces beside torch's",
             f"{torch_sums} --most 67108864", f"{needs} torch_gpu", ranks=ranks, memory_gib=10),
        runs("gpus", "signaled", "signaled", 72, 40, "Signaled plans through NCCL beside the others"),
        exchanges("gpus", 90, 15, "4096 16384 65536"),
        *in_kernels("gpus"),
        *python_level("gpus", ranks),
        *one_card(),
        made("constants", "constants-2", 82, 45, "text", "What a machine file is fitted to, of two GPUs",
             "sh {bench}/simulator/measure 2 {dir}/constants/2 {bin}",
             "two_gpus bin:link_bench bin:all_reduce_bench", output="text", memory_gib=40),
        *made_of_times(),
    ]  # fmt: skip


def of_cpu(ranks: int) -> list[Measurement]:
    """The CPU executor. Cores are what ranks share; there are no links."""
    shmem = "{program} bench shmem --device cpu --ranks 2 --quick --rounds 3 --json {out}"
    sparse = (
        "{python} {bench}/sparse/matrices.py {program} --device cpu --pes 1,{ranks} --json {out} --repeat 5 --small"
    )
    return [
        runs("cpu", "correctness", "verify", 100, 15, "Every operator in every strategy against float64"),
        runs("cpu", "gemm", "operators", 95, 25, "Strategies on the CPU"),
        runs("cpu", "layouts", "layouts", 50, 30, "Layouts and lists of B on the CPU"),
        runs("cpu", "codecs", "codecs", 55, 20, "Codecs within operators, on the CPU"),
        runs("cpu", "all_reduce", "all_reduce", 85, 10, "All-reduces on the CPU"),
        runs("cpu", "signaled", "signaled", 60, 30, "Signaled plans on the CPU"),
        exchanges("cpu", 75, 10, "256 1024"),
        made("shmem", "shmem-own", 80, 15, "shmem", "Calls between processes", shmem, "cpu"),
        runs("cpu", "jacobi", "jacobi", 65, 10, "Ways to exchange a field's borders, on the CPU"),
        made("sparse", "sparse", 62, 20, "sparse", "Solves on the CPU", sparse, "cpu"),
        *python_level("cpu", ranks),
    ]


# DLRMv2's tables: rows, and indices of a bag.
DLRM_ROWS = """
    40000000 39060 17295 7424 20265 3 7122 1543 63 40000000 3067956 405282 10 2209 11938 155 4 976 14 40000000
    40000000 40000000 590152 12973 108 36""".split()
DLRM_HOTNESS = "3 2 1 2 6 1 1 1 1 7 3 8 1 6 9 5 1 1 1 12 100 27 10 3 1 1".split()


def dlrm_tables(cpu: bool) -> dict[str, object]:
    """Those tables, cut to rows that one card holds beside three other ranks; on a CPU, to few."""
    most, dim = (20_000, 32) if cpu else (500_000, 128)
    tables = [
        {"rows": min(int(count), most), "dim": dim, "hotness": int(hot)}
        for count, hot in zip(DLRM_ROWS, DLRM_HOTNESS, strict=True)
    ]
    return {"rows": "fp32" if cpu else "fp16", "tables": tables}
