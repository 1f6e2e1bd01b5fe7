// Where the regions of a plan with library collectives lie on one rank's GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "execute/layout.hpp"
#include "imbrex/execute.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

/// The caller's operands are aligned to this, workspaces to more.
inline constexpr std::size_t operand_alignment = 16;

/// The workspaces, and addresses in them and in the caller's operands. One copy of a workspace is enough: streams order
/// a rank's epochs, collectives those of different ranks. So nothing depends on an epoch's number, and a captured graph
/// replays as it is.
class LibraryMemory {
 public:
  /// The plan outlives it; the device is selected.
  explicit LibraryMemory(const Plan& plan) : plan_(plan) {
    std::size_t bytes = 0;
    for (const Buffer& b : plan_.buffers) {
      offsets_.push_back(bytes);
      const std::size_t size = static_cast<std::size_t>(b.rows * b.cols) * size_of(b.type);
      if (b.role == BufferRole::workspace) bytes += (size + alignment_ - 1) / alignment_ * alignment_;
    }
    workspaces_ = raw_memory(bytes);
  }

  /// Of the region's first element.
  std::byte* at(const Region& r, const Operands& operands) const {
    const auto* input = static_cast<const std::byte*>(input_of(operands, plan_.problem, r.buffer));
    std::byte* base = buffer(r).role == BufferRole::workspace
                          ? static_cast<std::byte*>(workspaces_.get()) + offsets_[static_cast<std::size_t>(r.buffer)]
                      : buffer(r).role == BufferRole::output ? static_cast<std::byte*>(operands.out)
                                                             : const_cast<std::byte*>(input);
    return base + offset_of(r);
  }

  /// Elements from one row to the next, or of what lies by columns, from one column.
  std::int64_t pitch(const Region& r) const { return by_columns(r) ? buffer(r).rows : buffer(r).cols; }

  /// Of `at`, and of what lies any number of times `row_step` rows further, in bytes.
  std::uint32_t alignment(const Region& r, std::int64_t row_step) const {
    const Buffer& b = buffer(r);
    const std::size_t base = b.role == BufferRole::workspace ? alignment_ : operand_alignment,
                      step = static_cast<std::size_t>(row_step * b.cols) * size_of(b.type),
                      all = base | offset_of(r) | step;
    return static_cast<std::uint32_t>(all & (~all + 1));
  }

  /// Keeps the memory from being freed, which would wait for the device.
  void leak() { static_cast<void>(workspaces_.release()); }

 private:
  const Buffer& buffer(const Region& r) const { return plan_.buffers[static_cast<std::size_t>(r.buffer)]; }
  bool by_columns(const Region& r) const { return buffer(r).layout == Layout::column_major; }
  std::size_t offset_of(const Region& r) const {
    const Buffer& b = buffer(r);
    return static_cast<std::size_t>(by_columns(r) ? r.col * b.rows + r.row : r.row * b.cols + r.col) * size_of(b.type);
  }

  static constexpr std::size_t alignment_ = 256;

  const Plan& plan_;
  std::vector<std::size_t> offsets_;  // of workspaces, by buffer
  RawMemory workspaces_;
};

}  // namespace imbrex::cuda
