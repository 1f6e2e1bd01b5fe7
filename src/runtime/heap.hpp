// The symmetric heap in host memory, and the allocator that every symmetric heap shares.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// First fit over the offsets 0..capacity, and ranges added later. Its answers depend only on the calls before, so
/// ranks that make the same calls get the same offsets without talking.
class OffsetAllocator {
 public:
  static constexpr std::size_t alignment = 256;

  explicit OffsetAllocator(std::size_t capacity);

  /// More to give: `bytes` from `offset` on, which is beyond all that it has and starts at a multiple of the alignment.
  /// No allocation spans two ranges unless they touch.
  void add(std::size_t offset, std::size_t bytes);

  /// Nothing where no free range is long enough. Zero bytes take one unit, so that offsets are unique.
  std::optional<std::size_t> allocate(std::size_t bytes);

  /// Bytes that were taken at `offset`; nothing if none were.
  std::optional<std::size_t> release(std::size_t offset);

  std::size_t free_bytes() const;
  std::size_t largest_free() const;

 private:
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes; neighbours are always merged
  std::map<std::size_t, std::size_t> live_;
};

/// Symmetric heap in memory that the caller keeps mapped: rank r's part begins at base + r * stride.
class HostHeap final : public SymmetricHeap {
 public:
  HostHeap(HeapHandle handle, std::size_t bytes) : handle_(handle), allocator_(bytes) {}

  std::size_t allocate(std::size_t bytes) override;
  void release(std::size_t offset) noexcept override;
  HeapHandle handle() const override { return handle_; }

 private:
  HeapHandle handle_;
  OffsetAllocator allocator_;
};

}  // namespace imbrex::runtime
