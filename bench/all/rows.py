"""Rows of a table out of what each program wrote: what was timed, by which way, beside which peer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

# {"what", "way", "us"} and, where there is one, {"peer", "peer_us"}, "own" where that is another way of Imbrex; where
# it can be predicted, {"problem", "strategy", "knobs"}, or "plan", words for `imbrex simulate`; where it was,
# {"predicted_us"}; "alone" where one rank had the GPU.
Row = dict[str, Any]
Result = Any


def apart(result: Result) -> bool:
    """Whether ranks had a GPU each: the sequential strategy is cuBLAS, or a lookup, with NCCL as users run it."""
    return bool(result.get("device") != "cpu" and result.get("ranks_per_gpu", 1) == 1)


def beside_own(what: str, way: str, us: float, others: dict[str, float] | None) -> Row:
    """A row beside another way of Imbrex."""
    return row(what, way, us, others, own=True) if others else row(what, way, us)


def row(what: str, way: str, us: float, peers: dict[str, float] | None = None, **more: Any) -> Row:
    """A row beside the fastest of its peers."""
    made: Row = {"what": what, "way": way, "us": us, **more}
    if peers:
        made["peer"], made["peer_us"] = min(peers.items(), key=lambda item: item[1])
    return made


def of_bench(result: Result) -> Iterator[Row]:
    """`imbrex bench --json`, or the same with torch's times."""
    for one in result["rows"]:
        p = one["problem"]
        what = (
            f"{p['operator']} {p['m']} x {p['n']} x {p['k']} {p['type']}"
            if p["ranks"] > 1
            else f"product {p['m']} x {p['n']} x {p['k']} {p['type']}"
        )
        chosen = next(plan for plan in one["plans"] if plan["chosen"])
        alone = p["ranks"] == 1
        peers = {"cuBLAS": one["cublas_us"]} if alone else {"cuBLAS + NCCL": one["plans"][0]["us"]}
        peers |= {f"torch, {name}": us for name, us in one.get("peers", {}).items()}
        more = {key: chosen[key] for key in ("strategy", "knobs") if key in chosen}
        yield row(what, chosen["name"], chosen["us"], peers, problem=p, **more)


def strategies(what: str, timed: dict[str, float], peer: str, apart: bool) -> Iterator[Row]:
    """
    Ways of one thing, of which the first is what libraries do.

    The fastest of the others has that as its peer, where ranks had a GPU each. Slower ones, which no user takes, and
    rows without a link between ranks are beside another way of Imbrex.
    """
    first, *others = timed.items()
    yield row(what, *first)
    fastest = min(others, key=lambda item: item[1], default=("", 0.0))[0]
    for way, us in others:
        yield row(what, way, us, {peer: first[1]}, **({} if apart and way == fastest else {"own": True}))


def of_runs(result: Result) -> Iterator[Row]:
    """runs.py: the first way is the one that others are compared with."""
    for one in result["rows"]:
        timed = {way: found["us"] for way, found in one["ways"].items() if "us" in found}
        if not timed:
            continue
        first = next(iter(timed))
        # What cuBLAS and NCCL do is a peer; the first codec, layout or algorithm is another way of Imbrex.
        by_libraries = apart(result) and first == "sequential"
        for made in strategies(one["what"], timed, first, by_libraries):
            found = one["ways"][made["way"]]
            yield made | ({"plan": found["plan"]} if "plan" in found else {})


def of_all_reduce(result: Result) -> Iterator[Row]:
    """all_reduce_bench."""
    for one in result.get("rows", []):
        us = one["microseconds"]
        peers = {"NCCL": us["nccl"]} if "nccl" in us else {}
        for way, time in us.items():
            if way != "nccl":
                # A sum through a codec is beside the exact one, where there is no NCCL.
                is_quantized = way not in ("auto", "one_shot", "two_shot")
                own = {"exact, auto": us["auto"]} if is_quantized and not peers and "auto" in us else None
                what = f"{one['bytes']} bytes"
                yield beside_own(what, way, time, own) if own else row(what, way, time, peers)
    for one in result.get("rms_norm", []):
        us = one["microseconds"]
        others = {name: time for name, time in us.items() if name.endswith("then kernel")}
        beside = row if "nccl, then kernel" in others else beside_own
        for way, time in us.items():
            yield beside(f"{one['bytes']} bytes, with a norm", way, time, None if way in others else others)


def of_all_reduce_torch(result: Result) -> Iterator[Row]:
    """peers_all_reduce.py."""
    for one in result["rows"]:
        peers = {f"torch, {name}": us for name, us in one["torch"].items()}
        if "nccl" in one["microseconds"]:
            peers["NCCL"] = one["microseconds"]["nccl"]
        yield row(f"{one['bytes']} bytes", "auto", one["microseconds"]["auto"], peers)


def of_exchanges(result: Result) -> Iterator[Row]:
    """`imbrex bench embedding_all_to_all`: sequential is lookup, all-to-all and regroup."""
    for one in result["rows"]:
        us = {way["strategy"]: way["us"] for way in one["strategies"] if way["us"] > 0}
        if "sequential" not in us:
            yield from (row(f"batch {one['batch']}", way, time) for way, time in us.items())
            continue
        ordered = {"sequential": us.pop("sequential")} | us
        yield from strategies(f"batch {one['batch']}", ordered, "lookup, all-to-all, regroup", apart(result))


def of_lookups(result: Result) -> Iterator[Row]:
    """bench/embedding/measure.py."""
    for one in result["cells"]:
        peers = {name: one[name]["us"] for name in ("fbgemm", "torch") if name in one}
        indices = f"{one['index']}, {'Zipf' if one['zipf'] else 'uniform'}"
        yield row(f"{one['tables']}, {one['rows']}, batch {one['batch']}, {indices}", "ours", one["ours"]["us"], peers)
    for one in result["joint"]:
        yield beside_own(
            f"{one['tables']}, {one['rows']}, batch {one['batch']}, one of four ranks",
            "as one kernel",
            one["joint"]["us"],
            {"lookup, copy, regroup": one["in_sequence"]["us"]},
        )


def shmem_case(one: Row) -> str:
    """In words."""
    return f"{one['measure']} of {one['call']}, {one['scope']}, {one['blocks']} blocks, {one['bytes']} bytes"


def of_shmem(result: Result) -> Iterator[Row]:
    """`imbrex bench shmem`."""
    for one in result["rows"]:
        yield row(shmem_case(one), "ours", one["us"])


def of_shmem_peers(result: Result) -> Iterator[Row]:
    """bench/shmem/peers.py."""
    for one in result["rows"]:
        yield row(
            shmem_case(one), "ours", one["ours"]["us"], {"NVSHMEM": one["nvshmem"]["us"]} if "nvshmem" in one else None
        )


def of_jacobi(result: Result) -> Iterator[Row]:
    """bench/shmem/jacobi.py: a sweep; in the kernel beside every other way."""
    for one in result["rows"]:
        others = {way: us for way, us in one["us"].items() if way != "in_kernel"}
        for way, us in one["us"].items():
            yield beside_own(f"{one['size']} x {one['size']} a PE", way, us, others if way == "in_kernel" else None)


def of_sparse(result: Result) -> Iterator[Row]:
    """bench/sparse/matrices.py."""
    for one in result:
        p = one["problem"]
        what = f"{one.get('kind', 'matrix')}, {p['rows']} rows, {p['levels']} levels, {p['ranks']} PEs"
        library = {"cuSPARSE": min(one["library"]["seconds"]) * 1e6} if one.get("library") else None
        yield row(what, str(one["way"]), min(one["seconds"]) * 1e6, library, alone=p["ranks"] == 1)


def of_model(result: Result) -> Iterator[Row]:
    """bench/model/measure.py: ways beside torch's."""
    ours, alone = ("Imbrex", "no communication"), "no communication"
    for one in result["rows"]:
        what = f"{one['model']}, {one['pass']}" + (f" of {one['tokens']}" if "tokens" in one else "")
        peers = {way: n["us"] for way, n in one["ways"].items() if not way.startswith(ours[0]) and way != alone}
        for way, numbers in one["ways"].items():
            yield row(what, way, numbers["us"], peers if way.startswith(ours[0]) else None)


def of_host_cost(result: Result) -> Iterator[Row]:
    """bench/python/host_cost.py: what may be added stands there as a peer."""
    us = {one["call"]: one["us"] for one in result["rows"]}
    for one in result["rows"]:
        allowed = {"C++ and what is allowed": us["C++"] + one["allowed_us"]} if "allowed_us" in one else None
        yield beside_own("matmul_reduce_scatter", one["call"], one["us"], allowed)


def of_gathered_a(result: Result) -> Iterator[Row]:
    """bench/gathered_a.cpp."""
    for one in result["layers"]:
        what = f"{one['cols']} columns, {one['k']} deep"
        yield row(what, "without the gathered A", one["without_us"])
        yield row(what, "with the gathered A", one["with_us"])


def of_signaled_product(result: Result) -> Iterator[Row]:
    """bench/signaled/product.cpp."""
    for one in result["rows"]:
        us = one["microseconds"]
        yield beside_own(
            f"{one['m']} x {one['n']} x {one['k']} {one['type']}",
            "under signals",
            us["signals"],
            {"plain, as many SMs": us["plain"]},
        )


def of_signaled_predictor(result: Result) -> Iterator[Row]:
    """bench/signaled/predictor.cpp."""
    for one in result["predictions"]:
        us = one["microseconds"]
        peers = {"one group a wave": us["one_wave_groups"]} if "one_wave_groups" in us else None
        yield row(
            f"{one['m']} x {one['n']} x {one['k']}, curve {one['curve']}",
            f"groups {one['groups']}",
            us["measured"],
            peers,
            own=True,
            predicted_us=us["predicted"],
        )


def of_put_back(result: Result) -> Iterator[Row]:
    """bench/signaled/put_back.cpp."""
    for one in result["rows"]:
        us = one["microseconds"]
        yield beside_own(
            f"norm of {one['rows']} x {one['cols']} {one['type']}",
            "through the map",
            us["mapped"],
            {"copy, then norm": us["copy_and_norm"]},
        )


def nothing(_: Result) -> Iterator[Row]:
    """What has no rows of times."""
    return iter(())


READERS: dict[str, Callable[[Result], Iterator[Row]]] = {
    "bench": of_bench,
    "runs": of_runs,
    "all_reduce": of_all_reduce,
    "all_reduce_torch": of_all_reduce_torch,
    "exchanges": of_exchanges,
    "lookups": of_lookups,
    "shmem": of_shmem,
    "shmem_peers": of_shmem_peers,
    "jacobi": of_jacobi,
    "sparse": of_sparse,
    "model": of_model,
    "host_cost": of_host_cost,
    "gathered_a": of_gathered_a,
    "signaled_product": of_signaled_product,
    "put_back": of_put_back,
    "signaled_predictor": of_signaled_predictor,
    "gtest": nothing,
    "text": nothing,
    "predicted": nothing,
}


def rows_of(entry: dict[str, Any]) -> list[Row]:
    """What a measurement's result says. Throws ValueError where it is not what its reader takes."""
    try:
        return list(READERS[entry["reader"]](entry["result"]))
    except (KeyError, TypeError, IndexError, StopIteration, AttributeError) as error:
        raise ValueError(
            f"its result is not what '{entry.get('reader')}' reads: {type(error).__name__}: {error}"
        ) from error


COUNTED = {"right": "       OK ", "wrong": "  FAILED  ", "skipped": "  SKIPPED "}


def counts_of(entry: dict[str, Any]) -> dict[str, int]:
    """How many tests were right, wrong, and skipped; of what was cut off, those that had ended."""
    counts = {"right": 0, "wrong": 0, "skipped": 0}
    if entry.get("reader") == "runs" and entry["result"]["set"] == "verify":
        for one in entry["result"]["rows"]:
            for found in one["ways"].values():
                counts["skipped" if "right" not in found else "right" if found["right"] else "wrong"] += 1
    if entry.get("reader") == "gtest":
        for line in entry["result"]:
            # The summary at the end names tests once more, without a time.
            if match := re.match(r"\[([ A-Z]{10})\] \S+ \(\d+ ms\)|\[([ A-Z]{10})\] \S+, where .* \(\d+ ms\)", line):
                mark = match[1] or match[2]
                for name, text in COUNTED.items():
                    counts[name] += mark == text
    return counts


def subject_left_out(result: Any) -> list[str]:
    """What the measurement is there for and had no time for, as its program says."""
    told = result.get("subject_left_out") if isinstance(result, dict) else None
    return [str(one) for one in told] if isinstance(told, list) else []


def nothing_in(reader: str, result: Any) -> str:
    """Why there is nothing in what a child wrote; empty where there is something."""
    if result is None:
        return "it wrote no result that can be read"
    try:
        there = rows_of({"reader": reader, "result": result})
    except ValueError as fault:
        return str(fault)
    counts = counts_of({"reader": reader, "result": result})
    if reader in ("text", "predicted") or there or counts["right"] + counts["wrong"]:
        return ""
    if reader == "runs":
        failures = [found["failed"] for one in result["rows"] for found in one["ways"].values() if "failed" in found]
        return f"no run ended: {failures[0]}" if failures else "no run ended"
    return "all tests were skipped" if reader == "gtest" else "there is nothing in its result"
