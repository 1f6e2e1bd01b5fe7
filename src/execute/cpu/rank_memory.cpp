#include "execute/cpu/rank_memory.hpp"

#include <cstring>

namespace imbrex::execute {
namespace {

void copy_rows(std::byte* to, std::size_t to_pitch, const std::byte* from, std::size_t from_pitch, const Rows& rows) {
  if (!rows.has_gaps()) {
    std::memcpy(to, from, rows.packed());
    return;
  }
  for (std::int64_t i = 0; i < rows.count; ++i)
    std::memcpy(to + static_cast<std::size_t>(i) * to_pitch, from + static_cast<std::size_t>(i) * from_pitch,
                rows.bytes);
}

}  // namespace

std::byte* RankMemory::base(int rank, int buffer) const {
  if (layout_.in_heap(buffer)) return heap_.at(rank, heap_offset_ + layout_.offset(buffer, epoch_));
  // Only this rank touches an operand that is not in the heap; nothing writes an input (check_format).
  if (plan_.buffers[static_cast<std::size_t>(buffer)].role == BufferRole::output)
    return static_cast<std::byte*>(output_of(operands_, plan_.problem, buffer));
  return static_cast<std::byte*>(const_cast<void*>(input_of(operands_, plan_.problem, buffer)));
}

void RankMemory::stage_inputs() const {
  for (int buffer = 0; buffer < std::ssize(plan_.buffers); ++buffer) {
    const Buffer& b = plan_.buffers[static_cast<std::size_t>(buffer)];
    if (b.role != BufferRole::input || !layout_.in_heap(buffer)) continue;
    const Rows rows = rows_of(plan_.problem, b, buffer);
    copy_rows(base(heap_.rank, buffer), rows.bytes,
              static_cast<const std::byte*>(input_of(operands_, plan_.problem, buffer)), rows.pitch, rows);
  }
}

void RankMemory::unstage_outputs() const {
  for (int buffer = 0; buffer < std::ssize(plan_.buffers); ++buffer) {
    const Buffer& b = plan_.buffers[static_cast<std::size_t>(buffer)];
    if (b.role != BufferRole::output || !layout_.in_heap(buffer)) continue;
    const Rows rows = rows_of(plan_.problem, b, buffer);
    copy_rows(static_cast<std::byte*>(output_of(operands_, plan_.problem, buffer)), rows.pitch,
              base(heap_.rank, buffer), rows.bytes, rows);
  }
}

void RankMemory::start_counters(std::uint64_t epoch) const {
  const int signals = layout_.signals(heap_.rank);
  for (int copy = 0; copy < plan_.signal_copies; ++copy)
    for (int signal = 0; signal < signals; ++signal) {
      const std::uint64_t next = epoch + static_cast<std::uint64_t>(copy);
      counter(heap_.rank, signal, next).store(layout_.base(heap_.rank, signal, next), std::memory_order_relaxed);
    }
}

void RankMemory::set_counters(HeapHandle heap, std::size_t heap_offset, const PlanShare& half, std::uint32_t count) {
  for (std::size_t i = 0; i < 2 * half.counters; ++i)
    counter_at(heap, heap.rank, heap_offset + 2 * half.bytes + i * HeapLayout::counter_stride)
        .store(count, std::memory_order_relaxed);
}

}  // namespace imbrex::execute
