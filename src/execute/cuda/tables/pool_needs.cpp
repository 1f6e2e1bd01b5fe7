#include "execute/cuda/tables/pool_needs.hpp"

#include "execute/cuda/tables/table_survey.hpp"
#include "plan/operand_buffers.hpp"
#include "runtime/heap.hpp"

namespace imbrex::cuda {

void PoolNeeds::add(plan::TaskStream& tasks, int rank, bool timeline) {
  Surveyed surveyed = survey(tasks, rank);
  const TableSurvey::Sizes& sizes = surveyed.tables.sizes();
  // Tiles may get a mate that stores nothing, and a timeline.
  const std::size_t task_bytes = 2 * sizeof(TaskEntry) + (timeline ? 2 * sizeof(TaskTimes) : 0),
                    bytes = sizes.tasks * task_bytes + 2 * sizes.waits * sizeof(WaitEntry) +
                            2 * sizes.regions * sizeof(RegionEntry) + sizes.posts * sizeof(PostEntry);
  const Buffer& out = tasks.frame().buffers[plan::buffer_out];
  surveyed.layout.leave_out(plan::buffer_out);
  share = share.joined(surveyed.layout.share());
  table_bytes = std::max(table_bytes, bytes);
  out_bytes = std::max(out_bytes, static_cast<std::size_t>(out.rows * out.cols) * size_of(out.type));
  out_in_heap = out_in_heap || surveyed.layout.in_heap(plan::buffer_out);
}

void PoolNeeds::leave_room() {
  share.bytes += share.bytes / 8 / execute::HeapLayout::alignment * execute::HeapLayout::alignment;
  share.counters += share.counters / 4;
}

std::size_t PoolNeeds::heap_bytes() const {
  constexpr std::size_t unit = runtime::OffsetAllocator::alignment;
  const auto taken = [](std::size_t bytes) { return (bytes + unit - 1) / unit * unit; };
  return taken(pool_state_bytes) + taken(execute::HeapLayout::bytes_of_halves(share)) +
         (out_in_heap ? taken(out_bytes) : 0);
}

}  // namespace imbrex::cuda
