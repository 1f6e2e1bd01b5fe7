// One all-reduce, checked element by element against a float64 sum and the bound that it reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/backend.hpp"
#include "imbrex/world.hpp"

namespace imbrex::test {

/// inputs[rank]: values of the type.
struct Tensors {
  Type type;
  std::vector<std::vector<float>> inputs;

  std::int64_t count() const { return std::ssize(inputs.front()); }
};

/// Tensors of a kind that codec/forms.hpp makes, all ranks alike or each its own; with `hostile`, some elements are
/// NaN, infinite or the largest finite.
Tensors random_tensors(std::uint64_t seed, int ranks, Type type, std::int64_t count, bool hostile);

/// What a check found.
struct Checked {
  std::string fault;   ///< empty: none
  double ratio = 0;    ///< largest error over the bound
  double squares = 0;  ///< sum of the squares of the errors of finite elements
  AllReduceReport report;
  std::uint64_t hash = 0;  ///< of the output's bytes
};

/// Collective. Runs `op` once on this rank's tensor and checks this rank's output; says a fault on every rank if the
/// ranks' outputs differ.
Checked run_and_check(World& world, collectives::AllReduceBackend& op, const AllReduceOptions& options,
                      const Tensors& tensors);

/// The check alone.
Checked check_output(const Tensors& tensors, const std::vector<std::byte>& output, const AllReduceReport& report,
                     const AllReduceOptions& options);

}  // namespace imbrex::test
