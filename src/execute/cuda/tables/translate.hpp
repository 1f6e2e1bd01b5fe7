// From a plan to what one rank's GPU runs: the kernel's tables and the copy engine's list. Pure host code.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "execute/cuda/tables/table.hpp"
#include "execute/cuda/tables/table_survey.hpp"
#include "execute/cuda/tables/tile_shape.hpp"
#include "execute/layout.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cuda {

/// A transfer that a copy engine runs, then `turn` to the flag, if there is one. Addresses are for copy 0 of a buffer
/// and set 0 of a counter.
struct CopyStep {
  RegionEntry from, to;  ///< `from` may lie in the caller's A or its scales
  bool local = false;    ///< stays on this rank
  bool flag = false;
  std::uint64_t counter = 0;
  int queue = 0;  ///< in the plan, with its task
  std::size_t task = 0;
};

/// What the kernel reads in device memory.
struct TableEntries {
  std::vector<TaskEntry> tasks;
  std::vector<WaitEntry> waits;
  std::vector<RegionEntry> regions;
  std::vector<PostEntry> posts;
};

/// Empty, with memory that has been touched: for most shapes' tables no page has to be found while they are made.
TableEntries touched_entries();

/// Such memory, which one table after another is made in.
class TableMemory {
 public:
  /// What is there, or nothing.
  TableEntries take() { return std::exchange(place_, {}); }
  /// Takes the memory of a table that is no longer needed; keeps the larger one.
  void give_back(TableEntries entries) {
    if (entries.tasks.capacity() > place_.tasks.capacity()) place_ = std::move(entries);
  }

 private:
  TableEntries place_ = touched_entries();
};

struct RankTable : TableEntries {
  std::vector<QueueSpan> queues;  ///< first_worker and workers hold what the plan reserves; place_workers sets them
  std::vector<CopyStep> copies;
  int gathered = -1;             ///< buffer after A's second source; -1: none
  int gathered_scales = -1;      ///< and the one after its scales
  std::size_t tiles = 0;         ///< tile tasks
  bool stores_to_peers = false;  ///< some tile's
  std::size_t peer_ctas = 0;     ///< tiles that run next to an idle CTA
};

/// Writes what a block is, and how many regions it reads and stores to, into its entry.
void put_numbers(TaskEntry& entry, const Block& block);

/// Translates `rank`'s part. `heap` and `offset` say where the layout's memory lies. Throws Error(invalid_input) naming
/// what this executor does not support, or what does not fit the kernel. The tables take the place of `memory`'s
/// entries.
RankTable translate(plan::TaskStream& tasks, const TableSurvey& survey, const execute::HeapLayout& layout, int rank,
                    const HeapHandle& heap, std::size_t offset, const TileShape& shape, TableEntries memory);
RankTable translate(const Plan& plan, const execute::HeapLayout& layout, int rank, const HeapHandle& heap,
                    std::size_t offset, const TileShape& shape);

/// Stages of the main loop that bring so many slots of 16-bit elements to a tile; 0: they do not come this way.
std::uint32_t slot_stages_of(const TileShape& shape, std::uint32_t slots);

/// Gives every queue its workers out of `total`: reserved ones first, the rest to the others.
void place_workers(std::vector<QueueSpan>& queues, std::uint32_t total);

/// Whether every slot of the plan holds a whole tile of the kernel, and no buffer has another type than the problem's,
/// its results' and fp32, which the Hopper kernels do not know; with split-K within a cluster, also whether tiles have
/// all of it.
bool fits(const Plan& plan, const TableSurvey& survey, const TileShape& shape);

}  // namespace imbrex::cuda
