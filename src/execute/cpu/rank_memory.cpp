#include "execute/cpu/rank_memory.hpp"

#include <cstring>

namespace imbrex::execute {
namespace {

std::size_t bytes_of(const Buffer& b) { return static_cast<std::size_t>(b.rows * b.cols) * size_of(b.type); }

}  // namespace

std::byte* RankMemory::base(int rank, int buffer) const {
  if (layout_.in_heap(buffer)) return heap_.at(rank, heap_offset_ + layout_.offset(buffer, epoch_));
  // Only this rank touches an operand that is not in the heap; nothing writes an input (check_format).
  if (plan_.buffers[static_cast<std::size_t>(buffer)].role == BufferRole::output)
    return static_cast<std::byte*>(output_of(operands_, plan_.problem, buffer));
  return static_cast<std::byte*>(const_cast<void*>(input_of(operands_, plan_.problem, buffer)));
}

void RankMemory::stage_inputs() const {
  for (int buffer = 0; buffer < std::ssize(plan_.buffers); ++buffer)
    if (plan_.buffers[static_cast<std::size_t>(buffer)].role == BufferRole::input && layout_.in_heap(buffer))
      std::memcpy(base(heap_.rank, buffer), input_of(operands_, plan_.problem, buffer),
                  bytes_of(plan_.buffers[static_cast<std::size_t>(buffer)]));
}

void RankMemory::unstage_outputs() const {
  for (int buffer = 0; buffer < std::ssize(plan_.buffers); ++buffer)
    if (plan_.buffers[static_cast<std::size_t>(buffer)].role == BufferRole::output && layout_.in_heap(buffer))
      std::memcpy(output_of(operands_, plan_.problem, buffer), base(heap_.rank, buffer),
                  bytes_of(plan_.buffers[static_cast<std::size_t>(buffer)]));
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
