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

std::optional<std::size_t> OffsetAllocator::allocate(std::size_t bytes) {
  if (bytes > std::size_t(-1) - alignment) return std::nullopt;
  bytes = std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
  const auto fit = std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= bytes; });
  if (fit == free_.end()) return std::nullopt;
  const auto [offset, available] = *fit;
  live_.emplace(offset, bytes);
  free_.erase(fit);
  if (available > bytes) free_.emplace(offset + bytes, available - bytes);
  return offset;
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

std::size_t HostHeap::allocate(std::size_t bytes) {
  const auto offset = allocator_.allocate(bytes);
  if (!offset)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("symmetric heap is full: {} bytes asked, {} left, {} of them in one piece; "
                            "make the world with more heap_bytes",
                            bytes, allocator_.free_bytes(), allocator_.largest_free()));
  return *offset;
}

void HostHeap::release(std::size_t offset) noexcept {
  // Free memory is always zero: fresh pages are, and each rank zeroes its own part here. Zeroing on allocation instead
  // would wipe what a faster peer has already put there.
  if (const auto bytes = allocator_.release(offset)) zero_shared(handle_.at(handle_.rank, offset), *bytes);
}

}  // namespace imbrex::runtime
