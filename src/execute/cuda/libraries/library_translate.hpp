// From a plan with library queues to what one rank launches: products of a GEMM library, collectives, sums and copies
// on streams, tied together by events. Pure host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::cuda {

struct LibraryStep {
  std::variant<Product, Transfer, Reduction, Collective, Block> work;  ///< an empty transfer does nothing
  std::size_t stream = 0;
  std::vector<std::size_t> waits;  ///< earlier steps, on other streams, that end before this one begins
  bool awaited = false;            ///< a step on another stream, or the end of the epoch, waits for this one
  int queue = 0;                   ///< in the plan
  std::size_t task = 0;
};

/// One epoch of one rank. All regions are the rank's own.
struct LibraryProgram {
  std::vector<LibraryStep> steps;  ///< in the order of their launch: what a step waits for is launched before it
  std::vector<bool> forked;  ///< by stream: it must be made to wait for the epoch's begin. 0 is where the epoch runs
  std::vector<std::size_t> ends;  ///< steps that stream 0 waits for at the epoch's end
};

/// In place of a kernel's name, where products and collectives are libraries'; see CudaOptions::kernel.
inline constexpr std::string_view library_name = "cuBLASLt, NCCL";

/// Whether libraries run the plan, and not Imbrex' kernels: it has library queues with tasks.
bool runs_by_libraries(const Plan& plan);

/// `rank`'s part. Needs no more than the plan's tasks. The plan must have passed check_format. Throws
/// Error(invalid_input) naming the task that does not fit.
LibraryProgram library_program(const Plan& plan, int rank);

}  // namespace imbrex::cuda
