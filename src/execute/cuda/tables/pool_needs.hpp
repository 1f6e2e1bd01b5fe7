// What plans that take turns need of a GPU's memory. Pure host code.
#pragma once

#include <algorithm>
#include <cstddef>

#include "execute/cuda/tables/table.hpp"
#include "execute/layout.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::cuda {

/// What the plans of a pool take at most, as far as is known when it is made.
struct PoolNeeds {
  execute::PlanShare share;     ///< without outputs: the caller's, or one that all share
  std::size_t table_bytes = 0;  ///< of one plan
  std::size_t out_bytes = 0;    ///< of the largest output
  bool out_in_heap = false;     ///< some plan's peers write it

  /// A plan, of which `rank` runs its part; with `timeline`, its tasks have times.
  void add(plan::TaskStream& tasks, int rank, bool timeline);
  /// Plans of sizes between those that were added may take a little more.
  void leave_room();

  /// What serves both.
  PoolNeeds joined(const PoolNeeds& other) const {
    return {share.joined(other.share), std::max(table_bytes, other.table_bytes), std::max(out_bytes, other.out_bytes),
            out_in_heap || other.out_in_heap};
  }
  /// Tables aside: there is always room for more of these.
  bool hold(const PoolNeeds& other) const {
    return share.holds(other.share) && (!other.out_in_heap || (out_in_heap && out_bytes >= other.out_bytes));
  }

  /// What a pool takes of the symmetric heap. docs/operators.md has it as a formula.
  std::size_t heap_bytes() const;
};

/// Bytes of a pool's state in the heap.
inline constexpr std::size_t pool_state_bytes = sizeof(device::State) + sizeof(CopyState);

}  // namespace imbrex::cuda
