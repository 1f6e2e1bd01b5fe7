// One rank's runs of a plan on its threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "execute/cpu/rank_memory.hpp"
#include "imbrex/advanced/execute.hpp"

namespace imbrex::execute {

/// Throws Error(invalid_input) for options out of range.
const CpuOptions& validated(const CpuOptions& options);

/// Its owner says where the plan lies in the heap, and counts epochs.
class RankRun {
 public:
  /// Throws Error(invalid_input) if the plan is of other ranks than the world, breaks a rule of the format, or
  /// reaches peers where these are out of reach.
  RankRun(World& world, std::shared_ptr<const Plan> plan, const CpuOptions& options);

  const Plan& plan() const { return *plan_; }
  HeapLayout& layout() { return layout_; }
  const HeapLayout& layout() const { return layout_; }

  /// The layout stands, and begins at `heap_offset`.
  void lie_at(std::size_t heap_offset);
  const RankMemory& memory() const { return *memory_; }

  /// One epoch; see Execution::run. `counts`: see RankMemory::enter.
  Report run(const Addresses& operands, std::uint64_t epoch, std::span<const std::uint32_t> counts);

  /// What the last epoch's codec has done; see Execution::codec_report.
  const CodecReport& quantized() const { return quantized_; }

 private:
  void hold_back(std::uint64_t epoch) const;

  World& world_;
  std::shared_ptr<const Plan> plan_;
  CpuOptions options_;
  HeapLayout layout_;
  std::map<int, std::vector<const Collective*>> collectives_;
  std::unique_ptr<RankMemory> memory_;
  CodecReport quantized_{};
};

}  // namespace imbrex::execute
