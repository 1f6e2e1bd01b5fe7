// What the CUDA executor makes of kinds of work: the list of those that it runs. docs/dev/architecture.md says how to
// add one. Built everywhere: what is refused, is told without a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "execute/cuda/tables/translate.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::cuda {

/// Blocks of a table, one after another, that one launch computes.
struct BlockLaunch {
  std::size_t first = 0, count = 1;
  /// Whether the launch waits and posts for them. Else steps before and after it do.
  bool signals = false;

  bool operator==(const BlockLaunch&) const = default;
};

/// What launches are made for. The device is selected; all of it outlives them.
struct LaunchPlace {
  const Plan& plan;
  int rank = 0;
  const RankTable& table;              ///< has the blocks, with their regions
  const Protocol* protocol = nullptr;  ///< epochs, for launches that signal, and for regions that come twice
  std::uint32_t most_blocks = 0;       ///< thread blocks of a launch; 0: as many as fit
};

/// Launches of one kind of block, on one rank's GPU.
class BlockLaunches {
 public:
  virtual ~BlockLaunches() = default;

  /// Queues launch `i`, once. Outputs of `operands` are where regions of base `out` lie. `captured`: a graph may hold
  /// the call.
  virtual void launch(std::size_t i, const Addresses& operands, CudaStream stream, bool captured) = 0;

  /// As Execution::take_misfits, of blocks that are over or on `stream`.
  virtual std::int64_t take_misfits(Misfits, CudaStream) { return 0; }
};

/// A kind of work: what a table's blocks of it become.
struct WorkOnGpu {
  WorkKind kind;
  std::string_view name;    ///< what it does, as messages say it
  std::string_view kernel;  ///< what does it

  /// Why a block is not run; empty if it is.
  std::string (*refusal)(const Plan& plan, int rank, const Block& block) = nullptr;

  /// How blocks [first, end) of the rank's table, all of this kind, are launched: each once, in this order. Blocks may
  /// share a launch that signals if it can wait for what the first of them waits for, and no other waits for more. One
  /// that posts is complete when its posts come.
  std::vector<BlockLaunch> (*launches)(const Plan& plan, int rank, const RankTable& table, std::size_t first,
                                       std::size_t end) = nullptr;

  /// Takes memory, and loads the kernels. Null without CUDA.
  std::unique_ptr<BlockLaunches> (*make)(const LaunchPlace& place, const std::vector<BlockLaunch>& launches) = nullptr;
};

/// Null for a kind that the executor does not run.
const WorkOnGpu* work_on_gpu(WorkKind kind);

/// Why the block is not run; empty if it is.
std::string refusal_of_block(const Plan& plan, int rank, const Block& block);

}  // namespace imbrex::cuda
