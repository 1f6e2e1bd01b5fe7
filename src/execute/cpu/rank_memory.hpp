// One rank's view of a plan's memory during one epoch.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "execute/layout.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/world.hpp"
#include "plan/builder.hpp"

namespace imbrex::execute {

class RankMemory {
 public:
  RankMemory(const Plan& plan, const HeapLayout& layout, HeapHandle heap, std::size_t heap_offset)
      : plan_(plan), layout_(layout), heap_(heap), heap_offset_(heap_offset) {}

  /// `counts`: what this rank's counters show when the epoch begins, where the layout does not say so; see PlanPool.
  void enter(const Addresses& operands, std::uint64_t epoch, std::span<const std::uint32_t> counts = {}) {
    operands_ = operands;
    epoch_ = epoch;
    counts_ = counts;
  }

  /// Address of the region's first element; rows (of B by columns: columns) are `pitch(region)` bytes apart, the bias's
  /// all the same.
  std::byte* at(const Region& r) const {
    const Buffer& b = plan_.buffers[static_cast<std::size_t>(r.buffer)];
    const std::int64_t pitch = layout_.pitch(r.buffer),
                       first = by_columns(r) ? r.col * pitch + r.row : r.row * pitch + r.col;
    return base(r.rank, r.buffer) + static_cast<std::size_t>(first) * size_of(b.type);
  }
  std::size_t pitch(const Region& r) const {
    if (plan::is_bias(plan_.problem, r)) return 0;  // one row for all
    const Buffer& b = plan_.buffers[static_cast<std::size_t>(r.buffer)];
    return static_cast<std::size_t>(layout_.pitch(r.buffer)) * size_of(b.type);
  }
  bool by_columns(const Region& r) const {
    return plan_.buffers[static_cast<std::size_t>(r.buffer)].layout == Layout::column_major;
  }
  const void* given() const { return operands_.given; }
  Scales scales() const { return plan_.problem.scales; }
  /// The scale of each of the columns of this rank's B from `col` on, or the one of all of them.
  const float* b_scale(std::int64_t col) const {
    return operands_.b_scale + (plan_.problem.scales == Scales::row ? col : 0);
  }
  Type type(const Region& r) const { return plan_.buffers[static_cast<std::size_t>(r.buffer)].type; }
  bool fragment(const Region& r) const {
    return plan_.buffers[static_cast<std::size_t>(r.buffer)].layout == Layout::fragment;
  }

  /// Copies the caller's operand to the heap if peers read it there, and results back.
  void stage_inputs() const;
  void unstage_outputs() const;

  std::uint32_t seen(int signal) const { return counter(heap_.rank, signal).load(std::memory_order_acquire); }
  std::uint32_t expected(int signal, std::uint32_t count) const {
    return (counts_.empty() ? layout_.base(heap_.rank, signal, epoch_) : counts_[static_cast<std::size_t>(signal)]) +
           count;
  }
  /// Everything that this thread wrote, or saw to be written, is visible to threads that see the post.
  void post(int rank, int signal) const { counter(rank, signal).fetch_add(1, std::memory_order_release); }

  /// Sets this rank's counters to what they show when `epoch` is the first.
  void start_counters(std::uint64_t epoch) const;

  /// Sets all of this rank's counters in memory of two such halves to `count`.
  static void set_counters(HeapHandle heap, std::size_t heap_offset, const PlanShare& half, std::uint32_t count);

 private:
  std::byte* base(int rank, int buffer) const;
  static std::atomic_ref<std::uint32_t> counter_at(HeapHandle heap, int rank, std::size_t offset) {
    return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(heap.at(rank, offset)));
  }
  std::atomic_ref<std::uint32_t> counter(int rank, int signal, std::uint64_t epoch) const {
    return counter_at(heap_, rank, heap_offset_ + layout_.counter(signal, epoch));
  }
  std::atomic_ref<std::uint32_t> counter(int rank, int signal) const { return counter(rank, signal, epoch_); }

  const Plan& plan_;
  const HeapLayout& layout_;
  HeapHandle heap_;
  std::size_t heap_offset_;
  Addresses operands_;
  std::uint64_t epoch_ = 0;
  std::span<const std::uint32_t> counts_;
};

}  // namespace imbrex::execute
