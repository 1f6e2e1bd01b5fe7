// Where the regions of a plan with library collectives lie on one rank's GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "execute/layout.hpp"
#include "imbrex/advanced/execute.hpp"
#include "plan/operand_buffers.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

/// The caller's operands are aligned to this, workspaces to more.
inline constexpr std::size_t operand_alignment = 16;

/// Memory of plans that take turns: while one of them runs, all of it is its own. What turns out too small stays with
/// those that have it.
class SharedRoom {
 public:
  /// At least so many bytes, the same for every plan that asks for this `place` until a larger one does, which gets
  /// `more` on top.
  std::shared_ptr<void> take(std::size_t place, std::size_t bytes, std::size_t more = 0) {
    places_.resize(std::max(places_.size(), place + 1));
    Place& at = places_[place];
    if (at.bytes < bytes) at = {bytes + more, raw_memory(bytes + more)};
    return at.memory;
  }

 private:
  struct Place {
    std::size_t bytes = 0;
    std::shared_ptr<void> memory;
  };
  std::vector<Place> places_;
};

/// The workspaces, and addresses in them and in the caller's operands. One copy of a workspace is enough: streams order
/// a rank's epochs, collectives those of different ranks. So nothing depends on an epoch's number, and a captured graph
/// replays as it is.
///
/// cuBLASLt 13.0 takes no scales that begin inside 16 bytes, as those of one source among all do. Where a product has
/// one scale, a workspace of scales has a second copy, whose rows lie 16 bytes apart: a task that writes to the
/// first copies there what it wrote, once for all products.
class LibraryMemory {
 public:
  /// The plan outlives it; the device is selected.
  /// `given`: where its workspaces lie, by buffer; empty: they are taken here, at the first place of `room` if there is
  /// one.
  explicit LibraryMemory(const Plan& plan, std::vector<std::byte*> given = {}, SharedRoom* room = nullptr)
      : plan_(plan), given_(std::move(given)), apart_(plan.buffers.size(), nowhere) {
    std::size_t bytes = 0;
    const auto take = [&](std::size_t size) {
      const std::size_t offset = bytes;
      bytes += (size + alignment_ - 1) / alignment_ * alignment_;
      return offset;
    };
    for (const Buffer& b : plan_.buffers) {
      const std::int64_t length = b.layout == Layout::column_major ? b.rows : b.cols,
                         pitch = plan::pitch_of(plan_.problem, b, static_cast<int>(pitches_.size()));
      pitches_.push_back(pitch == 0 ? length : pitch);
      offsets_.push_back(b.role == BufferRole::workspace && given_.empty()
                             ? take(static_cast<std::size_t>(b.rows * b.cols) * size_of(b.type))
                             : bytes);
    }
    for (const RankPlan& rank : plan_.ranks)
      for (const Queue& queue : rank.queues)
        for (const Task& task : queue.tasks)
          if (const auto* p = std::get_if<Product>(&task.work); p != nullptr && is_single_scale(p->a_scale))
            if (std::size_t& apart = apart_[static_cast<std::size_t>(p->a_scale.buffer)]; apart == nowhere)
              apart = take(static_cast<std::size_t>(buffer(p->a_scale).rows) * operand_alignment);
    // Plans of sizes between those that were surveyed may take a little more.
    workspaces_ = room != nullptr ? room->take(0, bytes, bytes / 8) : std::shared_ptr<void>(raw_memory(bytes));
  }

  /// The address of the region's first element.
  std::byte* at(const Region& r, const Addresses& operands) const { return base_of(r.buffer, operands) + offset_of(r); }

  /// Whether the region's rows have a second copy.
  bool has_apart(const Region& r) const { return apart_[static_cast<std::size_t>(r.buffer)] != nowhere; }

  /// The address of the region's first row there; rows are operand_alignment apart.
  std::byte* at_apart(const Region& r) const {
    return static_cast<std::byte*>(workspaces_.get()) + apart_[static_cast<std::size_t>(r.buffer)] +
           static_cast<std::size_t>(r.row) * operand_alignment;
  }

  /// Elements from one row to the next, or of what lies by columns, from one column.
  std::int64_t pitch(const Region& r) const { return pitches_[static_cast<std::size_t>(r.buffer)]; }

  /// The alignment of `at`, and of what lies any number of times `row_step` rows further, in bytes.
  std::uint32_t alignment(const Region& r, std::int64_t row_step) const {
    const Buffer& b = buffer(r);
    const std::size_t base = b.role == BufferRole::workspace ? alignment_ : operand_alignment,
                      step = static_cast<std::size_t>(row_step * pitch(r)) * size_of(b.type),
                      all = base | offset_of(r) | step;
    return static_cast<std::uint32_t>(all & (~all + 1));
  }

  /// Keeps the memory from being freed, which would wait for the device.
  void leak() { static_cast<void>(new std::shared_ptr<void>(std::move(workspaces_))); }

 private:
  const Buffer& buffer(const Region& r) const { return plan_.buffers[static_cast<std::size_t>(r.buffer)]; }
  std::byte* base_of(int buffer, const Addresses& operands) const {
    switch (plan_.buffers[static_cast<std::size_t>(buffer)].role) {
      case BufferRole::workspace:
        if (!given_.empty()) return given_[static_cast<std::size_t>(buffer)];
        return static_cast<std::byte*>(workspaces_.get()) + offsets_[static_cast<std::size_t>(buffer)];
      case BufferRole::output: return static_cast<std::byte*>(execute::output_of(operands, plan_.problem, buffer));
      case BufferRole::input: break;
    }
    return static_cast<std::byte*>(const_cast<void*>(execute::input_of(operands, plan_.problem, buffer)));
  }
  bool by_columns(const Region& r) const { return buffer(r).layout == Layout::column_major; }
  std::size_t offset_of(const Region& r) const {
    const std::int64_t first = by_columns(r) ? r.col * pitch(r) + r.row : r.row * pitch(r) + r.col;
    return static_cast<std::size_t>(first) * size_of(buffer(r).type);
  }

  bool is_single_scale(const Region& r) const {
    return !r.empty() && plan_.problem.scales == Scales::tensor && buffer(r).role == BufferRole::workspace &&
           buffer(r).cols == 1;
  }

  static constexpr std::size_t alignment_ = 256;
  static constexpr std::size_t nowhere = ~std::size_t{0};

  const Plan& plan_;
  std::vector<std::byte*> given_;
  std::vector<std::int64_t> pitches_;  // by buffer
  std::vector<std::size_t> offsets_;   // of workspaces, by buffer
  std::vector<std::size_t> apart_;     // of second copies
  std::shared_ptr<void> workspaces_;
};

}  // namespace imbrex::cuda
