// Whether a job fits this host's memory: asked before the first page is touched.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "imbrex/problem.hpp"

namespace imbrex::program {

/// What may still be taken, and who says so: the system, or a control group's limit, whichever is less. Pages that the
/// kernel can drop, and swap, count as free.
struct MemoryLeft {
  double bytes = 0;
  std::string_view by;
};

/// `root`: where /proc and /sys are, for tests. Infinite where nothing is known.
MemoryLeft memory_left(const std::string& root = "");

/// Throws Error(invalid_input) naming the job, what it needs, and what is left, where that is less. `least` bytes are
/// what all ranks of this host need together, at least: what fits is never refused.
void expect_memory(std::string_view job, double least, const MemoryLeft& left = memory_left());

/// What a product's ranks hold on the host while they run: operands, results, and, where they verify, the
/// reference's sums in float64, of the rows that are compared at least.
double least_bytes_of(const Problem& problem, bool verify);

}  // namespace imbrex::program
