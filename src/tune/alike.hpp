// What was measured for some problems tells what to run for others.
#pragma once

#include <optional>

#include "imbrex/machine.hpp"
#include "tune/records.hpp"

namespace imbrex {

/// What should be fastest for the problem, of what was found fastest for problems of the same operator and number of
/// ranks, of a type of the same size, and of nearly its sizes, or the library's own sequence; with `strategy`, of
/// those that found it fastest. None if all are far. A problem that was measured gets its record's plan. Of others,
/// each record's advantage over the library's sequence is carried over to the problem as closed forms see it
/// (quick_seconds, on `machine`), which know how tiles fill workers and what the wire carries; what is near counts
/// more. Tiles are those of the type's kernels (with_kernel_tile); the other knobs suit
/// the problem but for `partial`, which names the type, and `span_shards`, which its scales allow.
std::optional<Candidate> choose_alike(const Records& records, const Problem& problem, std::optional<Strategy> strategy,
                                      const Machine& machine, bool hopper);

}  // namespace imbrex
