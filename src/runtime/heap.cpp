#include "runtime/heap.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "runtime/memory.hpp"

namespace imbrex::runtime {

OffsetAllocator::OffsetAllocator(std::size_t capacity) { add(0, capacity); }

void OffsetAllocator::add(std::size_t offset, std::size_t bytes) {
  bytes -= bytes % alignment;
  if (bytes == 0) return;
  live_.emplace(offset, bytes);
  release(offset);  // joins what it touches
}

bool OffsetAllocator::remove(std::size_t offset, std::size_t bytes) {
  bytes -= bytes % alignment;
  const auto range = free_.find(offset);
  if (range == free_.end() || range->second != bytes) return false;
  free_.erase(range);
  // What follows all that is left was never used, once there is memory again.
  const bool last =
      (free_.empty() || free_.rbegin()->first < offset) && (live_.empty() || live_.rbegin()->first < offset);
  if (last) used_ = std::min(used_, offset);
  return true;
}

namespace {

// Nothing where the sum would wrap.
std::optional<std::size_t> in_units(std::size_t bytes) {
  constexpr std::size_t unit = OffsetAllocator::alignment;
  if (bytes > std::size_t(-1) - unit) return std::nullopt;
  return std::max(unit, (bytes + unit - 1) / unit * unit);
}

}  // namespace

std::optional<std::size_t> OffsetAllocator::take(std::map<std::size_t, std::size_t>::iterator range,
                                                 std::size_t skipped, std::size_t bytes) {
  const auto [begin, available] = *range;
  if (available < skipped || available - skipped < bytes) return std::nullopt;
  const std::size_t offset = begin + skipped;
  live_.emplace(offset, bytes);
  free_.erase(range);
  if (skipped > 0) free_.emplace(begin, skipped);
  if (available - skipped > bytes) free_.emplace(offset + bytes, available - skipped - bytes);
  used_ = std::max(used_, offset + bytes);
  return offset;
}

std::optional<std::size_t> OffsetAllocator::allocate(std::size_t bytes) {
  const auto units = in_units(bytes);
  if (!units) return std::nullopt;
  for (auto range = free_.begin(); range != free_.end(); ++range)
    if (const auto offset = take(range, 0, *units)) return offset;
  return std::nullopt;
}

std::optional<std::size_t> OffsetAllocator::allocate_unused(std::size_t bytes) {
  const auto units = in_units(bytes);
  if (!units) return std::nullopt;
  for (auto range = free_.begin(); range != free_.end(); ++range)
    if (const auto offset = take(range, used_ - std::min(used_, range->first), *units)) return offset;
  return std::nullopt;
}

std::optional<std::size_t> OffsetAllocator::release(std::size_t offset) {
  const auto found = live_.find(offset);
  if (found == live_.end()) return std::nullopt;
  const std::size_t bytes = found->second;
  live_.erase(found);
  const auto range = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(range); next != free_.end() && offset + bytes == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    const auto previous = std::prev(range);
    if (previous->first + previous->second == offset) {
      previous->second += range->second;
      free_.erase(range);
    }
  }
  return bytes;
}

std::size_t OffsetAllocator::free_bytes() const {
  std::size_t sum = 0;
  for (const auto& [offset, bytes] : free_) sum += bytes;
  return sum;
}

std::size_t OffsetAllocator::largest_free() const {
  std::size_t largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

std::size_t OffsetAllocator::unused_bytes() const {
  std::size_t sum = 0;
  for (const auto& [offset, bytes] : free_) sum += bytes - std::min(bytes, used_ - std::min(used_, offset));
  return sum;
}

std::size_t HostHeap::allocate(std::size_t bytes) {
  const auto offset = allocator_.allocate(bytes);
  if (!offset)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("symmetric heap is full: {} bytes asked, {} left, {} of them in one piece; "
                            "make the world with more heap_bytes",
                            bytes, allocator_.free_bytes(), allocator_.largest_free()));
  return *offset;
}

std::size_t HostHeap::allocate_unused(std::size_t bytes) {
  const auto offset = allocator_.allocate_unused(bytes);
  if (!offset)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("symmetric heap is full: {} never used bytes asked, {} left of these; "
                            "make the world with more heap_bytes",
                            bytes, allocator_.unused_bytes()));
  return *offset;
}

void HostHeap::release(std::size_t offset) noexcept {
  // Free memory is always zero: fresh pages are, and each rank zeroes its own part here. Zeroing on allocation instead
  // would wipe what a faster peer has already put there.
  if (const auto bytes = allocator_.release(offset)) zero_shared(handle_.at(handle_.rank, offset), *bytes);
}

}  // namespace imbrex::runtime
